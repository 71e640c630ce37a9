"""A launch as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.values import BadInput

SUPPORTED = frozenset({"verl.trainer.main_ppo"})
"""Entry points that autotune tunes."""


class LaunchError(BadInput):
    """A launch that cannot be read; `code` is stable, `line` counts from 1."""

    def __init__(self, code: str, message: str, line: int | None = None, path: str | None = None) -> None:
        where = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(f"{where}{message}")
        self.code = code
        self.line = line
        self.message = message


@dataclass(frozen=True, slots=True)
class Span:
    """Where a word stands in the script, as offsets into its text."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Override:
    """One Hydra override of the launch."""

    op: str
    """`set`, `add` (`+`), `force_add` (`++`) or `delete` (`~`)."""
    key: str
    value: str | None
    """As verl receives it, after the shell's expansion; None for a deletion without a value."""
    typed: Any
    """The value as Hydra's own parser reads it."""
    line: int | None = None
    span: Span | None = None
    """The word in the script; None: not written there."""
    literal: bool = False
    """Whether the value stands in the script as it is, without expansion, so that it may be changed in place."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How the user starts verl, as far as it can be known without running anything."""

    path: str | None
    text: str
    """The script, character by character."""
    launcher: str
    entrypoint: str
    hydra_flags: Mapping[str, str]
    overrides: tuple[Override, ...]
    env: Mapping[str, str]
    """Variables that the script exports or sets for the launch."""
    cwd: str
    passthrough: str | None = None
    wrappers: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    lint: tuple[Mapping[str, Any], ...] = ()
    not_executed: tuple[tuple[int, str], ...] = ()
    """(line, text) of the script's other commands, which autotune does not run."""
    end: int = 0
    """Offset behind the last word of the launch command, where overrides are appended."""
    indent: str = "    "

    @property
    def supported(self) -> bool:
        """Whether autotune tunes this entry point."""
        return self.entrypoint in SUPPORTED

    def arguments(self) -> list[str]:
        """What follows `python -m entrypoint`: Hydra's flags, then the overrides in order."""
        signs = {"set": "", "add": "+", "force_add": "++", "delete": "~"}
        flags = [f"--{name}={value}" for name, value in self.hydra_flags.items()]
        return flags + [f"{signs[o.op]}{o.key}" + ("" if o.value is None else f"={o.value}") for o in self.overrides]

    def value(self, key: str) -> Any:
        """The typed value of the last override of `key`; None where there is none."""
        found = [override.typed for override in self.overrides if override.key == key]
        return found[-1] if found else None
