"""The pieces of a bash script as the parser finds them. Offsets count characters of the text that was parsed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Literal:
    """Characters that stand for themselves; `quoted` ones are never split, globbed or brace-expanded."""

    text: str
    quoted: bool
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class DoubleQuoted:
    """`"…"`."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """`$name` or `${…}`. `operator` is empty or one of bash's (`:-`, `##`, `//`, `:`, `^^`, …)."""

    name: str
    raw: str
    line: int
    index: Word | None = None
    operator: str = ""
    argument: Word | None = None
    second: Word | None = None
    length: bool = False
    indirect: bool = False


@dataclass(frozen=True, slots=True)
class CommandSubstitution:
    """`$(…)` or backticks."""

    body: Sequence_
    raw: str
    line: int


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`$((…))`."""

    expression: Word
    raw: str
    line: int


@dataclass(frozen=True, slots=True)
class ProcessSubstitution:
    """`<(…)` or `>(…)`."""

    body: Sequence_
    raw: str
    line: int


Part: TypeAlias = "Literal | DoubleQuoted | Parameter | CommandSubstitution | Arithmetic | ProcessSubstitution"


@dataclass(frozen=True, slots=True)
class Word:
    """One word of the shell with its place in the text: `text[start:end]`."""

    parts: tuple[Part, ...]
    start: int
    end: int
    line: int
    raw: str
    source: int = 0
    """Which text the offsets count in: 0 is the user's script, others are sourced files and nested commands."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """`NAME=value`, `NAME+=value`, `NAME[i]=value` or `NAME=(…)`."""

    name: str
    value: Word | None
    append: bool
    line: int
    index: Word | None = None
    items: tuple[Word, ...] | None = None


@dataclass(slots=True)
class Redirect:
    """A redirection; for heredocs `body` holds the text, which the parser meets only at the end of the line."""

    operator: str
    target: Word | None
    descriptor: str = ""
    body: Word | None = None


@dataclass(frozen=True, slots=True)
class Simple:
    """A command with its arguments."""

    assignments: tuple[Assignment, ...]
    words: tuple[Word | Assignment, ...]
    redirects: tuple[Redirect, ...]
    start: int
    end: int
    line: int
    source: int = 0


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands joined by `|`."""

    commands: tuple[Command, ...]
    negated: bool
    timed: bool


@dataclass(frozen=True, slots=True)
class AndOr:
    """Pipelines joined by `&&` and `||`; `operators[i]` stands before `pipelines[i + 1]`."""

    pipelines: tuple[Pipeline, ...]
    operators: tuple[str, ...]
    background: bool
    line: int


@dataclass(frozen=True, slots=True)
class Sequence_:
    """Statements one after another."""

    statements: tuple[AndOr, ...]


@dataclass(frozen=True, slots=True)
class If:
    """`branches` are (condition, body) pairs."""

    branches: tuple[tuple[Sequence_, Sequence_], ...]
    otherwise: Sequence_ | None
    line: int


@dataclass(frozen=True, slots=True)
class For:
    """`for name in words`; `words` None: over the script's arguments."""

    name: str
    words: tuple[Word, ...] | None
    body: Sequence_
    line: int


@dataclass(frozen=True, slots=True)
class ArithmeticFor:
    """`for ((a; b; c))`."""

    setup: Word
    test: Word
    step: Word
    body: Sequence_
    line: int


@dataclass(frozen=True, slots=True)
class While:
    """`while` or, with `until`, its opposite."""

    condition: Sequence_
    body: Sequence_
    until: bool
    line: int


@dataclass(frozen=True, slots=True)
class Case:
    """`arms` are (patterns, body, terminator)."""

    subject: Word
    arms: tuple[tuple[tuple[Word, ...], Sequence_, str], ...]
    line: int


@dataclass(frozen=True, slots=True)
class Group:
    """`{ …; }` or, as a subshell, `( … )`."""

    body: Sequence_
    subshell: bool
    line: int


@dataclass(frozen=True, slots=True)
class Function:
    """A function definition."""

    name: str
    body: Command
    line: int


@dataclass(frozen=True, slots=True)
class Condition:
    """`[[ … ]]`, as the words and operators between the brackets."""

    tokens: tuple[Word | str, ...]
    line: int


@dataclass(frozen=True, slots=True)
class ArithmeticCommand:
    """`(( … ))`."""

    expression: Word
    line: int


@dataclass(frozen=True, slots=True)
class Redirected:
    """A compound command with redirections."""

    command: Command
    redirects: tuple[Redirect, ...] = field(default=())


Command: TypeAlias = (
    "Simple | If | For | ArithmeticFor | While | Case | Group | Function | Condition | ArithmeticCommand | Redirected"
)
