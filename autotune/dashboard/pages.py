"""What each page shows, as plain values for its template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from autotune.dashboard import figures
from autotune.dashboard.analysis import (
    KnobEffects,
    Timeline,
    TrendPoint,
    knob_effects,
    levels_of,
    order_phases,
    timeline,
    trend,
    varied_keys,
)
from autotune.dashboard.figures import Figure
from autotune.dashboard.files import LogView, log_view
from autotune.dashboard.schedules import lines
from autotune.dashboard.tokens import digest
from autotune.launch.best_script import Script, best_script, secrets_of
from autotune.store import queries
from autotune.store.queries import Night, Page, StudySummary, TrialSummary, WorkloadSummary
from autotune.store.records import StudyRecord, TrialRecord, gain_of, gains_of, own_command
from autotune.store.schedules import NightRecord, night_of_study
from autotune.store.store import Store
from autotune.tuner.lease import interrupted
from autotune.values import KnobValue, Point, StepRecord, TrialKind, TrialState
from autotune.verl import keys
from autotune.verl.knobs import Knob, catalogue

SETTLES_SECONDS = 30.0
CHARTED = 300
"""Trials of one study that the pictures show."""


# -- home ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Running:
    """A study that has not ended."""

    study: StudySummary
    planned: int | None
    """Trials that it will make at most, without repetitions."""
    trial: TrialSummary | None
    """The newest one."""
    step: StepRecord | None
    """Its last step."""
    baseline: float | None
    best: TrialSummary | None
    """The fastest measured trial, by its gain."""
    gain: float | None
    """Of that one over the user's command, measured in the same way."""
    heard: datetime
    """When the store last heard of it."""
    interrupted: bool
    """Whether its tuner is gone."""


@dataclass(frozen=True, slots=True)
class WorkloadTrend:
    """A workload on the home page."""

    about: WorkloadSummary
    points: tuple[TrendPoint, ...]
    figure: Figure

    @property
    def last(self) -> TrendPoint:
        return self.points[-1]

    @property
    def baseline(self) -> float | None:
        """The newest one that is known."""
        return next((p.night.baseline for p in reversed(self.points) if p.night.baseline is not None), None)

    @property
    def best(self) -> float | None:
        """The newest one that is known."""
        return next((p.night.best for p in reversed(self.points) if p.night.best is not None), None)

    @property
    def regressions(self) -> tuple[TrendPoint, ...]:
        return tuple(point for point in self.points if point.regressed)


def home(store: Store, page: int = 1) -> dict[str, Any]:
    """What runs now, every schedule, the trend of every workload, and the newest studies."""
    token = digest(queries.store_token(store))
    workloads = queries.workloads_page(store, page=page, size=8)
    return {
        "token": token,
        "schedules": lines(store),
        "running": [_running(store, study) for study in queries.running_studies(store)],
        "workloads": workloads,
        "trends": [_trend(store, about, most=30) for about in workloads.rows],
        "recent": queries.studies_page(store, size=10),
    }


def _running(store: Store, study: StudySummary) -> Running:
    record = queries.study_by_id(store, study.id)
    settings = record.settings if record is not None else {}
    trial = queries.newest_trial(store, study.id)
    steps = queries.steps_of(store, study.id, trial.number, most=1) if trial is not None else []
    trials = queries.trial_summaries(store, study.id, most=CHARTED)
    own, (best, gain) = own_command(trials), fastest(trials)
    moments = [study.updated_at, trial.started_at if trial else None, trial.ended_at if trial else None]
    return Running(
        study=study,
        planned=_planned(settings),
        trial=trial,
        step=steps[-1] if steps else None,
        baseline=own.throughput if own is not None else None,
        best=best,
        gain=gain,
        interrupted=record is not None and interrupted(record),
        heard=max(moment for moment in moments if moment is not None),
    )


def fastest(trials: Sequence[TrialSummary]) -> tuple[TrialSummary | None, float | None]:
    """The trial with the highest gain over the user's own command, and that gain; nothing where none was faster."""
    gains = gains_of(trials, levels_of(trials))
    best: tuple[TrialSummary | None, float | None] = (None, None)
    for trial in trials:
        gain = gains[trial.number] if trial.state is TrialState.MEASURED else None
        if gain is not None and gain > (best[1] or 0.0):
            best = (trial, gain)
    return best


def may_change(state: str, updated: datetime) -> bool:
    """Whether a study is still written to: its script is stored a moment after it has ended."""
    return state == "running" or (datetime.now(timezone.utc) - updated).total_seconds() < SETTLES_SECONDS


def _planned(settings: Mapping[str, Any]) -> int | None:
    trials, confirmations = settings.get("trials"), settings.get("confirmations")
    return trials + 2 * confirmations if isinstance(trials, int) and isinstance(confirmations, int) else None


