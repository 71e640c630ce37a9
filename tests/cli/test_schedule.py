"""`autotune schedule` from the outside, with the double of verl."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.cli.main import app
from autotune.service import registration
from autotune.service.lock import ServiceLock
from autotune.service.registration import local_zone
from autotune.store import schedules
from autotune.store.records import Lease
from autotune.store.schedules import NightState
from autotune.store.store import Store
from tests.cli.test_run import Ran, env_of
from tests.fakes.launches import SCRIPT, write_script

SECRET = "hf_abcdefghijklmnop1234"
WHEN = ["--cron", "0 2 * * *", "--window", "02:00-06:00", "--tz", "Europe/Berlin"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a script and the double of verl; records of jobs and locks of the test alone."""
    for name, value in env_of().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AUTOTUNE_JOBS", str(tmp_path / "records"))
    for name in ("AUTOTUNE_NOTIFY", "HF_TOKEN", "MODEL"):
        monkeypatch.delenv(name, raising=False)
    place = tmp_path / "job"
    place.mkdir()
    write_script(place)
    monkeypatch.chdir(place)
    return place


def schedule(folder: Path, *arguments: str) -> Ran:
    """The command in `folder`."""
    assert Path.cwd() == folder
    result = CliRunner().invoke(app, ["schedule", *arguments], env={"COLUMNS": "400"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.stdout, result.stderr)


def add(folder: Path, name: str = "nightly", *more: str, when: list[str] | None = None) -> Ran:
    return schedule(folder, "add", name, "--script", "train.sh", *(when or WHEN), "--no-check", *more)


def added(folder: Path, name: str = "nightly", *more: str) -> None:
    ran = add(folder, name, *more)
    assert ran.returncode == 0, ran.stderr


def shown(folder: Path, *arguments: str) -> dict:
    ran = schedule(folder, *arguments, "--json")
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def database(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("trials.db*")))


def test_a_schedule_is_checked_stored_and_listed(folder: Path) -> None:
    ran = schedule(
        folder, "add", "nightly", "--script", "train.sh", "--gpus", "8", *WHEN, "--set", "trainer.total_epochs=2"
    )
    assert ran.returncode == 0, ran.stderr
    assert "registered on" in ran.stdout
    assert "02:00" in ran.stdout
    [entry] = shown(folder, "list")["schedules"]
    assert {key: entry[key] for key in ("name", "cron", "tz", "window", "state", "host")} == {
        "name": "nightly",
        "cron": "0 2 * * *",
        "tz": "Europe/Berlin",
        "window": "02:00-06:00",
        "state": "active",
        "host": socket.gethostname(),
    }
    assert datetime.fromisoformat(entry["next"]) > datetime.now(timezone.utc)
    request = shown(folder, "show", "nightly")["request"]
    assert request["set_overrides"] == {"trainer.total_epochs": "2"}
    assert (request["gpus"], request["wait"], request["cwd"]) == (8, True, str(folder))
    assert request["out"] == str(folder / "autotune-out/nightly")
    # Nothing was launched, and no folder made.
    assert sorted(path.name for path in folder.iterdir() if not path.name.startswith("trials.db")) == ["train.sh"]


def test_what_is_stored_is_a_request_that_a_night_can_take_up(folder: Path) -> None:
    from autotune.tuner.request import RunRequest

    added(folder, "nightly", "--trials", "12", "--steps", "3", "--allow", "numeric", "--env", "A=b", "--no-hooks")
    stored = shown(folder, "show", "nightly")["request"]
    request = RunRequest.from_json(stored, storage="sqlite:///x.db")
    assert (request.trials, request.plan.at_least, request.hooks, request.env) == (12, 3, False, {"A": "b"})
    assert [safety.value for safety in request.allow] == ["neutral", "numeric"]
    assert request.script == folder / "train.sh"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bad name", "--script", "train.sh", *WHEN], "cannot name a schedule"),
        (["../up", "--script", "train.sh", *WHEN], "cannot name a schedule"),
        (["-x" * 60, "--script", "train.sh", *WHEN], None),
        (["n" * 101, "--script", "train.sh", *WHEN], "cannot name a schedule"),
        (["<b>", "--script", "train.sh", *WHEN], "cannot name a schedule"),
        (["n", "--script", "none.sh", *WHEN], "none.sh cannot be read"),
        (["n", "--script", "train.sh", "--cron", "often", "--window", "02:00-06:00"], "needs five fields"),
        (["n", "--script", "train.sh", "--cron", "0 2 * * *", "--window", "nights"], "--window 'nights' is none"),
        (["n", "--script", "train.sh", *WHEN, "--tz", "Mars/Olympus"], "is no time zone"),
        (["n", "--script", "train.sh", "--cron", "0 1 * * *", "--window", "02:00-06:00"], "outside the window"),
        (["n", "--script", "train.sh", *WHEN, "--pairs", "1"], "--pairs 1"),
        (["n", "--script", "train.sh", *WHEN, "--gpus", "4"], "--gpus 4, but train.sh trains on 8"),
        (["n", "--script", "train.sh", *WHEN, "--space", "none"], "none"),
        (["n", "--script", "train.sh", *WHEN, "--allow", "semantic"], "never changes what the model learns"),
        (["n", "--script", "train.sh", *WHEN, "--set", "nokey"], "--set 'nokey': expected NAME=VALUE"),
        (["n", "--script", "train.sh", *WHEN, "--env", "2x"], "--env '2x'"),
        (["n", "--script", "train.sh", *WHEN, "--setup", "true"], "confirm it with --yes"),
        (["n", "--script", "train.sh", *WHEN, "--storage", "mysql://h/d"], "SQLite or PostgreSQL"),
    ],
)
def test_bad_input_is_refused_in_a_sentence_and_nothing_is_stored(
    folder: Path, arguments: list[str], said: str | None
) -> None:
    ran = schedule(folder, "add", *arguments)
    assert ran.returncode == 2
    if said is not None:
        assert said in ran.stderr
    assert "Traceback" not in ran.stderr
    assert list(folder.glob("trials.db*")) == []


