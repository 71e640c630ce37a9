"""One session and a few launches of their own on one GPU: does what a session measures hold there?

python benchmarks/h200_session.py --assets DIR --out DIR               on an H200 (model, data and reward in DIR)
python benchmarks/h200_session.py --rehearse --out DIR                 the same course on the CPU, with the demo's model

Measures a 0.5B GRPO job (32 prompts × 4 responses of up to 512 tokens): the baseline and a list of Points in one session, up to
and including Points that run out of memory, then some of them in launches of their own. Every step and every outcome is a
line of OUT/records.jsonl as soon as it is there, so that whatever happens afterwards loses nothing. Beside verl's own needs
it wants psutil and nvidia-ml-py alone.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from autotune.measure.outcome_json import outcome_to_json  # noqa: E402
from autotune.measure.runner import StepPlan  # noqa: E402
from autotune.values import Measurement  # noqa: E402
from autotune.verl import keys  # noqa: E402
from autotune.verl.live import EngineSeat  # noqa: E402
from benchmarks.h200_stand import BEST, FAST, Records, Stand, Values, batching, dynamic, read, share_for  # noqa: E402

PLAN = StepPlan(at_least=2, at_most=2)
"""One settling step and two counted ones, everywhere."""


def gpu_points(seat: EngineSeat | None) -> list[tuple[str, Values]]:
    """Name and changed values of every Point, the most telling first."""
    found: list[tuple[str, Values]] = [
        ("fast-poll", FAST),
        ("actor-16", batching(16)),
        ("dynamic-16k", dynamic(16384, 16384)),
        ("seqs-128", {**FAST, keys.MAX_NUM_SEQS: 128}),
        ("actor-16-logprob-32", batching(16, 32)),
        ("seqs-32", {**FAST, keys.MAX_NUM_SEQS: 32}),
        ("dynamic-16k-seqs-128", BEST),
    ]
    if seat is not None:
        found += [
            (f"kv-{blocks}", {**FAST, keys.MAX_NUM_SEQS: 128, keys.GPU_MEMORY: share_for(seat, blocks)})
            for blocks in (2400, 1000)
        ]
    found += [
        ("dynamic-8k", dynamic(8192, 8192)),
        ("dynamic-12k", dynamic(12288, 12288)),
        ("batched-tokens-512", {**FAST, keys.MAX_NUM_SEQS: 128, keys.MAX_BATCHED_TOKENS: 512}),
        ("actor-8", batching(8)),
        ("actor-32", batching(32)),
        ("logprob-16", batching(4, 16)),
        ("logprob-64", batching(4, 64)),
        ("dynamic-16k-logprob-32k", dynamic(16384, 32768)),
        ("batched-tokens-2048", {**FAST, keys.MAX_NUM_SEQS: 128, keys.MAX_BATCHED_TOKENS: 2048}),
        ("seqs-16", {**FAST, keys.MAX_NUM_SEQS: 16}),
        ("dynamic-4k", dynamic(4096, 4096)),
        ("memory-0.2", {**FAST, keys.MAX_NUM_SEQS: 128, keys.GPU_MEMORY: 0.2}),
        ("dynamic-24k", dynamic(24576, 24576)),
    ]
    return found


def cpu_points(seat: EngineSeat | None) -> list[tuple[str, Values]]:
    """The rehearsal's: fewer, of the same kinds."""
    found: list[tuple[str, Values]] = [
        ("fast-poll", FAST),
        ("actor-16", batching(16)),
        ("dynamic-1k", dynamic(1024, 1024)),
        ("seqs-16", {**FAST, keys.MAX_NUM_SEQS: 16}),
    ]
    if seat is not None:
        found.append(("kv-40", {**FAST, keys.GPU_MEMORY: share_for(seat, 40)}))
    return found


def live(stand: Stand, *, until: float, rehearse: bool) -> None:
    """The session: baseline, Points, baseline again, Points that run out of memory."""
    records = stand.records
    if not isinstance(stand.measure(stand.warm, "baseline", {}), Measurement):
        return
    visit = stand.warm.baselines[0]
    records.write("visit", whole=outcome_to_json(visit.measurement), composed=outcome_to_json(visit.composed))
    bench = stand.warm._bench
    seat = None if bench is None else bench.session.seats[0]
    points = cpu_points(seat) if rehearse else gpu_points(seat)
    for place, (label, values) in enumerate(points):
        if records.seconds > until or not stand.sound(label, stand.measure(stand.warm, label, values)):
            records.write("cut", before=[name for name, _ in points[place + 1 :]])
            break
    # A budget below the longest trajectory is what fails on the CPU, where memory does not run out.
    too_much: Sequence[tuple[str, Values]] = (
        [("too-small-budget", dynamic(16, 1024))]
        if rehearse
        else [("actor-64", batching(64)), ("actor-128", batching(128)), ("dynamic-128k", dynamic(131072, 131072))]
    )
    # Ordered twice: the first time the session has its probes already, and measures nothing.
    for label, values in [("baseline-composed", {}), ("baseline-again", {}), *too_much]:
        if stand.warm._bench is None or not stand.sound(label, stand.measure(stand.warm, label, values)):
            break
    records.write("prices", **asdict(stand.warm.prices))


def main() -> None:
    """Runs the course until it is through or the time is up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a folder with a short path")
    parser.add_argument("--assets", type=Path, help="with model/, train.parquet, val.parquet and reward.py")
    parser.add_argument("--rehearse", action="store_true", help="the demo's model on the CPU")
    parser.add_argument("--points-until", type=float, default=800.0, help="seconds after which no further Point begins")
    parser.add_argument("--until", type=float, default=1380.0, help="seconds at which the last launch should be over")
    parser.add_argument("--launch", type=float, default=215.0, help="seconds that a launch is expected to take")
    parser.add_argument(
        "--compile-cache", action="store_true", help="lets vLLM keep its compile cache between launches"
    )
    arguments = parser.parse_args()
    arguments.out = arguments.out.resolve()
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.assets = (arguments.assets or arguments.out / "assets").resolve()
    records = Records(arguments.out / "records.jsonl")
    try:
        stand = Stand(
            records,
            out=arguments.out,
            assets=arguments.assets,
            rehearse=arguments.rehearse,
            plan=PLAN,
            compile_cache=arguments.compile_cache,
        )
        try:
            live(stand, until=arguments.points_until, rehearse=arguments.rehearse)
        finally:
            stand.warm.close()
            records.write("closed")
        kv = next((values for line in read(arguments.out) if (values := bound(line)) is not None), None)
        launches: list[tuple[str, Values]] = [("baseline", {})]
        if arguments.rehearse:
            launches.append(("dynamic-1k", dynamic(1024, 1024)))
        else:
            launches.append(("dynamic-16k-seqs-128", BEST))
            launches += [] if kv is None else [("kv-2400", kv)]
            launches.append(("actor-16-logprob-32", batching(16, 32)))
        for label, values in launches:
            if records.seconds + arguments.launch > arguments.until:
                records.write("cut", before=f"cold-{label}")
                break
            stand.measure(stand.cold, label, values)
    except BaseException:
        records.write("error", traceback=traceback.format_exc())
        raise
    finally:
        records.write("end")


def bound(line: Mapping[str, Any]) -> Values | None:
    """The values of the Point whose KV cache was to be too small, if this line is its outcome and it was measured."""
    measured = line.get("label") == "kv-2400" and "measurement" in line["outcome"]
    return dict(line["values"]) if measured else None


if __name__ == "__main__":
    main()
