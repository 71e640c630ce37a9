"""From a request to a study that can start: everything that can be wrong is found here, before anything is written."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.version import Version

from autotune.launch import Launch, format_override, read_launch
from autotune.measure.gpu import host_gpus, visible_gpus
from autotune.search.first_points import FirstPoint, first_points
from autotune.search.space import Space
from autotune.search.space_file import build_space, find_space, first_values, load_space_file
from autotune.tuner.request import RunRequest
from autotune.values import BadInput, KnobValue, Point, Refusal
from autotune.verl import keys
from autotune.verl.compose import Composer, Stack
from autotune.verl.knobs import Knob, catalogue, release_of, safety_in
from autotune.verl.rules import refusals, warnings
from autotune.verl.settings import changed_keys, configuration, hook_overrides, replicas
from autotune.verl.workload import Workload, workload_of

OLDEST_VERL = Version("0.7.1")
HARMLESS_WRAPPERS = frozenset(
    {"nohup", "time", "env", "stdbuf", "nice", "ionice", "timeout", "tee", "exec", "command", "bash", "sh"}
)
"""Programs before `python` that decide nothing about how fast verl runs; a trial is launched without them."""
NAMES_ONLY = frozenset(
    {
        "trainer.experiment_name",
        "trainer.project_name",
        "trainer.default_local_dir",
        "trainer.rollout_data_dir",
        "trainer.validation_data_dir",
    }
)
"""Overrides that name a run or a folder of its results; scripts often put the time of day into them."""
SPACES = (Path(__file__).resolve().parents[1] / "search_spaces", Path(__file__).resolve().parents[2] / "search_spaces")
"""Where the shipped spaces are: inside the wheel, or at the top of a checkout."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A study that can start."""

    request: RunRequest
    launch: Launch
    python: str
    env: Mapping[str, str]
    """Whole environment of a launch, without what a runner adds."""
    stack: Stack
    config: Mapping[str, Any]
    job: Workload
    knobs: Mapping[str, Knob]
    space: Space
    first: tuple[FirstPoint, ...]
    warnings: tuple[str, ...]
    gpus: tuple[int, ...]

    @property
    def arguments(self) -> tuple[str, ...]:
        """Hydra flags and overrides of the user's command, as a trial passes them."""
        return trial_arguments(self.launch)

    def compose(self, composer: Composer, point: Point, hook_file: Path) -> Mapping[str, Any] | Refusal:
        """The Point's flat configuration as Hydra composes it and verl validates it, or why they refuse it."""
        arguments = [*_override_arguments(self.arguments), *self.overrides(point, hook_file)]
        return composer.compose(self.launch.hydra_flags, arguments, validate=True)

    @property
    def user_keys(self) -> frozenset[str]:
        """Keys that the user's command sets."""
        return frozenset(override.key for override in self.launch.overrides)

    @property
    def tunable_keys(self) -> frozenset[str]:
        """Hydra keys that may differ between the user's configuration and an emitted one."""
        allowed = [knob for knob in self.knobs.values() if safety_in(knob, self.config) in self.request.allow]
        return frozenset(key for knob in allowed for key in (knob.key, *knob.tied)) | {
            keys.SAMPLER_PATH,
            keys.SAMPLER_NAME,
        }

    def changes(self, point: Point) -> dict[str, KnobValue]:
        """Hydra keys and values that turn the user's command into this Point, without the hook."""
        return changed_keys(point, self.space.baseline, self.knobs, user_keys=self.user_keys)

    def hook(self, point: Point, hook_file: Path) -> dict[str, KnobValue]:
        """The overrides of the hook where the Point uses it."""
        values = point.as_dict()
        return hook_overrides(str(hook_file)) if values.get(keys.FAST_POLL) is True else {}

    def overrides(self, point: Point, hook_file: Path) -> tuple[str, ...]:
        """Hydra arguments that follow the user's own."""
        changes = {**self.changes(point), **self.hook(point, hook_file)}
        return tuple(
            format_override(key, value, "add" if key in self.new_keys(changes) else "set")
            for key, value in changes.items()
        )

    def new_keys(self, changes: Mapping[str, KnobValue]) -> frozenset[str]:
        """Those of the keys that verl's schema does not have, so that Hydra wants a `+`."""
        return frozenset(key for key in changes if key not in self.config)

    def configuration(self, point: Point) -> Mapping[str, Any]:
        """The Point's flat configuration by arithmetic, keys that follow by interpolation included."""
        return configuration(self.config, self.changes(point), self.knobs, user_keys=self.user_keys)

    def refusals(self, point: Point) -> list[Refusal]:
        """Why arithmetic refuses this Point; empty: nothing speaks against it."""
        return refusals(self.configuration(point), self.job)


