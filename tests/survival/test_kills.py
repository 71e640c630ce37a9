"""Studies with the double of verl, of which something is killed again and again at random moments."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import optuna
import pytest

from autotune.measure.job_record import FOLDER_VARIABLE
from autotune.measure.processes import ProcessId, process_id
from autotune.store.store import Store
from autotune.values import TrialKind, TrialState
from tests.cli.test_run import AUTOTUNE, env_of
from tests.fakes.launches import write_script
from tests.survival.victims import VICTIMS, eventually, find, jobs_in, leftovers

TRIALS = 10
KILLS = 12
LONGEST = 4.0
"""Seconds after which something is killed at the latest, counted from now or from when a launch is there."""
CLEAN_WITHIN = 60.0


class Campaign:
    """Runs studies one after the other and kills."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.records = folder / "records"
        self.records.mkdir(mode=0o700)
        self.dice = random.Random(seed)
        self.env = {
            **env_of(cluster="1", step_seconds="0.15"),
            FOLDER_VARIABLE: str(self.records),
        }
        self.killed: Counter[str] = Counter()
        self.studies = 0
        self.swept = 0
        """How often nobody was left to clean up, so that the next command did."""
        self.seen: set[ProcessId] = set()
        self.marks: set[str] = set()
        write_script(folder)

    def start(self) -> subprocess.Popen[bytes]:
        """A new study."""
        self.studies += 1
        study = ["--study", f"s{self.studies}", "--trials", str(TRIALS), "--confirmations", "1"]
        return self._autotune("run", "train.sh", *study, "--runner", self.dice.choice(["auto", "cold"]))

    def begun(self) -> bool:
        """Whether the study that was killed is in the store; one killed before that never began."""
        if not (self.folder / "trials.db").exists():
            return False
        listed = subprocess.run(
            [*AUTOTUNE, "studies", "--json"], cwd=self.folder, env=self.env, capture_output=True, check=True
        )
        states = {study["name"]: study["state"] for study in json.loads(listed.stdout)["studies"]}
        return states.get(f"s{self.studies}") in ("interrupted", "stopped")

    def resume(self) -> subprocess.Popen[bytes]:
        return self._autotune("resume")

    def _autotune(self, *arguments: str) -> subprocess.Popen[bytes]:
        sink = (self.folder / "console").open("ab")
        with sink:
            return subprocess.Popen(
                [*AUTOTUNE, *arguments], cwd=self.folder, env=self.env, stdout=sink, stderr=sink, start_new_session=True
            )

    def kill_one(self, tuner: subprocess.Popen[bytes]) -> str | None:
        """Kills something at a random moment; None: the study ended before."""
        victim = self.dice.choice(VICTIMS)
        await_launch, delay = self.dice.random() < 0.75, self.dice.uniform(0.0, LONGEST)
        own = process_id(tuner.pid)
        assert own is not None
        end = time.monotonic() + delay
        while time.monotonic() < end or await_launch:
            self._look()
            if await_launch and jobs_in(self.records):
                await_launch, end = False, time.monotonic() + delay
            if tuner.poll() is not None:
                return None
            time.sleep(0.02)
        found = find(victim, own, self.records)
        self._look()
        if found is None:  # between two launches there is only the tuner
            victim, found = "tuner", own
        found.send(signal.SIGKILL)
        self.killed[victim] += 1
        return victim

    def _look(self) -> None:
        for record in jobs_in(self.records):
            self.seen |= record.processes
            self.marks.add(record.mark)

    def check_clean(self) -> None:
        """Nothing is left of any job. Where the supervisor was killed besides the tuner, any command cleans up."""

        def supervised() -> bool:
            return any(record.supervisor is None or record.supervisor.alive() for record in jobs_in(self.records))

        eventually(lambda: not supervised(), CLEAN_WITHIN)
        if jobs_in(self.records):
            self.swept += 1
            self.begun()  # any command will do
        eventually(lambda: not leftovers(self.records, self.seen, self.marks), CLEAN_WITHIN)
        assert leftovers(self.records, self.seen, self.marks) == []
        self.seen.clear()

    def check_end(self, tuner: subprocess.Popen[bytes]) -> None:
        """The tuner ends well, unless the user's own command was killed in both of its launches."""
        status = tuner.wait()
        if status == 0 or not self._own_command_failed_twice():
            assert status == 0, (self.folder / "console").read_text()[-3000:]
            self.check_study(f"s{self.studies}")
        self.check_clean()

    def _own_command_failed_twice(self) -> bool:
        store = Store.open(f"sqlite:///{self.folder}/trials.db")
        trials = store.trials(store.study(f"s{self.studies}").id)
        store.close()
        return sum(t.failure is not None and t.failure["class"] in ("unknown", "ray_actor_died") for t in trials) == 2

    def check_study(self, name: str) -> None:
        """The study is whole: nothing lost, nothing doubled, every Optuna trial told once."""
        store = Store.open(f"sqlite:///{self.folder}/trials.db")
        record = store.study(name)
        assert record.state == "finished"
        assert record.lease is None
        trials = store.trials(record.id)
        assert [trial.number for trial in trials] == list(range(len(trials)))
        assert all(trial.state not in (TrialState.QUEUED, TrialState.RUNNING) for trial in trials)
        searched = [t for t in trials if t.kind in (TrialKind.BASELINE, TrialKind.SEARCH)]
        measured = Counter(t.point for t in searched if t.state is TrialState.MEASURED)
        assert not [point for point, times in measured.items() if times > 1], "a Point was measured twice"
        assert len({t.point for t in searched}) == TRIALS, "a Point of the budget was lost"
        for trial in trials:
            if trial.state is TrialState.MEASURED:
                steps = store.steps(record.id, trial.number)
                numbers = [step.step for step in steps]
                assert numbers == sorted(set(numbers))
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        told = optuna.load_study(study_name=name, storage=store.optuna_storage()).get_trials(deepcopy=False)
        assert [t.number for t in told if not t.state.is_finished()] == []
        complete = Counter(t.number for t in told if t.state is optuna.trial.TrialState.COMPLETE)
        for trial in searched:
            if trial.state in (TrialState.MEASURED, TrialState.INFEASIBLE):
                assert complete[trial.optuna_number] == 1, f"trial {trial.number} was not told"
        store.close()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_whatever_is_killed_the_study_goes_on_to_its_end_and_nothing_is_left(tmp_path, request):
    kills = request.config.getoption("--kills") or KILLS
    seed = request.config.getoption("--seed")
    campaign = Campaign(tmp_path, seed)
    tuner = campaign.start()
    while sum(campaign.killed.values()) < kills:
        victim = campaign.kill_one(tuner)
        if victim == "tuner":
            tuner.wait()
            if campaign.dice.random() < 0.5:  # else the next tuner comes while the old job is still being ended
                campaign.check_clean()
            tuner = campaign.resume() if campaign.begun() else campaign.start()
        elif victim is None:
            campaign.check_end(tuner)
            tuner = campaign.start()
    campaign.check_end(tuner)
    print(f"seed {seed}: killed {dict(campaign.killed)} in {campaign.studies} studies, swept {campaign.swept} times")
