"""Bash's glob patterns as regular expressions."""

from __future__ import annotations

import re

_CLASSES = {
    "alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "upper": "A-Z", "lower": "a-z", "space": r"\s",
    "punct": r"!-/:-@\[-`{-~", "xdigit": "0-9a-fA-F", "blank": " \t",
}  # fmt: skip


def glob_regex(pieces: list[tuple[str, bool]]) -> str:
    """A regular expression for a pattern given as (text, quoted) pieces; quoted text stands for itself."""
    chars = [(char, quoted) for text, quoted in pieces for char in text]
    out: list[str] = []
    at = 0
    while at < len(chars):
        char, quoted = chars[at]
        at += 1
        if quoted:
            out.append(re.escape(char))
        elif char == "*":
            if not out or out[-1] != ".*":
                out.append(".*")
        elif char == "?":
            out.append(".")
        elif char == "[":
            close = _close(chars, at)
            if close is None:
                out.append(r"\[")
            else:
                out.append(_set([c for c, _ in chars[at:close]]))
                at = close + 1
        elif char == "\\" and at < len(chars):
            out.append(re.escape(chars[at][0]))
            at += 1
        else:
            out.append(re.escape(char))
    return "".join(out)


def _close(chars: list[tuple[str, bool]], at: int) -> int | None:
    start = at
    if at < len(chars) and chars[at][0] in "!^":
        at += 1
        start += 1
    while at < len(chars):
        if chars[at][0] == "]" and at > start:
            return at
        if chars[at][0] == "[" and at + 1 < len(chars) and chars[at + 1][0] == ":":
            text = "".join(c for c, _ in chars[at:])
            end = text.find(":]")
            if end > 0:
                at += end + 2
                continue
        at += 1
    return None


def _set(body: list[str]) -> str:
    text = "".join(body)
    negated = text[:1] in ("!", "^")
    text = text[1:] if negated else text
    text = text.replace("\\", r"\\").replace("]", r"\]").replace("^", r"\^")
    text = re.sub(r"\[:(\w+):(?:\\?\])", lambda match: _CLASSES.get(match[1], ""), text)
    text = text.replace("[", r"\[") if r"\[-`" not in text else text
    expression = f"[{'^' if negated else ''}{text}]"
    try:
        re.compile(expression)
    except re.error:
        return re.escape("[" + "".join(body) + "]")
    return expression