def _trend(store: Store, about: WorkloadSummary, *, most: int) -> WorkloadTrend:
    nights: list[Night] = queries.nights_of(store, about.fingerprint, simulated=about.simulated, most=most)
    points = tuple(trend(nights))
    return WorkloadTrend(about, points, figures.trend_figure(points))


# -- lists -----------------------------------------------------------------------------------------------------------------


def studies(store: Store, *, text: str, state: str, page: int) -> dict[str, Any]:
    """Every study, newest first."""
    return {"studies": queries.studies_page(store, text=text, state=state, page=page), "text": text, "state": state}


def workload(store: Store, fingerprint: str, *, simulated: bool) -> dict[str, Any] | None:
    """One workload over its nights; None where no study has it."""
    found = queries.nights_of(store, fingerprint, simulated=simulated, most=1)
    if not found:
        return None
    label = queries.study_summaries(store, [found[0].study_id])[0].workload
    about = WorkloadSummary(fingerprint, simulated, label, 0, found[0].created_at)
    shown = _trend(store, about, most=365)
    return {"trend": shown, "nights": list(reversed(shown.points))}


# -- study -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """One override in which the best script differs from the user's."""

    key: str
    name: str
    """What to call it instead of its key; empty: the key."""
    before: KnobValue
    known_before: bool
    after: KnobValue
    phases: tuple[tuple[str, float | None, float | None], ...]
    """Phases that it touches, with their seconds before and after."""


@dataclass(frozen=True, slots=True)
class StudyPage:
    """Everything about a study but the page of its trial table."""

    study: StudyRecord
    trials: tuple[TrialSummary, ...]
    baseline: TrialSummary | None
    best: TrialSummary | None
    """The verdict's, or the fastest so far."""
    confirmed: bool
    """Whether `best` is the verdict's."""
    changes: tuple[Change, ...]
    script: Script | None
    phases: tuple[str, ...]
    effects: tuple[KnobEffects, ...]
    timeline: Timeline | None
    figures: Mapping[str, Figure]
    token: str
    planned: int | None
    unit: str
    gains: Mapping[int, float | None]
    """Gain over the user's own command, measured in the same way, by number."""
    night: NightRecord | None
    """The newest night of a schedule that it ran in; None: it was started by hand."""

    @property
    def running(self) -> bool:
        return self.study.state == "running"

    @property
    def interrupted(self) -> bool:
        """Whether the study says that it runs, but its tuner is gone."""
        return interrupted(self.study)

    @property
    def live(self) -> bool:
        """Whether the page may still change."""
        return may_change(self.study.state, self.study.updated_at)

    @property
    def last(self) -> TrialSummary | None:
        return self.trials[-1] if self.trials else None

    @property
    def on_cpu(self) -> bool:
        return str(self.study.config.get("trainer.device")) == "cpu"

    @property
    def gain(self) -> float | None:
        """Of the fastest trial so far over the user's command; no verdict."""
        return self.gains.get(self.best.number) if self.best else None

    @property
    def machine(self) -> str:
        """What it ran on."""
        if self.on_cpu:
            return f"{self.study.n_gpus} rank{'s' if self.study.n_gpus > 1 else ''} on the CPU"
        return f"{self.study.n_gpus} GPU{'s' if self.study.n_gpus > 1 else ''}"

    @property
    def effect_phases(self) -> list[str]:
        """Columns of the table of effects."""
        return ["step", *order_phases(*({p: 0.0 for p in knob.effects if p != "step"} for knob in self.effects))]

    @property
    def scale(self) -> float:
        """Seconds that the longer one of the two phase bars stands for."""
        return max((t.step_seconds or 0.0 for t in (self.baseline, self.best) if t is not None), default=0.0)


def study(store: Store, study_id: int, *, with_script: bool = True) -> StudyPage | None:
    """The page of a study; None where there is none with this id."""
    record = queries.study_by_id(store, study_id)
    if record is None:
        return None
    token = digest(queries.study_token(store, study_id))
    trials = queries.trial_summaries(store, study_id, most=CHARTED)
    verdict = record.verdict or {}
    baseline = own_command(trials)
    number = verdict.get("best_number")
    chosen = queries.trial_summary(store, study_id, number) if isinstance(number, int) else None
    best = chosen or (fastest(trials)[0] if not verdict else None)
    best = None if best is not None and baseline is not None and best.number == baseline.number else best
    effects = knob_effects(trials, str(record.environment.get("verl", "")))
    unit = "rank-minutes" if str(record.config.get("trainer.device")) == "cpu" else "GPU-minutes"
    return StudyPage(
        study=record,
        trials=tuple(trials),
        baseline=baseline,
        best=best,
        confirmed=chosen is not None,
        changes=tuple(_changes(record, baseline, best)),
        script=best_script(str(record.settings.get("out", ""))) if with_script and verdict else None,
        phases=tuple(order_phases(*(t.phases for t in (baseline, best) if t is not None))),
        effects=tuple(effects),
        timeline=timeline(trials, datetime.now(timezone.utc)),
        figures=study_figures(record, trials, effects, unit),
        token=token,
        planned=_planned(record.settings),
        unit=unit,
        gains=gains_of(trials, levels_of(trials)),
        night=night_of_study(store, study_id),
    )


