"""Figures for Prometheus, read from the store whenever they are asked for.

However many schedules and studies there are, the store is asked the same few questions.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from statistics import median
from typing import Any

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

import autotune
from autotune.service.control import next_run
from autotune.store import queries, schedules
from autotune.store.schedules import NightRecord, NightState, ScheduleRecord
from autotune.store.store import Store
from autotune.store.trouble import StoreTrouble
from autotune.values import BadInput, TrialState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SCHEDULE_STATES = ("active", "paused")
_STUDY_STATES = ("running", "finished", "stopped", "failed")
_COMPARED = ("steady", "regression", "faster")
"""Verdicts of nights that could be compared. A night that could not ends no alarm, and raises none."""
_TOLD = (*_COMPARED, "no_reference", "not_comparable", "failed")


def metrics_router(store: Store, *, now: Callable[[], datetime]) -> APIRouter:
    """`/metrics`.

    Args:
        now: the time, UTC.
    """
    registry = CollectorRegistry()
    registry.register(StoreCollector(store, now=now))
    router = APIRouter()

    @router.get("/metrics", include_in_schema=False)
    def metrics() -> Response:
        try:
            return Response(generate_latest(registry), media_type=CONTENT_TYPE)
        except StoreTrouble as trouble:
            return PlainTextResponse(f"{trouble}\n", status_code=503)

    return router


class StoreCollector(Collector):
    """Gauges of schedules, nights and running studies.

    Figures that come from a double are labelled `simulated="true"`.
    """

    def __init__(self, store: Store, *, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing: to be registered must not read the store."""
        return ()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Every gauge, as it is now."""
        built = (autotune.__version__, platform.python_version())
        yield _gauge("build_info", "Release of autotune.", ("version", "python"), [(built, 1)])
        registered = schedules.schedules(self._store)
        told = schedules.last_nights(self._store, _TOLD)
        yield from self._schedules(registered, told)
        yield from self._nights(registered, told.values())
        yield from self._studies()

    def _schedules(
        self, registered: Sequence[ScheduleRecord], told: Mapping[int, NightRecord]
    ) -> Iterable[GaugeMetricFamily]:
        states = Counter(schedule.state for schedule in registered)
        yield _gauge("schedules", "Schedules by state.", ("state",), [((s,), states[s]) for s in _SCHEDULE_STATES])
        now = self._now()
        due = [((s.name,), at) for s in registered if (at := _due(s, now)) is not None]
        yield _gauge(
            "schedule_next_run_seconds",
            "Seconds until a schedule is due; absent while it is paused.",
            ("schedule",),
            [(labels, (at - now).total_seconds()) for labels, at in due],
        )
        yield _gauge(
            "reference_gain",
            "Gain of the best setting over the user's command when it was confirmed, as a fraction.",
            ("schedule", "simulated"),
            [
                ((s.name, _word(s.id in told and told[s.id].simulated)), gain)
                for s in registered
                if (gain := _number(s.reference, "gain")) is not None
            ],
        )

    def _nights(
        self, registered: Sequence[ScheduleRecord], told: Collection[NightRecord]
    ) -> Iterable[GaugeMetricFamily]:
        counts = schedules.night_counts(self._store)
        yield _gauge(
            "nights",
            "Nights by state.",
            ("schedule", "state"),
            [((s.name, state.value), counts.get((s.name, state), 0)) for s in registered for state in NightState],
        )
        compared = schedules.last_nights(self._store, _COMPARED).values()
        yield _gauge(
            "regression",
            "1: the last night that could be compared was slower than those before.",
            ("schedule", "simulated"),
            [(_labels(night), night.regressed) for night in compared],
        )
        yield _gauge(
            "night_verdict",
            "1 at the decision of the last night that has a verdict, 0 at every other one.",
            ("schedule", "simulated", "decision"),
            [
                ((*_labels(night), decision), (night.verdict or {}).get("decision") == decision)
                for night in told
                for decision in _TOLD
            ],
        )
        for subject, what in (("own", "user's command"), ("best", "best setting")):
            yield _gauge(
                f"{subject}_tokens_per_second_per_gpu",
                f"The {what} in the last night that has a verdict: median over its pairs.",
                ("schedule", "simulated"),
                [(_labels(night), level) for night in told if (level := _level(night, subject)) is not None],
            )

    def _studies(self) -> Iterable[GaugeMetricFamily]:
        states = queries.study_states(self._store)
        yield _gauge(
            "studies",
            "Studies by state; interrupted ones count as running.",
            ("state",),
            [((state,), states.get(state, 0)) for state in _STUDY_STATES],
        )
        yield _gauge(
            "running_study_trials",
            "Trials by state of the newest running studies.",
            ("study", "simulated", "state"),
            [
                ((study, _word(simulated), state.value), counts.get(state, 0))
                for (study, simulated), counts in queries.running_trials(self._store).items()
                for state in TrialState
            ],
        )


def _gauge(
    name: str, told: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], float]]
) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(f"autotune_{name}", told, labels=labels)
    for texts, value in samples:
        gauge.add_metric(texts, float(value))
    return gauge


def _due(schedule: ScheduleRecord, now: datetime) -> datetime | None:
    try:
        return next_run(schedule, now)
    except BadInput:
        return None  # registered where its time zone was known; the other figures must come all the same


def _labels(night: NightRecord) -> tuple[str, str]:
    return night.schedule, _word(night.simulated)


def _word(truth: bool) -> str:
    return "true" if truth else "false"


def _level(night: NightRecord, subject: str) -> float | None:
    """Tokens/s/GPU of one side of a canary."""
    side = (night.canary or {}).get(subject)
    measured = [level for level in (side or {}).get("throughput") or () if isinstance(level, (int, float))]
    return median(measured) if measured else None


def _number(values: Mapping[str, Any] | None, name: str) -> float | None:
    found = (values or {}).get(name)
    return float(found) if isinstance(found, (int, float)) else None
