"""How far a session is from launches of its own Points, and from running out of memory, on H200 GPUs.

    python benchmarks/h200_bias.py session --assets DIR --out DIR --then best,training,kv     one GPU, one after another
    python benchmarks/h200_bias.py session --assets DIR --out DIR --brief --then best,baseline
    python benchmarks/h200_bias.py launches --assets DIR --out DIR2 --then baseline,best --gpu 1     beside it on a second one
    python benchmarks/h200_bias.py pair --assets DIR --out DIR3      a session on two GPUs, up to an OOM of a rank
    python benchmarks/h200_bias.py COURSE --rehearse --out DIR       the same on the CPU, with the demo's model

The job is that of `h200_session.py`. What disturbs a step is on record and the step counts, in both arms alike.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from autotune.measure.bench import Bench  # noqa: E402
from autotune.measure.outcome_json import outcome_to_json  # noqa: E402
from autotune.measure.runner import StepPlan  # noqa: E402
from autotune.measure.session import StepFailed  # noqa: E402
from autotune.search.memory import predicted_oom, predicted_peak  # noqa: E402
from autotune.values import Measurement  # noqa: E402
from autotune.verl import keys  # noqa: E402
from benchmarks.h200_stand import BEST, FAST, Records, Stand, Values, batching, dynamic, share_for  # noqa: E402

KV_BLOCKS = 2400
KV_SHARE = 0.016247
"""Memory share at which an engine of this job has about that many KV blocks, where no session is there to say it."""
LONGEST = 1536
"""Tokens of the longest trajectory on the GPU."""


def points(stand: Stand) -> dict[str, Values]:
    """The Points that are measured in both arms, by the names under which they are asked for."""
    if stand.rehearse:
        best = {**batching(16, 16), **FAST, keys.MAX_NUM_SEQS: 64}
        return {"baseline": {}, "best": best, "training": batching(16, 16)}
    bench = stand.warm._bench
    seat = None if bench is None else bench.session.seats[0]
    share = KV_SHARE if seat is None else share_for(seat, KV_BLOCKS)
    few = {**FAST, keys.MAX_NUM_SEQS: 128, keys.GPU_MEMORY: share}
    return {"baseline": {}, "best": BEST, "training": batching(16, 32), "kv": few}


def session(stand: Stand, then: Sequence[str], late: Callable[[], bool]) -> None:
    """The Points in one session, the best on whole steps besides, then longest trajectories up to one that does not fit; and
    launches of their own."""
    if not isinstance(stand.measure(stand.warm, "baseline", {}), Measurement):
        return
    visit = stand.warm.baselines[0]
    stand.records.write("visit", whole=outcome_to_json(visit.measurement), composed=outcome_to_json(visit.composed))
    both = points(stand)
    for label, values in both.items():
        if values and not stand.sound(label, stand.measure(stand.warm, label, values)):
            return
    stand.measure(stand.warm, "best", both["best"], whole=True)
    if not stand.brief:
        to_the_limits(stand, both)
    stand.records.write("prices", **asdict(stand.warm.prices))
    stand.warm.close()
    launches(stand, then, late, both)


def to_the_limits(stand: Stand, both: Mapping[str, Values]) -> None:
    """Longest trajectories at the Points, at the largest budget that the memory rule lets pass, and at one that it refuses."""
    for label in ("baseline", "best", "training"):
        longest(stand, label, both[label])
    edge = boundary(stand)
    if edge is not None:
        longest(stand, f"dynamic-{edge}", dynamic(edge, edge))
        over = -(-edge * 5 // 4 // LONGEST) * LONGEST
        longest(stand, f"dynamic-{over}", dynamic(over, over))
        stand.records.write("repeats", after=f"dynamic-{over}", same=stand.repeats())


def launches(
    stand: Stand, then: Sequence[str], late: Callable[[], bool], both: Mapping[str, Values] | None = None
) -> None:
    """Some of the Points in launches of their own."""
    planned = both or points(stand)
    for label in then:
        if late():
            stand.records.write("cut", before=f"cold-{label}")
            return
        stand.measure(stand.cold, label, planned[label])


def pair(stand: Stand, then: Sequence[str], late: Callable[[], bool]) -> None:
    """A session of several ranks: Points, one that arithmetic refuses, longest trajectories, and one that runs out of memory."""
    both = points(stand)
    for label in ("baseline", "best", "training"):
        if not isinstance(stand.measure(stand.warm, label, both[label]), Measurement):
            return
    longest(stand, "baseline", {})
    longest(stand, "best", both["best"])
    if stand.rehearse or late():
        return
    edge = boundary(stand)
    if edge is not None:
        longest(stand, f"dynamic-{edge}", dynamic(edge, edge))
    most = 64 * LONGEST
    longest(stand, f"dynamic-{most}", dynamic(most, most))  # to be refused
    stand.warm._predicted_oom = None
    longest(stand, f"dynamic-{most}", dynamic(most, most))  # and now let run


def longest(stand: Stand, label: str, values: Values) -> None:
    """One longest step, with what was predicted for it."""
    bench = running(stand)
    setting, device = stand.setting(values), bench.device
    loads = bench.longest_loads(setting)
    before = None if device is None else predicted_peak(loads, bench.peaks, device.idle)
    refused = None if device is None else predicted_oom(loads, bench.peaks, device)
    begin = stand.records.seconds
    # On the CPU there is no memory to be told of, and the runner would not try.
    found = bench.longest(setting) if stand.rehearse else stand.warm.longest(stand.point(values))
    if isinstance(found, StepFailed):
        told: Mapping[str, object] = found.failure.to_json()
    else:
        told = {} if found is None else asdict(found)
    stand.records.write(
        "longest",
        label=label,
        values=dict(values),
        predicted=before,
        refused=None if refused is None else refused.to_json(),
        outcome=type(found).__name__,
        wall=stand.records.seconds - begin,
        found=told,
    )
    print(f"{stand.records.seconds:7.1f} longest {label}: predicted {before}, {found}", flush=True)


def boundary(stand: Stand) -> int | None:
    """The largest token budget that the memory rule lets pass with longest trajectories; None: there is no GPU, or none is."""
    bench = running(stand)
    if bench.device is None:
        return None
    for sequences in range(128, 0, -1):
        budget = sequences * LONGEST
        loads = bench.longest_loads(stand.setting(dynamic(budget, budget)))
        if predicted_oom(loads, bench.peaks, bench.device) is None:
            return budget
    return None


def running(stand: Stand) -> Bench:
    """The bench of the running session."""
    bench = stand.warm._bench
    if bench is None:
        raise SystemExit("the session is gone")
    return bench


COURSES: Mapping[str, Callable[[Stand, Sequence[str], Callable[[], bool]], None]] = {
    "session": session,
    "launches": launches,
    "pair": pair,
}


def main() -> None:
    """Runs a course until it is through or the time is up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("course", choices=COURSES)
    parser.add_argument("--out", type=Path, required=True, help="a folder with a short path")
    parser.add_argument("--assets", type=Path, help="with model/, train.parquet, val.parquet and reward.py")
    parser.add_argument("--gpu", type=int, default=0, help="which one a course on a single GPU takes")
    parser.add_argument("--rehearse", action="store_true", help="the demo's model on the CPU")
    parser.add_argument("--then", default="", help="Points to launch by themselves: baseline,best,training,kv")
    parser.add_argument("--steps", type=int, default=2, help="counted steps behind the settling one, everywhere")
    parser.add_argument("--brief", action="store_true", help="no longest trajectories")
    parser.add_argument("--late", type=float, default=1e9, help="seconds after which nothing long begins")
    arguments = parser.parse_args()
    out: Path = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    records = Records(out / "records.jsonl")
    in_pair = arguments.course == "pair"
    try:
        stand = Stand(
            records,
            out=out,
            assets=(arguments.assets or out / "assets").resolve(),
            rehearse=arguments.rehearse,
            gpus=(0, 1) if in_pair else (arguments.gpu,),
            brief=arguments.brief,
            plan=StepPlan(at_least=arguments.steps, at_most=arguments.steps),
            predicted_oom=predicted_oom if in_pair else None,
        )
        try:
            then = [name for name in arguments.then.split(",") if name]
            COURSES[arguments.course](stand, then, lambda: records.seconds > arguments.late)
        finally:
            stand.warm.close()
            records.write("closed")
    except BaseException:
        records.write("error", traceback=traceback.format_exc())
        raise
    finally:
        records.write("end")


if __name__ == "__main__":
    main()
