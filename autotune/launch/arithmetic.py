"""Bash's integer arithmetic, on known values only."""

from __future__ import annotations

import re
from collections.abc import Callable

from autotune.launch.errors import LaunchError, TooComplex

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+#[0-9a-zA-Z@_]+|0[xX][0-9a-fA-F]+|\d+)|(?P<name>[A-Za-z_]\w*(?:\[[^\]]*\])?)"
    r"|(?P<op><<=|>>=|\*\*|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[-+*/%&|^~!<>=?:,()]))",
    re.ASCII,
)
_LEVELS = [
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", ">", "<=", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
]
MAX_TOKENS = 2_000
MAX_DEPTH = 30


class Unknown(Exception):
    """The expression holds something that only a shell can know."""


def evaluate(
    expression: str, get: Callable[[str], str], put: Callable[[str, str], None], *, line: int, depth: int = 0
) -> int:
    """The value of an expression.

    Args:
        expression: after parameter expansion.
        get: the value of a variable (empty: unset).
        put: sets a variable.
        line: for messages.
        depth: of variables that hold expressions themselves.

    Raises:
        Unknown: a value is not known before the script runs.
        LaunchError: `SHELL_ARITHMETIC`, where bash would stop too.
        TooComplex: beyond the bounds.
    """
    return _Evaluation(expression, get, put, line, depth).run()


