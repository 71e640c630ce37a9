"""The bearer token that changes through the API need: a file that its owner alone can read, and nowhere else."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from autotune.values import BadInput

_FEWEST, _MOST = 16, 512
"""Characters of a token."""


def default_path(environ: Mapping[str, str] | None = None) -> Path:
    """`autotune/token` in the user's folder of settings.

    Args:
        environ: instead of this process's environment.
    """
    given = (os.environ if environ is None else environ).get("XDG_CONFIG_HOME", "")
    # The specification has relative paths ignored: they would mean another file in every folder.
    folder = Path(given) if os.path.isabs(given) else Path.home() / ".config"
    return folder / "autotune" / "token"


class Token:
    """A secret that can be compared, but not shown."""

    __slots__ = ("_digest",)

    def __init__(self, text: str) -> None:
        """
        Args:
            text: the secret; only its digest is kept.
        """
        self._digest = _digest(text)

    def __repr__(self) -> str:
        return "Token(***)"

    def matches(self, text: str) -> bool:
        """Whether a text is the token; takes as long for one that is as for any other of its length."""
        return hmac.compare_digest(self._digest, _digest(text))

    @classmethod
    def load_or_make(cls, path: Path | None = None) -> Token:
        """The token in a file, which is made where there is none.

        Args:
            path: None: `default_path()`.

        Raises:
            BadInput: others may read or replace the file, or it holds no token, or it cannot be made.
        """
        place = default_path() if path is None else path
        try:
            text = _read(place)
            if text is None:
                _make(place)
                text = _read(place)
        except OSError as error:
            raise BadInput(
                f"the API's token cannot be kept in {place}: {error.strerror or error}; name another file"
            ) from error
        if text is None:
            raise BadInput(f"the API's token {place} was removed while it was read; start again")
        return cls(text)


def _read(path: Path) -> str | None:
    """The text of the token's file; None where there is none."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for whoever writes to it.
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            raise BadInput(f"the API's token {path} is no regular file; remove it, and a new one is made") from error
        raise
    try:
        _check(path, os.fstat(file))
        _check_folder(path.parent)
        data = os.read(file, _MOST + 2)
    finally:
        os.close(file)
    text = data.decode("ascii", "replace").strip()
    if not text:
        raise BadInput(f"the API's token {path} is empty; remove it, and a new one is made")
    if not _FEWEST <= len(text) <= _MOST or not all("!" <= sign <= "~" for sign in text):
        raise BadInput(
            f"the API's token {path} is none: one line of {_FEWEST} to {_MOST} letters, digits and signs; "
            "remove it, and a new one is made"
        )
    return text


def _check(path: Path, about: os.stat_result) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise BadInput(f"the API's token {path} is no regular file; remove it, and a new one is made")
    if about.st_uid != os.geteuid():
        raise BadInput(f"the API's token {path} belongs to another user, who knows it; name another file")
    if about.st_mode & 0o077:
        raise BadInput(
            f"the API's token {path} can be read by others (mode {about.st_mode & 0o777:04o}), who may know it by now; "
            "remove it, and a new one is made"
        )


def _check_folder(folder: Path) -> None:
    """Whoever may write to the folder may put a token of his own in place."""
    about = folder.stat()
    open_to_all = about.st_mode & 0o022 and not about.st_mode & stat.S_ISVTX
    if open_to_all or about.st_uid not in (os.geteuid(), 0):
        raise BadInput(f"others may replace the API's token in {folder}: chmod 700 {folder}, or name another file")


def _make(path: Path) -> None:
    """Writes a new token, unless somebody else was faster: never half a file, and never one that others may read."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(8)}")
    file = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(file, "wb") as sink:
            os.fchmod(sink.fileno(), 0o600)  # whatever the umask takes away
            sink.write(secrets.token_urlsafe(32).encode() + b"\n")
            sink.flush()
            os.fsync(sink.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(scratch, path)
    finally:
        scratch.unlink()


def _digest(text: str) -> bytes:
    """Of one length for every text, so that the time of a comparison does not tell the token's length."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).digest()
