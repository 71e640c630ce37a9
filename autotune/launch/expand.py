"""Bash's expansions over a known state: parameters, arithmetic, word splitting, braces, tildes. Nothing is run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from autotune.launch import arithmetic
from autotune.launch.errors import LaunchError, TooComplex
from autotune.launch.patterns import glob_regex
from autotune.launch.state import Field, Shell, Variable, is_unknown, shown, split_known, unknown
from autotune.launch.syntax import (
    Arithmetic,
    CommandSubstitution,
    DoubleQuoted,
    Literal,
    Parameter,
    Part,
    ProcessSubstitution,
    Word,
)

MAX_TEXT = 200_000
"""A value longer than this is refused: doubling a string in a loop would otherwise fill the memory."""
MAX_FIELDS = 5_000


@dataclass(frozen=True, slots=True)
class Missing:
    """A variable without which bash would stop."""

    name: str
    line: int
    message: str = ""


class Expander:
    """Expands words of one shell.

    Args:
        shell: its state.
        substitute: what a command substitution prints (None: only a shell can know).
        missing: called for a variable without which bash would stop.
        home: of the user, for `~`.
    """

    def __init__(
        self,
        shell: Callable[[], Shell],
        substitute: Callable[[CommandSubstitution], str | None],
        missing: Callable[[Missing], None],
        home: str | None,
    ) -> None:
        self._shell = shell
        self._substitute = substitute
        self._missing = missing
        self._home = home
        self.unset: list[str] = []
        self._depth = 0

    @property
    def shell(self) -> Shell:
        return self._shell()

    # -- words -----------------------------------------------------------------------------------------------------
    def fields(self, word: Word) -> list[Field]:
        """The arguments that a word becomes."""
        alternatives = list(expand_braces(word.parts))
        out: list[Field] = []
        for parts in alternatives:
            out.extend(self._fields(parts, word, len(alternatives) > 1))
            if len(out) > MAX_FIELDS:
                raise TooComplex(f"makes more than {MAX_FIELDS} arguments", line=word.line)
        return out

    def _fields(self, parts: tuple[Part, ...], word: Word, braces: bool) -> list[Field]:
        whole = self._whole_array(parts)
        if whole is not None:
            return whole
        self.unset = []
        builder = _Builder(self._ifs())
        first = True
        passthrough = False
        for part in parts:
            if first and isinstance(part, Literal) and not part.quoted and part.text.startswith("~"):
                builder.text(self._tilde(part.text), True)
            elif isinstance(part, Literal):
                builder.text(part.text, part.quoted)
            elif isinstance(part, DoubleQuoted):
                builder.quote()
                for inner in part.parts:
                    if isinstance(inner, Parameter) and (many := self._many(inner, True)) is not None:
                        passthrough |= self._from_script(inner)
                        builder.many(many)
                    else:
                        builder.text(self._part(inner), True)
            elif isinstance(part, Parameter) and (many := self._many(part, False)) is not None:
                passthrough |= self._from_script(part)
                builder.unquoted_many(many)
            elif isinstance(part, Parameter) and part.operator in (":-", "-", ":+", "+") and part.argument is not None:
                self._default(part, builder)
            else:
                builder.unquoted(self._part(part))
            first = False
        texts = builder.done()
        unset = tuple(dict.fromkeys(self.unset))
        origin = word if len(texts) == 1 and not braces else None
        return [Field(text, origin, word.line, unset, braces, passthrough) for text in texts]

    def _from_script(self, part: Parameter) -> bool:
        """Whether `$@` hands on arguments of the script itself (and not those of a function)."""
        return part.name in "@*" and any(item.passthrough for item in self.shell.positional)

    def _default(self, part: Parameter, builder: _Builder) -> None:
        """An unquoted `${name:-word}`: quotes inside the word keep its spaces together."""
        chosen = self._chosen_default(part)
        if chosen is None:
            builder.unquoted(self._part(part))
            return
        for inner in chosen.parts:
            if isinstance(inner, Literal) and inner.quoted:
                builder.text(inner.text, True)
            elif isinstance(inner, DoubleQuoted):
                builder.quote()
                for deep in inner.parts:
                    if isinstance(deep, Parameter) and (many := self._many(deep, True)) is not None:
                        builder.many(many)
                    else:
                        builder.text(self._part(deep), True)
            elif isinstance(inner, Parameter) and (many := self._many(inner, False)) is not None:
                builder.unquoted_many(many)
            elif isinstance(inner, Literal):
                builder.unquoted(self._tilde(inner.text) if inner.text.startswith("~") else inner.text)
            else:
                builder.unquoted(self._part(inner))

    def _chosen_default(self, part: Parameter) -> Word | None:
        value = self._value(part)
        if value is not None and is_unknown(value):
            return None
        empty = value is None or (part.operator.startswith(":") and value == "")
        return part.argument if empty == part.operator.endswith("-") else None

    def _whole_array(self, parts: tuple[Part, ...]) -> list[Field] | None:
        """`"${A[@]}"` alone: the elements, each with the place where it stands literally."""
        if len(parts) == 1 and isinstance(parts[0], DoubleQuoted) and len(parts[0].parts) == 1:
            part = parts[0].parts[0]
            if isinstance(part, Parameter) and not (part.operator or part.length or part.indirect):
                if part.name == "@":
                    return list(self.shell.positional)
                if part.index is not None and part.index.raw == "@":
                    variable = self.shell.variables.get(part.name)
                    if variable is not None and variable.items is not None:
                        return [item for _, item in variable.items]
        return None

    def text(self, word: Word | None, *, assignment: bool = False) -> str:
        """The word as one string, as on the right of `=`: no splitting."""
        if word is None:
            return ""
        out = []
        for at, part in enumerate(word.parts):
            if isinstance(part, Literal) and not part.quoted and part.text.startswith("~") and at == 0:
                out.append(self._tilde(part.text))
            elif isinstance(part, Literal) and not part.quoted and assignment and ":~" in part.text:
                out.append(":".join(self._tilde(piece) if i else piece for i, piece in enumerate(part.text.split(":"))))
            else:
                out.append(self._part(part))
        return self._bounded("".join(out), word.line)

    def pattern(self, word: Word | None) -> str:
        """A glob pattern as a regular expression."""
        return glob_regex(self.pieces(word))

    def pieces(self, word: Word | None) -> list[tuple[str, bool]]:
        """The word's text as (text, quoted) pieces."""
        pieces: list[tuple[str, bool]] = []
        for part in word.parts if word is not None else ():
            if isinstance(part, Literal):
                pieces.append((part.text, part.quoted))
            elif isinstance(part, DoubleQuoted):
                pieces.append((self._part(part), True))
            else:
                pieces.append((self._part(part), False))
        return pieces

    def number(self, word: Word, raw: str, line: int) -> str:
        """The value of an arithmetic expression as text, or its expression where it is not known."""
        expression = self.text(word)
        try:
            if is_unknown(expression):
                raise arithmetic.Unknown
            return str(arithmetic.evaluate(expression, self._get_number, self._put_number, line=line))
        except arithmetic.Unknown:
            return unknown(raw)

    def _get_number(self, name: str) -> str:
        base, bracket, index = name.partition("[")
        variable = self.shell.variables.get(base)
        value = self._element(base, index[:-1]) if bracket else variable.scalar() if variable is not None else None
        if value is None and "nounset" in self.shell.options and not bracket:
            self._missing(Missing(base, 0))
        if value is not None and is_unknown(value):
            raise arithmetic.Unknown
        return value or ""

    def _put_number(self, name: str, value: str) -> None:
        base, bracket, _index = name.partition("[")
        if not bracket:
            old = self.shell.variables.get(base, Variable())
            self.shell.variables[base] = replace(old, text=value, items=None)

    def index_value(self, index: str) -> int | str:
        """An array subscript as a number, where it is one."""
        try:
            return arithmetic.evaluate(index, self._get_number, self._put_number, line=0)
        except (arithmetic.Unknown, LaunchError):
            return index

    # -- parts -----------------------------------------------------------------------------------------------------
    def _part(self, part: Part) -> str:
        self._depth += 1
        if self._depth > 60:
            raise TooComplex("expands values inside values too deeply")
        try:
            if isinstance(part, Literal):
                return part.text
            if isinstance(part, DoubleQuoted):
                return "".join(self._part(inner) for inner in part.parts)
            if isinstance(part, Parameter):
                return self._bounded(self._parameter(part), part.line)
            if isinstance(part, Arithmetic):
                return self.number(part.expression, part.raw, part.line)
            if isinstance(part, ProcessSubstitution):
                return unknown(part.raw)
            printed = self._substitute(part)
            return unknown(part.raw) if printed is None else printed.rstrip("\n")
        finally:
            self._depth -= 1

    def _bounded(self, text: str, line: int) -> str:
        if len(text) > MAX_TEXT:
            raise TooComplex(f"makes a value of more than {MAX_TEXT} characters", line=line)
        return text

    def _ifs(self) -> str:
        variable = self.shell.variables.get("IFS")
        value = variable.scalar() if variable is not None else None
        return " \t\n" if value is None else value

    def _tilde(self, text: str) -> str:
        match = re.match(r"~([^/:]*)", text)
        if match and not match[1]:
            variable = self.shell.variables.get("HOME")
            home = variable.scalar() if variable is not None else self._home
            return (home or "~") + text[1:]
        if match and match[1] == "+":
            return self.shell.cwd + text[2:]
        return text

    def _many(self, part: Parameter, quoted: bool) -> list[str] | None:
        """The values of `$@`, `${A[@]}` and their like; None: the part is a single value."""
        if part.length:
            return None
        if part.indirect and (part.index is not None or part.operator in ("@", "*")):
            if part.index is not None and part.index.raw in ("@", "*"):
                variable = self.shell.variables.get(part.name)
                keys = [str(key) for key, _ in variable.items or ()] if variable is not None else []
                return [self._ifs()[:1].join(keys)] if quoted and part.index.raw == "*" else keys
            return sorted(name for name in self.shell.variables if name.startswith(part.name))
        if part.name in ("@", "*") and not part.indirect:
            star = part.name == "*"
            values = [item.text for item in self.shell.positional]
            if part.operator == ":":
                values = [self.shell.name, *values]
        elif part.index is not None and part.index.raw in ("@", "*"):
            star = part.index.raw == "*"
            variable = self.shell.variables.get(part.name)
            if variable is None:
                values = []
            elif variable.items is None:
                values = [variable.text or ""]
            else:
                values = [item.text for _, item in variable.items]
        else:
            return None
        if part.operator == ":":
            values = self._slice(part, values)
        elif part.operator in (":-", "-", ":+", "+"):
            if bool(values) == part.operator.endswith("+"):
                return [self.text(part.argument)]
            values = [] if part.operator.endswith("+") else values
        elif part.operator and part.operator != "@":
            values = [self._operate(part, value) for value in values]
        if star and quoted:
            return [(self._ifs()[:1]).join(values)]
        return values

    def _slice(self, part: Parameter, values: list[str]) -> list[str]:
        start, count = self._bounds(part, len(values))
        return values[start:] if count is None else values[start : start + count]

    def _bounds(self, part: Parameter, length: int) -> tuple[int, int | None]:
        start = self._integer(part.argument, part.line)
        start = max(0, length + start) if start < 0 else min(start, length)
        if part.second is None:
            return start, None
        count = self._integer(part.second, part.line)
        return start, max(0, length + count - start) if count < 0 else count

    def _integer(self, word: Word | None, line: int) -> int:
        return arithmetic.evaluate(self.text(word), self._get_number, self._put_number, line=line)

    def _element(self, name: str, index: str) -> str | None:
        variable = self.shell.variables.get(name)
        if variable is None:
            return None
        if variable.items is None:
            return variable.text if index in ("0", "") else None
        key: int | str = index if variable.associative else self.index_value(index)
        items = dict(variable.items)
        if isinstance(key, int) and key < 0 and items:
            key += max(k for k in items if isinstance(k, int)) + 1
        item = items.get(key)
        return None if item is None else item.text

    def _value(self, part: Parameter) -> str | None:
        """The value before any operator; None: unset."""
        name = part.name
        if name == "BASH_SOURCE" and (part.index is None or part.index.raw == "0"):
            return self.shell.sources[-1] if self.shell.sources else self.shell.name
        if part.index is not None:
            return self._element(name, self.text(part.index).strip("\"'"))
        if name.isdigit():
            number = int(name) if len(name) < 6 else 99999
            if number == 0:
                return self.shell.name
            return self.shell.positional[number - 1].text if number <= len(self.shell.positional) else None
        if name == "#":
            return str(len(self.shell.positional))
        if name in ("@", "*"):
            return " ".join(item.text for item in self.shell.positional) if self.shell.positional else None
        if name == "?":
            return "0"
        if name == "-":
            return "hB"
        if name in ("$", "!"):
            return unknown(f"${name}")
        if name in ("RANDOM", "SECONDS", "EPOCHSECONDS", "EPOCHREALTIME", "BASHPID", "LINENO"):
            return unknown(f"${name}")
        if name in ("HOSTNAME", "UID", "EUID", "PPID", "OSTYPE") and name not in self.shell.variables:
            return unknown(f"${name}")
        if name == "PWD":
            return self.shell.cwd
        variable = self.shell.variables.get(name)
        return None if variable is None else variable.scalar()

    def _parameter(self, part: Parameter) -> str:
        if part.index is not None and part.index.raw in ("@", "*"):
            many = self._many(replace(part, length=False), True) or []
            return str(len(many)) if part.length else " ".join(many)
        value = self._value(part)
        if part.indirect and value is not None:
            if is_unknown(value):
                return unknown(part.raw)
            value = self._indirect(value)
        if part.length:
            if part.name in ("@", "*"):
                return str(len(self.shell.positional))
            self._check_set(part, value)
            return unknown(part.raw) if value is not None and is_unknown(value) else str(len(value or ""))
        operator = part.operator
        if operator in (":-", "-", ":=", "=", ":?", "?", ":+", "+"):
            return self._with_default(part, value)
        self._check_set(part, value)
        return self._operate(part, value or "") if operator else (value or "")

    def _indirect(self, target: str) -> str | None:
        match = re.fullmatch(r"([A-Za-z_]\w*)(?:\[(.*)\])?", target)
        if not match:
            return None
        if match[2] in ("@", "*"):
            variable = self.shell.variables.get(match[1])
            return " ".join(item.text for _, item in variable.items or ()) if variable is not None else None
        if match[2] is not None:
            return self._element(match[1], match[2])
        variable = self.shell.variables.get(match[1])
        return None if variable is None else variable.scalar()

    def _check_set(self, part: Parameter, value: str | None) -> None:
        if value is None and part.name not in ("@", "*"):
            self.unset.append(part.name)
            if "nounset" in self.shell.options:
                self._missing(Missing(part.name, part.line))

    def _with_default(self, part: Parameter, value: str | None) -> str:
        kind = part.operator[-1]
        if value is not None and is_unknown(value) and kind != "+":
            return value
        empty = value is None or (part.operator.startswith(":") and value == "")
        if kind == "+":
            return "" if empty else self.text(part.argument)
        if not empty:
            return value or ""
        if kind == "?":
            self._missing(Missing(part.name, part.line, self.text(part.argument) or "parameter null or not set"))
            return ""
        default = self.text(part.argument)
        if kind == "=":
            old = self.shell.variables.get(part.name, Variable())
            self.shell.variables[part.name] = replace(old, text=default, items=None)
        if default == "":
            self.unset.append(part.name)
        return default

    def _operate(self, part: Parameter, value: str) -> str:
        if is_unknown(value):
            return unknown(part.raw)
        operator = part.operator
        if operator == ":":
            try:
                start, count = self._bounds(part, len(value))
            except arithmetic.Unknown:
                return unknown(part.raw)
            return value[start:] if count is None else value[start : start + count]
        if operator in ("@", "@Q", "@E", "@P", "@A", "@a", "@K", "@k"):
            return unknown(part.raw)
        if operator in ("@U", "@u", "@L"):
            return (
                value.upper()
                if operator == "@U"
                else value.lower()
                if operator == "@L"
                else value[:1].upper() + value[1:]
            )
        pieces = self.pieces(part.argument)
        if any(is_unknown(text) for text, _ in pieces):
            return unknown(part.raw)
        if operator in ("^", "^^", ",", ",,"):
            change = str.upper if operator[0] == "^" else str.lower
            pattern = re.compile(glob_regex(pieces) if pieces else ".", re.DOTALL)
            if len(operator) == 1:
                return change(value[:1]) + value[1:] if value and pattern.fullmatch(value[0]) else value
            return "".join(change(char) if pattern.fullmatch(char) else char for char in value)
        stars = sum(text.count("*") for text, _ in pieces)
        if len(value) > (3_000 if stars < 3 else 200):
            raise TooComplex("edits a very long value", line=part.line)
        if operator in ("#", "##", "%", "%%"):
            return _strip(value, glob_regex(pieces), operator)
        replacement = self.text(part.second)
        return _replace(value, glob_regex(pieces), replacement, operator)


