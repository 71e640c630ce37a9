"""Space files: YAML in `search_spaces/`, one per recipe, and how a job narrows them to what can matter."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autotune.search.space import Dimension, Space, ladder_with
from autotune.values import BadInput, KnobValue, Point
from autotune.verl import keys
from autotune.verl.config import FlatConfig
from autotune.verl.knobs import DEAD_KEYS, Knob, Safety, Unit, inapplicable, safety_in
from autotune.verl.settings import baseline_point
from autotune.verl.workload import Workload

_Value = bool | int | float | str | None


class TimesSequence(BaseModel):
    """A ladder in multiples of the longest trajectory (prompt limit + response limit)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    times_sequence: list[Annotated[int, Field(ge=1)]] = Field(min_length=1)


class SpaceFile(BaseModel):
    """What a space file may say."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    about: str = ""
    knobs: dict[str, Literal["auto"] | list[_Value] | TimesSequence] = Field(min_length=1)
    try_first: list[dict[str, _Value]] = Field(default_factory=list)


def find_space(name_or_file: str, folders: Sequence[Path]) -> Path:
    """The space file of that name in one of the folders, or the file itself.

    Raises:
        BadInput: there is none; the message lists what there is.
    """
    as_file = Path(name_or_file)
    if as_file.suffix in (".yaml", ".yml"):
        if as_file.is_file():
            return as_file
        raise BadInput(f"no space file {name_or_file}; give the path of a YAML file or the name of a shipped space")
    for folder in folders:
        if (folder / f"{name_or_file}.yaml").is_file():
            return folder / f"{name_or_file}.yaml"
    known = sorted(path.stem for folder in folders for path in folder.glob("*.yaml"))
    raise BadInput(f"no search space named {name_or_file!r}; there are: {', '.join(known) or 'none'}")


def load_space_file(path: Path) -> SpaceFile:
    """Reads and checks a space file.

    Raises:
        BadInput: unreadable, not YAML, or with a field that a space file does not have.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read the space file {path}: {error}") from error
    except yaml.YAMLError as error:
        raise BadInput(f"{path} is not YAML: {error}") from error
    if not isinstance(raw, dict):
        raise BadInput(f"{path} holds no mapping; a space file has `name` and `knobs`")
    try:
        return SpaceFile.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{path}: {where}: {first['msg']}") from error


def build_space(
    file: SpaceFile,
    knobs: Mapping[str, Knob],
    config: FlatConfig,
    job: Workload,
    *,
    allow: Collection[Safety] = (Safety.NEUTRAL,),
    hooks: bool = True,
) -> Space:
    """The space of one job: the file's knobs, without those that cannot act here or may not be touched.

    Raises:
        BadInput: an unknown or dead knob, an empty ladder, or nothing left to tune.
    """
    for key in file.knobs:
        _check_known(key, knobs, file.name)
    named = [knobs[key] for key in file.knobs]
    baseline = baseline_point(named, config)
    own = baseline.as_dict()
    dimensions: list[Dimension] = []
    fixed: list[tuple[str, str]] = []
    for knob in named:
        reason = inapplicable(knob, config, job)
        safety = safety_in(knob, config)
        if reason is None and safety not in allow:
            reason = (
                f"{safety.value}: it can change what the model learns"
                if safety is Safety.SEMANTIC
                else f"{safety.value}: not allowed (--allow {safety.value})"
            )
        if reason is None and knob.key == keys.FAST_POLL and not hooks:
            reason = "--no-hooks"
        if reason is None:
            choices = _choices(file, knob, own[knob.key], config, job)
            if len(choices) > 1:
                dimensions.append(Dimension(knob.key, choices))
                continue
            reason = "one possible value"
        fixed.append((knob.key, reason))
    if not dimensions:
        reasons = "; ".join(f"{key}: {why}" for key, why in fixed)
        raise BadInput(f"the space {file.name!r} leaves nothing to tune for this job ({reasons})")
    return Space(tuple(dimensions), Point.of(own), tuple(fixed))


def first_values(file: SpaceFile, space: Space) -> list[Point]:
    """The Points that the file wants tried first.

    Raises:
        BadInput: one of their values is on no ladder.
    """
    points = []
    for wanted in file.try_first:
        point = space.with_values(wanted)
        try:
            space.rungs(point)
        except ValueError as error:
            raise BadInput(f"space {file.name!r}, try_first: {error}") from error
        points.append(point)
    return points


def _check_known(key: str, knobs: Mapping[str, Knob], name: str) -> None:
    if key in knobs:
        return
    if key in DEAD_KEYS:
        raise BadInput(f"space {name!r}: verl accepts {key} but never reads it; tune instead: {DEAD_KEYS[key]}")
    near = difflib.get_close_matches(key, knobs, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise BadInput(f"space {name!r}: unknown knob {key}{hint}")


def _choices(file: SpaceFile, knob: Knob, own: KnobValue, config: FlatConfig, job: Workload) -> tuple[KnobValue, ...]:
    wanted = file.knobs[knob.key]
    rungs: list[KnobValue]
    if isinstance(wanted, TimesSequence):
        rungs = [times * job.max_sequence for times in wanted.times_sequence]
    elif isinstance(wanted, list):
        rungs = list(wanted)
    elif knob.unit is Unit.SEQUENCES:
        rungs = [times * job.max_sequence for times in knob.ladder if isinstance(times, int)]
    else:
        rungs = list(knob.ladder)
    return ladder_with([rung for rung in rungs if _can_matter(knob, rung, config, job)], own)


def _can_matter(knob: Knob, rung: KnobValue, config: FlatConfig, job: Workload) -> bool:
    """Drops rungs that no setting of the other knobs can make legal or different."""
    if not isinstance(rung, int) or isinstance(rung, bool):
        return True
    per_rank_mini = job.mini_batch * job.samples // job.data_parallel
    per_rank_batch = job.trajectories // job.data_parallel
    if knob.key == keys.ACTOR_MICRO_BATCH:
        return per_rank_mini % rung == 0
    if knob.key in (keys.LOG_PROB_MICRO_BATCH, keys.REF_MICRO_BATCH):
        return per_rank_batch % rung == 0
    if knob.key in (keys.ACTOR_TOKENS, keys.LOG_PROB_TOKENS, keys.REF_TOKENS, keys.CRITIC_TOKENS):
        return rung * job.sequence_parallel >= job.max_sequence and rung < 2 * per_rank_batch * job.max_sequence
    if knob.key == keys.MAX_NUM_SEQS:
        return rung < 2 * job.trajectories
    if knob.key == keys.TENSOR_PARALLEL:
        return job.world_size % rung == 0
    return True