def test_a_script_that_launches_no_verl_is_refused(folder: Path) -> None:
    (folder / "train.sh").write_text("echo hello\n")
    ran = schedule(folder, "add", "n", "--script", "train.sh", *WHEN)
    assert ran.returncode == 2
    assert list(folder.glob("trials.db*")) == []


def test_a_refusal_is_an_object_where_json_was_asked_for(folder: Path) -> None:
    ran = add(folder, "bad name", "--json")
    assert ran.returncode == 2
    assert json.loads(ran.stdout)["error"]["code"] == "BAD_INPUT"


def test_a_name_is_used_once(folder: Path) -> None:
    added(folder)
    ran = add(folder)
    assert ran.returncode == 2
    assert "there is a schedule named 'nightly' already" in ran.stderr


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--env", f"HF_TOKEN={SECRET}", "the value of HF_TOKEN looks like a secret"),
        ("--env", f"PLAIN={SECRET}", "the value of PLAIN looks like a secret"),
        ("--env", "WANDB_API_KEY=short", "the value of WANDB_API_KEY looks like a secret"),
        ("--env", "URL=https://me:pass-word@host/x", "the value of URL looks like a secret"),
        ("--set", f"trainer.api_key={SECRET}", "the value of --set trainer.api_key looks like a secret"),
        ("--setup", f'export HF_TOKEN="{SECRET}"', "--setup holds what looks like a secret"),
    ],
)
def test_a_secret_is_refused_stored_nowhere_and_not_shown(folder: Path, option: str, value: str, said: str) -> None:
    ran = add(folder, "nightly", option, value, "--yes")
    assert ran.returncode == 2
    assert said in ran.stderr
    assert "EnvironmentFile" in ran.stderr
    assert value.partition("=")[2] not in ran.stdout + ran.stderr
    assert list(folder.glob("trials.db*")) == []


def test_a_setup_command_that_only_passes_a_variable_on_is_stored_as_it_is(folder: Path) -> None:
    command = 'export HF_TOKEN="$HF_TOKEN"'
    added(folder, "nightly", "--setup", command, "--yes")
    assert shown(folder, "show", "nightly")["request"]["setup"] == command


def test_a_variable_without_a_value_is_taken_from_the_services_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    ran = schedule(folder, "add", "nightly", "--script", "train.sh", *WHEN, "--env", "HF_TOKEN", "--env", "MODEL=/m")
    assert ran.returncode == 0, ran.stderr
    assert "from the service's environment every night: HF_TOKEN" in ran.stdout
    assert shown(folder, "show", "nightly")["request"]["env"] == {"MODEL": "/m", "HF_TOKEN": "***"}
    assert SECRET.encode() not in database(folder)


def test_the_check_uses_what_the_service_will_have(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "train.sh").write_text(
        SCRIPT.replace("MODEL=${MODEL:-/models/base-7b}\n", "").replace("$MODEL", "$(cat m)")
    )
    refused = schedule(folder, "add", "n", "--script", "train.sh", *WHEN)
    assert refused.returncode == 2
    assert "which only a shell can know" in refused.stderr
    (folder / "train.sh").write_text(SCRIPT)
    missing = schedule(folder, "add", "n", "--script", "train.sh", *WHEN, "--env", "MODEL")
    assert "not set here, so that the check went without: MODEL" in missing.stdout