class _Builder:
    """Puts fields together from quoted and unquoted pieces."""

    def __init__(self, ifs: str) -> None:
        self._ifs = ifs
        self._done: list[str] = []
        self._current: list[str] = []
        self._open = False

    def quote(self) -> None:
        self._open = True

    def text(self, text: str, quoted: bool) -> None:
        self._open |= quoted or bool(text)
        self._current.append(text)

    def many(self, values: list[str]) -> None:
        """`"$@"` inside quotes."""
        if not values:
            if not any(self._current):
                self._open = False
            return
        for at, value in enumerate(values):
            if at:
                self._break()
            self.text(value, True)

    def unquoted_many(self, values: list[str]) -> None:
        for at, value in enumerate(values):
            if at:
                self._break()
            self.unquoted(value)

    def unquoted(self, value: str) -> None:
        """A value that the shell splits at IFS; what is unknown is kept whole."""
        for piece, known in split_known(value):
            if not known or not self._ifs:
                self.text(piece, bool(piece))
                continue
            for token in re.findall(rf"[{re.escape(self._ifs)}]+|[^{re.escape(self._ifs)}]+", piece):
                if token[0] not in self._ifs:
                    self.text(token, True)
                    continue
                hard = [char for char in token if not char.isspace()]
                if not hard:
                    self._break()
                for _ in hard:
                    self._open = True
                    self._break()

    def _break(self) -> None:
        if self._open:
            self._done.append("".join(self._current))
        self._current, self._open = [], False

    def done(self) -> list[str]:
        self._break()
        return self._done