def prepare(request: RunRequest, composer: Composer, launch: Launch, python: str, env: Mapping[str, str]) -> Prepared:
    """Checks a request from end to end without launching or writing anything.

    Raises:
        BadInput: with one clear sentence for whatever is wrong first.
    """
    space_file = load_space_file(find_space(request.space, SPACES))
    _check_stack(composer.stack, python)
    config = composer.compose(launch.hydra_flags, _override_arguments(trial_arguments(launch)))
    if isinstance(config, Refusal):
        raise BadInput(f"{launch.path}: Hydra refuses the command's own overrides: {config.message}")
    job = workload_of(config)
    gpus = _check_gpus(request, job, env)
    own = refusals(config, job)
    if own:
        raise BadInput(f"{launch.path} cannot run as it is: {own[0].message}")
    checked = composer.compose(launch.hydra_flags, _override_arguments(trial_arguments(launch)), validate=True)
    if isinstance(checked, Refusal):
        raise BadInput(f"{launch.path}: verl's own validation refuses the command: {checked.message}")
    knobs = catalogue(composer.stack.verl)
    space = build_space(space_file, knobs, config, job, allow=request.allow, hooks=request.hooks)
    first = first_points(space, job, engines=replicas(config, job), asked=first_values(space_file, space))
    return Prepared(
        request=replace(request, simulated=True) if composer.stack.is_double else request,
        launch=launch,
        python=python,
        env=env,
        stack=composer.stack,
        config=config,
        job=job,
        knobs=knobs,
        space=space,
        first=tuple(first),
        warnings=(
            *(f"{finding.code}: {finding.message}" for finding in launch.lint),
            *warnings(config, job, cpus=os.cpu_count()),
        ),
        gpus=gpus,
    )


def read_script(request: RunRequest) -> Launch:
    """The user's launch, ready to be launched from here.

    Raises:
        BadInput: unreadable, no verl launch, one that autotune does not tune or cannot start itself, or values that only a
            shell can know.
    """
    launch = read_launch(
        request.script,
        env={**os.environ, **request.setup_env, **request.env},
        given=request.env,
        set_overrides=request.set_overrides,
    )
    if launch.unsupported_reason is not None:
        raise BadInput(f"{request.script}: {launch.unsupported_reason}")
    away = [wrapper for wrapper in launch.wrappers if wrapper not in HARMLESS_WRAPPERS]
    if away and not (away == ["conda"] and request.python is not None):
        raise BadInput(
            f"{request.script} starts verl through {away[0]}; start autotune where {away[0]} would start verl, with a script "
            "that launches it directly"
            + (", or name the environment's interpreter with --python" if away[0] == "conda" else "")
        )
    for override in launch.overrides:
        if override.error is not None:
            raise BadInput(
                f"{request.script}:{override.line}: Hydra cannot read {override.argument!r}: {override.error}"
            )
        if override.unknown and override.key not in NAMES_ONLY:
            raise BadInput(
                f"{request.script}:{override.line}: {override.key} is {override.value!r}, which only a shell can know; give it "
                f"with --set {override.key}=… or its variable with --env NAME=VALUE (autotune executes nothing of the script)"
            )
    return launch


