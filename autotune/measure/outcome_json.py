"""What a runner answered, as JSON: complete, so that reading it gives an equal value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from autotune.measure.runner import Outcome
from autotune.values import Failure, GpuUsage, Measurement, Source, StepRecord


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """`{"failure": …}` or `{"measurement": …}`; what is not finite is null."""
    if isinstance(outcome, Failure):
        return {"failure": outcome.to_json()}
    shown: dict[str, Any] = finite_json(asdict(outcome))
    return {"measurement": shown}


def outcome_from_json(shown: Mapping[str, Any]) -> Outcome:
    """What `outcome_to_json` wrote.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: something else was written.
    """
    if shown.get("failure") is not None:
        return Failure.from_json(shown["failure"])
    values = shown["measurement"]
    steps = (StepRecord(**{**step, "seconds": seconds_from_json(step["seconds"])}) for step in values["steps"])
    return Measurement(
        **{
            **values,
            "source": Source(values["source"]),
            "steps": tuple(steps),
            "gpus": tuple(GpuUsage(**gpu) for gpu in values["gpus"]),
            "startup_seconds": seconds_from_json(values["startup_seconds"]),
            "wall_seconds": seconds_from_json(values["wall_seconds"]),
        }
    )


def seconds_from_json(value: float | None) -> float:
    """A duration; null is nan."""
    return math.nan if value is None else float(value)


def finite_json(value: Any) -> Any:
    """The value with what is not finite as null and enums as their values."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite_json(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite_json(inner) for inner in value]
    return value.value if isinstance(value, Source) else value