class _Evaluation:
    def __init__(
        self, expression: str, get: Callable[[str], str], put: Callable[[str, str], None], line: int, depth: int
    ) -> None:
        if depth > MAX_DEPTH:
            raise TooComplex("evaluates variables inside variables without end", line=line)
        self.expression, self.get, self.put, self.line, self.depth = expression, get, put, line, depth
        self.tokens: list[tuple[str, str]] = []
        pos, text = 0, expression.rstrip()
        while pos < len(text):
            match = _TOKEN.match(text, pos)
            if not match or match.lastgroup is None:
                raise self.fail("is not arithmetic")
            self.tokens.append((match.lastgroup, match[match.lastgroup]))
            pos = match.end()
            if len(self.tokens) > MAX_TOKENS:
                raise TooComplex("holds an expression that is too long", line=line)
        self.at = 0
        self.nesting = 0
        self.skip = 0

    def fail(self, what: str) -> LaunchError:
        return LaunchError("SHELL_ARITHMETIC", f"line {self.line}: {self.expression.strip()!r} {what}", line=self.line)

    def run(self) -> int:
        if not self.tokens:
            return 0
        value = self.comma()
        if self.at < len(self.tokens):
            raise self.fail(f"has an unexpected {self.tokens[self.at][1]!r}")
        return value

    def op(self, *wanted: str) -> str | None:
        if self.at < len(self.tokens) and self.tokens[self.at][0] == "op" and self.tokens[self.at][1] in wanted:
            self.at += 1
            return self.tokens[self.at - 1][1]
        return None

    def comma(self) -> int:
        self.nesting += 1
        if self.nesting > MAX_DEPTH:
            raise TooComplex("nests too many parentheses", line=self.line)
        value = self.assign()
        while self.op(","):
            value = self.assign()
        self.nesting -= 1
        return value

    def assign(self) -> int:
        if self.at + 1 < len(self.tokens) and self.tokens[self.at][0] == "name":
            kind, operator = self.tokens[self.at + 1]
            if kind == "op" and operator.endswith("=") and operator not in ("==", "!=", "<=", ">="):
                name = self.tokens[self.at][1]
                self.at += 2
                self.nesting += 1
                if self.nesting > MAX_DEPTH:
                    raise TooComplex("chains too many assignments", line=self.line)
                value = self.assign()
                self.nesting -= 1
                if operator != "=":
                    value = self.apply(operator[:-1], self.lookup(name), value)
                self.store(name, value)
                return value
        return self.ternary()

    def ternary(self) -> int:
        condition = self.binary(0)
        if not self.op("?"):
            return condition
        self.nesting += 1
        if self.nesting > MAX_DEPTH:
            raise TooComplex("nests too many ?:", line=self.line)
        self.skip += not condition
        yes = self.assign()
        self.skip -= not condition
        if not self.op(":"):
            raise self.fail("misses a ':'")
        self.skip += bool(condition)
        no = self.assign()
        self.skip -= bool(condition)
        self.nesting -= 1
        return yes if condition else no

    def binary(self, level: int) -> int:
        if level == len(_LEVELS):
            return self.power()
        value = self.binary(level + 1)
        while operator := self.op(*_LEVELS[level]):
            if operator in ("&&", "||"):
                decided = bool(value) == (operator == "||")
                self.skip += decided
                right = self.binary(level + 1)
                self.skip -= decided
                value = int(bool(value) and bool(right)) if operator == "&&" else int(bool(value) or bool(right))
            else:
                value = self.apply(operator, value, self.binary(level + 1))
        return value

    def power(self) -> int:
        base = self.unary()
        if self.op("**"):
            self.nesting += 1
            if self.nesting > MAX_DEPTH:
                raise TooComplex("chains too many powers", line=self.line)
            exponent = self.power()
            self.nesting -= 1
            if exponent < 0:
                raise self.fail("has a negative exponent")
            return _wrap(pow(base, exponent, 1 << 64))
        return base

    def unary(self) -> int:
        marks = []
        while mark := self.op("+", "-", "!", "~", "++", "--"):
            marks.append(mark)
        value = self.primary(marks)
        for mark in reversed(marks):
            value = {"+": value, "-": -value, "!": int(not value), "~": ~value}.get(mark, value)
        return _wrap(value)

    def primary(self, marks: list[str]) -> int:
        if self.op("("):
            value = self.comma()
            if not self.op(")"):
                raise self.fail("misses a ')'")
            return value
        if self.at >= len(self.tokens):
            raise self.fail("ends too early")
        kind, token = self.tokens[self.at]
        self.at += 1
        if kind == "number":
            return self.number(token)
        if kind == "name":
            value = self.lookup(token)
            if marks and marks[-1] in ("++", "--"):
                value += 1 if marks.pop() == "++" else -1
                self.store(token, value)
            elif operator := self.op("++", "--"):
                self.store(token, value + (1 if operator == "++" else -1))
            return value
        raise self.fail(f"has an unexpected {token!r}")

    def number(self, token: str) -> int:
        try:
            if "#" in token:
                base, digits = token.split("#", 1)
                return _wrap(int(digits, int(base)))
            if token[:2] in ("0x", "0X"):
                return _wrap(int(token, 16))
            if len(token) > 1 and token[0] == "0":
                return _wrap(int(token, 8))
            return _wrap(int(token[:400]))
        except ValueError:
            raise self.fail(f"holds {token!r}, which is no number") from None

    def lookup(self, name: str) -> int:
        if self.skip:
            return 0
        value = self.get(name).strip()
        if not value:
            return 0
        if re.fullmatch(r"[1-9]\d{0,17}|0", value):
            return int(value)
        return evaluate(value, self.get, self.put, line=self.line, depth=self.depth + 1)

    def store(self, name: str, value: int) -> None:
        if not self.skip:
            self.put(name, str(_wrap(value)))

    def apply(self, operator: str, left: int, right: int) -> int:
        if self.skip:
            return 0
        if operator in "/%":
            if right == 0:
                raise self.fail("divides by zero")
            quotient = abs(left) // abs(right)
            quotient = quotient if (left < 0) == (right < 0) else -quotient
            return _wrap(quotient if operator == "/" else left - quotient * right)
        if operator in ("<<", ">>"):
            return _wrap(left << (right & 63)) if operator == "<<" else left >> (right & 63)
        return _wrap(
            {
                "+": lambda: left + right,
                "-": lambda: left - right,
                "*": lambda: left * right,
                "&": lambda: left & right,
                "|": lambda: left | right,
                "^": lambda: left ^ right,
                "==": lambda: int(left == right),
                "!=": lambda: int(left != right),
                "<": lambda: int(left < right),
                ">": lambda: int(left > right),
                "<=": lambda: int(left <= right),
                ">=": lambda: int(left >= right),
            }[operator]()
        )


def _wrap(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
