"""The user's command as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.launch.syntax import Simple, Word


@dataclass(frozen=True, slots=True)
class Override:
    """One override of the command, in the order in which Hydra gets them."""

    op: str
    """`set`, `add`, `force_add` or `delete`."""
    key: str
    value: str | None
    """After the shell's expansions; what only a shell can know stands as its expression. None: a delete without value."""
    typed: Any
    """As Hydra's own parser types it."""
    line: int | None
    """In the user's script; None: from `--set` or the script's arguments."""
    error: str | None = None
    """Why Hydra's parser refuses it."""
    argument: str = ""
    """The whole argument."""
    word: Word | None = field(default=None, repr=False, compare=False)
    """Where it stands literally, if it does."""
    braces: bool = field(default=False, repr=False)
    unset: tuple[str, ...] = field(default=(), repr=False)
    passthrough: bool = field(default=False, repr=False)
    unknown: tuple[str, ...] = field(default=(), repr=False)

    def to_json(self) -> dict[str, Any]:
        """The object of `overrides` in the JSON of `autotune parse`."""
        shape: dict[str, Any] = {
            "op": self.op,
            "key": self.key,
            "value": self.value,
            "typed": self.typed,
            "line": self.line,
        }
        if self.error is not None:
            shape["hydra_parse"] = "error"
            shape["hydra_message"] = self.error
        return shape


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A value that only a shell can know."""

    key: str
    """The override, variable or option that holds it."""
    expression: str
    line: int | None

    def __str__(self) -> str:
        where = f" (line {self.line})" if self.line is not None else ""
        return f"{self.key}={self.expression}{where}"

    def to_json(self) -> dict[str, Any]:
        """The object of `unresolved` in the JSON of `autotune parse`."""
        return {"key": self.key, "expression": self.expression, "line": self.line}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something worth a warning."""

    code: str
    line: int | None
    message: str

    def to_json(self) -> dict[str, Any]:
        """The object of `lint` in the JSON of `autotune parse`."""
        return {"code": self.code, "line": self.line, "message": self.message}


@dataclass(frozen=True, slots=True)
class Context:
    """What the script was read with, so that a written one can be read the same way and compared."""

    env: Mapping[str, str]
    cwd: str
    home: str | None
    args: tuple[str, ...]
    given: Mapping[str, str]
    set_overrides: tuple[str, ...]
    choose: int | None = None
    reads_files: bool = True
    """False: a text from somebody who may not see this host's files; what it sources or tests for is not known."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The user's training command."""

    path: str | None
    text: str
    """The original text, exactly."""
    kind: str
    """`script`, `yaml`, `config` or `command`."""
    launcher: str
    """The interpreter with its flags, or the launcher such as torchrun with its."""
    entrypoint: str
    """Module name or `.py` file."""
    entrypoint_kind: str
    hydra_flags: Mapping[str, str]
    """Long names without dashes."""
    overrides: tuple[Override, ...]
    env: Mapping[str, str]
    """What the script adds to or changes in the environment of the launch."""
    removed_env: tuple[str, ...]
    """Names that the script takes out of it."""
    cwd: str
    passthrough: str | None
    """How the script hands its own arguments on: `quoted`, `unquoted` or not at all."""
    wrappers: tuple[str, ...]
    unresolved: tuple[Unresolved, ...]
    lint: tuple[Finding, ...]
    not_executed: tuple[tuple[int, str], ...]
    """Commands of the script that reading does not run, as (line, text)."""
    line: int | None
    """Where the launch stands."""
    argv_tail: tuple[str, ...]
    """Everything after the entry point as bash would pass it."""
    context: Context = field(repr=False)
    node: Simple | None = field(default=None, repr=False, compare=False)

    def arguments(self) -> list[str]:
        """Arguments for `python -m entrypoint`: exactly what bash would pass, then the `--set` ones."""
        return [*self.argv_tail, *self.context.set_overrides]

    def value(self, key: str) -> Any:
        """The typed value of a key; the last override wins, a deleted or absent key gives None."""
        return next((o.typed for o in reversed(self.overrides) if o.key == key), None)

    @property
    def module(self) -> str:
        """The entry point as a module for `python -m`, also where the script names verl's file."""
        return "verl.trainer.main_ppo" if self.supported else self.entrypoint

    @property
    def supported(self) -> bool:
        """Whether autotune tunes this entry point."""
        return self.entrypoint_kind == "ppo"

    @property
    def unsupported_reason(self) -> str | None:
        """One sentence; None where it is supported."""
        if self.supported:
            return None
        what = {
            "recipe": "a recipe with a trainer of its own",
            "async": "an asynchronous trainer, in which generation and training overlap on separate GPUs",
            "own": "a program of your own",
        }.get(self.entrypoint_kind, "not a reinforcement-learning trainer")
        return f"{self.entrypoint} is {what}; autotune reads its command but tunes verl.trainer.main_ppo only"

    def to_json(self) -> dict[str, Any]:
        """The object that `autotune parse --json` prints."""
        return {
            "launcher": self.launcher,
            "entrypoint": self.entrypoint,
            "supported": self.supported,
            "unsupported_reason": self.unsupported_reason,
            "hydra_flags": dict(self.hydra_flags),
            "overrides": [override.to_json() for override in self.overrides],
            "env": dict(self.env),
            "removed_env": list(self.removed_env),
            "cwd": self.cwd,
            "line": self.line,
            "passthrough": self.passthrough,
            "wrappers": list(self.wrappers),
            "unresolved": [item.to_json() for item in self.unresolved],
            "lint": [finding.to_json() for finding in self.lint],
            "not_executed": [{"line": line, "text": text} for line, text in self.not_executed],
        }
