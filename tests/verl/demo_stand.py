"""The demo's job on the real stack, ready for a runner: for the real-verl tests and for benchmarks/warm_vs_cold.py."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from autotune.measure.cold import ColdRunner
from autotune.measure.runner import Limits, Order, StepPlan
from autotune.measure.warm import WarmRunner
from autotune.tuner.demo import DEMO_SPACE, demo_request
from autotune.tuner.execute import launchable
from autotune.tuner.prepare import launch_environment, open_composer, prepare, read_script
from autotune.tuner.request import RunRequest
from autotune.values import KnobValue, Point
from autotune.verl import keys

LIMITS = Limits(startup=900.0, step_floor=240.0)


class DemoStand:
    """Real verl with the demo's model: a warm runner, a cold runner, and orders for both."""

    def __init__(
        self,
        folder: Path,
        *,
        every: int = 10,
        ceilings: Mapping[str, int] | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            every: Points after which the session measures the user's command again.
            ceilings: largest limits of the session's engine.
            overrides: Hydra keys of the demo's command that are set differently.
        """
        self.folder = folder
        asked = RunRequest(
            script=Path(), out=folder, storage="", study="demo", space=DEMO_SPACE, python=sys.executable, hooks=True
        )
        asked = replace(asked, set_overrides=dict(overrides or {}))
        request = demo_request(asked, trials=None, confirmations=None, steps=None, dry_run=False)
        launch = read_script(request)
        env = launch_environment(request, launch)
        composer, python = open_composer(request, launch, env)
        with composer:
            self.prepared = prepare(request, composer, launch, python, env)
            stack = composer.stack
        self.stack = stack.versions()
        prepared = self.prepared
        self.job = launchable(prepared, folder / "payload")
        self.baseline = prepared.space.baseline
        self.plan = request.plan
        self.hook_file = Path(__file__).resolve().parents[2] / "autotune" / "inside" / "hooks.py"
        self.cold = ColdRunner(self.job, limits=LIMITS)
        limits = {keys.MAX_NUM_SEQS: 64, keys.MAX_BATCHED_TOKENS: 4096} if ceilings is None else ceilings
        self.warm = WarmRunner(
            self.job,
            self.cold,
            baseline=self.baseline,
            configure=prepared.configuration,
            folder=folder / "sessions",
            ceilings=limits,
            knobs=prepared.knobs,
            verl_version=stack.verl,
            limits=LIMITS,
            baseline_every=every,
        )

    def point(self, **values: KnobValue) -> Point:
        """The baseline with these knobs turned; they are named as in `autotune.verl.keys`."""
        return Point.of({**self.baseline.as_dict(), **{getattr(keys, name): value for name, value in values.items()}})

    def order(self, label: str, *, plan: StepPlan | None = None, **values: KnobValue) -> Order:
        """An order for `point(**values)`."""
        point = self.point(**values)
        overrides = self.prepared.overrides(point, self.hook_file)
        return Order(label, point, overrides, self.folder / "runs" / label, plan or self.plan)
