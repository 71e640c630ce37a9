"""What a Point costs in a session and what it costs in a launch of its own: real verl and vLLM, the demo's model, the CPU.

python benchmarks/warm_vs_cold.py                      one session over every Point below, cold launches of a few of them
python benchmarks/warm_vs_cold.py --cold 4 --steps 2   at least four cold launches; counted steps of each Point

Writes benchmarks/results/warm_vs_cold-<date>.json. Run it on a quiet machine: nothing else may use its cores.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from statistics import fmean, variance
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from autotune.measure.runner import Order, StepPlan  # noqa: E402
from autotune.values import Measurement, StepRecord  # noqa: E402
from tests.verl.demo_stand import DemoStand  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
TRAINING: tuple[dict[str, Any], ...] = (
    {"ACTOR_MICRO_BATCH": 16, "LOG_PROB_MICRO_BATCH": 32},
    {"ACTOR_MICRO_BATCH": 4},
    {"ACTOR_MICRO_BATCH": 8},
    {"ACTOR_MICRO_BATCH": 32},
    {"LOG_PROB_MICRO_BATCH": 8},
    {"LOG_PROB_MICRO_BATCH": 16},
    {"DYNAMIC": True, "ACTOR_TOKENS": 768, "LOG_PROB_TOKENS": 768},
    {"DYNAMIC": True, "ACTOR_TOKENS": 384, "LOG_PROB_TOKENS": 768},
)
"""Points whose training alone differs from the user's command."""
ENGINE: tuple[dict[str, Any], ...] = (
    {"MAX_NUM_SEQS": 64, "ACTOR_MICRO_BATCH": 16, "LOG_PROB_MICRO_BATCH": 32},
    {"MAX_NUM_SEQS": 16},
    {"MAX_NUM_SEQS": 32},
    {"MAX_NUM_SEQS": 64, "MAX_BATCHED_TOKENS": 4096},
    {"MAX_NUM_SEQS": 64, "GPU_MEMORY": 0.08},
    {"MAX_NUM_SEQS": 64, "FAST_POLL": True},
    {"MAX_NUM_SEQS": 48, "ACTOR_MICRO_BATCH": 2},
)
"""Points that need another generation probe; the last one another training probe too."""
COLD = (TRAINING[0], ENGINE[0], TRAINING[6], ENGINE[5], TRAINING[1], ENGINE[1])
"""Points that both arms measure, in the order in which they are launched."""
JOB = {
    "data.train_batch_size": "8",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "8",
    "data.max_response_length": "16",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": "2",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": "2",
}
"""The demo's job with less to do in a step, so that start-up weighs what it weighs with a tiny model."""
ATTEMPTS = 4
"""How often a measurement is made that other programs disturb."""
FACTOR = 3.0
"""Phases agree where they differ by no more than this many standard errors, or by `LEAST`."""
LEAST = 0.10


def name_of(values: dict[str, Any]) -> str:
    """A label that is safe in file names."""
    return "-".join(f"{key.lower()}={value}" for key, value in values.items()) or "baseline"


def measure(runner: Any, order: Order) -> tuple[Measurement, float]:
    """One measurement and the wall seconds that it took. One that other programs disturbed is made again, and not counted."""
    for _ in range(ATTEMPTS):
        begin = time.monotonic()
        found = runner.measure(order, lambda event: None)
        seconds = time.monotonic() - begin
        if isinstance(found, Measurement) or not found.retryable:
            break
        print(f"  {order.label}: again, since {found.evidence}", flush=True)
    if not isinstance(found, Measurement):
        raise SystemExit(f"{order.label} was not measured: {found}")
    print(f"  {order.label}: {seconds:.1f} s, {found.throughput:.0f} tokens/s", flush=True)
    return found, seconds


def phase_of(steps: Sequence[StepRecord], phase: str) -> list[float]:
    """Seconds of a phase in every counted step."""
    return [step.phases[phase] for step in steps if phase in step.phases]


def agreement(warm: Measurement, cold: Measurement) -> dict[str, dict[str, Any]]:
    """Per phase: seconds of both arms and whether they agree within noise."""
    found = {}
    for phase in sorted({name for step in cold.counted for name in step.phases} - {"adv", "update_weights"}):
        ours, theirs = phase_of(warm.counted, phase), phase_of(cold.counted, phase)
        if not ours or not theirs:
            continue
        spread = [variance(group) / len(group) for group in (ours, theirs) if len(group) > 1]
        error = math.sqrt(sum(spread))
        difference = abs(fmean(ours) - fmean(theirs))
        found[phase] = {
            "warm": fmean(ours),
            "cold": fmean(theirs),
            "agrees": difference <= max(FACTOR * error, LEAST * fmean(theirs)),
        }
    return found


