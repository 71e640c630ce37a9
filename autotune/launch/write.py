"""Writes changed overrides into the user's script, touching nothing else."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from autotune.launch.errors import LaunchError
from autotune.launch.hydra_grammar import format_override, format_value
from autotune.launch.launch import Launch, Override
from autotune.launch.read import Source, clean, read_text
from autotune.launch.syntax import DoubleQuoted, Literal, Word
from autotune.values import KnobValue

_SAFE = re.compile(r"[A-Za-z0-9_./:@%+,-]*\Z", re.ASCII)


def write_back(launch: Launch, changes: Mapping[str, KnobValue], *, new_keys: Collection[str] = ()) -> str:
    """The user's script with these overrides changed, and byte for byte the same elsewhere.

    A value that stands literally in the script is changed there; one that comes from a variable or a loop, or that the script does not
    set, is appended to the launch command, before the script's own arguments, so that these still win. Windows line ends and a byte order
    mark, with which bash cannot run the file, are not kept. The result is read again and compared before it is returned.

    Args:
        launch: from `read_launch`.
        changes: Hydra keys and values.
        new_keys: those that verl's schema does not have: they are appended with `+`.

    Raises:
        LaunchError: `WRITE_BACK`, where no place in the script can carry a change.
    """
    text, _ = clean(launch.text)
    if not changes:
        return text
    context = replace(launch.context, set_overrides=())
    source = Source(text, launch.path, launch.kind, {})
    current = read_text(source, context)
    for key, value in changes.items():
        current = _change(current, key, value, key in new_keys)
    return current.text


def diff(launch: Launch, new_text: str) -> str:
    """What `new_text` changes in the user's script, as a unified diff."""
    name = launch.path or "command"
    old, new = launch.text.splitlines(keepends=True), new_text.splitlines(keepends=True)
    rows = difflib.unified_diff(old, new, f"{name} (yours)", f"{name} (tuned)")
    return "".join(row if row.endswith("\n") else row + "\n\\ No newline at end of file\n" for row in rows)


def quote(text: str) -> str:
    """One word for bash, in the quotes that are easiest to read."""
    if "'" in text and not re.search(r"[\\\"$`!\n]", text):
        return f'"{text}"'
    return shlex.quote(text)


def _change(launch: Launch, key: str, value: KnobValue, new: bool) -> Launch:
    """The launch with one override changed, by the first way that reads back as meant."""
    last = next((o for o in reversed(launch.overrides) if o.key == key and not o.passthrough), None)
    if last is not None and last.op != "delete" and _equal(last.typed, value) and not last.unknown:
        return launch
    earlier = [o for o in launch.overrides if o.key == key and not o.passthrough]
    if any(o.op == "delete" for o in earlier):
        op = "force_add"
    else:
        op = "add" if new and not any(o.op in ("add", "force_add") for o in earlier) else "set"
    argument = format_override(key, value, op)
    ways: list[Callable[[], str | None]] = [
        lambda: _in_place(launch, last, value),
        lambda: _inside_quotes(launch, last, value),
        lambda: _append(launch, argument, before_arguments=True),
        lambda: _append(launch, argument, before_arguments=False),
        lambda: _append_inside_quotes(launch, argument),
    ]
    for way in ways:
        text = way()
        if text is None:
            continue
        try:
            written = read_text(Source(text, launch.path, launch.kind, {}), launch.context)
        except LaunchError:
            continue
        if _as_meant(launch, written, key, value):
            return written
    raise LaunchError(
        "WRITE_BACK",
        f"{argument} cannot be written into {launch.path or 'the command'}: the launch stands where autotune cannot edit it (line {launch.line}); "
        f'let it pass "$@" on, or add the override by hand',
        line=launch.line,
    )


def _as_meant(before: Launch, after: Launch, key: str, value: KnobValue) -> bool:
    def rest(launch: Launch) -> object:
        others = [(o.op, o.key, o.value) for o in launch.overrides if o.key != key]
        same = (
            launch.launcher,
            launch.entrypoint,
            dict(launch.hydra_flags),
            dict(launch.env),
            launch.cwd,
            launch.wrappers,
            launch.passthrough,
        )
        return others, same, [u for u in launch.unresolved if u.key != key and u.line is None]

    final = next((o for o in reversed(after.overrides) if o.key == key and not o.passthrough), None)
    return rest(before) == rest(after) and final is not None and final.op != "delete" and _equal(final.typed, value)


def _equal(read: object, value: KnobValue) -> bool:
    if isinstance(value, float) and value != value:
        return read == "NaN"
    return type(read) is type(value) and read == value


