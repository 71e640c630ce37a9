"""Writing a launch back: the user's script, byte for byte, with some overrides changed."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Collection, Mapping

from autotune.launch.hydra import format_override
from autotune.launch.launch import Launch, Override, Span
from autotune.values import KnobValue


def write_back(launch: Launch, changes: Mapping[str, KnobValue], *, new_keys: Collection[str] = ()) -> str:
    """The script with these overrides.

    A value that stands in the script as it is gets changed in place; any other is overridden behind the last one.

    Args:
        new_keys: keys that verl's schema does not have; they get a `+`.
    """
    edits: list[tuple[Span, str]] = []
    appended: list[str] = []
    for key, value in changes.items():
        last = _last(launch, key)
        if last is not None and last.span is not None and last.literal:
            edits.append((last.span, shlex.quote(format_override(key, value, last.op))))
        else:
            op = "add" if key in new_keys and last is None else "set"
            appended.append(shlex.quote(format_override(key, value, op)))
    if appended:
        newline = "\r\n" if "\r\n" in launch.text else "\n"
        glue = f" \\{newline}{launch.indent}"
        edits.append((Span(launch.end, launch.end), glue + glue.join(appended)))
    text = launch.text
    for span, word in sorted(edits, key=lambda edit: (-edit[0].start, -edit[0].end)):
        text = text[: span.start] + word + text[span.end :]
    return text


def diff(launch: Launch, text: str) -> str:
    """Unified diff from the user's script to `text`."""
    name = launch.path or "launch"
    return "".join(
        difflib.unified_diff(launch.text.splitlines(keepends=True), text.splitlines(keepends=True), name, "best.sh")
    )


def _last(launch: Launch, key: str) -> Override | None:
    found = [override for override in launch.overrides if override.key == key]
    return found[-1] if found else None
