"""`autotune dashboard`: pages of everything that was measured."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer
from rich.markup import escape

from autotune.cli import console as terminal
from autotune.cli import options
from autotune.cli.storage import DEFAULT_STORAGE, open_existing
from autotune.values import BadInput


def dashboard(
    storage: Annotated[str, typer.Option(help="Database URL.")] = DEFAULT_STORAGE,
    host: options.HostOption = "127.0.0.1",
    port: options.PortOption = options.PORT,
    allow_host: options.AllowHostOption = None,
    behind_proxy: options.BehindProxyOption = False,
    tls_cert: options.TlsCertOption = None,
    tls_key: options.TlsKeyOption = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> None:
    """Shows every study as web pages, live while one runs. Reads the database, never writes it."""
    # Imported here: no other command should wait for a web framework.
    from autotune.dashboard.serve import Address, serve

    try:
        store = open_existing(storage)
        address = Address(host, port, tuple(allow_host or ()), behind_proxy, tls_cert, tls_key)

        def ready(url: str) -> None:
            terminal.out.print(f"autotune dashboard of {escape(store.url)}: [bold]{escape(url)}[/]", soft_wrap=True)
            terminal.out.print("Ctrl-C ends it. On another machine: ssh -L PORT:localhost:PORT HOST", style="dim")
            if open_browser:
                webbrowser.open(url)

        serve(store, address, ready)
    except BadInput as error:
        terminal.refuse(str(error))
    raise typer.Exit(terminal.OK)
