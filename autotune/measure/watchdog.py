"""When a launch that says nothing is a launch that hangs."""

from __future__ import annotations

import re

from autotune.measure.runner import Limits

ERROR_LINE = re.compile(
    r"Traceback \(most recent call last\)|EngineDeadError|EngineCore encountered|Error executing job"
)
"""Lines after which a healthy verl exits or goes on stepping; one that does neither hangs in a dead actor."""

OOM_LINE = re.compile(
    r"torch\.(?:cuda\.)?OutOfMemoryError|(?:CUDA|HIP) out of memory|CUDA (?:driver )?[eE]rror: out of memory"
    r"|CUBLAS_STATUS_ALLOC_FAILED|Cuda failure (?:2 )?'out of memory'"
)
"""A rank ran out of GPU memory."""


def overdue(
    limits: Limits, *, since_start: float, since_progress: float, longest_step: float | None, since_error: float | None
) -> str | None:
    """Why the launch must be ended, or None while it may go on.

    Args:
        since_start: seconds since the command.
        since_progress: seconds since the last finished step (since the command before the first one).
        longest_step: seconds of the longest step so far; None before the first.
        since_error: seconds since the last traceback that no step followed; None if there is none.
    """
    if longest_step is None:
        if since_start > limits.startup:
            return f"no step was finished within {limits.startup:.0f} s of the command"
        patience = limits.after_error
    else:
        allowed = max(limits.step_floor, limits.step_factor * longest_step)
        if since_progress > allowed:
            return f"no step was finished for {since_progress:.0f} s (the longest took {longest_step:.0f} s)"
        patience = max(limits.after_error, 2 * longest_step)
    if since_error is not None and since_error > patience:
        return f"an error was logged and nothing followed it for {since_error:.0f} s"
    return None
