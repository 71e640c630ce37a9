"""A person's walk through the dashboard while a study runs, in Debian's Chromium. Every figure in here is simulated."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.store import schedules
from autotune.store.schedules import NightState
from autotune.store.store import Store
from tests.fakes.launches import environment, write_script
from tests.nights import add_night, add_schedule, canary, history, said

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[2]
AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
AUTOTUNE = [sys.executable, "-m", "autotune.cli.main"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium as Debian ships it; Playwright's own cannot be downloaded everywhere."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.fail(
            "there is no Chromium: `make test` installs it, `make test-fast` leaves these tests out", pytrace=False
        )
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=path, args=flags)
        yield opened
        opened.close()


def call(*arguments: str, cwd: Path, **faults: str) -> subprocess.Popen[bytes]:
    env = environment(**faults)
    env["PYTHONPATH"] = f"{ROOT}:{env['PYTHONPATH']}"
    with (cwd / f"{arguments[0]}.out").open("wb") as sink:
        return subprocess.Popen([*AUTOTUNE, *arguments], cwd=cwd, env=env, stdout=sink, stderr=subprocess.STDOUT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a first study has ended, so that there is a night to compare with."""
    place = tmp_path_factory.mktemp("walk")
    write_script(place)
    first = call(
        "run", "train.sh", "--study", "first", "--trials", "3", "--confirmations", "1", cwd=place, noise="0.01"
    )
    assert first.wait(timeout=120) == 0, (place / "run.out").read_text()
    store = Store.open(f"sqlite:///{place}/trials.db")
    history(store, add_schedule(store), study=1)
    add_schedule(
        store, "grpo_of_a_team_that_gives_its_jobs_names_without_any_gap_at_all", script_path="/a" * 60 + "/b.sh"
    )
    store.close()
    return place


@pytest.fixture(scope="module")
def base(folder: Path) -> Iterator[str]:
    """The dashboard, started as people start it."""
    server = call("dashboard", "--port", "0", cwd=folder)
    said = folder / "dashboard.out"
    while not (found := re.search(r"http://127\.0\.0\.1:\d+", said.read_text())):
        assert server.poll() is None, said.read_text()
        time.sleep(0.1)
    yield found[0]
    server.send_signal(signal.SIGINT)
    assert server.wait(timeout=20) == 0, said.read_text()
    assert "Traceback" not in said.read_text()


class Watched:
    """A page whose complaints and requests are kept."""

    def __init__(self, browser: Any, base: str, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda r: None if r.url.startswith((base, "data:")) else self.foreign.append(r.url))

    def close(self) -> None:
        self.context.close()


def serious(page: Any) -> list[str]:
    """What axe-core calls serious or worse on the page as it stands."""
    page.evaluate(AXE)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{v['id']} ({v['impact']}): {[node['html'][:160] + ' | ' + node['failureSummary'][:200] for node in v['nodes'][:3]]}"
        for v in found["violations"]
        if v["impact"] in ("serious", "critical")
    ]


def test_a_walk_from_home_to_the_script_while_a_study_runs(browser, base, folder):
    study = call(
        "run", "train.sh", "--study", "second", "--trials", "5", "--confirmations", "1", cwd=folder, step_seconds="0.5", noise="0.01"
    )  # fmt: skip
    watched = Watched(
        browser, base, viewport={"width": 1280, "height": 900}, permissions=["clipboard-read", "clipboard-write"]
    )
    page = watched.page
    try:
        page.goto(base)
        page.get_by_role("link", name="second").first.wait_for(timeout=60_000)
        assert page.locator("#now .badge.sim").count() == 1
        page.evaluate("window.notReloaded = true")
        page.locator("#now a.title", has_text="second").click()
        page.get_by_role("heading", name="second").wait_for()

        # The table grows while nobody touches the page.
        page.evaluate("window.notReloaded = true")
        rows = page.locator("#trials tbody tr")
        before = rows.count()
        page.locator("#pick-0").check()
        page.wait_for_function(
            "n => document.querySelectorAll('#trials tbody tr').length > n", arg=before, timeout=90_000
        )
        assert page.evaluate("window.notReloaded") is True
        # A ticked row stays ticked when the table is renewed (asked until it holds: it may be renewed again meanwhile).
        playwright.expect(page.locator("#pick-0")).to_be_checked()

        page.locator("#trials a", has_text="t000").click()
        page.get_by_role("heading", name="t000").wait_for()
        page.locator(".plot .main-svg").first.wait_for()
        page.get_by_role("link", name="second").click()
        page.get_by_role("heading", name="second").wait_for()
        page.evaluate("window.notReloaded = true")

        # Its end is seen, too.
        page.locator(".verdict .lead", has_text="interval").wait_for(timeout=120_000)
        assert study.wait(timeout=60) == 0
        page.wait_for_timeout(3000)  # the last update, when best.sh is there, renews the button
        page.get_by_role("button", name="Copy script").click()
        page.get_by_role("button", name="Copied").wait_for()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == (folder / "autotune-out/second/best.sh").read_text()
        assert page.evaluate("window.notReloaded") is True

        page.locator("#pick-0").check()
        page.locator("#pick-3").check()
        page.get_by_role("button", name="Compare the ticked ones").click()
        page.get_by_role("heading", name="Compare").wait_for()
        assert page.locator("table.compare thead th").count() == 2
        page.goto(base)
        page.locator(".plot .main-svg").first.wait_for()
        assert page.locator("text=Workloads").count() >= 1
        assert watched.complaints == []
        assert watched.foreign == []
    finally:
        if study.poll() is None:
            study.send_signal(signal.SIGINT)
            study.wait(timeout=60)
        watched.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_every_page_is_accessible_and_fits(browser, base, folder, theme, width):
    watched = Watched(browser, base, viewport={"width": width, "height": 850}, color_scheme=theme)
    paths = {
        "/": ".plot, .panel",
        "/studies": "table",
        "/studies/1": ".plot .main-svg",
        "/studies/1/trials/0": ".plot .main-svg",
        "/studies/1/trials/2": "table",
        "/schedules": "table",
        "/schedules/nightly": ".plot .main-svg",
        "/schedules/grpo_of_a_team_that_gives_its_jobs_names_without_any_gap_at_all": "h1",
        "/compare?s=1": "table",
        "/read": "textarea",
        "/nothing": "h1",
    }
    try:
        for path, sign in paths.items():
            watched.page.goto(base + path)
            watched.page.locator(sign).first.wait_for()
            assert watched.page.evaluate("document.documentElement.dataset.theme") == theme
            assert serious(watched.page) == [], path
            wider = watched.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wider <= 0, f"{path} is {wider} px wider than the window"
        assert watched.complaints in (
            [],
            ["Failed to load resource: the server responded with a status of 404 (Not Found)"],
        )
        assert watched.foreign == []
    finally:
        watched.close()


