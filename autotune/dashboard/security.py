"""What stands between a page and the rest of the world: who may ask, and what a page may load."""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("localhost", "127.0.0.1", "::1")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy of every page: nothing from another host, nothing inline, nothing evaluated."""

_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with no-referrer, a browser names no origin for its own posts either
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


class Guard:
    """Refuses requests under a foreign name and posts from foreign pages; puts the security headers on every answer.

    The name is checked because a web page can point a name of its own at 127.0.0.1 and read what answers there.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str]) -> None:
        """
        Args:
            hosts: names under which the dashboard may be asked for, without ports.
        """
        self._app = app
        self._hosts = {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._refusal(Headers(scope=scope), str(scope["method"]))
        if refusal is not None:
            plain = PlainTextResponse(refusal, status_code=403)
            await (api_problem(str(scope["path"]), 403, refusal) or plain)(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)

    def _refusal(self, headers: Headers, method: str) -> str | None:
        host = headers.get("host", "")
        if host_name(host) not in self._hosts:
            return "This dashboard does not answer to that host name. Start it with --allow-host NAME if it should.\n"
        origin = headers.get("origin")
        if method not in ("GET", "HEAD") and origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return "Posts are taken from the dashboard's own pages only.\n"
        return None


def api_problem(path: str, status: int, message: str) -> Response | None:
    """A refusal in the shape that every one of the API has; None where the path is none of the API's.

    Some addresses under the API's never reach it: those with a line break, and those of strangers.
    """
    if not path.startswith("/api/"):
        return None
    return JSONResponse({"error": {"code": HTTPStatus(status).name, "message": message.strip()}}, status_code=status)


def host_name(host: str) -> str:
    """The name in a Host header, lower-case, without port and brackets; empty for what is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""
