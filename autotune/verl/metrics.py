"""Metrics of a verl step under the names of every release from 0.1 to 0.9.1, turned into ours.

Names and places are in `verl/trainer/ppo/metric_utils.py` (throughput, timers), `verl/workers/engine_workers.py` (memory, MFU) and,
before 0.8, `verl/workers/fsdp_workers.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

from autotune.values import StepRecord

PHASES = ("gen", "reward", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor", "update_weights")
"""Timers of a step that do not overlap, in the order in which verl runs them. `timing_s/reshard` (before 0.7) is a part of `gen`."""

_ASIDE = ("testing", "save_checkpoint")
"""Timers of work that is not the step's own; some releases count them inside `timing_s/step`, others beside it."""

_SECONDS = ("timing_s/", "timing/")
_MFU = ("perf/mfu/actor", "mfu/actor")
_MEMORY = ("actor/perf/max_memory_reserved_gb", "critic/perf/max_memory_reserved_gb", "perf/max_memory_reserved_gb")


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """A step as a log has it: numbers as verl wrote them (nan and inf too); None where a JSON line has null."""

    step: int
    metrics: Mapping[str, float | None]


class NotATrainingStep(ValueError):
    """The metrics hold no time of a step: those of a validation, or of something that verl did not write."""


def timer(metrics: Mapping[str, float], name: str) -> float | None:
    """Seconds of the timer `name`, under whichever prefix the release gave it."""
    for prefix in _SECONDS:
        value = metrics.get(prefix + name)
        if value is not None and math.isfinite(value) and value >= 0:
            return value
    return None


def phase_seconds(metrics: Mapping[str, float]) -> dict[str, float]:
    """Seconds by phase, only phases that ran."""
    found = {phase: timer(metrics, phase) for phase in PHASES}
    return {phase: seconds for phase, seconds in found.items() if seconds is not None}


def is_training_step(metrics: Mapping[str, float]) -> bool:
    """Whether the metrics time a training step; a validation before or between steps has no timers of phases."""
    return _whole_seconds(metrics) > 0


def clean_seconds(
    metrics: Mapping[str, float], *, release: str | None = None, usual_rest: float | None = None
) -> float:
    """Wall seconds of the step without validation and checkpoint.

    Up to 0.5 both stand inside `timing_s/step`, in 0.6-0.8 outside, in 0.9 the checkpoint is inside and the validation outside.
    Arithmetic decides, and the release only narrows it: what is inside has to fit into the part of the step that no phase covers.
    `usual_rest` is that part, in seconds, in steps without validation and checkpoint, where the caller knows it.

    Raises NotATrainingStep: no step time.
    """
    seconds = _whole_seconds(metrics)
    if not seconds:
        raise NotATrainingStep("the metrics hold no step time (timing_s/step or perf/time_per_step)")
    aside = [spent for name in _ASIDE if (spent := timer(metrics, name)) and _may_be_inside(name, release)]
    uncovered = seconds - sum(phase_seconds(metrics).values())
    slack = max(0.01 * seconds, 0.02)
    choices = [sum(chosen) for count in range(len(aside) + 1) for chosen in combinations(aside, count)]
    fitting = [total for total in choices if total <= uncovered + slack and total < seconds]
    if not fitting:
        return seconds
    if usual_rest is None:
        return seconds - max(fitting)
    return seconds - min(fitting, key=lambda total: abs(uncovered - total - usual_rest))


def uncovered_seconds(metrics: Mapping[str, float]) -> float | None:
    """Seconds of the step that no phase covers; None for a step with a validation or checkpoint, and for no step."""
    seconds = _whole_seconds(metrics)
    if not seconds or any(timer(metrics, name) for name in _ASIDE):
        return None
    return max(0.0, seconds - sum(phase_seconds(metrics).values()))


def mfu(metrics: Mapping[str, float]) -> float | None:
    """MFU of the actor update as a fraction; None where verl could not compute it (it writes 0) or computed nonsense (over 1).

    verl writes 0 for a GPU or a model type that its tables lack; over 1 is a wrong peak, never a fast GPU.
    """
    value = raw_mfu(metrics)
    return value if value is not None and 0.0 < value <= 1.0 else None


