"""The pictures as Plotly figures. Colours are names of CSS variables (`--c-gen`) that the page resolves, so that they follow its theme."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from autotune.dashboard.analysis import (
    PHASES,
    KnobEffects,
    TrendPoint,
    levels_of,
    order_phases,
    sort_key,
    varied_keys,
)
from autotune.redaction import redact
from autotune.store.queries import TrialSummary
from autotune.store.records import gains_of, own_command
from autotune.store.schedules import NightRecord
from autotune.tuner import wording
from autotune.values import KnobValue, Point, StepRecord, TrialState

Figure = dict[str, Any]
"""`{"data": […], "layout": {…}}` of Plotly."""


class MeasuredNight(Protocol):
    """What a picture needs of a night."""

    @property
    def night(self) -> NightRecord: ...
    @property
    def own(self) -> float | None:
        """Tokens/s/GPU of the user's command."""

    @property
    def best(self) -> float | None:
        """Tokens/s/GPU of the best setting."""

    @property
    def phases(self) -> tuple[str, ...]:
        """That its alarm names."""


_LINES = 300
"""Trials that parallel coordinates show; more would be one grey surface."""
_STRIPS = 6
_FAILED = (TrialState.INFEASIBLE, TrialState.FAILED, TrialState.INVALID)


@lru_cache(maxsize=8192)
def plain(text: str) -> str:
    """Text for Plotly, which takes some HTML for markup: without secrets, and every character stands for itself."""
    return html.escape(redact(text), quote=False)


