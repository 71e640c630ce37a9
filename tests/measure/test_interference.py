"""What disturbs a step, from plain readings; and that a disturbed step does not count and is made once more."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from autotune.measure.cold import ColdRunner, watch_interference
from autotune.measure.gpu_processes import GpuProcess
from autotune.measure.interference import (
    CpuReading,
    InterferenceWatch,
    Reading,
    Thresholds,
    host_cpu,
    interference,
    stolen_share,
    usual_theft,
    window,
)
from autotune.measure.runner import Limits, StepPlan, StepSeen
from autotune.measure.window import enough
from autotune.values import FailureClass, Measurement, StepRecord
from tests.measure.test_cold import order_in, runner_in

OURS = GpuProcess(10, 1 << 30)
THEIRS = GpuProcess(999_999_999, 2 << 30)


def gpu_readings(*samples: tuple[GpuProcess, ...], throttled: dict[int, str] | None = None) -> list[Reading]:
    reasons = throttled or {}
    return [
        Reading(float(at), processes={"GPU-a": found}, throttled={"GPU-a": reasons[at]} if at in reasons else {})
        for at, found in enumerate(samples)
    ]


def cpu_readings(*, busy: float, idle: float, stolen: float = 0.0, ours: float | None = None) -> list[Reading]:
    first = CpuReading(1000.0, 2000.0, 30.0, None if ours is None else 500.0)
    last = CpuReading(1000.0 + busy, 2000.0 + idle, 30.0 + stolen, None if ours is None else 500.0 + ours)
    return [Reading(0.0, first), Reading(10.0, last)]


def test_a_foreign_process_on_our_gpu_disturbs():
    found = interference(gpu_readings((OURS,), (OURS, THEIRS), (OURS, THEIRS)), {10})
    assert found is not None
    assert "another process computed on GPU GPU-a (pid 999999999" in found
    assert "2048 MiB" in found


def test_a_process_that_was_seen_once_is_a_passing_tool_but_not_in_a_step_of_one_sample():
    assert interference(gpu_readings((OURS,), (OURS, THEIRS), (OURS,)), {10}) is None
    assert interference(gpu_readings((OURS, THEIRS)), {10})


def test_pids_of_another_namespace_say_nothing():
    """Else every process of the job itself would be taken for a foreign one, and no step would ever count."""
    assert interference(gpu_readings((THEIRS,), (THEIRS,)), {10}) is None


def test_throttling_disturbs_from_five_in_a_hundred_samples_on():
    samples = [(OURS,)] * 40
    assert interference(gpu_readings(*samples, throttled={3: "hot", 4: "hot"}), {10}) is None
    found = interference(gpu_readings(*samples, throttled=dict.fromkeys(range(3), "hot")), {10})
    assert found == "GPU GPU-a throttled in 8% of the step (hot)"


def test_stolen_cpu_time_disturbs_any_job():
    assert interference(cpu_readings(busy=10, idle=90, stolen=0.4)) is None
    assert interference(cpu_readings(busy=10, idle=90, stolen=1.0)) == (
        "the hypervisor took 9% of the CPU time that this machine wanted"
    )


def test_what_the_hypervisor_takes_all_the_time_disturbs_no_step():
    """On a host whose CPUs are promised twice no step would count otherwise, and no job could be tuned there."""
    shares = [0.15, 0.18, 0.11, 0.18, 0.17]
    for place, share in enumerate(shares[1:], 1):
        readings = cpu_readings(busy=100 * (1 - share), idle=50, stolen=100 * share)
        assert stolen_share(readings) == pytest.approx(share)
        assert interference(readings, thefts=shares[:place]) is None


def test_more_theft_than_is_usual_disturbs_and_one_bad_step_makes_nothing_usual():
    readings = cpu_readings(busy=82, idle=50, stolen=18)
    found = interference(readings, thefts=[0.01, 0.18])
    assert found == "the hypervisor took 18% of the CPU time that this machine wanted, 1% is usual here"
    assert interference(readings, thefts=[0.01, 0.18, 0.18]) is None
    assert interference(cpu_readings(busy=60, idle=50, stolen=40), thefts=[0.15, 0.18, 0.17])
    assert usual_theft([]) == 0.0


def test_no_theft_is_known_where_nothing_was_wanted():
    assert stolen_share([]) is None
    assert stolen_share(cpu_readings(busy=0, idle=10)) is None


def test_other_programs_disturb_a_cpu_job_only_where_no_cpu_is_idle():
    assert interference(cpu_readings(busy=98, idle=2, ours=97)) is None
    assert interference(cpu_readings(busy=80, idle=20, ours=40)) is None
    assert interference(cpu_readings(busy=98, idle=2, ours=60)) == (
        "other programs took 38% of the CPUs, and 2% were idle"
    )


def test_other_programs_do_not_disturb_a_gpu_job():
    assert interference(cpu_readings(busy=98, idle=2)) is None


def test_thresholds_can_be_set():
    assert interference(cpu_readings(busy=10, idle=90, stolen=1.0), thresholds=Thresholds(stolen=0.2)) is None


@pytest.mark.parametrize("readings", [[], [Reading(0.0)], [Reading(0.0), Reading(1.0)]])
def test_nothing_is_said_where_nothing_was_read(readings):
    assert interference(readings) is None


def test_the_window_of_a_step_takes_cpu_time_from_its_edges_and_processes_from_within():
    readings = gpu_readings(*[(OURS,)] * 8)
    found = window(readings, 2.5, 5.5)
    assert [reading.at for reading in found] == [2.0, 3.0, 4.0, 5.0, 6.0]
    assert [bool(reading.processes) for reading in found] == [False, True, True, True, True]
    assert window(readings, -1.0, 20.0) == readings


def test_the_cpu_line_of_the_kernel_is_read_in_seconds():
    stat = "cpu  100 20 30 4000 50 6 7 80 9 1\ncpu0 1 2 3 4 5 6 7 8 9 1\n"
    assert host_cpu(stat, 10) == CpuReading(busy=16.3, idle=405.0, stolen=8.0)


def _burn(until: float) -> None:
    while time.monotonic() < until:
        pass


def test_a_host_full_of_other_programs_is_seen_and_the_jobs_own_work_is_counted_as_its_own():
    """Real processes on every CPU of this host: somebody else's to one watch, the job's own to the other."""
    fork = multiprocessing.get_context("fork")
    cpus = len(os.sched_getaffinity(0))
    workers = [fork.Process(target=_burn, args=(time.monotonic() + 60,)) for _ in range(2 * cpus)]
    ours: set[int] = set()
    theirs = InterferenceWatch((), lambda: (), on_cpu=True, every=0.1)
    mine = InterferenceWatch((), lambda: ours, on_cpu=True, every=0.1)
    try:
        for worker in workers:
            worker.start()
            ours.add(worker.pid)
        mine.between(0.0, 0.0)  # notes the seconds that they have used already
        begin = time.monotonic()
        time.sleep(1.0)
        end = time.monotonic()
        limits = Thresholds(stolen=1.0, others=0.5, idle=0.2)  # of a host that others use meanwhile
        if cpus == os.cpu_count():
            assert "other programs took" in (theirs.between(begin, end, thresholds=limits) or "")
        mine.between(begin, end)
        assert theirs._readings[-1].cpu.ours == 0.0
        spent = [psutil.Process(worker.pid).cpu_times().user for worker in workers]
        assert 0.0 < mine._readings[-1].cpu.ours <= sum(spent) + 0.1 * len(workers)
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
        theirs.close()
        mine.close()
        mine.close()


def steps(*reasons: str | None, seconds: float = 10.0) -> list[StepRecord]:
    """A settling step and one for every reason."""
    first = StepRecord(1, 30.0, 1000, {})
    return [first, *(StepRecord(n + 2, seconds, 1000, {}, invalid=reason) for n, reason in enumerate(reasons))]


def test_a_disturbed_step_does_not_count_towards_the_plan():
    assert enough(steps(None, None), StepPlan())
    assert not enough(steps(None, "hot"), StepPlan())
    assert enough(steps(None, "hot", None), StepPlan())


def test_every_disturbed_step_is_made_once_more_but_not_for_ever():
    plan = StepPlan(at_least=2, at_most=3, agreement=0.0)
    assert not enough(steps("hot", None, "hot"), plan)
    assert not enough(steps("hot", "hot", None, "hot"), plan)
    assert enough(steps("hot", "hot", None, "hot", "hot"), plan)
    assert enough(steps(*["hot"] * (plan.most_steps - 1)), plan)


def test_a_launch_that_is_disturbed_from_the_start_ends_early():
    plan = StepPlan(at_least=2, at_most=5)
    assert not enough(steps(*["hot"] * 3), plan)
    assert enough(steps(*["hot"] * 4), plan)


def test_a_disturbed_step_enters_no_figure():
    made = Measurement((replace(steps()[0], settling=True), *steps(None, "hot")[1:]), world_size=1)
    assert [step.step for step in made.counted] == [2]
    assert made.settling_steps == 1


class Watched:
    """Says of the steps behind the settling one, in order, what it was told to say."""

    def __init__(self, *reasons: str | None, theft: float = 0.0) -> None:
        self.reasons = ["asked of the settling step, which never counts", *reasons]
        self.theft = theft

    def between(self, begin: float, end: float, *, thresholds: Thresholds) -> str | None:
        assert begin < end
        assert thresholds.others == StepPlan().crowding
        return self.reasons.pop(0) if self.reasons else None

    def close(self) -> None:
        pass


@pytest.fixture
def watched_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ColdRunner]:
    """A cold runner of whose steps the first ones are disturbed for these reasons."""

    def make(*reasons: str | None, theft: float = 0.0) -> ColdRunner:
        watched = Watched(*reasons, theft=theft)
        monkeypatch.setattr("autotune.measure.cold.watch_interference", lambda job, process: watched)
        return runner_in(tmp_path, Limits(startup=20.0, exit=5.0, terminate=1.0), step_seconds="0.3")

    return make


def test_a_disturbed_step_is_repeated_in_the_same_launch(tmp_path, watched_runner):
    events = []
    found = watched_runner("hot").measure(order_in(tmp_path), events.append)
    assert isinstance(found, Measurement)
    assert [step.invalid for step in found.steps[:4]] == [None, "hot", None, None]
    assert len(found.counted) == len(found.steps) - 2
    assert [event.step for event in events if isinstance(event, StepSeen)] == list(found.steps)


@pytest.mark.parametrize(("theft", "told"), [(0.1642, 0.164), (0.03, None)])
def test_a_measurement_says_how_much_the_hypervisor_usually_took(tmp_path, watched_runner, theft, told):
    found = watched_runner(theft=theft).measure(order_in(tmp_path), lambda event: None)
    assert found.echo.get("host.cpu_stolen") == told


def test_a_launch_with_too_few_undisturbed_steps_is_no_fault_of_the_point(tmp_path, watched_runner):
    found = watched_runner(*["hot"] * 50).measure(order_in(tmp_path), lambda event: None)
    assert found.failure_class is FailureClass.INTERFERENCE
    assert found.retryable
    assert "4 of 4 steps were disturbed and do not count: hot" in found.evidence


def test_a_launch_whose_every_step_is_repeated_gets_steps_enough(tmp_path, watched_runner):
    plan = StepPlan(at_least=3, at_most=3, agreement=0.0)
    found = watched_runner("hot", None, "hot", None, "hot", None).measure(
        order_in(tmp_path, plan=plan), lambda event: None
    )
    assert isinstance(found, Measurement)
    assert len(found.counted) == 3


def test_the_seconds_of_a_double_are_not_judged_by_what_else_the_host_does(tmp_path):
    assert watch_interference(runner_in(tmp_path)._job, None) is None