def raw_mfu(metrics: Mapping[str, float]) -> float | None:
    """What verl wrote as MFU of the actor update, unjudged; None where it wrote none or no number."""
    for name in _MFU:
        value = metrics.get(name)
        if value is not None and math.isfinite(value):
            return value
    return None


def memory_gb(metrics: Mapping[str, float]) -> float | None:
    """Peak GiB that the trainer's allocator had reserved on rank 0 (actor and critic share the process)."""
    found = [
        value for name in _MEMORY if (value := metrics.get(name)) is not None and math.isfinite(value) and value > 0
    ]
    return max(found) if found else None


def tokens(metrics: Mapping[str, float]) -> int | None:
    """Prompt and response tokens of the step over all GPUs; None before 0.3, which did not write it."""
    value = metrics.get("perf/total_num_tokens")
    return round(value) if value is not None and math.isfinite(value) and value > 0 else None


def throughput(
    metrics: Mapping[str, float],
    *,
    release: str | None = None,
    usual_rest: float | None = None,
    seconds: float | None = None,
) -> tuple[float, bool] | None:
    """(tokens/s/GPU without validation and checkpoint, whether it is derived), or None where it cannot be had.

    verl's own `perf/throughput` is corrected for what `clean_seconds` takes out. Without it (before 0.3) it is derived:
    `global_seqlen/mean` is the mean over all GPUs of the tokens that a GPU's share of the batch holds. `seconds` is the result of
    `clean_seconds` where the caller has it.
    """
    if not is_training_step(metrics):
        return None
    seconds = seconds or clean_seconds(metrics, release=release, usual_rest=usual_rest)
    own = metrics.get("perf/throughput")
    if own is not None and math.isfinite(own) and own > 0:
        return own * _whole_seconds(metrics) / seconds, False
    share = metrics.get("global_seqlen/mean")
    if share is not None and math.isfinite(share) and share > 0:
        return share / seconds, True
    return None


def step_record(
    step: int, metrics: Mapping[str, float], *, release: str | None = None, usual_rest: float | None = None
) -> StepRecord:
    """The step in our terms. `settling` is left False: what settles is for the one to say who started the session.

    `metrics` of the record holds the finite numbers alone.

    Raises NotATrainingStep: the metrics time no step.
    """
    finite = finite_numbers(metrics.items())
    return StepRecord(
        step=step,
        seconds=clean_seconds(finite, release=release, usual_rest=usual_rest),
        tokens=tokens(finite),
        phases=phase_seconds(finite),
        mfu=mfu(finite),
        memory_gb=memory_gb(finite),
        metrics=finite,
    )


def finite_numbers(items: Iterable[tuple[str, object]]) -> dict[str, float]:
    """The items that are finite numbers; JSON's null, texts and booleans are left out."""
    return {
        name: value
        for name, value in items
        if isinstance(value, (float, int)) and value is not True and value is not False and -math.inf < value < math.inf
    }


def _whole_seconds(metrics: Mapping[str, float]) -> float:
    """Seconds that verl counted as the step; the sum of its timers in the releases that timed no whole; 0.0: no step."""
    whole = timer(metrics, "step") or metrics.get("perf/time_per_step")
    if whole is not None and math.isfinite(whole) and whole > 0:
        return whole
    spent = phase_seconds(metrics)
    return sum(spent.values()) + sum(timer(metrics, name) or 0.0 for name in _ASIDE) if "gen" in spent else 0.0


def _may_be_inside(name: str, release: str | None) -> bool:
    version = _version(release)
    if version is None or version < (0, 6):
        return True
    return name == "save_checkpoint" and version >= (0, 9)


def _version(release: str | None) -> tuple[int, int] | None:
    found = re.match(r"v?(\d+)\.(\d+)", release or "")
    return (int(found[1]), int(found[2])) if found else None
