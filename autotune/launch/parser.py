"""A parser of bash: text in, syntax tree out. It knows nothing of the file system and runs nothing."""

from __future__ import annotations

import re
from bisect import bisect_right

from autotune.launch.errors import LaunchError, TooComplex
from autotune.launch.syntax import (
    AndOr,
    Arithmetic,
    ArithmeticCommand,
    ArithmeticFor,
    Assignment,
    Case,
    Command,
    CommandSubstitution,
    Condition,
    DoubleQuoted,
    For,
    Function,
    Group,
    If,
    Literal,
    Parameter,
    Part,
    Pipeline,
    ProcessSubstitution,
    Redirect,
    Redirected,
    Sequence_,
    Simple,
    While,
    Word,
)

MAX_DEPTH = 40
"""Nesting beyond this is refused: each level takes several Python frames, and the interpreter's stack is finite."""

_ASSIGN = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[^\]\n]*\])?(\+?)=")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REDIRECT = re.compile(r"(\d+|\{[A-Za-z_]\w*\})?(<<<|<<-|<<|<>|<&|>>|>&|>\||&>>|&>|<|>)")
_META = " \t\n;&|()<>"
_PLAIN = re.compile(r"[^\s;&|()<>\\'\"$`#]+")
_RESERVED_END = {"then", "else", "elif", "fi", "do", "done", "esac", "}", "in"}
_DECLARING = {"export", "declare", "typeset", "local", "readonly"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v"}


def parse_script(text: str, *, source: int = 0, line_offset: int = 0) -> Sequence_:
    """The syntax tree of a script.

    Args:
        text: the script with Unix line ends.
        source: number that its words carry.
        line_offset: added to every line number, for text that stands inside another script.

    Raises:
        LaunchError: `SHELL_SYNTAX` where bash itself would refuse, `TOO_COMPLEX` beyond the bounds.
    """
    return _Parser(text, source, line_offset).script()


class _Parser:
    def __init__(self, text: str, source: int, line_offset: int, depth: int = 0) -> None:
        self.text = text
        self.pos = 0
        self.source = source
        self.depth = depth
        self._offset = line_offset
        self._breaks = [match.start() for match in re.finditer("\n", text)]
        self._heredocs: list[tuple[Redirect, str, bool, bool]] = []

    # -- helpers ---------------------------------------------------------------------------------------------------
    def line(self, pos: int | None = None) -> int:
        return bisect_right(self._breaks, (self.pos if pos is None else pos) - 1) + 1 + self._offset

    def fail(self, what: str, pos: int | None = None) -> LaunchError:
        line = self.line(pos)
        return LaunchError("SHELL_SYNTAX", f"line {line}: {what}; bash would refuse the script here", line=line)

    def _enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooComplex(f"nests more than {MAX_DEPTH} levels deep", line=self.line())

    def _leave(self) -> None:
        self.depth -= 1

    def _at(self, token: str) -> bool:
        return self.text.startswith(token, self.pos)

    def _char(self) -> str:
        return self.text[self.pos] if self.pos < len(self.text) else ""

    def _blanks(self) -> None:
        text = self.text
        while self.pos < len(text):
            char = text[self.pos]
            if char in " \t\r":
                self.pos += 1
            elif char == "\\" and text.startswith("\\\n", self.pos):
                self.pos += 2
            elif char == "#":
                end = text.find("\n", self.pos)
                self.pos = len(text) if end < 0 else end
            else:
                return

    def _newline(self) -> None:
        self.pos += 1
        while self._heredocs:
            redirect, delimiter, strip, literal = self._heredocs.pop(0)
            start, lines_from = self.pos, self.pos
            while True:
                end = self.text.find("\n", lines_from)
                stop = len(self.text) if end < 0 else end
                row = self.text[lines_from:stop]
                if (row.lstrip("\t") if strip else row) == delimiter or end < 0:
                    body_end = lines_from if (row.lstrip("\t") if strip else row) == delimiter else stop
                    break
                lines_from = stop + 1
            body = self.text[start:body_end]
            self.pos = min(stop + 1, len(self.text))
            redirect.body = self._heredoc(body, start, strip, literal)

    def _heredoc(self, body: str, start: int, strip: bool, literal: bool) -> Word:
        if strip:
            body = re.sub(r"(?m)^\t+", "", body)
        if literal:
            parts: tuple[Part, ...] = (Literal(body, True, start, start + len(body)),)
        else:
            inner = _Parser(body, -1, self.line(start) - 1, self.depth)
            parts = tuple(inner.quoted_parts(""))
        return Word((DoubleQuoted(parts),), start, start + len(body), self.line(start), body, self.source)

    def _skip_newlines(self) -> None:
        while True:
            self._blanks()
            if self._char() == "\n":
                self._newline()
            else:
                return

    # -- statements ------------------------------------------------------------------------------------------------
    def script(self) -> Sequence_:
        body = self.sequence(())
        if self.pos < len(self.text):
            raise self.fail(f"unexpected {self._peek_word() or self._char()!r}")
        return body

    def sequence(self, ends: tuple[str, ...]) -> Sequence_:
        """Statements up to one of the reserved words or tokens in `ends`, which is not consumed."""
        self._enter()
        statements: list[AndOr] = []
        while True:
            self._skip_newlines()
            if self.pos >= len(self.text):
                break
            if self._ended(ends):
                break
            if self._peek_word() in _RESERVED_END or self._char() == ")" or self._at(";;"):
                break
            statements.append(self._and_or())
            self._blanks()
            char = self._char()
            if char == ";" and not self._at(";;") and not self._at(";&"):
                self.pos += 1
            elif char == "&" and not self._at("&&"):
                self.pos += 1
                last = statements[-1]
                statements[-1] = AndOr(last.pipelines, last.operators, True, last.line)
            elif char == "\n":
                self._newline()
            elif self.pos < len(self.text) and char != ")" and not self._at(";;") and not self._at(";&"):
                if self._ended(ends):
                    break
                raise self.fail(f"unexpected {char!r}")
        self._leave()
        return Sequence_(tuple(statements))

    def _ended(self, ends: tuple[str, ...]) -> bool:
        word = self._peek_word()
        return any((self._at(end) if not end[0].isalpha() and end != "}" else word == end) for end in ends)

    def _peek_word(self) -> str:
        match = _PLAIN.match(self.text, self.pos)
        if not match:
            return ""
        following = self.text[match.end() : match.end() + 1]
        return match[0] if following == "" or following in _META or following == "#" else ""

    def _expect(self, word: str) -> None:
        self._skip_newlines()
        if self._peek_word() != word and not (not word[0].isalpha() and self._at(word)):
            found = self._peek_word() or self._char()
            raise self.fail(
                f"expected {word!r}, found {found!r}" if found else f"the file ends where {word!r} is missing"
            )
        self.pos += len(word)

    def _and_or(self) -> AndOr:
        line = self.line()
        pipelines = [self._pipeline()]
        operators = []
        while True:
            self._blanks()
            if self._at("&&") or self._at("||"):
                operators.append(self.text[self.pos : self.pos + 2])
                self.pos += 2
                self._skip_newlines()
                pipelines.append(self._pipeline())
            else:
                return AndOr(tuple(pipelines), tuple(operators), False, line)

    def _pipeline(self) -> Pipeline:
        negated = timed = False
        while True:
            self._blanks()
            word = self._peek_word()
            if word == "!":
                self.pos += 1
                negated = not negated
            elif word == "time":
                self.pos += 4
                self._blanks()
                if self._peek_word() == "-p":
                    self.pos += 2
                timed = True
            else:
                break
        commands = [self._command()]
        while True:
            self._blanks()
            if self._char() == "|" and not self._at("||"):
                self.pos += 2 if self._at("|&") else 1
                self._skip_newlines()
                commands.append(self._command())
            else:
                return Pipeline(tuple(commands), negated, timed)

    def _command(self) -> Command:
        self._enter()
        try:
            self._blanks()
            command = self._compound()
            if command is None:
                return self._simple()
            if isinstance(command, Function):
                return command
            redirects = []
            while True:
                self._blanks()
                redirect = self._redirect()
                if redirect is None:
                    break
                redirects.append(redirect)
            return Redirected(command, tuple(redirects)) if redirects else command
        finally:
            self._leave()

    def _compound(self) -> Command | None:
        line = self.line()
        if self._at("(("):
            saved = self.pos
            found = self._arithmetic_span(self.pos + 2)
            if found is not None:
                word = self._inner_word(self.pos + 2, found)
                self.pos = found + 2
                return ArithmeticCommand(word, line)
            self.pos = saved
        if self._char() == "(":
            self.pos += 1
            body = self.sequence((")",))
            self._expect(")")
            return Group(body, True, line)
        word_text = self._peek_word()
        if word_text == "{":
            self.pos += 1
            body = self.sequence(("}",))
            self._expect("}")
            return Group(body, False, line)
        if word_text == "[[":
            return self._condition()
        method = {
            "if": self._if,
            "for": self._for,
            "select": self._for,
            "while": self._while,
            "until": self._while,
            "case": self._case,
            "function": self._function,
        }.get(word_text)
        if method is not None:
            return method()
        match = re.compile(r"([^\s;&|()<>\\'\"$`#=]+)[ \t]*\([ \t]*\)").match(self.text, self.pos)
        if match:
            self.pos = match.end()
            return self._function_body(match[1], line)
        return None

    def _function(self) -> Function:
        line = self.line()
        self.pos += len("function")
        self._blanks()
        name = self._peek_word()
        if not name:
            raise self.fail("a function needs a name")
        self.pos += len(name)
        self._blanks()
        match = re.compile(r"\([ \t]*\)").match(self.text, self.pos)
        if match:
            self.pos = match.end()
        return self._function_body(name, line)

    def _function_body(self, name: str, line: int) -> Function:
        self._skip_newlines()
        return Function(name, self._command(), line)

    def _if(self) -> If:
        line = self.line()
        branches = []
        otherwise = None
        word = "if"
        while True:
            self.pos += len(word)
            condition = self.sequence(("then",))
            self._expect("then")
            branches.append((condition, self.sequence(("elif", "else", "fi"))))
            self._skip_newlines()
            word = self._peek_word()
            if word == "elif":
                continue
            if word == "else":
                self.pos += 4
                otherwise = self.sequence(("fi",))
            self._expect("fi")
            return If(tuple(branches), otherwise, line)

    def _while(self) -> While:
        line = self.line()
        word = self._peek_word()
        self.pos += len(word)
        condition = self.sequence(("do",))
        self._expect("do")
        body = self.sequence(("done",))
        self._expect("done")
        return While(condition, body, word == "until", line)

    def _for(self) -> For | ArithmeticFor:
        line = self.line()
        self.pos += len(self._peek_word())
        self._blanks()
        if self._at("(("):
            end = self._arithmetic_span(self.pos + 2)
            if end is None:
                raise self.fail("unfinished for ((…))")
            pieces = self.text[self.pos + 2 : end].split(";")
            if len(pieces) != 3:
                raise self.fail("for ((…)) needs three expressions")
            starts, at = [], self.pos + 2
            for piece in pieces:
                starts.append((at, at + len(piece)))
                at += len(piece) + 1
            setup, test, step = (self._inner_word(*span) for span in starts)
            self.pos = end + 2
            self._blanks()
            if self._char() == ";":
                self.pos += 1
            return ArithmeticFor(setup, test, step, self._do_body(), line)
        match = _NAME.match(self.text, self.pos)
        if not match:
            raise self.fail("for needs a variable name")
        self.pos = match.end()
        self._skip_newlines()
        words: list[Word] | None = None
        if self._peek_word() == "in":
            self.pos += 2
            words = []
            while True:
                self._blanks()
                if self._char() in "\n;" or not self._char():
                    break
                words.append(self._required_word())
        self._blanks()
        if self._char() == ";":
            self.pos += 1
        return For(match[0], None if words is None else tuple(words), self._do_body(), line)

    def _do_body(self) -> Sequence_:
        self._skip_newlines()
        if self._peek_word() == "{":
            self.pos += 1
            body = self.sequence(("}",))
            self._expect("}")
            return body
        self._expect("do")
        body = self.sequence(("done",))
        self._expect("done")
        return body

    def _case(self) -> Case:
        line = self.line()
        self.pos += 4
        self._blanks()
        subject = self._required_word()
        self._expect("in")
        arms: list[tuple[tuple[Word, ...], Sequence_, str]] = []
        while True:
            self._skip_newlines()
            if self._peek_word() == "esac":
                self.pos += 4
                return Case(subject, tuple(arms), line)
            if self.pos >= len(self.text):
                raise self.fail("the file ends where 'esac' is missing")
            if self._char() == "(":
                self.pos += 1
            patterns = []
            while True:
                self._blanks()
                patterns.append(self._required_word())
                self._blanks()
                if self._char() == "|":
                    self.pos += 1
                    continue
                if self._char() != ")":
                    raise self.fail("a case pattern needs ')'")
                self.pos += 1
                break
            body = self.sequence(("esac", ";;", ";&"))
            self._skip_newlines()
            terminator = ";;"
            for token in (";;&", ";;", ";&"):
                if self._at(token):
                    terminator = token
                    self.pos += len(token)
                    break
            arms.append((tuple(patterns), body, terminator))

    def _condition(self) -> Condition:
        line = self.line()
        self.pos += 2
        tokens: list[Word | str] = []
        regex_next = False
        while True:
            self._skip_newlines()
            if self.pos >= len(self.text):
                raise self.fail("the file ends where ']]' is missing")
            if self._peek_word() == "]]":
                self.pos += 2
                return Condition(tuple(tokens), line)
            for token in ("&&", "||", "(", ")", "<", ">"):
                if self._at(token) and not (regex_next and token in "()<>"):
                    tokens.append(token)
                    self.pos += len(token)
                    break
            else:
                word = self._regex_word() if regex_next else self._required_word()
                regex_next = word.raw == "=~"
                tokens.append(word.raw if word.raw in ("!", "=~", "==", "=", "!=") else word)

    def _regex_word(self) -> Word:
        start = self.pos
        parts: list[Part] = []
        depth = 0
        while self.pos < len(self.text):
            char = self._char()
            if (char in " \t" and depth == 0) or char == "\n":
                break
            if char in "()|<>&;":
                depth += {"(": 1, ")": -1}.get(char, 0)
                parts.append(Literal(char, False, self.pos, self.pos + 1))
                self.pos += 1
            elif char == "\\":
                parts.append(Literal(self.text[self.pos : self.pos + 2], False, self.pos, self.pos + 2))
                self.pos += 2
            elif not self._part(parts):
                parts.append(Literal(char, False, self.pos, self.pos + 1))
                self.pos += 1
        return Word(tuple(parts), start, self.pos, self.line(start), self.text[start : self.pos], self.source)

    # -- simple commands -------------------------------------------------------------------------------------------
    def _simple(self) -> Simple:
        start, line = self.pos, self.line()
        assignments: list[Assignment] = []
        words: list[Word | Assignment] = []
        redirects: list[Redirect] = []
        end = self.pos
        while True:
            self._blanks()
            char = self._char()
            if not char or char in "\n;|)":
                break
            redirect = self._redirect()
            if redirect is not None:
                redirects.append(redirect)
                continue
            if char == "&":
                break
            if char == "(":
                raise self.fail("unexpected '('")
            declaring = bool(words) and isinstance(words[0], Word) and words[0].raw in _DECLARING
            if not words or declaring:
                assignment = self._assignment()
                if assignment is not None:
                    (words if words else assignments).append(assignment)
                    end = self.pos
                    continue
            word = self._required_word()
            words.append(word)
            end = word.end
        if not (assignments or words or redirects):
            raise self.fail(
                f"unexpected {self._char()!r}" if self._char() else "the file ends in the middle of a command"
            )
        return Simple(tuple(assignments), tuple(words), tuple(redirects), start, end, line, self.source)

    def _assignment(self) -> Assignment | None:
        match = _ASSIGN.match(self.text, self.pos)
        if not match:
            return None
        line = self.line()
        index = None
        if match[2]:
            index = self._inner_word(match.start(2) + 1, match.end(2) - 1)
        self.pos = match.end()
        if self._char() == "(":
            self.pos += 1
            items = []
            while True:
                self._skip_newlines()
                if not self._char():
                    raise self.fail("the file ends inside an array")
                if self._char() == ")":
                    self.pos += 1
                    break
                if self._char() in ";&|(<>" and not (self._at("<(") or self._at(">(")):
                    raise self.fail(f"unexpected {self._char()!r} in an array")
                items.append(self._required_word())
            return Assignment(match[1], None, bool(match[3]), line, index, tuple(items))
        value = self._word()
        if value is None:
            value = Word((), self.pos, self.pos, line, "", self.source)
        return Assignment(match[1], value, bool(match[3]), line, index)

    def _redirect(self) -> Redirect | None:
        match = _REDIRECT.match(self.text, self.pos)
        if not match or (match[2] in "<>" and self.text.startswith("(", match.end())):
            return None
        self.pos = match.end()
        operator = match[2]
        self._blanks()
        if operator in ("<<", "<<-"):
            word = self._required_word()
            delimiter = "".join(_plain_text(part) for part in word.parts)
            literal = any(not isinstance(part, Literal) or part.quoted for part in word.parts)
            redirect = Redirect(operator, word, match[1] or "")
            self._heredocs.append((redirect, delimiter, operator == "<<-", literal))
            return redirect
        return Redirect(operator, self._required_word(), match[1] or "")

    # -- words -----------------------------------------------------------------------------------------------------
    def _required_word(self) -> Word:
        word = self._word()
        if word is None:
            char = self._char()
            raise self.fail(f"unexpected {char!r}" if char else "the file ends in the middle of a command")
        return word

    def _word(self) -> Word | None:
        start = end = self.pos
        parts: list[Part] = []
        while self.pos < len(self.text):
            if self._at("\\\n"):
                self.pos += 2
                continue
            char = self._char()
            if (
                char == "("
                and end == self.pos
                and self.text[end - 1 : end] in ("?", "*", "+", "@", "!")
                and end > start
            ):
                close = self._balanced(self.pos)
                parts.append(Literal(self.text[self.pos : close], False, self.pos, close))
                self.pos = end = close
                continue
            if char in _META:
                if char in "<>" and self.text.startswith("(", self.pos + 1) and not parts:
                    self._process(parts)
                    end = self.pos
                    continue
                break
            if not self._part(parts):
                plain = _PLAIN.match(self.text, self.pos)
                stop = plain.end() if plain else self.pos + 1
                parts.append(Literal(self.text[self.pos : stop], False, self.pos, stop))
                self.pos = stop
            end = self.pos
        if not parts:
            return None
        return Word(tuple(parts), start, end, self.line(start), self.text[start:end], self.source)

    def _balanced(self, pos: int) -> int:
        depth = 0
        for at in range(pos, len(self.text)):
            depth += {"(": 1, ")": -1}.get(self.text[at], 0)
            if depth == 0:
                return at + 1
        raise self.fail("unfinished '('", pos)

    def _process(self, parts: list[Part]) -> None:
        start = self.pos
        self.pos += 2
        body = self.sequence((")",))
        self._expect(")")
        parts.append(ProcessSubstitution(body, self.text[start : self.pos], self.line(start)))

    def _part(self, parts: list[Part]) -> bool:
        """Reads one quoted or expanding part at the position; False: there is none."""
        text, start, char = self.text, self.pos, self._char()
        if char == "\\":
            taken = text[start + 1 : start + 2]
            parts.append(Literal(taken or "\\", True, start, start + 2))
            self.pos = min(start + 2, len(text))
            return True
        if char == "'":
            close = text.find("'", start + 1)
            if close < 0:
                raise self.fail("a single quote is never closed", start)
            parts.append(Literal(text[start + 1 : close], True, start, close + 1))
            self.pos = close + 1
            return True
        if char == '"':
            self.pos += 1
            inner = self.quoted_parts('"')
            if self._char() != '"':
                raise self.fail("a double quote is never closed", start)
            self.pos += 1
            parts.append(DoubleQuoted(tuple(inner)))
            return True
        if char == "$" and text.startswith("$'", start):
            self._ansi(parts)
            return True
        if char == "$" and text.startswith('$"', start):
            self.pos += 1
            return self._part(parts)
        if char in "$`":
            part = self._expansion()
            if part is None:
                parts.append(Literal("$", False, start, start + 1))
                self.pos = start + 1
            else:
                parts.append(part)
            return True
        return False

    def _ansi(self, parts: list[Part]) -> None:
        start = self.pos
        match = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL).match(self.text, start)
        if not match:
            raise self.fail("a $'…' is never closed", start)
        parts.append(Literal(ansi_c(match[1]), True, start, match.end()))
        self.pos = match.end()

    def quoted_parts(self, close: str) -> list[Part]:
        """Parts inside double quotes, or to the end of the text where `close` is empty (heredocs)."""
        self._enter()
        parts: list[Part] = []
        pattern = re.compile(r'[^"\\$`]+' if close else r"[^\\$`]+")
        special = '$`"\\' if close else "$`\\"
        while self.pos < len(self.text):
            char = self._char()
            if close and char == close:
                break
            start = self.pos
            if char == "\\":
                following = self.text[start + 1 : start + 2]
                if following == "\n":
                    self.pos += 2
                    continue
                if following and following in special:
                    parts.append(Literal(following, True, start, start + 2))
                    self.pos += 2
                else:
                    parts.append(Literal("\\", True, start, start + 1))
                    self.pos += 1
            elif char in "$`":
                part = self._expansion()
                if part is None:
                    parts.append(Literal("$", True, start, start + 1))
                    self.pos = start + 1
                else:
                    parts.append(part)
            else:
                match = pattern.match(self.text, start)
                stop = match.end() if match else start + 1
                parts.append(Literal(self.text[start:stop], True, start, stop))
                self.pos = stop
        self._leave()
        return parts

    def _expansion(self) -> Part | None:
        text, start = self.text, self.pos
        line = self.line()
        if text[start] == "`":
            return self._backticks()
        if text.startswith("$((", start):
            end = self._arithmetic_span(start + 3)
            if end is not None:
                word = self._inner_word(start + 3, end)
                self.pos = end + 2
                return Arithmetic(word, text[start : self.pos], line)
        if text.startswith("$(", start):
            self.pos += 2
            body = self.sequence((")",))
            self._expect(")")
            return CommandSubstitution(body, text[start : self.pos], line)
        if text.startswith("$[", start):
            end = text.find("]", start)
            if end > 0:
                word = self._inner_word(start + 2, end)
                self.pos = end + 1
                return Arithmetic(word, text[start : self.pos], line)
        if text.startswith("${", start):
            return self._braced()
        match = re.compile(r"\$([A-Za-z_]\w*|[0-9@*#?$!_-])", re.ASCII).match(text, start)
        if match:
            self.pos = match.end()
            return Parameter(match[1], match[0], line)
        return None

    def _backticks(self) -> Part:
        start = self.pos
        match = re.compile(r"`((?:[^`\\]|\\.)*)`", re.DOTALL).match(self.text, start)
        if not match:
            raise self.fail("a backtick is never closed", start)
        inner = re.sub(r"\\([\\`$])", r"\1", match[1])
        self._enter()
        body = _Parser(inner, -1, self.line(start) - 1, self.depth).script()
        self._leave()
        self.pos = match.end()
        return CommandSubstitution(body, match[0], self.line(start))

    def _arithmetic_span(self, start: int) -> int | None:
        """Where the `))` stands that ends the arithmetic beginning at `start`; None: it is no arithmetic."""
        depth = 0
        at = start
        while at < len(self.text):
            char = self.text[at]
            if char == "(":
                depth += 1
                if depth > MAX_DEPTH:
                    raise TooComplex(f"nests more than {MAX_DEPTH} parentheses", line=self.line(at))
            elif char == ")":
                if depth == 0:
                    return at if self.text.startswith("))", at) else None
                depth -= 1
            elif char == "\\":
                at += 1
            elif char in "\"'" and (closed := self.text.find(char, at + 1)) > 0:
                at = closed
            at += 1
        return None

    def _inner_word(self, start: int, end: int) -> Word:
        """The text between two offsets, read as if it stood in double quotes."""
        inner = _Parser(self.text[start:end], -1, self.line(start) - 1, self.depth)
        parts = tuple(inner.quoted_parts(""))
        return Word((DoubleQuoted(parts),), start, end, self.line(start), self.text[start:end], self.source)

    def _braced(self) -> Part:
        self._enter()
        text, start, line = self.text, self.pos, self.line()
        self.pos += 2
        length = indirect = False
        if self._char() == "#" and not re.compile(r"#[}:\-+=?%/#]").match(text, self.pos):
            length = True
            self.pos += 1
        elif self._char() == "!":
            indirect = True
            self.pos += 1
        match = re.compile(r"[A-Za-z_]\w*|\d+|[@*#?$!-]", re.ASCII).match(text, self.pos)
        if not match:
            raise self.fail("bad substitution", start)
        name = match[0]
        self.pos = match.end()
        index = None
        if self._char() == "[":
            close = self._bracket(self.pos)
            index = self._inner_word(self.pos + 1, close)
            self.pos = close + 1
        operator, argument, second = "", None, None
        if self._char() != "}":
            found = re.compile(r":[-=?+]|[-=?+]|##?|%%?|//|/#|/%|/|\^\^?|,,?|@[A-Za-z]?|\*|:").match(text, self.pos)
            if not found:
                raise self.fail("bad substitution", start)
            operator = found[0]
            self.pos = found.end()
            if operator.startswith("/"):
                argument = self._operand("/}")
                if self._char() == "/":
                    self.pos += 1
                    second = self._operand("}")
            elif operator == ":":
                argument = self._operand(":}")
                if self._char() == ":":
                    self.pos += 1
                    second = self._operand("}")
            else:
                argument = self._operand("}")
        if self._char() != "}":
            raise self.fail("a ${ is never closed", start)
        self.pos += 1
        self._leave()
        raw = text[start : self.pos]
        return Parameter(name, raw, line, index, operator, argument, second, length, indirect)

    def _bracket(self, pos: int) -> int:
        depth = 0
        for at in range(pos, len(self.text)):
            depth += {"[": 1, "]": -1}.get(self.text[at], 0)
            if depth == 0:
                return at
        raise self.fail("a [ is never closed", pos)

    def _operand(self, stops: str) -> Word:
        start = self.pos
        parts: list[Part] = []
        plain = re.compile(rf"[^\\'\"$`{re.escape(stops)}]+")
        while self.pos < len(self.text) and self._char() not in stops:
            if self._at("\\\n"):
                self.pos += 2
                continue
            if not self._part(parts):
                match = plain.match(self.text, self.pos)
                stop = match.end() if match else self.pos + 1
                parts.append(Literal(self.text[self.pos : stop], False, self.pos, stop))
                self.pos = stop
        return Word(tuple(parts), start, self.pos, self.line(start), self.text[start : self.pos], self.source)


def _plain_text(part: Part) -> str:
    if isinstance(part, Literal):
        return part.text
    if isinstance(part, DoubleQuoted):
        return "".join(_plain_text(inner) for inner in part.parts)
    return getattr(part, "raw", "")


def ansi_c(body: str) -> str:
    """What bash makes of the inside of `$'…'`."""

    def one(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] in "01234567":
            return chr(int(code, 8) & 0xFF)
        if code[0] in "xuU" and len(code) > 1:
            number = int(code[1:], 16)
            return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else ""
        return _ESCAPES.get(code, code if code in "\\'\"?" else "\\" + code)

    return re.sub(r"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|.)", one, body, flags=re.DOTALL)
