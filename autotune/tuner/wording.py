"""How figures, values and verdicts are worded for people, in one place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from autotune.values import NOT_TRIED, KnobValue


def gain(fraction: float | None) -> str:
    """`+25.3 %`, or a dash where it is not known."""
    return "–" if fraction is None or math.isnan(fraction) else f"{fraction * 100:+.1f} %"


def number(value: float | None, digits: int = 1) -> str:
    """A figure with thousands separated, or a dash."""
    return "–" if value is None or math.isnan(value) else f"{value:,.{digits}f}"


def duration(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def short_key(key: str) -> str:
    """The part of a Hydra key by which people know it, with its section where that tells two apart."""
    parts = key.split(".")
    if len(parts) < 3:
        return key
    return f"{parts[1]}.{parts[-1]}" if parts[0] == "actor_rollout_ref" else f"{parts[0]}.{parts[-1]}"


def value(setting: KnobValue) -> str:
    """A knob's value as Hydra writes it: `true`, `null`, `0.5`."""
    if setting is None:
        return "null"
    return str(setting).lower() if isinstance(setting, bool) else str(setting)


def changes(values: Mapping[str, KnobValue]) -> str:
    """`rollout.max_num_seqs=64, …` on one line; `as it is` for nothing."""
    return ", ".join(f"{short_key(key)}={value(setting)}" for key, setting in values.items()) or "as it is"


def verdict(verdict: Mapping[str, Any]) -> str:
    """The verdict in one sentence."""
    decision = verdict["decision"]
    interval = verdict.get("interval")
    sure = f" (95 % interval {gain(interval[0])} to {gain(interval[1])})" if interval else ""
    if decision == "better":
        return f"Faster by {gain(verdict['gain'])}{sure}."
    if decision == "indicative":
        return f"Indicative only: {gain(verdict['gain'])}{sure}; {verdict['reason']}."
    if decision == "no_meaningful_difference":
        measured = f" Measured: {gain(verdict['gain'])}{sure}." if verdict.get("gain") is not None else ""
        return f"No meaningful difference: {verdict['reason']}.{measured}"
    if decision == "nothing_fits":
        return f"Nothing else fits: {verdict['reason']}. The user's own command stays the best."
    return f"The study stopped: {verdict['reason']}"


def memory(verdict: Mapping[str, Any]) -> str:
    """What is known of memory when every trajectory is as long as the job allows, in one sentence."""
    told = verdict.get("memory") or {}
    parts = [
        f"{who} {_use(told[name])}" for name, who in (("best", "best"), ("baseline", "your command")) if told.get(name)
    ]
    grown = told.get("slope")
    trend = ""
    if grown is not None:
        trend = (
            f" Its peak still grew by {number(grown)} GiB in every step of a launch: watch it, or take a smaller setting."
            if grown
            else " Its peak did not grow over the steps of a launch."
        )
    if not parts:
        return f"Memory with every response at its limit: not measured.{trend}"
    left_out = told.get("left_out") or 0
    also = f"; {left_out} faster setting{'s' if left_out > 1 else ''} left out for it" if left_out else ""
    return f"Memory with every response at its limit: {', '.join(parts)}{also}.{trend}"


def _use(check: Mapping[str, Any]) -> str:
    failure = check["failure"]
    if failure is not None and str(failure["evidence"]).endswith(NOT_TRIED):
        return f"is not expected to fit (in {failure['phase']}; {NOT_TRIED})"
    if failure is not None:
        return f"does not fit ({failure['class']} in {failure['phase']})"
    return f"{number(check['used'])} of {number(check['device'])} GiB"


def theft(verdict: Mapping[str, Any]) -> str | None:
    """How much CPU time the hypervisor took in the launches that decided, in one sentence; None: nothing to speak of."""
    shares = verdict.get("cpu_stolen")
    if not shares:
        return None
    low, high = (f"{share:.0%}" for share in shares)
    took = high if low == high else f"{low} to {high}"
    return (
        f"The hypervisor took {took} of the CPU time that this host wanted in the launches that decided: steps count with it, and "
        "part of what differs between launches may be its."
    )


def equivalence(part: bool | None) -> str:
    """What is known about one part of the equivalence."""
    return "not measured" if part is None else "yes" if part else "no"