def trial_arguments(launch: Launch) -> tuple[str, ...]:
    """Hydra arguments of a trial: the user's own, with a plain name for those names and folders that only a shell can know."""
    stand_ins = {o.argument: f"{o.key}=autotune" for o in launch.overrides if o.unknown and o.key in NAMES_ONLY}
    return tuple(stand_ins.get(argument, argument) for argument in launch.arguments())


def launch_environment(request: RunRequest, launch: Launch) -> dict[str, str]:
    """The environment that the script would give verl: this process', what --setup exported, the script's, then --env.

    Variables of the script whose value only a shell can know are left as they are here.
    """
    unknown = {item.key for item in launch.unresolved}
    known = {name: value for name, value in launch.env.items() if name not in unknown}
    env = {**os.environ, **request.setup_env, **known, **request.env}
    return {name: value for name, value in env.items() if name not in launch.removed_env or name in request.env}


def open_composer(request: RunRequest, launch: Launch, env: Mapping[str, str]) -> tuple[Composer, str]:
    """A composer in the interpreter that the launch would use: --python, the script's own on PATH, or autotune's own.

    Raises:
        BadInput: none of them has verl.
    """
    tried = []
    for python in _interpreters(request, launch, env):
        composer = Composer(python, env=env, cwd=launch.cwd)
        if composer.stack.verl is not None or request.python is not None:
            return composer, python
        composer.close()
        tried.append(f"{python} (Python {composer.stack.python})")
    raise BadInput(
        f"verl is not installed for {' nor for '.join(tried) or launch.launcher}; name the right interpreter with --python"
    )


def _interpreters(request: RunRequest, launch: Launch, env: Mapping[str, str]) -> list[str]:
    if request.python is not None:
        found = shutil.which(request.python, path=env.get("PATH"))
        if found is None:
            raise BadInput(f"--python {request.python}: no such program")
        return [found]
    own = shutil.which(launch.launcher.split()[0], path=env.get("PATH"))
    return list(dict.fromkeys([path for path in (own, sys.executable) if path]))


def _check_stack(stack: Stack, python: str) -> None:
    version = Version(stack.python)
    if not Version("3.10") <= version < Version("3.13"):
        raise BadInput(
            f"{python} is Python {stack.python}; verl and autotune run on 3.10, 3.11 and 3.12. Give another one with --python"
        )
    if stack.verl is None:
        raise BadInput(f"{python} has no verl; install it there, or name the interpreter that has it with --python")
    if release_of(stack.verl) < OLDEST_VERL:
        raise BadInput(f"{python} has verl {stack.verl}; autotune tunes {OLDEST_VERL} and later")


def _check_gpus(request: RunRequest, job: Workload, env: Mapping[str, str]) -> tuple[int, ...]:
    if request.gpus is not None and request.gpus != job.world_size:
        raise BadInput(
            f"--gpus {request.gpus}, but {request.script} trains on {job.world_size} "
            f"(trainer.nnodes={job.nodes} × trainer.n_gpus_per_node={job.gpus_per_node}); autotune never changes the world size. "
            f"Set it with --set trainer.n_gpus_per_node={request.gpus} if that is what you want to tune"
        )
    if job.nodes > 1:
        raise BadInput(f"{request.script} trains on {job.nodes} nodes; this version measures on one host only")
    if job.on_cpu:
        return ()
    visible = visible_gpus(env.get("CUDA_VISIBLE_DEVICES"), [gpu.uuid for gpu in host_gpus()])
    if len(visible) < job.gpus_per_node:
        raise BadInput(
            f"{request.script} trains on {job.gpus_per_node} GPUs; this host shows {len(visible)}. "
            "Check nvidia-smi and CUDA_VISIBLE_DEVICES, or change trainer.n_gpus_per_node"
        )
    return visible[: job.gpus_per_node]


def _override_arguments(arguments: Sequence[str]) -> list[str]:
    return [argument for argument in arguments if not argument.startswith("-")]
