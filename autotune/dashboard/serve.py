"""Listening: where, under which names, and with which protection."""

from __future__ import annotations

import contextlib
import ipaddress
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from autotune.dashboard.app import create_app
from autotune.dashboard.security import LOOPBACK
from autotune.store.store import Store
from autotune.values import BadInput

_GRACE_SECONDS = 2


@dataclass(frozen=True, slots=True)
class Address:
    """Where the dashboard listens."""

    host: str
    port: int
    allowed: tuple[str, ...] = ()
    """Further names under which it may be asked for."""
    behind_proxy: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None

    @property
    def names(self) -> frozenset[str]:
        """Every name under which it answers."""
        return frozenset({*LOOPBACK, self.host, *self.allowed})

    def check(self) -> None:
        """Refuses to show studies to a network in the clear.

        Raises:
            BadInput: off loopback with neither TLS nor a proxy, or half of a certificate.
        """
        if (self.tls_cert is None) != (self.tls_key is None):
            raise BadInput("--tls-cert and --tls-key belong together; give both")
        for name, path in (("--tls-cert", self.tls_cert), ("--tls-key", self.tls_key)):
            if path is not None and not path.is_file():
                raise BadInput(f"{name} {path}: no such file")
        if not is_loopback(self.host) and not self.behind_proxy and self.tls_cert is None:
            raise BadInput(
                f"--host {self.host} can be reached from other machines; give --tls-cert and --tls-key, say --behind-proxy "
                "if a proxy in front speaks TLS, or stay on 127.0.0.1 and use ssh -L"
            )


def serve(
    store: Store,
    address: Address,
    ready: Callable[[str], None],
    *,
    extend: Callable[[FastAPI], None] = lambda app: None,
) -> None:
    """Serves until it is interrupted or asked to end (SIGTERM).

    Args:
        ready: called with the URL once it listens.
        extend: adds to the application what is served beside the pages.

    Raises:
        BadInput: the address cannot be used.
    """
    address.check()
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        listener = socket.create_server((address.host, address.port), family=family)
    except (OSError, OverflowError) as error:
        raise BadInput(
            f"cannot listen on {address.host}, port {address.port}: {error}; choose another one with --port"
        ) from error
    with listener:
        port = listener.getsockname()[1]
        scheme = "http" if address.tls_cert is None else "https"
        host = f"[{address.host}]" if ":" in address.host else address.host
        app = create_app(store, hosts=address.names, stopping=lambda: server.should_exit)
        extend(app)
        config = uvicorn.Config(
            app,
            log_level="error",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE_SECONDS,
            ssl_certfile=address.tls_cert,
            ssl_keyfile=address.tls_key,
        )
        server = uvicorn.Server(config)
        ready(f"{scheme}://{host}:{port}/")
        # Ended by a signal, uvicorn raises it once more when everything is closed; what follows here is still to be done.
        before = signal.signal(signal.SIGTERM, lambda *_: None)
        try:
            with contextlib.suppress(KeyboardInterrupt):
                server.run(sockets=[listener])
        finally:
            signal.signal(signal.SIGTERM, before)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
