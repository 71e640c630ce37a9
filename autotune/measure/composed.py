"""Putting a step together from the probes of one session: training from frozen steps, generation from generating ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from autotune.values import StepRecord

TRAINING = ("old_log_prob", "ref", "values", "adv", "update_critic", "update_actor", "update_weights")
"""Phases that a frozen step does as a whole one does. Weight sync is one of them: the more memory training took, the longer
vLLM takes to have its own back (on an H200 0.25 s at a micro-batch of 4, 0.62 s at one of 128; docs/benchmarks.md)."""
GENERATING = ("gen",)
"""Phases that a generation step does as a whole one does."""
_OF_THE_STEP = ("timing_s/gen", "timing_s/step", "timing_per_token_ms/gen", "perf/time_per_step", "perf/throughput")
"""Metrics of a frozen step that say nothing: it generates nothing."""

REWARD_METRICS = "session/reward/"
"""Metrics of the rewards of a step that generated (`autotune.inside.rewards.tally`)."""


def composed(frozen: StepRecord, *, generation: Sequence[StepRecord], whole: Sequence[StepRecord]) -> StepRecord:
    """A frozen step as the whole one that it would be with generation as in `generation`.

    step = Σ phases + rest. The training phases are those of the frozen step; the generation is the mean over `generation`;
    reward and the rest that no timer covers (data, dispatch, balancing) are means over `whole`, whole steps of the baseline.
    All are of one session and do the same work: the same prompts, the same lengths. Metrics of the whole step that a frozen
    one cannot have are left out; those of the rewards are means over `generation`.
    """
    if not whole or not generation:
        raise ValueError("nothing to take the generation or the rest from")
    names = {name for step in whole for name in step.phases if name not in (*TRAINING, *GENERATING)}
    phases = {name: seconds for name, seconds in frozen.phases.items() if name in TRAINING}
    phases |= {name: fmean(step.phases.get(name, 0.0) for step in generation) for name in GENERATING}
    phases |= {name: fmean(step.phases.get(name, 0.0) for step in whole) for name in sorted(names)}
    metrics = {name: value for name, value in frozen.metrics.items() if name not in _OF_THE_STEP}
    for name in generation[-1].metrics:
        if name.startswith(REWARD_METRICS):
            metrics[name] = fmean(step.metrics[name] for step in generation if name in step.metrics)
    return replace(
        frozen,
        seconds=sum(phases.values()) + fmean(step.rest_seconds for step in whole),
        phases=phases,
        metrics=metrics,
    )