def _strip(value: str, expression: str, operator: str) -> str:
    pattern = re.compile(expression, re.DOTALL)
    ends = range(len(value) + 1)
    if operator[0] == "#":
        for end in ends if operator == "#" else reversed(ends):
            if pattern.fullmatch(value, 0, end):
                return value[end:]
        return value
    for start in reversed(ends) if operator == "%" else ends:
        if pattern.fullmatch(value, start):
            return value[:start]
    return value


def _replace(value: str, expression: str, replacement: str, operator: str) -> str:
    if not expression:
        return value
    if operator == "/#":
        expression = rf"\A(?:{expression})"
    elif operator == "/%":
        expression = rf"(?:{expression})\Z"
    return re.sub(expression, lambda match: replacement, value, count=0 if operator == "//" else 1, flags=re.DOTALL)


# -- braces --------------------------------------------------------------------------------------------------------
_Atom = tuple[str, "Part | None"]


def expand_braces(parts: tuple[Part, ...]) -> Iterator[tuple[Part, ...]]:
    """The words that brace expansion makes of one, in order."""
    if not any(isinstance(part, Literal) and not part.quoted and "{" in part.text for part in parts):
        yield parts
        return
    if sum(part.text.count("{") for part in parts if isinstance(part, Literal) and not part.quoted) > 60:
        raise TooComplex("holds a word with more than 60 braces")
    atoms: list[_Atom] = []
    for part in parts:
        if isinstance(part, Literal) and not part.quoted:
            atoms.extend((char, None) for char in part.text)
        else:
            atoms.append(("", part))
    for count, alternative in enumerate(_alternatives(atoms, 0)):
        if count > MAX_FIELDS:
            raise TooComplex(f"makes more than {MAX_FIELDS} arguments by braces")
        yield _joined(alternative)


