"""What stands before every change that is asked for through the API: the token, before anything of the request is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autotune.service.token import Token

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_MOST_BYTES = 64 << 10
"""Of a body; the longest that means anything has a few dozen."""
_CODES = {400: "BAD_REQUEST", 401: "UNAUTHORIZED", 404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED", 413: "TOO_LARGE"}


def problem(status: int, message: str, *, code: str = "", headers: Mapping[str, str] | None = None) -> Response:
    """`{"error": {"code", "message"}}`.

    Args:
        code: empty: the usual one of that status.
    """
    known = code or _CODES.get(status) or HTTPStatus(status).name
    # ASCII alone: a message may quote what was sent, lone surrogates included, which UTF-8 has no bytes for.
    body = json.dumps({"error": {"code": known, "message": message}})
    return Response(body, status_code=status, media_type="application/json", headers=headers)


class BearerGate:
    """Lets requests that only read pass, and others with the token alone; bounds what they may send.

    It stands before the routes and not among them, so that a route which forgets to ask for the token does not exist, and
    nothing that a stranger sends is parsed.
    """

    def __init__(self, app: ASGIApp, *, token: Token) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _READING:
            await self._app(scope, receive, send)
            return
        kind, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not given.strip():
            await _refused("changes need the header Authorization: Bearer TOKEN", "Bearer")(scope, receive, send)
        elif not self._token.matches(given.strip()):
            refused = _refused("the token is not the one of this service", 'Bearer error="invalid_token"')
            await refused(scope, receive, send)
        else:
            await self._app(scope, _bounded(receive), send)


def _refused(message: str, challenge: str) -> Response:
    return problem(401, message, headers={"WWW-Authenticate": challenge})


def _bounded(receive: Receive) -> Receive:
    taken = 0

    async def counted() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > _MOST_BYTES:
            raise HTTPException(413, f"at most {_MOST_BYTES >> 10} KiB are read")
        return message

    return counted
