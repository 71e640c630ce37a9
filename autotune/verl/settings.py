"""From a Point to what verl is given: which keys are written, and which configuration results."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from autotune.values import KnobValue, Point
from autotune.verl import keys
from autotune.verl.config import FlatConfig
from autotune.verl.knobs import Knob, asleep
from autotune.verl.workload import Workload

HOOK_CLASS = "FastPollReplayBuffer"


def baseline_point(knobs: Iterable[Knob], config: FlatConfig) -> Point:
    """The values that the user's own command gives these knobs, as composed (release defaults included)."""
    values: dict[str, KnobValue] = {}
    for knob in knobs:
        value = config.get(knob.key, knob.default)
        if knob.key == keys.FAST_POLL:
            value = False
        values[knob.key] = value
    return Point.of(values)


def canonical(point: Point, baseline: Point) -> Point:
    """The Point with every knob that has no effect put back to the user's value.

    Two Points that verl could not tell apart become equal, and an emitted script never changes a line for nothing.
    """
    values = point.as_dict()
    ours = baseline.as_dict()
    return Point.of({key: ours[key] if asleep(key, values) and key in ours else value for key, value in values.items()})


def changed_keys(
    point: Point, baseline: Point, knobs: Mapping[str, Knob], *, user_keys: Collection[str]
) -> dict[str, KnobValue]:
    """What must be written so that verl runs `point` instead of `baseline`: Hydra key → value.

    Beside the changed knobs these are keys tied to them that the user has set (they would contradict), and followers
    that would otherwise move along with their leader.

    Args:
        user_keys: keys that the user's own command sets.
    """
    target = canonical(point, baseline)
    changes = target.changes_from(baseline)
    written = dict(changes)
    for key, value in changes.items():
        for tied in knobs[key].tied:
            if tied in user_keys:
                written[tied] = value
    values = target.as_dict()
    for key, knob in knobs.items():
        leads = knob.follows is not None and knob.follows in changes
        if leads and key in values and key not in written and key not in user_keys and not asleep(key, values):
            written[key] = values[key]
    written.pop(keys.FAST_POLL, None)
    return dict(sorted(written.items()))


def configuration(
    config: FlatConfig, changes: Mapping[str, KnobValue], knobs: Mapping[str, Knob], *, user_keys: Collection[str]
) -> dict[str, Any]:
    """The flat configuration that verl would compose with these changes, interpolated followers included."""
    flat = {**config, **changes}
    for key, value in changes.items():
        knob = knobs.get(key)
        for tied in knob.tied if knob else ():
            if tied not in user_keys and tied not in changes:
                flat[tied] = value
        for follower in knobs.values():
            if follower.follows == key and follower.key not in user_keys and follower.key not in changes:
                flat[follower.key] = value
    return flat


def hook_overrides(hook_file: str) -> dict[str, KnobValue]:
    """The two overrides that put the fast generation poll in place (`trainer_base.py:142`)."""
    return {keys.SAMPLER_PATH: hook_file, keys.SAMPLER_NAME: HOOK_CLASS}


def replicas(config: FlatConfig, job: Workload) -> int:
    """How many rollout engines share the trajectories of a step."""
    parallel = config.get(keys.TENSOR_PARALLEL) or 1
    return max(1, job.world_size // int(parallel))


def rejected_echo(
    wanted: Mapping[str, KnobValue], echo: Mapping[str, KnobValue], *, asleep_keys: Collection[str] = ()
) -> list[str]:
    """Sentences for every value that verl or vLLM reported to be something else than was asked for.

    Prevents counting a setting that never took effect (verl issues 2960, 140: limits that were not passed on).
    """
    said = []
    for key, value in sorted(wanted.items()):
        if key not in echo or key in asleep_keys or value is None:
            continue
        seen = echo[key]
        if seen != value:
            said.append(f"{key}: asked for {value!r}, in effect was {seen!r}")
    return said