def figure_json(figure: Mapping[str, Any]) -> str:
    """JSON that can stand inside a `script` element."""
    text = json.dumps(figure, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def phase_colour(phase: str) -> str:
    """The CSS variable of a phase."""
    return f"--c-{phase.replace('_', '-')}" if phase in PHASES else "--c-rest"


def trend_figure(points: Sequence[TrendPoint]) -> Figure:
    """Baseline and best of a workload over its studies, with the band in which the baseline was expected."""
    when = [p.night.created_at.isoformat() for p in points]
    names = [plain(p.night.name) for p in points]
    link = [f"/studies/{p.night.study_id}" for p in points]
    banded = [p for p in points if p.low is not None]
    data: list[Figure] = []
    if banded:
        across = [p.night.created_at.isoformat() for p in banded]
        data.append(
            {
                "x": [*across, *reversed(across)],
                "y": [*(p.high for p in banded), *reversed([p.low for p in banded])],
                "fill": "toself",
                "fillcolor": "--band",
                "line": {"width": 0},
                "mode": "lines",
                "hoverinfo": "skip",
                "name": "expected",
            }
        )
    shared = {"x": when, "mode": "lines+markers", "text": names, "customdata": link, "connectgaps": False}
    hover = "%{text}<br>%{y:,.1f} tokens/s/GPU<extra>%{fullData.name}</extra>"
    data += [
        {
            **shared,
            "y": [p.night.best for p in points],
            "name": "best",
            "line": {"color": "--good", "width": 2},
            "marker": {"size": 5, "color": "--good"},
            "hovertemplate": hover,
        },
        {
            **shared,
            "y": [p.night.baseline for p in points],
            "name": "your command",
            "line": {"color": "--text-2", "width": 2},
            "marker": {"size": 5, "color": "--text-2"},
            "hovertemplate": hover,
        },
    ]
    fallen = [p for p in points if p.regressed]
    if fallen:
        data.append(
            {
                "x": [p.night.created_at.isoformat() for p in fallen],
                "y": [p.night.baseline for p in fallen],
                "text": [plain(f"{p.night.name}: {wording.gain(-(p.drop or 0.0))}") for p in fallen],
                "customdata": [f"/studies/{p.night.study_id}" for p in fallen],
                "mode": "markers",
                "name": "regression",
                "marker": {"size": 13, "color": "--bad", "symbol": "triangle-down"},
                "hovertemplate": "%{text}<extra>regression</extra>",
            }
        )
    return {"data": data, "layout": {"yaxis": {"title": {"text": "tokens/s/GPU"}, "rangemode": "tozero"}}}


def nights_figure(nights: Sequence[MeasuredNight]) -> Figure:
    """The user's command and the best setting over the nights of a schedule; what a double of verl made has open marks."""
    whole = "%{text}<br>%{y:,.1f} tokens/s/GPU<extra>%{fullData.name}</extra>"
    simulated = [line.night.simulated for line in nights]

    def trace(name: str, colour: str, speeds: Sequence[float | None]) -> Figure:
        return {
            "x": [line.night.planned_at.isoformat() for line in nights],
            "y": list(speeds),
            "text": [_night(line) for line in nights],
            "customdata": [_study(line) for line in nights],
            "mode": "lines+markers",
            "connectgaps": False,
            "name": name,
            "line": {"color": colour, "width": 2},
            "marker": {"size": 5, "color": colour, "symbol": ["circle-open" if is_ else "circle" for is_ in simulated]},
            "hovertemplate": whole,
        }

    levels = (
        ("best", "--good", [line.best for line in nights]),
        ("your command", "--text-2", [line.own for line in nights]),
    )
    data = [trace(*level) for level in levels if any(speed is not None for speed in level[2])]
    alarms = [line for line in nights if line.night.regressed]
    if alarms:
        data.append(
            {
                "x": [line.night.planned_at.isoformat() for line in alarms],
                "y": [line.own if line.own is not None else line.best for line in alarms],
                "text": [f"{_night(line)}: {plain(', '.join(line.phases))}" for line in alarms],
                "customdata": [_study(line) for line in alarms],
                "mode": "markers",
                "name": "regression",
                "marker": {"size": 13, "color": "--bad", "symbol": "triangle-down"},
                "hovertemplate": "%{text}<extra>regression</extra>",
            }
        )
    return {"data": data, "layout": {"yaxis": {"title": {"text": "tokens/s/GPU"}, "rangemode": "tozero"}}}


def _night(line: MeasuredNight) -> str:
    return plain(f"{line.night.slot}{' (SIMULATED)' if line.night.simulated else ''}")


def _study(line: MeasuredNight) -> str | None:
    return None if line.night.study_id is None else f"/studies/{line.night.study_id}"


def told(trials: Sequence[TrialSummary]) -> dict[int, str]:
    """What hovering over each trial shows, by its number; several pictures share it."""
    baseline = own_command(trials)
    gains = gains_of(trials, levels_of(trials))
    return {trial.number: _told(trial, baseline, gains[trial.number]) for trial in trials}


def best_figure(
    trials: Sequence[TrialSummary],
    texts: Mapping[int, str],
    *,
    over: str,
    n_gpus: int,
    unit: str = "GPU-minutes",
) -> Figure:
    """Every trial, and the best so far.

    Args:
        texts: of `told`.
        over: `trials` (in order) or `minutes` (GPU-minutes since the study began).
    """
    zero = min((t.started_at for t in trials if t.started_at), default=None)

    def place(trial: TrialSummary) -> float | None:
        if over == "trials":
            return float(trial.number)
        if trial.ended_at is None or zero is None:
            return None
        return (trial.ended_at - zero).total_seconds() / 60 * n_gpus

    baseline = own_command(trials)
    measured = [t for t in trials if t.state is TrialState.MEASURED and t.throughput and place(t) is not None]
    measured.sort(key=lambda t: (place(t) or 0.0, t.number))
    best: list[float] = []
    for trial in measured:
        best.append(max(trial.throughput or 0.0, best[-1] if best else 0.0))
    xs = [place(t) for t in measured]
    data: list[Figure] = [
        {
            "x": xs,
            "y": best,
            "mode": "lines",
            "line": {"shape": "hv", "color": "--good", "width": 2},
            "name": "best so far",
            "hoverinfo": "skip",
        },
        *_points(measured, xs, baseline, texts),
    ]
    failed = [t for t in trials if t.state in _FAILED and place(t) is not None]
    if failed:
        data.append(_failures(failed, [place(t) for t in failed], [0.0] * len(failed), texts))
    layout: Figure = {
        "xaxis": {"title": {"text": "trial" if over == "trials" else unit}},
        "yaxis": {"title": {"text": "tokens/s/GPU"}, "rangemode": "tozero"},
    }
    if baseline is not None and baseline.throughput:
        layout["shapes"] = [_level(baseline.throughput)]
    return {"data": data, "layout": layout}


def tradeoff_figure(trials: Sequence[TrialSummary], texts: Mapping[int, str]) -> Figure:
    """Tokens/s over memory, MFU as the shade; what did not run stands on the zero line as a failure."""
    measured = [t for t in trials if t.state is TrialState.MEASURED and t.throughput]
    with_memory = [t for t in measured if t.memory_gb is not None]
    by_memory = bool(with_memory)
    shown = with_memory if by_memory else measured
    baseline = own_command(trials)
    xs = [t.memory_gb if by_memory else float(t.number) for t in shown]
    data = _points(shown, xs, baseline, texts, shade=True)
    failed = [t for t in trials if t.state in _FAILED]
    known = [x for x in xs if x is not None] if by_memory else []
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    width = max(high - low, 0.1 * high)
    left = (low + high - width) / 2
    if failed:
        # Memory of a trial that did not run is not known: they stand side by side.
        beside = [left + width * (i + 0.5) / len(failed) for i in range(len(failed))]
        places = beside if by_memory else [float(t.number) for t in failed]
        data.append(_failures(failed, places, [0.0] * len(failed), texts))
    axis = "trainer's peak memory, GiB" if by_memory else "trial (memory was not measured)"
    layout: Figure = {
        "xaxis": {"title": {"text": axis}},
        "yaxis": {"title": {"text": "tokens/s/GPU"}, "rangemode": "tozero"},
    }
    if known:
        layout["xaxis"]["range"] = [left - 0.05 * width, left + 1.05 * width]
    return {"data": data, "layout": layout}


def strips_figure(trials: Sequence[TrialSummary], effects: Sequence[KnobEffects]) -> Figure:
    """For the most important knobs: seconds of the phase that each moves most, one dot per trial."""
    data: list[Figure] = []
    layout: Figure = {"grid": {"rows": 1, "columns": max(1, min(len(effects), _STRIPS)), "pattern": "independent"}}
    shown = effects[:_STRIPS]
    measured = [(t, t.point.as_dict()) for t in trials if t.state is TrialState.MEASURED]
    for at, knob in enumerate(shown, 1):
        touched = [e for e in knob.effects.values() if e.expected and e.phase != "step"] or list(knob.effects.values())
        if not touched:
            continue
        strongest = max(touched, key=lambda e: e.slowest_seconds - e.fastest_seconds)
        phase = strongest.phase
        order = [wording.value(v) for v in knob.values]
        here = [(point[knob.key], t) for t, point in measured if knob.key in point]
        here.sort(key=lambda pair: sort_key(pair[0]))
        rows = [(wording.value(v), t.step_seconds if phase == "step" else t.phases.get(phase), t) for v, t in here]
        suffix = "" if at == 1 else str(at)
        data.append(
            {
                "x": [plain(value) for value, _, _ in rows],
                "y": [seconds for _, seconds, _ in rows],
                "text": [f"t{t.number:03d}" for _, _, t in rows],
                "customdata": [_link(t) for _, _, t in rows],
                "mode": "markers",
                "marker": {"size": 8, "color": phase_colour(phase), "opacity": 0.75},
                "xaxis": f"x{suffix}",
                "yaxis": f"y{suffix}",
                "showlegend": False,
                "hovertemplate": "%{text}<br>%{x}: %{y:.2f} s<extra></extra>",
            }
        )
        layout[f"xaxis{suffix}"] = {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [plain(v) for v in order],
            "title": {"text": _wrapped(wording.short_key(knob.key)), "font": {"size": 11}},
        }
        layout[f"yaxis{suffix}"] = {
            "rangemode": "tozero",
            "title": {"text": f"{plain(phase)}, s", "font": {"size": 11}},
        }
    return {"data": data, "layout": layout}


def parallel_figure(trials: Sequence[TrialSummary]) -> Figure:
    """Every trial as a line through its settings to its tokens/s; trials that failed end below the last axis."""
    shown = list(trials)[:_LINES]
    keys = varied_keys([t.point for t in shown])
    ladders = {key: sorted({_typed(t.point, key) for t in shown}, key=lambda v: sort_key(v[1])) for key in keys}
    speeds = [t.throughput for t in shown if t.throughput and t.state is TrialState.MEASURED]
    low, high = (min(speeds), max(speeds)) if speeds else (0.0, 1.0)
    span = (high - low) or 1.0
    ends = len(keys)
    data: list[Figure] = []
    for trial in sorted(shown, key=lambda t: t.throughput or 0.0):
        heights = [
            ladders[key].index(_typed(trial.point, key)) / max(1, len(ladders[key]) - 1)
            if len(ladders[key]) > 1
            else 0.5
            for key in keys
        ]
        ran = trial.state is TrialState.MEASURED and trial.throughput is not None
        if not ran and trial.state not in _FAILED:
            continue
        height = ((trial.throughput or 0.0) - low) / span if ran else -0.12
        shade = f"--s{round(height * 4) + 1}" if ran else "--bad"
        said = f"{wording.number(trial.throughput)} tokens/s/GPU" if ran else _why(trial)
        data.append(
            {
                "x": list(range(ends + 1)),
                "y": [*heights, height],
                "mode": "lines",
                "line": {
                    "color": shade,
                    "width": 2 if ran else 1,
                    "dash": "solid" if ran else "dot",
                    "shape": "linear",
                },
                "opacity": 0.85,
                "showlegend": False,
                "text": [f"t{trial.number:03d} · {plain(said)}"] * (ends + 1),
                "customdata": [_link(trial)] * (ends + 1),
                "hovertemplate": "%{text}<extra></extra>",
            }
        )
    annotations: list[Figure] = []
    for at, key in enumerate(keys):
        annotations += [
            {
                "x": at,
                "y": index / max(1, len(ladders[key]) - 1),
                "text": plain(wording.value(value)[:24]),
                "showarrow": False,
                "xanchor": "left",
                "xshift": 4,
                "font": {"size": 10},
                "bgcolor": "--panel",
                "borderpad": 1,
                "opacity": 0.9,
            }
            for index, (_, value) in enumerate(ladders[key])
        ]
    if speeds:
        annotations += [
            {"x": ends, "y": y, "text": text, "showarrow": False, "xanchor": "left", "xshift": 5, "font": {"size": 10}}
            for y, text in ((0.0, wording.number(low, 0)), (1.0, wording.number(high, 0)), (-0.12, "failed"))
        ]
    layout: Figure = {
        "xaxis": {
            "tickvals": list(range(ends + 1)),
            "ticktext": [*(_wrapped(wording.short_key(key)) for key in keys), "tokens/s/GPU"],
            "range": [-0.35, ends + 0.45],
            "ticklabeloverflow": "allow",
            "showgrid": False,
            "zeroline": False,
        },
        "yaxis": {"visible": False, "range": [-0.2, 1.08]},
        "shapes": [
            {
                "type": "line",
                "x0": at,
                "x1": at,
                "y0": 0,
                "y1": 1,
                "line": {"color": "--line-2", "width": 1},
                "layer": "below",
            }
            for at in range(ends + 1)
        ],
        "annotations": annotations,
        "hovermode": "closest",
    }
    return {"data": data, "layout": layout}


def steps_figure(steps: Sequence[StepRecord]) -> Figure:
    """Seconds of every step by phase; steps that are not counted are pale."""
    names = order_phases(*(s.phases for s in steps), {"rest": 0.0})
    pale = [0.45 if s.settling or s.invalid else 1.0 for s in steps]
    ticks = [f"{s.step}{' settling' if s.settling else ' disturbed' if s.invalid else ''}" for s in steps]
    data = [
        {
            "type": "bar",
            "x": ticks,
            "y": [s.rest_seconds if name == "rest" else s.phases.get(name, 0.0) for s in steps],
            "name": plain(name),
            "marker": {"color": phase_colour(name), "opacity": pale},
            "hovertemplate": "step %{x}<br>%{y:.2f} s<extra>%{fullData.name}</extra>",
        }
        for name in names
    ]
    return {
        "data": data,
        "layout": {
            "barmode": "stack",
            "bargap": 0.35,
            "xaxis": {"type": "category", "showgrid": False, "title": {"text": "step"}},
            "yaxis": {"title": {"text": "seconds"}},
        },
    }


def _points(
    trials: Sequence[TrialSummary],
    xs: Sequence[float | None],
    baseline: TrialSummary | None,
    texts: Mapping[int, str],
    *,
    shade: bool = False,
) -> list[Figure]:
    """The user's command as diamonds, every other setting as circles; with `shade`, darker for a higher MFU."""
    own = {t.number for t in trials if baseline is not None and t.point == baseline.point}
    mfus = [t.mfu for t in trials if t.mfu is not None]
    low, span = (min(mfus), (max(mfus) - min(mfus)) or 1.0) if mfus else (0.0, 1.0)
    data: list[Figure] = []
    for name, symbol, colour, is_own in (
        ("your command", "diamond", "--text-2", True),
        ("another setting", "circle", "--accent", False),
    ):
        rows = [(t, x) for t, x in zip(trials, xs, strict=True) if (t.number in own) is is_own]
        if not rows:
            continue
        shades = [
            f"--s{round(((t.mfu or low) - low) / span * 4) + 1}" if t.mfu is not None else colour for t, _ in rows
        ]
        data.append(
            {
                "x": [x for _, x in rows],
                "y": [t.throughput for t, _ in rows],
                "text": [texts[t.number] for t, _ in rows],
                "customdata": [_link(t) for t, _ in rows],
                "mode": "markers",
                "name": name,
                "marker": {
                    "size": 11 if shade else 9,
                    "color": shades if shade and mfus else colour,
                    "symbol": symbol,
                    "line": {"width": 1, "color": "--panel"},
                },
                "hovertemplate": "%{text}<extra></extra>",
            }
        )
    return data


def _failures(
    trials: Sequence[TrialSummary], xs: Sequence[float | None], ys: Sequence[float], texts: Mapping[int, str]
) -> Figure:
    return {
        "x": list(xs),
        "y": list(ys),
        "text": [texts[t.number] for t in trials],
        "customdata": [_link(t) for t in trials],
        "mode": "markers",
        "name": "did not run",
        "marker": {"size": 10, "color": "--bad", "symbol": "x-thin", "line": {"width": 2, "color": "--bad"}},
        "cliponaxis": False,
        "hovertemplate": "%{text}<extra></extra>",
    }


def _told(trial: TrialSummary, baseline: TrialSummary | None, over: float | None) -> str:
    """What hovering shows: what it is, its figures or its failure, and what it changed."""
    head = f"t{trial.number:03d}{' SIMULATED' if trial.simulated else ''}"
    if trial.state is TrialState.MEASURED:
        figures = [f"{wording.number(trial.throughput)} tokens/s/GPU"]
        figures += [wording.gain(over)] if over is not None else []
        figures += [f"MFU {trial.mfu:.1%}"] if trial.mfu is not None else []
        figures += [f"{wording.number(trial.memory_gb)} GiB"] if trial.memory_gb is not None else []
        said = " · ".join(figures)
    else:
        said = _why(trial)
    own = {(key, type(value), value) for key, value in baseline.point.values} if baseline is not None else set()
    changes = {key: value for key, value in trial.point.values if (key, type(value), value) not in own}
    lines = [head, said]
    lines += [f"{wording.short_key(key)} = {wording.value(value)}"[:90] for key, value in list(changes.items())[:8]]
    return "<br>".join(plain(line) for line in lines)


def _why(trial: TrialSummary) -> str:
    failure = trial.failure or {}
    return f"{trial.state.value}: {failure.get('class', 'no reason stored')} in {failure.get('phase', 'unknown')}"


def _link(trial: TrialSummary) -> str:
    return f"/studies/{trial.study_id}/trials/{trial.number}"


def _level(y: float) -> Figure:
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": y,
        "y1": y,
        "line": {"color": "--text-3", "width": 1, "dash": "dash"},
        "layer": "below",
    }


def _typed(point: Point, key: str) -> tuple[str, KnobValue]:
    value = point.as_dict().get(key)
    return type(value).__name__, value


def _wrapped(name: str) -> str:
    """A name broken where it gets too long for an axis."""
    head, dot, tail = name.partition(".")
    lines = [head + dot] if dot else []
    rest = tail or head
    while len(rest) > 15 and "_" in rest[8:]:
        cut = rest.rfind("_", 4, 15) + 1 or rest.find("_", 8) + 1
        lines.append(rest[:cut])
        rest = rest[cut:]
    return "<br>".join(plain(line) for line in (*lines, rest))
