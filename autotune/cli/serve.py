"""`autotune serve`: the nightly service, its API and the dashboard in one process."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from autotune.cli import console as terminal
from autotune.cli import options
from autotune.cli.storage import DEFAULT_STORAGE, absolute_storage
from autotune.store.store import usable_url
from autotune.values import AutotuneError, BadInput


def serve(
    storage: Annotated[str, typer.Option(help="Database URL of the schedules and their studies.")] = DEFAULT_STORAGE,
    host: options.HostOption = "127.0.0.1",
    port: options.PortOption = options.PORT,
    allow_host: options.AllowHostOption = None,
    behind_proxy: options.BehindProxyOption = False,
    tls_cert: options.TlsCertOption = None,
    tls_key: options.TlsKeyOption = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the API's token.", show_default="~/.config/autotune/token")
    ] = None,
) -> None:
    """Runs schedules in their windows, and serves the dashboard, the API and /metrics, until it is ended."""
    # Imported here: no other command should wait for a web framework.
    from autotune.dashboard.serve import Address
    from autotune.dashboard.serve import serve as serve_pages
    from autotune.service.lock import ServiceLock
    from autotune.service.node import Node
    from autotune.service.token import Token

    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    try:
        usable_url(storage)
        url = absolute_storage(storage)
        address = Address(host, port, tuple(allow_host or ()), behind_proxy, tls_cert, tls_key)
        address.check()
        token = Token.load_or_make(token_file)
        with ServiceLock.acquire(url) as lock, Node(url, token, environment=os.environ, beat=lock.touch) as node:

            def ready(listening: str) -> None:
                node.start()
                terminal.out.print(
                    f"autotune serves {escape(node.store.url)}: [bold]{escape(listening)}[/]", soft_wrap=True
                )
                for line in node.told():
                    terminal.out.print(escape(line), style="dim", soft_wrap=True)

            serve_pages(node.store, address, ready, extend=node.extend)
            terminal.out.print("ending; nights that run are stopped and go on when the service is back", style="dim")
    except BadInput as error:
        terminal.refuse(str(error))
    except AutotuneError as error:
        terminal.refuse(str(error), status=terminal.RUN_FAILED)
    raise typer.Exit(terminal.OK)
