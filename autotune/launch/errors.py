"""What `launch` says when a command cannot be read or written."""

from __future__ import annotations

from autotune.values import BadInput


class LaunchError(BadInput):
    """The user's launch cannot be used as it is.

    `code` is a stable label, `line` the line of the file it is about (None: the whole input), `message` one clear sentence.
    """

    def __init__(self, code: str, message: str, *, line: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.line = line
        self.message = message


class TooComplex(LaunchError):
    """A bound on size, depth or work was met: guards against input that would hang the reader or exhaust its stack."""

    def __init__(self, what: str, *, line: int | None = None) -> None:
        super().__init__(
            "TOO_COMPLEX", f"the script {what}; autotune reads launch scripts, not programs of that size", line=line
        )
