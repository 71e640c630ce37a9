"""The private line between a session inside verl and the one who gives it orders: JSON lines over a Unix socket.

The controller listens in a folder of its own (0700, socket 0600); the session connects, says hello with the token and its
protocol version, and then answers every order once:

    session     {"type": "hello", "protocol": 1, "token": …, "verl": …, "world_size": …, "engines": [facts, …]}
    controller  {"type": "step", "id": 7, "work": "whole" | "frozen" | "generation", "settings": {…},
                 "reward": "live" | "replay" | "record"}                                                one step
    session     {"type": "step", "id": 7, …}       or    {"type": "failure", "id": 7, "phase": …, "error": …, "survived": …}
    controller  {"type": "end"}                    or the controller closes the socket: the training loop ends

Standard library only: both ends import it.
"""

import hmac
import json
import os
import select
import socket
import time
from typing import Any

PROTOCOL = 1
SOCKET = "AUTOTUNE_SESSION_SOCKET"
"""Environment variable with the path of the socket; its presence makes a launch a session."""
TOKEN = "AUTOTUNE_SESSION_TOKEN"
_CHUNK = 1 << 16
_LONGEST = 64 << 20
"""Bytes of a message; more is not ours."""


class WireClosed(ConnectionError):
    """The other end is gone."""


class WireError(RuntimeError):
    """The other end is not who it should be, or speaks something else."""


class Wire:
    """One end of a connected line."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._pending = b""

    def send(self, message: dict[str, Any]) -> None:
        """Sends one message.

        Raises:
            WireClosed: nobody listens any more.
        """
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            self._connection.setblocking(True)
            self._connection.sendall(data)
        except OSError as error:
            raise WireClosed(f"the line broke: {error}") from error

    def receive(self, timeout: float | None = None) -> dict[str, Any] | None:
        """The next message; None: none came within `timeout` seconds (None: waits for ever).

        Raises:
            WireClosed: the other end closed.
            WireError: what came is no message.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while b"\n" not in self._pending:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._connection], [], [], left)
            if not ready:
                return None
            try:
                added = self._connection.recv(_CHUNK)
            except OSError as error:
                raise WireClosed(f"the line broke: {error}") from error
            if not added:
                raise WireClosed("the other end closed the line")
            self._pending += added
            if len(self._pending) > _LONGEST:
                raise WireError(f"a message of more than {_LONGEST} bytes")
        line, _, self._pending = self._pending.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError as error:
            raise WireError("a line that is no JSON") from error
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise WireError("a message without a type")
        return message

    def close(self) -> None:
        """Closes this end; the other one notices."""
        self._connection.close()


def connect(path: str, token: str, facts: dict[str, Any]) -> Wire:
    """The session's end: connects and says hello.

    Raises:
        WireClosed: nobody listens at `path`.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except OSError as error:
        connection.close()
        raise WireClosed(f"nobody listens at {path}: {error}") from error
    wire = Wire(connection)
    wire.send({"type": "hello", "protocol": PROTOCOL, "token": token, **facts})
    return wire


class Listener:
    """The controller's end before the session came."""

    def __init__(self, path: str, token: str) -> None:
        """Listens at `path`, which only this user can open."""
        self._token = token
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            self._socket.bind(path)
        finally:
            os.umask(before)
        self._socket.listen(1)

    def accept(self, timeout: float) -> tuple[Wire, dict[str, Any]] | None:
        """The session's line and its hello; None: nobody came within `timeout` seconds.

        Raises:
            WireError: who came has not the token, or speaks another version.
        """
        ready, _, _ = select.select([self._socket], [], [], timeout)
        if not ready:
            return None
        connection, _ = self._socket.accept()
        wire = Wire(connection)
        try:
            hello = wire.receive(10.0)
        except WireClosed:
            wire.close()
            return None
        problem = self._problem(hello)
        if hello is None or problem is not None:
            wire.close()
            raise WireError(problem or "no hello came")
        return wire, hello

    def _problem(self, hello: dict[str, Any] | None) -> str | None:
        if hello is None or hello.get("type") != "hello":
            return "who connected said no hello"
        if not hmac.compare_digest(str(hello.get("token", "")), self._token):
            return "who connected has not the token of this session"
        if hello.get("protocol") != PROTOCOL:
            return f"the session speaks protocol {hello.get('protocol')}, not {PROTOCOL}"
        return None

    def close(self) -> None:
        """Stops listening."""
        self._socket.close()
        if os.path.exists(self._path):
            os.unlink(self._path)