def machine() -> dict[str, Any]:
    """Where it ran."""
    return {"cpus": os.cpu_count(), "platform": platform.platform(), "load": os.getloadavg()[0]}


def main() -> None:
    """Runs both arms and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cold", type=int, default=4, help=f"cold launches, 4 to {len(COLD)}")
    parser.add_argument("--steps", type=int, default=2, help="counted steps of every Point in both arms")
    arguments = parser.parse_args()
    if not 4 <= arguments.cold <= len(COLD):
        parser.error(f"--cold must be between 4 and {len(COLD)}")
    plan = StepPlan(at_least=arguments.steps, at_most=arguments.steps)
    with tempfile.TemporaryDirectory(prefix="warm-vs-cold-") as folder:
        stand = DemoStand(Path(folder), every=1000, overrides=JOB)
        spent: dict[str, list[float]] = {"training": [], "engine": []}
        warm: dict[str, Measurement] = {}
        print("session", flush=True)
        try:
            _, opening = measure(stand.warm, stand.order("baseline", plan=plan))
            for kind, points in (("training", TRAINING), ("engine", ENGINE)):
                for values in points:
                    label = name_of(values)
                    warm[label], seconds = measure(stand.warm, stand.order(label, plan=plan, **values))
                    spent[kind].append(seconds)
            visits = stand.warm.baselines
            prices = stand.warm.prices
        finally:
            stand.warm.close()
        print("launches of their own", flush=True)
        cold: dict[str, Measurement] = {}
        launches: list[float] = []
        for values in COLD[: arguments.cold]:
            label = name_of(values)
            cold[label], seconds = measure(stand.cold, stand.order(f"cold-{label}", plan=plan, **values))
            launches.append(seconds)
    per_cold = fmean(launches)
    training, engine = fmean(spent["training"]), fmean(spent["engine"])

    def ratio_at(count: int, marginal: float) -> float:
        """N cold launches over one session of N Points, its baseline included."""
        return count * per_cold / (opening + count * marginal)

    baseline = visits[0].measurement
    result = {
        "cold_seconds_per_point": per_cold,
        "marginal_warm_training": training,
        "marginal_warm_engine": engine,
        "marginal_share_training": training / per_cold,
        "marginal_share_engine": engine / per_cold,
        "ratio_at_20_training": ratio_at(20, training),
        "ratio_at_20_engine": ratio_at(20, engine),
        "startup": prices.launch,
        "first_step": prices.first_step,
        "step": baseline.step_seconds,
        "frozen_step": prices.frozen_step,
        "generation_step": prices.generation_step,
        "session_until_baseline": opening,
        "composed_over_whole": visits[0].composed.step_seconds / baseline.step_seconds,
        "steps_per_point": {"settling": 1, "counted": arguments.steps},
        "formula": "ratio at N = N · cold / (session_until_baseline + N · marginal); cold = S + F + k·s + end, "
        "marginal = (1 + k) · (steps of the probes that the Point needs), k counted steps",
        "points": [
            {
                "point": label,
                "cold_seconds": seconds,
                "cold_throughput": cold[label].throughput,
                "warm_throughput": warm[label].throughput,
                "source": warm[label].source.value,
                "phases": agreement(warm[label], cold[label]),
            }
            for label, seconds in zip(cold, launches, strict=True)
        ],
        "job": JOB,
        "versions": stand.stack,
        "machine": machine(),
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"warm_vs_cold-{date.today().isoformat()}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(
        f"S (start-up) {prices.launch:.0f} s · F (first step) {prices.first_step:.0f} s · s (step) {baseline.step_seconds:.1f} s\n"
        f"a Point cold {per_cold:.0f} s · in a session {training:.1f} s (training), {engine:.1f} s (with engine limits)\n"
        f"{result['formula']}\n"
        f"ratio at 20: {result['ratio_at_20_training']:.1f} (training) · {result['ratio_at_20_engine']:.1f} (engine)\n"
        "S is almost all of a launch here because the model is a toy: on a GPU S is about 200 s and s is minutes, and the ratio "
        "is that of the formula, not this one.\n"
        f"written to {path}"
    )


if __name__ == "__main__":
    main()