def study_figures(
    record: StudyRecord, trials: Sequence[TrialSummary], effects: Sequence[KnobEffects], unit: str
) -> dict[str, Figure]:
    """The pictures of a study by name; those that would be empty are left out."""
    measured = [t for t in trials if t.state is TrialState.MEASURED]
    found: dict[str, Figure] = {}
    if measured:
        texts = figures.told(trials)
        found["best-trials"] = figures.best_figure(trials, texts, over="trials", n_gpus=record.n_gpus)
        found["best-minutes"] = figures.best_figure(trials, texts, over="minutes", n_gpus=record.n_gpus, unit=unit)
        found["tradeoff"] = figures.tradeoff_figure(trials, texts)
    if effects:
        found["strips"] = figures.strips_figure(trials, effects)
    if len({t.point for t in trials}) > 1:
        found["parallel"] = figures.parallel_figure(trials)
    return found


def _changes(record: StudyRecord, baseline: TrialSummary | None, best: TrialSummary | None) -> list[Change]:
    emitted = (record.verdict or {}).get("emitted")
    knobs = catalogue(str(record.environment.get("verl", "")))
    if emitted is not None:
        values: dict[str, KnobValue] = {key: emitted["overrides"][key] for key in emitted["changed"]}
    elif best is not None and baseline is not None:
        values = best.point.changes_from(baseline.point)
    else:
        values = {}
    own = baseline.point.as_dict() if baseline is not None else {}
    found = []
    for key, after in values.items():
        touched = _touched(key, knobs)
        pairs = tuple(
            (phase, baseline.phases.get(phase) if baseline else None, best.phases.get(phase) if best else None)
            for phase in touched
        )
        known = key in record.config or key in own
        before = record.config.get(key, own.get(key))
        found.append(Change(key, _HOOK_NAMES.get(key, ""), before, known, after, pairs))
    return found


_HOOK_NAMES = {
    keys.SAMPLER_PATH: "generation poll, file",
    keys.SAMPLER_NAME: "generation poll, class",
    keys.FAST_POLL: "fast generation poll",
}


def _touched(key: str, knobs: Mapping[str, Knob]) -> tuple[str, ...]:
    if key in (keys.SAMPLER_PATH, keys.SAMPLER_NAME):
        return ("gen",)
    knob = knobs.get(key) or next((knob for knob in knobs.values() if key in knob.tied), None)
    return tuple(phase.value for phase in knob.phases) if knob else ()


def trial_table(
    store: Store, study_id: int, *, sort: str, descending: bool, state: str, text: str, page: int
) -> Page[TrialSummary]:
    """A page of a study's trials."""
    sort = sort if sort in queries.SORTS else "number"
    return queries.trials_page(
        store, study_id, sort=sort, descending=descending, state=state, text=text, page=page, size=100
    )


# -- trial -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """A knob of a trial: what was asked for, what the baseline has, what verl reported."""

    key: str
    baseline: KnobValue
    value: KnobValue
    changed: bool
    echo: KnobValue
    echoed: bool


@dataclass(frozen=True, slots=True)
class TrialPage:
    """One trial."""

    study: StudySummary
    trial: TrialRecord
    baseline: TrialRecord | None
    """The user's own command: of the same session, measured in the same way, where there is one."""
    is_own: bool
    """Whether it is that command itself."""
    gain: float | None
    settings: tuple[Setting, ...]
    reported: tuple[tuple[str, KnobValue], ...]
    """What else verl, vLLM and the host reported while it ran: the engine's cache and batches, the rewards, stolen CPU time."""
    steps: tuple[StepRecord, ...]
    phases: tuple[str, ...]
    figure: Figure | None
    log: LogView | None
    newest: int
    token: str

    @property
    def running(self) -> bool:
        return self.trial.state in (TrialState.RUNNING, TrialState.QUEUED)

    @property
    def scale(self) -> float:
        both = (self.trial, self.baseline)
        return max((t.step_seconds or 0.0 for t in both if t is not None), default=0.0)


