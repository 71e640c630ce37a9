"""The cold runner, driven with the double of verl: what it measures, what it survives, what it leaves."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from autotune.measure.cold import ColdRunner, read_echo
from autotune.measure.conformance import check_closes, check_measures, check_rejects, check_stops
from autotune.measure.runner import Limits, Order, StageSeen, StepPlan, StepSeen
from autotune.values import FailureClass, Measurement, Phase, Point
from autotune.verl import keys
from tests.fakes.launches import job_of_double

QUICK = Limits(startup=20.0, step_floor=3.0, after_error=1.0, exit=5.0, terminate=1.0)


def runner_in(tmp_path: Path, limits: Limits = QUICK, **faults: str) -> ColdRunner:
    return ColdRunner(job_of_double(tmp_path, **faults), limits=limits)


def order_in(tmp_path: Path, *overrides: str, plan: StepPlan | None = None) -> Order:
    return Order("t000", Point.of({}), overrides, tmp_path / "t000", plan or StepPlan())


def traces_of(folder: Path) -> list[psutil.Process]:
    return [p for p in psutil.process_iter() if str(folder) in " ".join(_command(p))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_sound_launch_gives_counted_steps_and_the_echo(tmp_path):
    events = []
    found = runner_in(tmp_path).measure(order_in(tmp_path, "actor_rollout_ref.rollout.max_num_seqs=128"), events.append)
    assert isinstance(found, Measurement)
    assert found.settling_steps == 1
    assert len(found.counted) >= 2
    assert found.simulated
    assert found.echo[keys.MAX_NUM_SEQS] == 128
    assert found.throughput > 0
    assert found.phase_seconds["gen"] > 0
    assert [e.stage for e in events if isinstance(e, StageSeen)] == ["starting", "stepping", "stopping"]
    assert [e.step.step for e in events if isinstance(e, StepSeen)] == [s.step for s in found.steps]
    assert events[1].stage == "stepping"


def test_the_users_loggers_checkpoints_and_ray_cluster_are_left_alone(tmp_path):
    runner = runner_in(tmp_path)
    command = runner._job.command(("a=1",), steps=6, run_dir=tmp_path / "run", ray_dir=Path("/tmp/at-x"))
    trial = command[command.index("a=1") + 1 :]
    assert "trainer.logger=[console,file]" in trial
    assert "trainer.save_freq=-1" in trial
    assert "trainer.resume_mode=disable" in trial
    assert "trainer.total_training_steps=6" in trial
    assert "++ray_kwargs.ray_init.address=local" in trial
    assert not any("critic_warmup=1" in argument for argument in command)


def test_out_of_memory_is_a_property_of_the_point(tmp_path):
    failure = runner_in(tmp_path).measure(
        order_in(tmp_path, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=64"), lambda e: None
    )
    assert failure.failure_class is FailureClass.OOM_GPU
    assert failure.phase is Phase.UPDATE_ACTOR
    assert not failure.retryable


def test_an_engine_without_cache_is_recognised(tmp_path):
    failure = runner_in(tmp_path).measure(
        order_in(tmp_path, "actor_rollout_ref.rollout.gpu_memory_utilization=0.01"), lambda e: None
    )
    assert failure.failure_class is FailureClass.VLLM_KV_CACHE
    assert not failure.retryable


def test_a_launch_that_hangs_after_an_error_is_ended_by_the_watchdog(tmp_path):
    failure = runner_in(tmp_path, hang="start").measure(order_in(tmp_path), lambda e: None)
    assert failure.failure_class is FailureClass.HANG_NO_PROGRESS
    assert traces_of(tmp_path) == []


def test_a_launch_that_stops_stepping_is_ended_by_the_watchdog(tmp_path):
    plan = StepPlan(at_least=3, at_most=5)
    quick = Limits(startup=20.0, step_floor=1.0, step_factor=0.01, after_error=60.0, terminate=1.0)
    failure = runner_in(tmp_path, quick, hang="step").measure(order_in(tmp_path, plan=plan), lambda e: None)
    assert failure.failure_class is FailureClass.HANG_NO_PROGRESS
    assert traces_of(tmp_path) == []


def test_children_that_ignore_sigterm_and_shared_memory_do_not_outlive_the_launch(tmp_path):
    before = set(os.listdir("/dev/shm"))
    found = runner_in(tmp_path, replace(QUICK, exit=1.0), child="1").measure(order_in(tmp_path), lambda e: None)
    assert isinstance(found, Measurement)
    left = set(os.listdir("/dev/shm")) - before
    assert not [name for name in left if re.fullmatch(r"psm_fake_\d+", name)]
    assert not [p for p in psutil.process_iter() if "psm_fake_{__import__" in " ".join(_command(p))]
    command = json.loads((tmp_path / "t000/command.json").read_text())["argv"]
    (ray,) = (argument.split("=", 1)[1] for argument in command if "_temp_dir=" in argument)
    assert Path(ray).parent.name.startswith("at-")
    assert not Path(ray).parent.exists()


def test_a_stop_ends_the_launch_and_is_no_fault_of_the_point(tmp_path):
    runner = runner_in(tmp_path, step_seconds="5")
    threading.Timer(2.0, lambda: runner.stop(now=True)).start()
    begin = time.monotonic()
    failure = runner.measure(order_in(tmp_path), lambda e: None)
    assert failure.failure_class is FailureClass.INTERRUPTED
    assert failure.retryable
    assert time.monotonic() - begin < 60
    assert traces_of(tmp_path) == []


def test_a_wrong_key_is_reported_with_the_line_that_says_so(tmp_path):
    failure = runner_in(tmp_path).measure(order_in(tmp_path, "actor_rollout_ref.rollout.max_num_seq=1"), lambda e: None)
    assert failure.failure_class is FailureClass.CONFIG_HYDRA
    assert "max_num_seq" in failure.evidence


def test_processes_that_disagree_about_a_value_equal_no_wanted_one(tmp_path):
    (tmp_path / "a.json").write_text('{"values": {"k": 1, "same": 2}}')
    (tmp_path / "b.json").write_text('{"values": {"k": 3, "same": 2}}')
    (tmp_path / "torn.json").write_text('{"values": {"k"')
    assert read_echo(tmp_path) == {"k": "1 / 3", "same": 2}


@pytest.mark.parametrize(("at_least", "at_most"), [(0, 1), (3, 2)])
def test_an_impossible_plan_is_refused(at_least, at_most):
    with pytest.raises(ValueError, match="plan"):
        StepPlan(at_least=at_least, at_most=at_most)


def test_the_cold_runner_keeps_the_contract_of_runners(tmp_path):
    runner = runner_in(tmp_path, step_seconds="0.2")
    check_measures(runner, replace(order_in(tmp_path), run_dir=tmp_path / "good"))
    too_large = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=64"
    check_rejects(runner, replace(order_in(tmp_path, too_large), run_dir=tmp_path / "bad"))
    check_stops(runner, replace(order_in(tmp_path, plan=StepPlan(at_least=5)), run_dir=tmp_path / "stopped"))
    check_closes(runner)