def _alternatives(atoms: list[_Atom], depth: int) -> list[list[_Atom]]:
    if depth > 12:
        raise TooComplex("nests braces too deeply")
    for start, (char, _) in enumerate(atoms):
        if char != "{":
            continue
        found = _brace(atoms, start)
        if found is None:
            continue
        end, pieces = found
        tails = _alternatives(atoms[end + 1 :], depth + 1)
        heads = [head for piece in pieces for head in _alternatives(piece, depth + 1)]
        if len(tails) * len(heads) > MAX_FIELDS:
            raise TooComplex(f"makes more than {MAX_FIELDS} arguments by braces")
        return [atoms[:start] + head + tail for head in heads for tail in tails]
    return [atoms]


def _brace(atoms: list[_Atom], start: int) -> tuple[int, list[list[_Atom]]] | None:
    depth = 0
    pieces: list[list[_Atom]] = [[]]
    for at in range(start, len(atoms)):
        char = atoms[at][0]
        if char == "{":
            depth += 1
            if depth == 1:
                continue
        elif char == "}":
            depth -= 1
            if depth == 0:
                if len(pieces) > 1:
                    return at, pieces
                sequence = _sequence("".join(c for c, _ in pieces[0])) if all(c for c, _ in pieces[0]) else None
                return None if sequence is None else (at, [[(c, None) for c in text] for text in sequence])
        elif char == "," and depth == 1:
            pieces.append([])
            continue
        pieces[-1].append(atoms[at])
    return None


