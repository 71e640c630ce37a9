"""Studies of real verl 0.9.1 and vLLM on the CPU, of which something is killed; and one that hangs."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from autotune.measure.job_record import FOLDER_VARIABLE
from autotune.measure.processes import ProcessId, process_id
from autotune.store.store import Store
from autotune.values import TrialKind, TrialState
from autotune.verl import keys
from tests.survival.victims import eventually, find, jobs_in, leftovers

pytestmark = [pytest.mark.verl, pytest.mark.timeout(5400)]

LONGEST = 120.0
"""Seconds from the start of a launch until something is killed at the latest: all of the start-up and the first steps."""
CLEAN_WITHIN = 60.0
SPACE = f"""\
name: short
about: two Points of a session
knobs:
  {keys.ACTOR_MICRO_BATCH}: [1, 8, 16]
"""


def autotune(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with (folder / "console").open("ab") as sink:
        return subprocess.Popen(
            [sys.executable, "-m", "autotune.cli.main", *arguments],
            cwd=folder,
            env={**env, FOLDER_VARIABLE: str(folder / "records"), **variables},
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "records").mkdir(mode=0o700)
    (tmp_path / "space.yaml").write_text(SPACE)
    return tmp_path


class Campaign:
    """One study, killed and taken up again."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.records = folder / "records"
        self.dice = random.Random(seed)
        self.before = shared_memory()
        self.killed: Counter[str] = Counter()
        self.seen: set[ProcessId] = set()
        self.marks: set[str] = set()
        self.spared = -1
        """Measured trials when a launch was last killed under its tuner: a second time would make it a failed Point."""
        study = ["--demo", "--space", "space.yaml", "--trials", "3", "--confirmations", "0", "--out", "out"]
        self.tuner = autotune(folder, "run", *study, "--study", "real")

    def running(self) -> bool:
        """Whether a launch is there; what belongs to it is taken down."""
        for record in jobs_in(self.records):
            self.seen.update(record.processes)
            self.marks.add(record.mark)
        return bool(jobs_in(self.records))

    def ended(self) -> bool:
        return self.tuner.poll() is not None

    def measured(self) -> list[str]:
        """The Points that were measured, as JSON."""
        if not (self.folder / "trials.db").exists():
            return []
        store = Store.open(f"sqlite:///{self.folder}/trials.db")
        trials = store.trials(store.study("real").id) if store.studies() else []
        store.close()
        kinds = (TrialKind.BASELINE, TrialKind.SEARCH)
        return [json.dumps(t.point.as_dict()) for t in trials if t.kind in kinds and t.state is TrialState.MEASURED]

    def kill_one(self) -> None:
        """Kills something of the launch that runs, or comes next, at a random moment of it."""
        assert eventually(lambda: self.running() or self.ended(), 300.0)
        end = time.monotonic() + self.dice.uniform(0.0, LONGEST)
        while time.monotonic() < end and not self.ended():
            self.running()
            time.sleep(0.5)
        own = process_id(self.tuner.pid)
        if self.ended() or own is None:
            return
        done = len(self.measured())
        hard = [victim for victim in ("driver", "raylet", "engine") if self.spared < done]
        victim = min((*hard, "tuner", "supervisor"), key=lambda name: (self.killed[name], self.dice.random()))
        found = find(victim, own, self.records)
        if found is None:
            victim, found = "tuner", own
        marks = {record.mark for record in jobs_in(self.records)}
        self.running()
        found.send(signal.SIGKILL)
        self.killed[victim] += 1
        if victim in hard:
            self.spared = done
        if victim == "tuner":
            self.tuner.wait()
            self.check_clean()
            begun = (self.folder / "trials.db").exists() and b'"real"' in _output(self.folder, "studies", "--json")
            assert begun, "killed before the study began; choose another seed"
            self.tuner = autotune(self.folder, "resume")
        else:
            assert eventually(lambda: not marks & {record.mark for record in jobs_in(self.records)}, 400.0), victim

    def check_clean(self) -> None:
        def left() -> list[str]:
            return leftovers(self.records, self.seen, self.marks) + sorted(shared_memory() - self.before)

        assert eventually(lambda: not left(), CLEAN_WITHIN), left()


def test_whatever_is_killed_of_real_verl_the_study_goes_on_and_nothing_is_left(folder, request):
    kills = request.config.getoption("--kills")
    if kills is None:
        pytest.skip("a quarter of an hour; ask for it with --kills 10")
    seed = request.config.getoption("--seed")
    campaign = Campaign(folder, seed)
    while sum(campaign.killed.values()) < kills and not campaign.ended():
        campaign.kill_one()
    assert campaign.tuner.wait() == 0, (folder / "console").read_text()[-3000:]
    campaign.check_clean()
    assert json.loads(_output(folder, "show", "real", "--json"))["state"] == "finished"
    measured = Counter(campaign.measured())
    assert len(measured) == 3
    assert set(measured.values()) == {1}
    print(f"seed {seed}: killed {dict(campaign.killed)}")


def test_a_verl_that_hangs_is_ended_by_the_watchdog_and_recorded_as_such(folder):
    """oneDNN packs the weights of vLLM's CPU build, after which verl's first weight sync waits for ever."""
    before = shared_memory()
    run = autotune(
        folder,
        *["run", "--demo", "--trials", "1", "--confirmations", "0", "--out", "out", "--study", "hung"],
        *["--startup-timeout", "150"],
        AUTOTUNE_KEEP_ONEDNN="1",
    )
    assert run.wait() == 1
    shown = json.loads(_output(folder, "show", "hung", "--json"))
    (trial,) = shown["trials"]
    assert trial["state"] == "infeasible"
    assert trial["failure"]["class"] == "hang_no_progress"
    assert shown["verdict"]["decision"] == "baseline_failed"
    assert list((folder / "records").iterdir()) == []
    assert shared_memory() <= before


def _output(folder: Path, *arguments: str) -> bytes:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-m", "autotune.cli.main", *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, check=True).stdout