def _in_place(launch: Launch, last: Override | None, value: KnobValue) -> str | None:
    if last is None or last.op == "delete" or last.word is None or not _literal(last.word) or "\\\n" in last.word.raw:
        return None
    word, formatted = last.word, format_value(value)
    if launch.text[word.start : word.end] != word.raw:
        return None
    bare = re.match(r"[+~]{0,2}[^='\"\\$`]+=", word.raw)
    if bare:
        written = bare[0] + _requoted(word.raw[bare.end() :], formatted)
    else:
        written = _requoted(word.raw, last.argument.partition("=")[0] + "=" + formatted)
    return launch.text[: word.start] + written + launch.text[word.end :]


def _literal(word: Word) -> bool:
    return all(
        isinstance(part, Literal)
        or (isinstance(part, DoubleQuoted) and all(isinstance(inner, Literal) for inner in part.parts))
        for part in word.parts
    )


def _requoted(old: str, new: str) -> str:
    """`new` for bash, in the quotes that the old text had where they fit."""
    mark = old[:1]
    if mark and mark in "'\"" and len(old) > 1 and old[-1] == mark and mark not in old[1:-1]:
        if mark == "'" and "'" not in new:
            return f"'{new}'"
        if mark == '"' and not re.search(r"[\\\"$`!]", new):
            return f'"{new}"'
    return quote(new) if new else new


def _append(launch: Launch, argument: str, *, before_arguments: bool) -> str | None:
    """The argument after the last word of the launch command; before a final `"$@"`, so that the user's own arguments still win."""
    node = launch.node
    if node is None or node.source != 0:
        return None
    words = [word for word in node.words if isinstance(word, Word)]
    while before_arguments and len(words) > 1 and re.fullmatch(r"\"?\$(\{[@*]([:-].*)?\}|[@*])\"?", words[-1].raw):
        words.pop()
    text, last = launch.text, words[-1]
    if any(word.start < 0 or text[word.start : word.end] != word.raw for word in words):
        return None
    line_start = text.rfind("\n", 0, last.start) + 1
    quoted = quote(argument)
    if line_start > node.start:
        indent = re.match(r"[ \t]*", text[line_start:])
        joint = f" \\\n{indent[0] if indent else '    '}"
    else:
        joint = " "
    return text[: last.end] + joint + quoted + text[last.end :]


def _outer_text(launch: Launch) -> tuple[int, int] | None:
    node = launch.node
    if node is None or node.source != 0:
        return None
    end = node.end
    for redirect in node.redirects:
        if redirect.body is not None:
            end = max(end, redirect.body.end)
    return node.start, end


def _inside_quotes(launch: Launch, last: Override | None, value: KnobValue) -> str | None:
    """A value that stands once, as `key=value`, inside a nested command such as `bash -c '…'`."""
    span = _outer_text(launch)
    if last is None or span is None or last.word is not None or last.op == "delete" or last.unknown:
        return None
    formatted = format_value(value)
    inner = launch.text[span[0] : span[1]]
    found = list(re.finditer(rf"(?<![\w.+~]){re.escape(last.argument)}(?![\w./])", inner))
    if len(found) != 1 or not _SAFE.match(formatted):
        return None
    start = span[0] + found[0].start() + last.argument.index("=") + 1
    return launch.text[:start] + formatted + launch.text[span[0] + found[0].end() :]


def _append_inside_quotes(launch: Launch, argument: str) -> str | None:
    """The argument after the last override that stands literally inside a nested command."""
    span = _outer_text(launch)
    if span is None:
        return None
    inner = launch.text[span[0] : span[1]]
    for override in reversed(launch.overrides):
        at = inner.rfind(override.argument)
        if override.passthrough or not _SAFE.match(override.argument.replace("=", "")) or at < 0:
            continue
        place = span[0] + at + len(override.argument)
        before = inner[:at]
        quoted = quote(argument)
        if quoted != argument:
            outer = _open_quote(before)
            quoted = (
                quoted.replace("'", "'\\''")
                if outer == "'"
                else re.sub(r'([\\"$`])', r"\\\1", quoted)
                if outer == '"'
                else quoted
            )
        return launch.text[:place] + " " + quoted + launch.text[place:]
    return None


def _open_quote(text: str) -> str:
    mark = ""
    skip = False
    for char in text:
        if skip:
            skip = False
        elif char == "\\" and mark != "'":
            skip = True
        elif char in "'\"" and char and mark in ("", char):
            mark = "" if mark else char
    return mark