def _sequence(text: str) -> list[str] | None:
    match = re.fullmatch(r"(-?\d{1,9})\.\.(-?\d{1,9})(?:\.\.(-?\d{1,9}))?", text)
    if match:
        first, last = int(match[1]), int(match[2])
        step = abs(int(match[3])) if match[3] else 1
        step = (step or 1) * (1 if last >= first else -1)
        if abs(last - first) // abs(step) > MAX_FIELDS:
            raise TooComplex(f"makes more than {MAX_FIELDS} arguments by braces")
        padded = any(re.match(r"-?0\d", match[i]) for i in (1, 2))
        width = max(len(match[1]), len(match[2])) if padded else 0
        return [
            f"{number:0{width}d}" if width else str(number)
            for number in range(first, last + (1 if step > 0 else -1), step)
        ]
    match = re.fullmatch(r"([A-Za-z])\.\.([A-Za-z])", text)
    if match:
        first, last = ord(match[1]), ord(match[2])
        step = 1 if last >= first else -1
        return [chr(code) for code in range(first, last + step, step)]
    return None


def _joined(atoms: list[_Atom]) -> tuple[Part, ...]:
    parts: list[Part] = []
    text = ""
    for char, part in atoms:
        if part is None:
            text += char
            continue
        if text:
            parts.append(Literal(text, False, 0, 0))
            text = ""
        parts.append(part)
    if text:
        parts.append(Literal(text, False, 0, 0))
    return tuple(parts)


def unset_names(word: Word) -> list[str]:
    """Names of the parameters that a word expands."""
    names: list[str] = []
    stack: list[Part] = list(word.parts)
    while stack:
        part = stack.pop()
        if isinstance(part, DoubleQuoted):
            stack.extend(part.parts)
        elif isinstance(part, Parameter):
            names.append(part.name)
    return names


__all__ = ["Expander", "Missing", "expand_braces", "shown", "unset_names"]
