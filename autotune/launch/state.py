"""What a shell would hold while it runs a script: variables, functions, options. Unknown text is marked, never guessed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from autotune.launch.syntax import Command, Word

# A value that only a shell can know is carried inside ordinary strings between two code points that no decoded file can
# hold (high surrogates), so that it survives concatenation, splitting and defaults like any other text.
_OPEN, _CLOSE = "\ud800", "\ud801"
_MARK = re.compile(f"{_OPEN}([^{_CLOSE}]*){_CLOSE}")


def unknown(expression: str) -> str:
    """Text that stands for whatever `expression` gives when the script runs."""
    return f"{_OPEN}{shown(expression)}{_CLOSE}"


def is_unknown(text: str) -> bool:
    """Whether any part of the text is known only to a shell."""
    return _OPEN in text


def unknown_parts(text: str) -> list[str]:
    """The expressions inside the text."""
    return _MARK.findall(text)


def shown(text: str) -> str:
    """The text with its unknown parts as the expressions they came from."""
    return text.replace(_OPEN, "").replace(_CLOSE, "")


def split_known(text: str) -> list[tuple[str, bool]]:
    """(text, known) pieces; unknown pieces keep their marks."""
    pieces = []
    last = 0
    for match in _MARK.finditer(text):
        pieces.append((text[last : match.start()], True))
        pieces.append((match[0], False))
        last = match.end()
    pieces.append((text[last:], True))
    return [piece for piece in pieces if piece[0]]


@dataclass(frozen=True, slots=True)
class Field:
    """One argument after expansion, and where it stands literally in a text (None: it was put together)."""

    text: str
    origin: Word | None = None
    line: int | None = None
    unset: tuple[str, ...] = ()
    """Names of unset variables that went into it."""
    braces: bool = False
    """It is one of several that brace expansion made of one word."""
    passthrough: bool = False
    """It came from the script's own arguments."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A shell variable: a string, or an array by index (a string index: an associative one)."""

    text: str | None = None
    items: tuple[tuple[int | str, Field], ...] | None = None
    exported: bool = False
    associative: bool = False

    @property
    def is_array(self) -> bool:
        return self.items is not None

    def scalar(self) -> str | None:
        """What `$name` gives: for arrays the element 0."""
        if self.items is None:
            return self.text
        return next((item.text for key, item in self.items if key in (0, "0")), None)


@dataclass(slots=True)
class Shell:
    """The changing state of one shell."""

    variables: dict[str, Variable]
    positional: list[Field]
    cwd: str
    functions: dict[str, Command] = field(default_factory=dict)
    options: frozenset[str] = frozenset()
    name: str = "bash"
    sources: tuple[str, ...] = ()

    def fork(self) -> Shell:
        """A copy that changes apart from this one."""
        return replace(
            self, variables=dict(self.variables), positional=list(self.positional), functions=dict(self.functions)
        )

    def adopt(self, other: Shell) -> None:
        """Takes over the state of a fork."""
        for name in ("variables", "positional", "cwd", "functions", "options", "sources"):
            setattr(self, name, getattr(other, name))

    def merge(self, others: Iterable[Shell]) -> None:
        """Takes over what several forks agree on; what they do not agree on is unknown from now on."""
        forks = list(others)
        first = forks[0]
        names = {name for fork in forks for name in fork.variables}
        variables: dict[str, Variable] = {}
        for name in names:
            values = [fork.variables.get(name) for fork in forks]
            if all(value == values[0] for value in values):
                if values[0] is not None:
                    variables[name] = values[0]
            else:
                exported = any(value is not None and value.exported for value in values)
                variables[name] = Variable(unknown(f"${name}"), exported=exported)
        cwd = first.cwd if all(fork.cwd == first.cwd for fork in forks) else unknown("$PWD")
        self.adopt(first)
        self.variables, self.cwd = variables, cwd

    def environment(self) -> dict[str, str]:
        """What a program started now would see."""
        return {
            name: variable.scalar() or ""
            for name, variable in self.variables.items()
            if variable.exported and variable.scalar() is not None
        }


def variables_of(env: Mapping[str, str]) -> dict[str, Variable]:
    """Shell variables of an environment."""
    return {name: Variable(value, exported=True) for name, value in env.items() if re.fullmatch(r"[A-Za-z_]\w*", name)}
