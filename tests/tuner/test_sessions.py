"""Studies in sessions, with the double of verl. Every figure in here is simulated."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from autotune.store.records import gain_of
from autotune.store.store import Store
from autotune.tuner.request import RewardCalls, RunRequest
from autotune.values import TrialKind
from autotune.verl import keys
from tests.cli.test_run import autotune
from tests.fakes.launches import SCRIPT, write_script

CHECKPOINTING = "actor_rollout_ref.model.enable_gradient_checkpointing"
SPACE = f"""\
name: s
knobs:
  {keys.ACTOR_MICRO_BATCH}: [2, 4, 8, 16]
  {keys.MAX_NUM_SEQS}: [64, 128, 256]
  {keys.GPU_MEMORY}: [0.3, 0.4, 0.5]
"""


@pytest.fixture
def study(tmp_path):
    """Runs a study and returns what it says."""
    write_script(tmp_path)
    (tmp_path / "s.yaml").write_text(SPACE)

    def run(*arguments: str, **faults: str) -> dict:
        trials = ["--trials", "8", "--confirmations", "1", "--space", "s.yaml", "--study", "one", "--out", "o"]
        ran = autotune(tmp_path, "run", "train.sh", *trials, *arguments, "--json", **faults)
        assert ran.returncode == 0, ran.stderr
        return {**json.loads(ran.stdout), "said": ran.stderr}

    return run


def of_kind(shown, kind):
    return [trial for trial in shown["trials"] if trial["kind"] == kind]


def test_one_session_measures_all_points_that_can_change_live(study, tmp_path):
    shown = study()
    (session,) = {trial["session"] for trial in of_kind(shown, "search")}
    assert session is not None
    assert len(list((tmp_path / "o/runs").glob("session-*"))) == 1
    assert len(of_kind(shown, "search")) == 7
    assert {trial["engine"] for trial in of_kind(shown, "search")} <= {"live", "cold"}
    assert {trial["source"] for trial in of_kind(shown, "search")} == {"composed"}


def test_the_users_command_and_the_finalists_are_launches_of_their_own(study):
    shown = study()
    for trial in [*of_kind(shown, "baseline"), *of_kind(shown, "confirm")]:
        assert trial["session"] is None
        assert trial["engine"] == "cold"
    assert shown["verdict"]["decision"] == "better"
    assert shown["verdict"]["equivalent"]["gradient"] is True
    assert shown["baseline"]["kind"] == "baseline"


def test_a_session_measures_the_users_command_at_its_start_and_at_its_end(study):
    shown = study()
    anchors = of_kind(shown, "anchor")
    assert Counter(anchor["source"] for anchor in anchors) == {"whole": 2, "composed": 2}
    assert {json.dumps(a["point"], sort_keys=True) for a in anchors} == {
        json.dumps(shown["baseline"]["point"], sort_keys=True)
    }


def test_gains_of_a_session_are_against_the_users_command_in_that_session(study, tmp_path):
    """On a host that is slower while the session runs, every figure in it is lower, and no gain is. The engine has the user's own
    limits, so that no smaller ones are tried."""
    (tmp_path / "s.yaml").write_text("\n".join(line for line in SPACE.splitlines() if keys.MAX_NUM_SEQS not in line))
    shown = study(session_slower="1:1.5")
    assert "goes on" in shown["said"]
    best = shown["verdict"]["best_number"]
    store = Store.open(f"sqlite:///{tmp_path}/trials.db")
    trials = store.trials(store.study("one").id)
    store.close()
    confirmed = next(trial for trial in trials if trial.number == best)
    inside = next(t for t in trials if t.kind is TrialKind.SEARCH and t.point == confirmed.point)
    assert inside.throughput is not None
    assert confirmed.throughput is not None
    assert inside.throughput < 0.8 * confirmed.throughput
    assert gain_of(inside, trials) == pytest.approx(gain_of(confirmed, trials), rel=0.05)


def test_points_of_a_session_that_became_slower_are_measured_again(study):
    shown = study(session_slower="25:1.3")
    assert "measured again" in shown["said"]
    again = [t for t in of_kind(shown, "search") if "drifted" in t["origin"]]
    assert again
    assert {t["session"] for t in again} != {t["session"] for t in of_kind(shown, "search") if t not in again}


def test_points_that_need_a_launch_come_after_those_of_the_session(study, tmp_path):
    (tmp_path / "s.yaml").write_text(SPACE + f"  {CHECKPOINTING}: [true, false]\n")
    shown = study("--trials", "10")
    states = [trial["session"] is not None for trial in of_kind(shown, "search")]
    assert states == sorted(states, reverse=True)
    assert 1 <= states.count(False) <= 2


def test_a_session_that_dies_loses_the_running_point_alone(study):
    shown = study(session_dies="20")
    lost = [trial for trial in of_kind(shown, "search") if trial["state"] == "failed"]
    sessions = {trial["session"] for trial in of_kind(shown, "search") if trial["state"] == "measured"}
    assert len(lost) == len(sessions) - 1 > 0
    points = Counter(json.dumps(t["point"]) for t in of_kind(shown, "search") if t["state"] == "measured")
    assert {json.dumps(trial["point"]) for trial in lost} <= points.keys()
    assert set(points.values()) == {1}


def test_points_that_would_not_fit_on_several_gpus_cost_no_session(study, tmp_path):
    """A micro-batch of 32 takes 118 GiB of 80. It is no Point that failed: the search neither ends for it nor learns a bound."""
    (tmp_path / "s.yaml").write_text(SPACE.replace("[2, 4, 8, 16]", "[2, 4, 32]"))
    shown = study()
    refused = [trial for trial in of_kind(shown, "search") if trial["state"] == "infeasible"]
    assert refused
    assert all(trial["failure"]["evidence"].endswith("not tried") for trial in refused)
    assert {trial["point"][keys.ACTOR_MICRO_BATCH] for trial in refused} == {32}
    assert len(list((tmp_path / "o/runs").glob("session-*"))) == 1


def test_a_session_that_differs_from_the_users_own_launch_is_started_again_and_the_user_is_told(study, tmp_path):
    shown = study("--trials", "3", session_crowded="0.05")
    assert "your own command does not run as it does by itself: gen" in shown["said"]
    assert "The session is started again" in shown["said"]
    assert len(list((tmp_path / "o/runs").glob("session-*"))) >= 1
    assert {trial["state"] for trial in of_kind(shown, "search")} == {"measured"}


def test_a_job_without_sessions_says_why_and_what_its_budget_affords(study, tmp_path):
    write_script(tmp_path, SCRIPT.replace("trainer.device=cpu", "trainer.use_v1=False trainer.device=cpu"))
    shown = study("--time-budget", "2h", "--trials", "3")
    assert "No session (the old trainer" in shown["said"]
    assert "the time budget affords" in shown["said"]
    assert not of_kind(shown, "anchor")


def test_launches_alone_can_be_asked_for(study):
    shown = study("--runner", "cold")
    assert {trial["session"] for trial in shown["trials"]} == {None}
    assert shown["verdict"]["equivalent"]["gradient"] is None


def test_the_plan_is_told_before_anything_is_launched(tmp_path):
    write_script(tmp_path)
    ran = autotune(tmp_path, "run", "train.sh", "--dry-run", "--json")
    plan = " ".join(json.loads(ran.stdout)["plan"])
    assert "One launch of verl measures many Points" in plan
    assert "rollout.gpu_memory_utilization below your own value" in plan
    assert "model.enable_gradient_checkpointing" in plan


def test_the_reward_is_replayed_unless_it_is_to_be_called(study, tmp_path):
    told = {}
    for choice in ("replay", "live"):
        shown = study("--trials", "3", "--storage", f"sqlite:///{choice}.db", "--reward", choice)
        probed = [trial["number"] for trial in of_kind(shown, "search")]
        with closing(Store.open(f"sqlite:///{tmp_path}/{choice}.db")) as store:
            trials = store.trials(store.study("one").id)
        told[choice] = [trial.echo["reward.mode"] for trial in trials if trial.number in probed]
    assert "replayed" in told["replay"]
    assert set(told["live"]) == {"live"}


def test_a_study_of_a_release_without_the_choice_goes_on_calling_the_reward():
    stored = RunRequest(Path("train.sh"), Path("o"), "sqlite:///x.db", "one").to_json()
    assert RunRequest.from_json(stored, storage="sqlite:///x.db").reward is RewardCalls.REPLAY
    del stored["reward"]
    assert RunRequest.from_json(stored, storage="sqlite:///x.db").reward is RewardCalls.LIVE


def test_a_point_that_fits_only_while_responses_are_short_is_left_out(study, tmp_path):
    """Micro-batches of 16 take 69 GiB of 80 with the longest trajectories, and 2 GiB besides lie outside the allocator; of 32 they
    would take 118. With a quarter of the length both fit."""
    (tmp_path / "s.yaml").write_text(f"name: s\nknobs:\n  {keys.ACTOR_MICRO_BATCH}: [2, 8, 16, 32]\n")
    shown = study("--trials", "4", session_short="0.25")
    measured = {trial["point"][keys.ACTOR_MICRO_BATCH] for trial in of_kind(shown, "search")}
    assert measured == {8, 16, 32}
    assert shown["best"]["point"][keys.ACTOR_MICRO_BATCH] == 16
    assert "ppo_micro_batch_size_per_gpu=32 is left out: with every response at its limit oom_gpu" in shown["said"]
    memory = shown["verdict"]["memory"]
    assert memory["left_out"] == 1
    assert memory["best"]["fits"]
    assert memory["best"]["used"] == pytest.approx(71.2, abs=0.1)
    assert memory["best"]["device"] == 80.0
    assert memory["baseline"]["used"] < memory["best"]["used"]
    report = (tmp_path / "o/report.md").read_text()
    assert "Memory with every response at its limit: best 71.2 of 80.0 GiB, your command 28.1 of 80.0 GiB" in report


def test_where_nothing_tells_of_memory_the_verdict_says_that_it_is_not_known(study):
    shown = study("--trials", "3", session_device="0")
    assert shown["verdict"]["memory"] == {"baseline": None, "best": None, "left_out": 0, "slope": 0.0}
