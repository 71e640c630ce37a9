"""What a setting of the training phases will take of a GPU, from what others took: pure arithmetic.

The peak of a step is that of its fullest phase. A phase takes a part that does not depend on its batching and a part that
grows with the tokens of a micro-batch x:

    peak = max over phases p of  F_p + k_p · x_p          with F_p ≥ what the trainer holds between two steps (idle)

Neither F_p nor k_p is measured, but every peak y that was seen with x_p tokens bounds phase p from above, whichever phase
made it: F_p + k_p · x_p ≤ y. The dearest line through that bound starts at the idle level, so

    prediction for p at x = min over all peaks of  idle + (y − idle) · max(1, x ÷ x_p)

With a single peak this says: everything above the idle level grows proportionally. Where two peaks are known to be of this
phase (`_made_by`), the line through them is known, and its slope (with a margin) replaces that from the idle level.

What it does not know: a phase that has memory growing faster than its tokens (attention that is not "flash"); an allocator
that is fragmented; how the trajectories of later batches, longer than the session's, will do; whether vLLM finds its memory
again when it wakes up.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from autotune.values import NOT_TRIED, Failure, FailureClass, MemoryCheck, Phase
from autotune.verl.loads import DeviceMemory, Load, Loads, Peak

LIMIT = 0.97
"""Share of the device above which no Point is started on several ranks: one that fails there takes the launch with it."""
SAFE = 0.95
"""Share of the device up to which a finalist may fill it when every trajectory is as long as the job allows: what is handed
out runs for days, and an allocator fragments."""
GROWTH_MARGIN = 1.1
"""Times the slope between two peaks: a line through two points has no spread."""
HIGHER = 1.02
"""Times a peak from which on another one is higher; allocators round."""
SLOPE_STEPS = 4
"""Steps of training in a row that must not each reach a new height."""
RISE = 0.005
"""Share of the peak by which a step has to pass it, so as to reach a new height."""
_GIB = 2**30


def predicted_peak(loads: Loads, peaks: Sequence[Peak], idle: int) -> int | None:
    """Bytes that the trainer's allocator will have reserved on one GPU at most; None: nothing is known to go by.

    Args:
        loads: tokens by phase of the setting.
        peaks: what other settings took.
        idle: bytes that the trainer holds between two steps.
    """
    highest = _highest(peaks)
    found = [_of_phase(phase, load.most, highest, idle) for phase, load in loads.items()]
    known = [bound for bound in found if bound is not None]
    return int(max(known)) if known else None


def predicted_oom(loads: Loads, peaks: Sequence[Peak], device: DeviceMemory) -> Failure | None:
    """The failure of a setting that must not be started where running out of memory ends the job; None: it may be.

    What was run already is not refused: it is known to fit.
    """
    if any(peak.loads == loads for peak in peaks):
        return None
    highest = _highest(peaks)
    by_phase = {phase: _of_phase(phase, load.most, highest, device.idle) for phase, load in loads.items()}
    known = {phase: bound for phase, bound in by_phase.items() if bound is not None}
    if not known:
        return None
    fullest = max(known, key=lambda phase: known[phase])
    total = known[fullest] + device.outside
    if total <= LIMIT * device.total:
        return None
    return Failure(
        FailureClass.OOM_GPU,
        Phase(fullest),
        "Choose a smaller micro-batch or token budget for this phase. On several GPUs running out of memory ends the launch, so "
        "that a session tries nothing that may.",
        f"predicted {total / _GIB:.1f} GiB of {device.total / _GIB:.1f} GiB on the fullest GPU ({device.outside / _GIB:.1f} GiB of "
        f"it outside the trainer's allocator), more than {LIMIT:.0%}; {NOT_TRIED}",
        False,
    )


def too_full(check: MemoryCheck, own: MemoryCheck | None) -> str | None:
    """Why a finalist is not handed out, since it may run out of memory one day; None: it may be.

    Args:
        own: the user's own command under the same load. What is no worse than that is not held back.
    """
    if own is not None and own.failure is not None:
        return None
    if check.failure is not None:
        failed = check.failure
        return f"{failed.failure_class.value} in {failed.phase.value}: {failed.evidence}"
    used = check.used
    if used is None or used <= SAFE * check.device:
        return None
    if own is not None and own.used is not None and used <= own.used:
        return None
    return f"it takes {used / _GIB:.1f} of {check.device / _GIB:.1f} GiB, more than {SAFE:.0%}"


def slope(peaks: Sequence[float]) -> float | None:
    """By how much memory still grows a step, where each of the last steps of a launch reached a new height: a leak, or a job that
    has not seen its longest batch; 0 where one of them did not.

    Args:
        peaks: of the counted steps in order, each the highest so far, as PyTorch's allocator reports them.

    Returns:
        None where there are fewer than `SLOPE_STEPS` steps; else in the unit of `peaks`.
    """
    last = peaks[-SLOPE_STEPS:]
    if len(last) < SLOPE_STEPS:
        return None
    grows = all(after - before > RISE * before for before, after in pairwise(last))
    return (last[-1] - last[0]) / (SLOPE_STEPS - 1) if grows else 0.0


def _highest(peaks: Sequence[Peak]) -> list[Peak]:
    """The highest peak of every setting: a session's first steps take less, the optimiser has no state before the first."""
    found: dict[tuple[tuple[str, Load], ...], Peak] = {}
    for peak in peaks:
        setting = tuple(sorted(peak.loads.items()))
        if setting not in found or peak.bytes > found[setting].bytes:
            found[setting] = peak
    return list(found.values())


def _of_phase(phase: str, tokens: float, peaks: Sequence[Peak], idle: int) -> float | None:
    seen = [peak for peak in peaks if phase in peak.loads and peak.loads[phase].least > 0]
    if not seen:
        return None
    bound = min(idle + max(0, peak.bytes - idle) * max(1.0, tokens / peak.loads[phase].least) for peak in seen)
    made = sorted((peak for peak in seen if _made_by(phase, peak, seen)), key=lambda peak: peak.loads[phase].least)
    if len(made) < 2:
        return bound
    top = made[-1]
    x, y = top.loads[phase].least, top.bytes
    slopes = [(y - peak.bytes) / (x - peak.loads[phase].least) for peak in made[:-1] if peak.loads[phase].least < x]
    if not slopes or max(slopes) <= 0:
        return bound
    return min(bound, y + GROWTH_MARGIN * max(slopes) * max(0.0, tokens - x))


def _made_by(phase: str, peak: Peak, others: Sequence[Peak]) -> bool:
    """Whether this phase is known to have made the peak: with fewer tokens in it, and no fewer in any other phase, another
    setting took less."""
    for other in others:
        if other.bytes * HIGHER >= peak.bytes or other.loads[phase].least >= peak.loads[phase].least:
            continue
        rest = [name for name in peak.loads if name != phase]
        if all(name in other.loads and other.loads[name].least >= peak.loads[name].least for name in rest):
            return True
    return False
