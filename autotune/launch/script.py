"""Reading a plain launch script: assignments, exports, comments, continuations, quotes, and one `python -m …` command.

Nothing is executed. What goes beyond the plain form is refused with its line, never guessed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from autotune.launch.hydra import parse_override
from autotune.launch.launch import Launch, LaunchError, Override, Span

LARGEST = 4 << 20
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_PYTHON = re.compile(r"python(\d(\.\d+)?)?")
_COMPOUND = frozenset(
    {
        "if",
        "then",
        "else",
        "elif",
        "fi",
        "for",
        "while",
        "until",
        "do",
        "done",
        "case",
        "esac",
        "function",
        "{",
        "}",
        "select",
    }
)
_OPERATORS = ("&&", "||", ";;", ">>", "<<", "2>", "&>", "|", ";", "&", ">", "<", "(", ")")


@dataclass(frozen=True, slots=True)
class _Word:
    value: str
    span: Span
    line: int
    literal: bool
    """Nothing in it was expanded."""
    operator: bool = False


def read_launch(
    source: str | os.PathLike[str],
    *,
    env: Mapping[str, str] | None = None,
    set_overrides: Mapping[str, str] | Sequence[str] = (),
    cwd: str | None = None,
    home: str | None = None,
    args: Sequence[str] = (),
) -> Launch:
    """The one verl launch of a script.

    Args:
        env: variables that the script would find; the process' own by default.
        set_overrides: overrides put behind the script's own, without being written into it.

    Raises:
        LaunchError: no such file, no verl launch or several, or shell beyond the plain form that the launch depends on.
    """
    path = Path(source)
    text = _read(path)
    reader = _Reader(text, str(source), dict(os.environ if env is None else env), list(args))
    launch = reader.launch(cwd or os.getcwd())
    pairs = (
        [f"{key}={value}" for key, value in set_overrides.items()]
        if isinstance(set_overrides, Mapping)
        else list(set_overrides)
    )
    extra = tuple(parse_override(pair) for pair in pairs)
    return _with(launch, extra)


def _with(launch: Launch, extra: tuple[Override, ...]) -> Launch:

    return replace(launch, overrides=(*launch.overrides, *extra)) if extra else launch


def _read(path: Path) -> str:
    shown = str(path)
    if path.is_dir():
        raise LaunchError("NOT_A_FILE", f"{shown} is a folder; name a launch script")
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise LaunchError("FILE_NOT_FOUND", f"there is no file {shown}") from None
    except OSError as error:
        raise LaunchError("FILE_NOT_READABLE", f"cannot read {shown}: {error.strerror}") from error
    if len(raw) > LARGEST:
        raise LaunchError("TOO_LARGE", f"{shown} has {len(raw):,} bytes; a launch script has at most {LARGEST:,}")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise LaunchError("NOT_TEXT", f"{shown} is no text file") from None
    if "\x00" in text:
        raise LaunchError("NOT_TEXT", f"{shown} is no text file")
    return text


class _Reader:
    def __init__(self, text: str, path: str, variables: dict[str, str], args: list[str]) -> None:
        self._text = text
        self._path = path
        self._variables = variables
        self._args = args
        self._at = 0
        self._line = 1
        self._exported: dict[str, str] = {}
        self._skipped: list[tuple[int, str]] = []
        self._unknown: dict[str, str] = {}

    def launch(self, cwd: str) -> Launch:
        found: list[Launch] = []
        while self._at < len(self._text):
            begin, line = self._at, self._line
            words = self._command()
            if not words:
                continue
            if words[0].value in _COMPOUND and words[0].literal:
                self._refuse(
                    "SHELL_NOT_PLAIN",
                    f"{words[0].value!r} is beyond the plain launch scripts that are read",
                    words[0].line,
                )
            made = self._launch_of(words, cwd)
            if made is not None:
                found.append(made)
            elif not self._assign(words):
                self._skipped.append((line, " ".join(self._text[begin : self._at].replace("\\\n", " ").split())))
        if not found:
            raise LaunchError(
                "NO_LAUNCH_FOUND", "no verl launch in it (python -m verl.… with overrides)", path=self._path
            )
        if len(found) > 1:
            raise LaunchError(
                "MULTIPLE_LAUNCHES", f"{len(found)} verl launches in it; autotune tunes one at a time", path=self._path
            )

        return replace(found[0], env=dict(self._exported), not_executed=tuple(self._skipped))

    def _launch_of(self, words: list[_Word], cwd: str) -> Launch | None:
        place = 0
        local: dict[str, str] = {}
        while place < len(words) and (match := _ASSIGNMENT.match(words[place].value)) and not words[place].operator:
            local[match[1]] = words[place].value[match.end() :]
            place += 1
        while place < len(words) and words[place].value in ("exec", "env"):
            place += 1
        rest = words[place:]
        if len(rest) < 3 or not _PYTHON.fullmatch(Path(rest[0].value).name):
            return None
        flags = 1
        while flags < len(rest) and rest[flags].value in ("-u", "-B", "-O"):
            flags += 1
        if (
            flags + 1 >= len(rest)
            or rest[flags].value != "-m"
            or not re.search(r"(^|\.)(verl|recipe)\.", rest[flags + 1].value)
        ):
            return None
        entry = rest[flags + 1]
        hydra_flags: dict[str, str] = {}
        overrides: list[Override] = []
        passthrough: str | None = None
        end = entry.span.end
        tail = rest[flags + 2 :]
        place = 0
        while place < len(tail):
            word = tail[place]
            if word.operator:
                break
            raw = self._text[word.span.start : word.span.end]
            if raw in ('"$@"', "$@", "$*", '"$*"'):
                passthrough = "quoted" if raw.startswith('"') else "unquoted"
                overrides += [parse_override(arg, line=word.line) for arg in self._args]
            elif word.value.startswith("--") or word.value in ("-cn", "-cp", "-cd"):
                name, equals, value = word.value.lstrip("-").partition("=")
                name = {"cn": "config-name", "cp": "config-path", "cd": "config-dir"}.get(name, name)
                if not equals:
                    place += 1
                    value = tail[place].value if place < len(tail) else ""
                hydra_flags[name] = value
            elif word.value:
                overrides.append(self._override(word))
            end = word.span.end
            place += 1
        self._exported.update(local)
        return Launch(
            path=self._path,
            text=self._text,
            launcher=rest[0].value,
            entrypoint=entry.value,
            hydra_flags=hydra_flags,
            overrides=tuple(overrides),
            env={},
            cwd=cwd,
            passthrough=passthrough,
            unresolved=tuple(self._unknown.values()),
            end=end,
            indent=self._indent(entry, overrides),
        )

    def _override(self, word: _Word) -> Override:
        try:
            return parse_override(word.value, line=word.line, span=word.span, literal=word.literal)
        except LaunchError as error:
            raise LaunchError(error.code, error.message, word.line, self._path) from error

    def _indent(self, entry: _Word, overrides: list[Override]) -> str:
        for override in overrides:
            if override.span is not None and override.line is not None and override.line > entry.line:
                start = self._text.rfind("\n", 0, override.span.start) + 1
                return self._text[start : override.span.start]
        return "    "

    def _assign(self, words: list[_Word]) -> bool:
        exporting = words[0].value in ("export", "declare", "local", "readonly")
        for word in words[1:] if exporting else words:
            match = _ASSIGNMENT.match(word.value)
            if match is None:
                if exporting and _NAME.fullmatch(word.value):
                    self._exported[word.value] = self._variables.get(word.value, "")
                    continue
                return exporting and word.value.startswith("-")
            value = word.value[match.end() :]
            self._variables[match[1]] = value
            if words[0].value == "export" or match[1] in self._exported:
                self._exported[match[1]] = value
        return True

    def _command(self) -> list[_Word]:
        """The words up to the end of the command line."""
        words: list[_Word] = []
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == "\n":
                self._at += 1
                self._line += 1
                break
            if self._text.startswith(("\\\n", "\\\r\n"), self._at):
                self._at += 2 if self._text[self._at + 1] == "\n" else 3
                self._line += 1
                continue
            if character in " \t\r":
                self._at += 1
                continue
            if character == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
                continue
            operator = next((o for o in _OPERATORS if self._text.startswith(o, self._at)), None)
            if operator == "<<":
                self._refuse(
                    "SHELL_NOT_PLAIN", "a here-document is beyond the plain launch scripts that are read", self._line
                )
            if operator is not None:
                words.append(_Word(operator, Span(self._at, self._at + len(operator)), self._line, True, operator=True))
                self._at += len(operator)
                continue
            words.append(self._word())
        return words

    def _word(self) -> _Word:
        start, line = self._at, self._line
        value: list[str] = []
        literal = True
        while self._at < len(self._text):
            character = self._text[self._at]
            if character in " \t\r\n;|&<>()" or self._text.startswith(("\\\n", "\\\r\n"), self._at):
                break
            if character == "'":
                end = self._text.find("'", self._at + 1)
                if end < 0:
                    self._refuse("SHELL_UNCLOSED_QUOTE", "a single quote is not closed", line)
                value.append(self._text[self._at + 1 : end])
                self._line += self._text.count("\n", self._at, end)
                self._at = end + 1
            elif character == '"':
                literal = self._double(value) and literal
            elif character == "\\":
                value.append(self._text[self._at + 1 : self._at + 2])
                self._at += 2
            elif character in "$`":
                literal = False
                value.append(self._expansion())
            else:
                value.append(character)
                self._at += 1
        return _Word("".join(value), Span(start, self._at), line, literal)

    def _double(self, value: list[str]) -> bool:
        line = self._line
        literal = True
        self._at += 1
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == '"':
                self._at += 1
                return literal
            if character == "\\" and self._text[self._at + 1 : self._at + 2] in ("$", "`", '"', "\\", "\n"):
                following = self._text[self._at + 1]
                value.append("" if following == "\n" else following)
                self._line += following == "\n"
                self._at += 2
            elif character in "$`":
                literal = False
                value.append(self._expansion())
            else:
                self._line += character == "\n"
                value.append(character)
                self._at += 1
        self._refuse("SHELL_UNCLOSED_QUOTE", "a double quote is not closed", line)

    def _expansion(self) -> str:
        start = self._at
        if self._text.startswith(("$(", "`"), self._at):
            end = self._text.find("`", self._at + 1) if self._text[self._at] == "`" else self._closing()
            self._at = len(self._text) if end < 0 else end + 1
            return self._only_a_shell(self._text[start : self._at])
        if self._text.startswith("${", self._at):
            end = self._text.find("}", self._at)
            if end < 0:
                self._refuse("SHELL_UNCLOSED_BRACE", "a ${ is not closed", self._line)
            inner = self._text[self._at + 2 : end]
            self._at = end + 1
            match = re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)(?:(:?[-?])(.*))?", inner, re.DOTALL)
            if match is None:
                return self._only_a_shell(self._text[start : self._at])
            name, operator, word = match[1], match[2] or "", match[3] or ""
            known = self._variables.get(name)
            if known is not None and (known != "" or ":" not in operator):
                return known
            if operator.endswith("-"):
                return re.sub(
                    r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?", lambda m: self._variables.get(m[1], ""), word.strip("\"'")
                )
            if operator.endswith("?"):
                self._refuse(
                    "UNSET_VARIABLE",
                    f"{name} must be set: {word or 'the script asks for it'}; give it with --env {name}=…",
                    self._line,
                )
            return ""
        match = _NAME.match(self._text, self._at + 1)
        if match is not None:
            self._at = match.end()
            return self._variables.get(match[0], "")
        if self._text.startswith(("$@", "$*", "$#", "$?", "$$", "$0", "$1", "$!"), self._at):
            self._at += 2
            return ""
        self._at += 1
        return "$"

    def _closing(self) -> int:
        depth = 0
        for place in range(self._at, len(self._text)):
            depth += (self._text[place] == "(") - (self._text[place] == ")")
            if depth == 0 and self._text[place] == ")":
                return place
        return -1

    def _only_a_shell(self, text: str) -> str:
        self._line += text.count("\n")
        self._unknown[text] = text
        return text

    def _refuse(self, code: str, message: str, line: int) -> NoReturn:
        raise LaunchError(code, message, line, self._path)
