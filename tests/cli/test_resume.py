"""`autotune resume`, from the outside, with the double of verl. Every figure in here is simulated."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.measure.processes import process_id
from autotune.store.store import Store
from autotune.tuner.execute import TUNER_GONE
from autotune.tuner.lease import EXPIRES_SECONDS, held, new_lease
from autotune.values import TrialKind, TrialState
from tests.cli.test_run import AUTOTUNE, autotune, env_of
from tests.fakes.launches import SCRIPT, write_script
from tests.studies import BASELINE, add_study, add_trial, measurement


def cut(folder: Path, *arguments: str, after: str = "t004", number: int = signal.SIGINT, **faults: str) -> str:
    """A study that was ended by a signal when a launch had begun; what it printed."""
    running = subprocess.Popen(
        [*AUTOTUNE, "run", "train.sh", "--trials", "6", "--confirmations", "1", "--study", "cut", *arguments],
        cwd=folder,
        env=env_of(**{"step_seconds": "0.15", **faults}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and not list(folder.glob(f"autotune-out/cut/runs/{after}/*")):
        time.sleep(0.05)
    running.send_signal(number)
    said, _ = running.communicate(timeout=90)
    return said


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A study that was stopped by Ctrl-C at its second Point in a session; copied, never changed."""
    folder = tmp_path_factory.mktemp("interrupted")
    write_script(folder)
    return folder, cut(folder)


@pytest.fixture
def stopped(interrupted, tmp_path):
    """A copy of its database; the study goes on in the folder in which it was started."""
    folder, _ = interrupted
    shutil.copyfile(folder / "trials.db", tmp_path / "trials.db")
    return tmp_path


def test_a_stopped_study_says_how_to_go_on(interrupted):
    _, said = interrupted
    assert "autotune resume cut" in said


def test_a_stopped_study_goes_on_to_its_budget_without_measuring_anything_again(stopped):
    before = json.loads(autotune(stopped, "show", "cut", "--json").stdout)
    ran = autotune(stopped, "resume", "--json")
    assert ran.returncode == 0, ran.stderr
    after = json.loads(ran.stdout)
    assert after["study"] == "cut"
    assert after["state"] == "finished"
    assert after["verdict"]["decision"] == "better"
    kept = len(before["trials"])
    assert after["trials"][:kept] == before["trials"]
    search = [t for t in after["trials"] if t["kind"] in ("baseline", "search") and t["state"] == "measured"]
    points = [json.dumps(t["point"], sort_keys=True) for t in search]
    assert len(points) == len(set(points))
    for lost in before["trials"]:
        if lost["state"] == "failed":
            assert lost["failure"]["class"] == "interrupted"
            assert json.dumps(lost["point"], sort_keys=True) in points
    assert len({json.dumps(t["point"], sort_keys=True) for t in after["trials"] if t["kind"] != "confirm"}) == 6
    assert {t["session"] for t in search if t["number"] >= kept} != {t["session"] for t in before["trials"]}


def test_a_finished_study_does_not_go_on(stopped):
    assert autotune(stopped, "resume", "--trials", "3").returncode == 0
    ran = autotune(stopped, "resume", "cut")
    assert ran.returncode == 2
    assert "come to its end" in ran.stderr
    ran = autotune(stopped, "resume")
    assert ran.returncode == 2
    assert "no study" in ran.stderr


def test_a_script_that_has_changed_is_another_study(interrupted):
    folder, _ = interrupted
    script = folder / "train.sh"
    try:
        script.write_text(SCRIPT.replace("train_batch_size=128", "train_batch_size=256"))
        ran = autotune(folder, "resume")
        assert ran.returncode == 2
        assert "train.sh has changed" in ran.stderr
    finally:
        script.write_text(SCRIPT)


def test_an_environment_that_composes_another_configuration_is_another_study(interrupted):
    folder, _ = interrupted
    ran = autotune(folder, "resume", "--env", "MODEL=/models/other")
    assert ran.returncode == 2
    assert "actor_rollout_ref.model.path: /models/base-7b → /models/other" in ran.stderr


def test_a_secret_that_was_not_stored_is_asked_for(tmp_path):
    write_script(tmp_path)
    cut(tmp_path, "--env", "WANDB_API_KEY=0123456789abcdef0123456789abcdef", "--confirmations", "0", after="t000")
    assert b"0123456789abcdef" not in (tmp_path / "trials.db").read_bytes()
    ran = autotune(tmp_path, "resume")
    assert ran.returncode == 2
    assert "--env WANDB_API_KEY=" in ran.stderr
    ran = autotune(tmp_path, "resume", "--env", "WANDB_API_KEY=0123456789abcdef0123456789abcdef", "--trials", "2")
    assert ran.returncode == 0, ran.stderr


def test_a_study_that_runs_is_not_taken_up(tmp_path):
    store = Store.open(f"sqlite:///{tmp_path}/trials.db")
    add_study(store, lease=new_lease())
    ran = autotune(tmp_path, "resume", "night")
    assert ran.returncode == 2
    assert "runs right now" in ran.stderr
    assert json.loads(autotune(tmp_path, "studies", "--json").stdout)["studies"][0]["state"] == "running"


def test_a_study_of_a_tuner_that_is_gone_is_called_interrupted(tmp_path):
    store = Store.open(f"sqlite:///{tmp_path}/trials.db")
    add_study(store, lease=replace(new_lease(), start=1))
    assert json.loads(autotune(tmp_path, "studies", "--json").stdout)["studies"][0]["state"] == "interrupted"
    assert "autotune resume" in autotune(tmp_path, "studies").stdout


def test_a_study_of_a_release_that_stored_too_little_is_refused_with_the_reason(tmp_path):
    store = Store.open(f"sqlite:///{tmp_path}/trials.db")
    add_study(store)
    ran = autotune(tmp_path, "resume")
    assert ran.returncode == 2
    assert "stored too little" in ran.stderr


def test_a_lease_of_another_host_is_dead_once_it_is_old(tmp_path):
    store = Store.open(f"sqlite:///{tmp_path}/trials.db")
    add_study(store, lease=replace(new_lease(), host="elsewhere"))
    study = store.study("night")
    assert held(study)
    assert not held(replace(study, lease_age=EXPIRES_SECONDS + 1))
    assert not held(replace(study, lease=None))


def test_the_trials_that_a_killed_tuner_left_are_ended_once(tmp_path):
    store = Store.open(f"sqlite:///{tmp_path}/trials.db")
    study = add_study(store)
    add_trial(store, study, BASELINE, TrialKind.BASELINE, measurement(2.0))
    add_trial(store, study)
    assert store.abandon(study, TUNER_GONE) == 1
    assert store.abandon(study, TUNER_GONE) == 0
    states = [trial.state for trial in store.trials(study)]
    assert states == [TrialState.MEASURED, TrialState.FAILED]
    assert (store.trials(study)[1].failure or {})["class"] == "interrupted"


def test_the_process_of_a_lease_is_this_one():
    lease = new_lease()
    own = process_id(lease.pid)
    assert own is not None
    assert own.start == lease.start