def test_the_page_of_a_schedule_follows_a_night(browser, base, folder):
    watched = Watched(browser, base)
    page = watched.page
    store = Store.open(f"sqlite:///{folder}/trials.db")
    try:
        schedule = schedules.schedule(store, "nightly")
        page.goto(base + "/schedules/nightly")
        page.locator(".verdict .lead", has_text="Regression").wait_for()
        page.locator(".plot .main-svg").first.wait_for()
        assert page.locator("time[data-due]", has_text="in ").count() == 3
        page.evaluate("window.notReloaded = true")
        night = add_night(store, schedule, 30, NightState.RUNNING, measured=canary())
        page.locator("#runs-h + p .st-running").wait_for()
        schedules.tell_night(store, night, verdict=said())
        schedules.end_night(store, night, NightState.FINISHED)
        page.locator(".verdict .lead", has_text="Steady").wait_for()
        page.locator(".plot .main-svg").first.wait_for()
        assert page.evaluate("window.notReloaded") is True
        assert watched.complaints == []
    finally:
        store.close()
        watched.close()


def test_the_theme_is_kept_and_the_keyboard_reaches_everything(browser, base, folder):
    watched = Watched(browser, base, color_scheme="light")
    page = watched.page
    try:
        page.goto(base + "/studies/1")
        page.locator("#theme").press("Enter")
        page.reload()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to content"
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "trial-q"
        page.keyboard.type("infeasible-nonsense")
        page.keyboard.press("Enter")
        page.get_by_text("No trial matches.").wait_for()
        page.goto(base + "/studies/1")
        page.locator("#sort-throughput").focus()
        page.keyboard.press("Enter")
        page.locator("th[aria-sort=descending] #sort-throughput").wait_for()
        assert watched.complaints == []
    finally:
        watched.close()


def test_the_report_opens_from_disk_with_its_pictures(browser, folder):
    report = (folder / "autotune-out/first/report.html").as_uri()
    watched = Watched(browser, report)
    try:
        watched.page.goto(report)
        watched.page.locator(".plot .main-svg").first.wait_for()
        assert watched.page.locator(".badge.sim").count() > 0
        assert serious(watched.page) == []
        assert watched.complaints == []
        assert watched.foreign == []
        assert watched.page.pdf(format="A4")[:5] == b"%PDF-"
    finally:
        watched.close()


def test_a_log_dropped_in_is_read(browser, base):
    watched = Watched(browser, base)
    page = watched.page
    try:
        page.goto(base + "/read")
        page.locator("#file").set_input_files(ROOT / "tests/cases/logs/f01_oom_update_actor.log")
        page.wait_for_function("document.getElementById('text').value.length > 100")
        page.get_by_role("button", name="Read", exact=True).click()
        page.get_by_role("heading", name="oom_gpu").wait_for()
        assert serious(page) == []
        assert watched.complaints == []
    finally:
        watched.close()


def test_without_scripts_the_pages_still_work(browser, base, folder):
    watched = Watched(browser, base, java_script_enabled=False)
    page = watched.page
    try:
        page.goto(base + "/studies/1")
        page.locator("#sort-throughput").click()
        assert "sort=throughput" in page.url
        page.locator("#pick-0").check()
        page.get_by_role("button", name="Compare the ticked ones").click()
        assert "/compare?t=1.0" in page.url
    finally:
        watched.close()


def test_figures_answer_as_json(base, folder):
    import urllib.request

    with urllib.request.urlopen(f"{base}/studies/1/figures") as answer:
        assert {"best-trials", "best-minutes", "tradeoff"} <= set(json.load(answer))