def test_without_a_zone_the_systems_is_taken_and_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    ran = add(folder, when=WHEN[:4])
    assert "America/New_York (this system's zone; --tz names another one)" in ran.stdout
    assert shown(folder, "list")["schedules"][0]["tz"] == "America/New_York"


def test_the_systems_zone_is_what_tz_or_the_link_says_else_utc(tmp_path: Path) -> None:
    link = tmp_path / "localtime"
    assert local_zone({}, link) == "UTC"
    link.symlink_to("/usr/share/zoneinfo/Europe/Berlin")
    assert local_zone({}, link) == "Europe/Berlin"
    assert local_zone({"TZ": ":Asia/Tokyo"}, link) == "Asia/Tokyo"
    assert local_zone({"TZ": "CET-1CEST"}, link) == "Europe/Berlin"
    link.unlink()
    link.write_bytes(b"TZif")
    assert local_zone({}, link) == "UTC"


def test_pausing_plans_no_night_until_it_is_resumed(folder: Path) -> None:
    added(folder)
    assert shown(folder, "pause", "nightly")["schedule"]["next"] is None
    paused = shown(folder, "show", "nightly")
    assert (paused["schedule"]["state"], paused["runs"]) == ("paused", [])
    assert "autotune schedule resume nightly" in schedule(folder, "show", "nightly").stdout
    assert "next night" in schedule(folder, "resume", "nightly").stdout
    assert shown(folder, "list")["schedules"][0]["state"] == "active"


def test_show_gives_the_next_three_nights_in_both_times(folder: Path) -> None:
    added(folder)
    runs = shown(folder, "show", "nightly")["runs"]
    assert len(runs) == 3
    for run in runs:
        assert datetime.fromisoformat(run["at"]) == datetime.fromisoformat(run["local"])
        assert run["local"][11:16] == "02:00"
    text = schedule(folder, "show", "nightly").stdout
    assert text.count("next night") == 3
    assert f"{runs[0]['at'][:10]} {runs[0]['at'][11:16]} UTC" in text


def test_a_changed_script_is_said_until_it_is_accepted(folder: Path) -> None:
    added(folder)
    assert shown(folder, "show", "nightly")["script"]["changed"] is False
    (folder / "train.sh").write_text(SCRIPT + "# another line\n")
    now = hashlib.sha256((folder / "train.sh").read_bytes()).hexdigest()
    state = shown(folder, "show", "nightly")["script"]
    assert (state["changed"], state["now"]) == (True, now)
    assert "has changed since it was registered" in schedule(folder, "show", "nightly").stdout
    ran = schedule(folder, "accept", "nightly")
    assert "is the new normal" in ran.stdout
    state = shown(folder, "show", "nightly")
    assert (state["script"]["changed"], state["schedule"]["script_hash"]) == (False, now)
    assert datetime.fromisoformat(state["reference"]["since"]) <= datetime.now(timezone.utc)
    (folder / "train.sh").unlink()
    assert shown(folder, "show", "nightly")["script"]["changed"] is None
    assert "cannot be read here" in schedule(folder, "show", "nightly").stdout
    assert schedule(folder, "accept", "nightly").returncode == 2


def test_a_night_is_asked_for_even_while_no_service_runs(folder: Path) -> None:
    added(folder)
    ran = schedule(folder, "run-now", "nightly", "--for", "2h")
    assert ran.returncode == 0
    assert "no service runs: the night starts when `autotune serve` does" in ran.stdout
    [night] = shown(folder, "history", "nightly")["nights"]
    planned, until = datetime.fromisoformat(night["planned"]), datetime.fromisoformat(night["until"])
    assert (night["state"], until - planned) == ("due", timedelta(hours=2))
    again = schedule(folder, "run-now", "nightly")
    assert again.returncode == 2
    assert "is due already" in again.stderr
    stopped = schedule(folder, "stop", "nightly")
    assert "stopped before it began" in stopped.stdout
    assert schedule(folder, "stop", "nightly").returncode == 2


def test_with_a_service_nothing_more_is_needed(folder: Path) -> None:
    added(folder)
    with ServiceLock.acquire(f"sqlite:///{folder}/trials.db"):
        ran = schedule(folder, "run-now", "nightly")
        assert "no service runs" not in ran.stdout
        assert f"the service runs (process {os.getpid()})" in schedule(folder, "show", "nightly").stdout
        assert shown(folder, "show", "nightly")["service"] == os.getpid()


@pytest.mark.parametrize("length", ["soon", "0h", "-1h", "99999d", "1" * 400 + "h"])
def test_a_length_that_is_none_is_refused(folder: Path, length: str) -> None:
    added(folder)
    ran = schedule(folder, "run-now", "nightly", "--for", length)
    assert ran.returncode == 2
    assert "--for" in ran.stderr
    assert shown(folder, "history", "nightly")["nights"] == []


