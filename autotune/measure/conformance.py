"""What every runner must do, as checks that a third party's tests can call.

    def test_my_runner_keeps_the_contract(tmp_path):
        check_measures(MyRunner(...), Order("t000", point, overrides, tmp_path / "t000", StepPlan()))

Each check raises AssertionError with what was broken.
"""

from __future__ import annotations

import math

from autotune.measure.runner import Event, Order, Outcome, Runner, StepSeen
from autotune.values import Failure, FailureClass, Measurement


def check_measures(runner: Runner, order: Order) -> Measurement:
    """A Point that runs gives a measurement: enough counted steps, settling ones marked, every step told while it ran."""
    events, outcome = _measure(runner, order)
    assert isinstance(outcome, Measurement), f"a Point that runs gave {outcome}"
    assert len(outcome.counted) >= order.plan.at_least, "fewer counted steps than the plan asks for"
    assert outcome.settling_steps >= 1, "the first step of a launch was counted"
    assert math.isfinite(outcome.throughput), "no throughput"
    assert outcome.throughput > 0, "no throughput"
    told = [event.step.step for event in events if isinstance(event, StepSeen)]
    assert told == [step.step for step in outcome.steps], "the steps told while it ran are not those of the measurement"
    assert order.run_dir.is_dir(), "the runner did not make the folder of the launch"
    return outcome


def check_rejects(runner: Runner, order: Order) -> Failure:
    """A Point that verl cannot run is a failure of the Point: a value, with the decisive line, not to be tried again."""
    _, outcome = _measure(runner, order)
    assert isinstance(outcome, Failure), "a Point that cannot run gave a measurement"
    assert not outcome.retryable, "a fault of the Point was called one of the host"
    assert outcome.evidence, "no line says why"
    assert outcome.remedy, "nothing says what to do"
    return outcome


def check_stops(runner: Runner, order: Order) -> None:
    """A measurement that is stopped when its first step is seen ends as interrupted, which is no fault of the Point."""
    seen: list[Event] = []

    def watch(event: Event) -> None:
        seen.append(event)
        if isinstance(event, StepSeen):
            runner.stop(now=True)

    outcome = runner.measure(order, watch)
    assert isinstance(outcome, Failure), "a stopped measurement counted"
    assert outcome.failure_class is FailureClass.INTERRUPTED, f"a stop was called {outcome.failure_class.value}"
    assert outcome.retryable, "a stop was called a fault of the Point"


def check_closes(runner: Runner) -> None:
    """Closing twice is closing once."""
    runner.close()
    runner.close()


def _measure(runner: Runner, order: Order) -> tuple[list[Event], Outcome]:
    events: list[Event] = []
    return events, runner.measure(order, events.append)
