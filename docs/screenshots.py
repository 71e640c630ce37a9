"""Takes pictures of the dashboard's pages over a given database, for the documentation and for looking at them.

    python docs/screenshots.py trials.db --out docs/img --study NAME --themes light --widths 1440

Needs the package `playwright` and a Chromium (`--chromium`, by default Debian's).
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from playwright.sync_api import Browser, sync_playwright

from autotune.dashboard.app import create_app
from autotune.store import queries
from autotune.store.store import Store


def main() -> None:
    """Writes one PNG per page, width and theme; names what the browser complained about."""
    asked = arguments()
    store = Store.open(f"sqlite:///{asked.database.resolve()}")
    study = store.study(asked.study) if asked.study else store.latest_study()
    if study is None:
        sys.exit("the database holds no study")
    trials = queries.trial_summaries(store, study.id)
    failed = next((t.number for t in trials if t.failure), None)
    best = (study.verdict or {}).get("best_number") or (trials[-1].number if trials else 0)
    pages = {
        "home": "/",
        "studies": "/studies",
        "study": f"/studies/{study.id}",
        "trial": f"/studies/{study.id}/trials/{best}",
        "compare": f"/compare?s={study.id}",
        "workload": f"/workloads/{study.workload_fingerprint}" + ("?simulated=true" if study.simulated else ""),
        "read": "/read",
    }
    if failed is not None:
        pages["failed-trial"] = f"/studies/{study.id}/trials/{failed}"
    if asked.pages:
        pages = {name: path for name, path in pages.items() if name in asked.pages}
    asked.out.mkdir(parents=True, exist_ok=True)
    with served(store) as base, sync_playwright() as playwright:
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=asked.chromium, args=flags)
        for theme in asked.themes:
            for width in asked.widths:
                take(browser, base, pages, asked.out, theme, width, fold=asked.fold)
        browser.close()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/img"))
    parser.add_argument("--study", help="its name; the newest if left out")
    parser.add_argument("--pages", nargs="*", help="only these")
    parser.add_argument("--themes", nargs="*", default=["light", "dark"])
    parser.add_argument("--widths", nargs="*", type=int, default=[1440, 390])
    parser.add_argument("--fold", action="store_true", help="only what is seen without scrolling")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    return parser.parse_args()


@contextmanager
def served(store: Store) -> Iterator[str]:
    """The dashboard on a free port of this host."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(create_app(store), log_level="warning", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.05)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def take(browser: Browser, base: str, pages: dict[str, str], out: Path, theme: str, width: int, *, fold: bool) -> None:
    """One theme and width."""
    context = browser.new_context(
        viewport={"width": width, "height": 900 if width > 600 else 844},
        color_scheme="dark" if theme == "dark" else "light",
        device_scale_factor=1 if width > 600 else 2,
    )
    page = context.new_page()
    page.on("console", lambda message: print(f"{message.type}: {message.text}") if message.type != "log" else None)
    page.on("pageerror", lambda error: print(f"error: {error}"))
    for name, path in pages.items():
        page.goto(base + path, wait_until="load")
        page.wait_for_timeout(700)
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        if wide > 0:
            print(f"{name} at {width}: {wide} px wider than the window")
        page.screenshot(path=out / f"{name}-{width}-{theme}.png", full_page=not fold)
    context.close()


if __name__ == "__main__":
    main()