def test_nights_are_shown_with_their_verdict_and_without_their_lease(folder: Path) -> None:
    added(folder)
    store = Store.open(f"sqlite:///{folder}/trials.db")
    stored = schedules.schedule(store, "nightly")
    now = datetime.now(timezone.utc)
    night_id = schedules.plan_night(store, stored.id, slot="2026-11-30T02:00", planned_at=now, until=now)
    assert night_id is not None
    lease = Lease("token-of-the-worker", "elsewhere", "boot", 1, 1)
    assert schedules.take_night(store, night_id, lease, instead_of=None)
    verdict = {"decision": "regression", "text": "Slower by 6.1 % in gen.", "phases": ["gen"]}
    schedules.tell_night(store, night_id, verdict=verdict, simulated=True)
    running = schedule(folder, "remove", "nightly")
    assert running.returncode == 2
    assert "runs right now" in running.stderr
    schedules.end_night(store, night_id, NightState.FINISHED)
    store.close()
    text = schedule(folder, "history", "nightly").stdout
    assert "SIMULATED finished, regression" in text
    assert "Slower by 6.1 % in gen." in text
    ran = schedule(folder, "history", "nightly", "--json")
    assert json.loads(ran.stdout)["nights"][0]["verdict"] == verdict
    assert "token-of-the-worker" not in ran.stdout
    removed = schedule(folder, "remove", "nightly")
    assert "history of 1 nights" in removed.stdout
    assert shown(folder, "list") == {"schedules": []}


@pytest.mark.parametrize("command", ["show", "pause", "resume", "remove", "run-now", "stop", "history", "accept"])
def test_an_unknown_name_is_refused_with_near_ones(folder: Path, command: str) -> None:
    missing = schedule(folder, command, "nightly")
    assert missing.returncode == 2
    assert "no schedule was added here yet" in missing.stderr
    assert list(folder.glob("trials.db*")) == []
    added(folder)
    ran = schedule(folder, command, "nightli")
    assert ran.returncode == 2
    assert "did you mean nightly" in ran.stderr


def test_names_and_reasons_cannot_reach_into_the_terminal(folder: Path) -> None:
    place = folder / "[bold]x[/bold]"
    place.mkdir(parents=True)
    write_script(place)
    ran = schedule(folder, "add", "n", "--script", str(place / "train.sh"), *WHEN, "--no-check")
    assert "[bold]x[/bold]" in ran.stdout
    assert "[bold]x[/bold]" in schedule(folder, "show", "n").stdout


def test_a_test_message_says_what_came_of_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    none = schedule(folder, "notify", "--test")
    assert none.returncode == 2
    assert "AUTOTUNE_NOTIFY" in none.stderr
    monkeypatch.setenv("AUTOTUNE_NOTIFY", f"json://me:{SECRET}@127.0.0.1:1/{SECRET}")
    listed = schedule(folder, "notify")
    failed = schedule(folder, "notify", "--test", "--json")
    assert (listed.returncode, failed.returncode) == (0, 1)
    [address] = json.loads(failed.stdout)["addresses"]
    assert (address["sent"], address["problem"]) == (False, "could not be reached, or did not answer")
    assert SECRET not in listed.stdout + failed.stdout + failed.stderr


def test_a_unit_is_printed_or_written(folder: Path) -> None:
    printed = schedule(folder, "export", "--systemd", "--port", "9000")
    assert printed.returncode == 0
    [start] = [line for line in printed.stdout.splitlines() if line.startswith("ExecStart=")]
    assert start == (
        f"ExecStart={sys.executable} -m autotune.cli.main serve --storage sqlite:///{folder}/trials.db --port 9000"
    )
    written = schedule(folder, "export", "--systemd", "--user", "--out", "unit.service", "--behind-proxy")
    assert "systemctl --user" in written.stdout
    text = (folder / "unit.service").read_text()
    assert "--behind-proxy" in text
    assert "WantedBy=default.target" in text
    assert f"WorkingDirectory={folder}" in text


def test_a_password_does_not_get_into_a_unit(folder: Path) -> None:
    ran = schedule(folder, "export", "--systemd", "--storage", "postgresql://me:hidden-word@db/x")
    assert ran.returncode == 2
    assert "PGPASSWORD" in ran.stderr
    assert "hidden-word" not in ran.stdout + ran.stderr
    assert schedule(folder, "export").returncode == 2


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
def test_systemd_accepts_what_is_exported(folder: Path) -> None:
    assert schedule(folder, "export", "--systemd", "--out", "autotune.service").returncode == 0
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "autotune.service"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_the_hash_is_of_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.sh"
    path.write_bytes(b"\xff\r\n")
    assert registration.hash_of(path) == hashlib.sha256(b"\xff\r\n").hexdigest()