def trial(store: Store, study_id: int, number: int) -> TrialPage | None:
    """The page of a trial; None where there is none."""
    found = queries.study_summaries(store, [study_id]) if 0 < study_id < 2**31 else []
    record = queries.trial(store, study_id, number) if found else None
    if record is None:
        return None
    levels = queries.levels(store, study_id)
    reference = _reference(record, levels)
    baseline = queries.trial(store, study_id, reference.number) if reference is not None else None
    own = baseline.point if baseline is not None else Point(())
    steps = queries.steps_of(store, study_id, number)
    newest = queries.newest_trial(store, study_id)
    whole = queries.study_by_id(store, study_id)
    out = str(whole.settings.get("out", "")) if whole is not None else ""
    evidence = str((record.failure or {}).get("evidence", ""))
    return TrialPage(
        study=found[0],
        trial=record,
        baseline=baseline,
        is_own=record.kind in (TrialKind.BASELINE, TrialKind.ANCHOR),
        gain=gain_of(record, levels),
        settings=tuple(_settings(record, own)),
        reported=tuple(sorted((k, v) for k, v in record.echo.items() if k not in record.point.as_dict())),
        steps=tuple(steps),
        phases=tuple(order_phases(record.phases, baseline.phases if baseline else {})),
        figure=figures.steps_figure(steps) if steps else None,
        log=log_view(record.run_dir, evidence, secrets_of(out)) if record.run_dir else None,
        newest=newest.number if newest is not None else number,
        token=digest(queries.study_token(store, study_id)),
    )


def _reference(record: TrialRecord, levels: Sequence[TrialSummary]) -> TrialSummary | None:
    """The trial of the user's own command that stands beside this one."""
    same = [
        t for t in levels if t.kind is TrialKind.ANCHOR and (t.session, t.source) == (record.session, record.source)
    ]
    return same[-1] if record.session is not None and same else own_command(levels)


def _settings(record: TrialRecord, own: Point) -> list[Setting]:
    changed = record.point.changes_from(own)
    before = own.as_dict()
    rows = [
        Setting(key, before.get(key), value, key in changed, record.echo.get(key), key in record.echo)
        for key, value in record.point.values
    ]
    return sorted(rows, key=lambda row: (not row.changed, row.key))


# -- compare ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Column:
    """One trial in a comparison."""

    study: StudySummary
    trial: TrialSummary
    role: str
    """`your command`, `best`, or empty for a trial that was picked by itself."""
    versions: Mapping[str, str]


def compare(store: Store, *, study_ids: Sequence[int], trial_ids: Sequence[str]) -> dict[str, Any]:
    """Trials side by side: the user's command and the best of each study, or trials picked one by one.

    Args:
        trial_ids: `STUDY.NUMBER`.
    """
    columns: list[Column] = []
    for study_id in study_ids[:6]:
        columns += _of_study(store, study_id)
    for name in trial_ids[:8]:
        left, _, right = name.partition(".")
        if left.isdecimal() and right.isdecimal() and len(name) < 20:
            columns += _picked(store, int(left), int(right))
    first = columns[0].trial if columns else None
    points = [column.trial.point for column in columns]
    versions = sorted({name for column in columns for name in column.versions})
    fingerprints = {column.study.fingerprint for column in columns}
    return {
        "columns": columns,
        "first": first,
        "keys": varied_keys(points),
        "phases": order_phases(*(column.trial.phases for column in columns)),
        "scale": max((column.trial.step_seconds or 0.0 for column in columns), default=0.0),
        "versions": [name for name in versions if len({column.versions.get(name) for column in columns}) > 1],
        "different_work": len(fingerprints) > 1,
        "mixed": len({column.trial.simulated for column in columns}) > 1,
        "choices": queries.studies_page(store, size=200).rows,
        "chosen": set(study_ids),
    }


def _of_study(store: Store, study_id: int) -> list[Column]:
    found = queries.study_summaries(store, [study_id]) if 0 < study_id < 2**31 else []
    record = queries.study_by_id(store, study_id)
    if not found or record is None:
        return []
    own = own_command(queries.levels(store, study_id))
    number = (record.verdict or {}).get("best_number")
    best = queries.trial_summary(store, study_id, number) if isinstance(number, int) else None
    best = None if best is not None and own is not None and best.number == own.number else best
    return [
        Column(found[0], t, role, _versions(record))
        for t, role in ((own, "your command"), (best, "best"))
        if t is not None
    ]


def _picked(store: Store, study_id: int, number: int) -> list[Column]:
    found = queries.study_summaries(store, [study_id]) if 0 < study_id < 2**31 else []
    record = queries.study_by_id(store, study_id)
    picked = queries.trial_summary(store, study_id, number)
    if not found or record is None or picked is None:
        return []
    return [
        Column(
            found[0],
            picked,
            "your command" if picked.kind in (TrialKind.BASELINE, TrialKind.ANCHOR) else "",
            _versions(record),
        )
    ]


def _versions(record: StudyRecord) -> dict[str, str]:
    return {name: value for name, value in record.environment.items() if isinstance(value, str) and name != "workload"}
