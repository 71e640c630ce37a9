"""What the API answers: its shapes, and how they are filled from records. Credentials are taken out here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from autotune.redaction import redact_json
from autotune.service.control import next_run
from autotune.store.json_shapes import trial_json, trial_line_json
from autotune.store.queries import Page, StudySummary, TrialSummary
from autotune.store.records import StudyRecord, TrialRecord
from autotune.store.schedules import NightRecord, ScheduleRecord
from autotune.values import BadInput, StepRecord

Shape = TypeVar("Shape", bound=BaseModel)


class Answer(BaseModel):
    """Keys that are not described may be added in any release."""

    model_config = ConfigDict(extra="ignore")


# -- refusals --------------------------------------------------------------------------------------------------------------


class Reason(Answer):
    code: str = Field(description="Stable name of the reason, such as NOT_FOUND.")
    message: str = Field(description="What is wrong, for people.")


class Problem(Answer):
    """Every answer that is no success."""

    error: Reason


# -- studies ---------------------------------------------------------------------------------------------------------------


class Paged(Answer):
    page: int = Field(description="From 1; beyond the last page the list is empty.")
    pages: int = Field(description="How many pages there are, at least one.")
    size: int = Field(description="Rows of a full page.")
    total: int = Field(description="Rows of the whole list.")


class StudyLine(Answer):
    id: int
    name: str
    workload: str = Field(description="What it trains, in words.")
    created: datetime = Field(description="UTC.")
    updated: datetime = Field(description="UTC.")
    state: str = Field(description="running, finished, stopped, failed, or interrupted: it ran, and its tuner is gone.")
    trials: int = Field(description="How many trials it has.")
    best: int | None = Field(description="Number of the best trial, once it has a verdict.")
    gain: float | None = Field(description="Of the best setting over the user's command, as a fraction.")
    decision: str | None = Field(description="What its verdict says.")
    gpus: int
    simulated: bool = Field(description="Its figures come from a double or a simulator.")


class Studies(Paged):
    studies: list[StudyLine] = Field(description="Newest first.")


class Equivalence(Answer):
    config: bool | None
    gradient: bool | None
    trajectory: bool | None


class Verdict(Answer):
    model_config = ConfigDict(extra="allow")

    decision: str = Field(description="better, no_meaningful_difference, indicative, baseline_failed or nothing_fits.")
    gain: float | None = Field(None, description="Of the best setting over the user's command, as a fraction.")
    interval: list[float | None] | None = Field(None, description="95 % interval of the gain.")
    launches: int | None = Field(None, description="Launches that the gain rests on.")
    hook_gain: float | None = Field(None, description="Of the generation poll alone.")
    best_number: int | None = Field(None, description="Number of the best trial.")
    equivalent: Equivalence | None = Field(None, description="Does it train the same? null: not shown.")


class StudyVerdict(Answer):
    study: str
    state: str
    simulated: bool
    verdict: Verdict


class TrialLine(Answer):
    number: int
    kind: str = Field(description="baseline, search, confirm or anchor.")
    state: str = Field(description="queued, running, measured, infeasible, failed or invalid.")
    origin: str = Field(description="Who proposed it.")
    point: dict[str, Any] = Field(description="Knob values by key.")
    throughput: float | None = Field(description="Tokens/s/GPU.")
    step_seconds: float | None
    mfu: float | None = Field(description="perf/mfu/actor, as a fraction.")
    phases: dict[str, float | None] = Field(description="Mean seconds by phase.")
    memory: float | None = Field(description="The trainer's peak reserved GiB.")
    failure: dict[str, Any] | None = Field(description="class, phase, remedy, evidence, retryable.")
    session: str | None = Field(description="The session that measured it; null: a launch of its own.")
    source: str | None = Field(description="whole or composed.")
    work: str | None = Field(description="full, or the part of the batch that was measured.")
    engine: str | None = Field(description="cold or live.")
    settling_steps: int
    counted_steps: int
    invalid_steps: int
    startup_seconds: float | None
    wall_seconds: float | None
    simulated: bool


class Trials(Paged):
    study: str
    trials: list[TrialLine] = Field(description="By number.")


class Measurement(Answer):
    """One training step."""

    step: int
    seconds: float
    tokens: int | None = Field(description="Prompt and response tokens of the step, over all GPUs.")
    phases: dict[str, float | None] = Field(description="Seconds by phase.")
    mfu: float | None
    memory: float | None = Field(description="GiB.")
    settling: bool = Field(description="Never counted.")
    invalid: str | None = Field(description="What disturbed the step, so that it does not count.")


class WholeTrial(TrialLine):
    study: str
    echo: dict[str, Any] = Field(description="Values that verl and vLLM reported to be in effect.")
    run_dir: str | None
    steps: list[Measurement] = Field(description="The last ones, in order.")
    steps_total: int = Field(description="How many steps are stored.")


class Study(StudyLine):
    fingerprint: str = Field(description="Of the workload: studies that share it can be compared.")
    environment: dict[str, Any] = Field(description="Versions and hardware that it found.")
    verdict: Verdict | None
    baseline: TrialLine | None = Field(description="The user's own command as it is.")
    best_trial: TrialLine | None


class Overrides(Answer):
    """The tuned settings, where best.sh is not on this host."""

    study: str
    overrides: dict[str, Any] = Field(description="Every tuned key with its value.")
    changed: list[str] = Field(description="The keys that differ from the user's command.")


# -- schedules -------------------------------------------------------------------------------------------------------------


class NightVerdict(Answer):
    model_config = ConfigDict(extra="allow")

    decision: str = Field(description="steady, regression, faster, no_reference, not_comparable or failed.")
    text: str | None = Field(None, description="One sentence for people.")
    phases: list[str] | None = Field(None, description="Phases that an alarm names, the weightiest first.")


class Night(Answer):
    schedule: str
    slot: str = Field(description="The wall time that it was planned for, or 'manual …'.")
    state: str = Field(description="due, running, finished, unfinished, skipped, stopped or failed.")
    reason: str = Field(description="Why it was skipped, failed or is unfinished.")
    planned: datetime = Field(description="UTC.")
    until: datetime = Field(description="End of its window, UTC.")
    started: datetime | None
    ended: datetime | None
    attempts: int = Field(description="How often a process took it up.")
    study: str | None
    study_id: int | None
    script_hash: str | None = Field(description="SHA-256 of the script as it ran.")
    simulated: bool
    environment: dict[str, Any]
    canary: dict[str, Any] | None = Field(description="Pairs of the user's command and the best setting.")
    verdict: NightVerdict | None = Field(description="Against the nights before.")
    regressed: bool = Field(description="Whether it raised an alarm.")


class Nights(Paged):
    schedule: str
    nights: list[Night] = Field(description="Newest first.")


class LastNight(Answer):
    slot: str
    state: str
    decision: str | None = Field(description="Of its verdict.")


class ScheduleLine(Answer):
    name: str
    cron: str
    tz: str = Field(description="IANA name of the zone in which cron and window are read.")
    window: str
    next: datetime | None = Field(description="When it is due next, UTC; null while it is paused.")
    state: str = Field(description="active or paused.")
    host: str = Field(description="The node that runs it.")
    running: str | None = Field(description="Slot of the night that runs or is due; null: none.")
    last: LastNight | None = Field(description="Its newest night.")


class Schedules(Answer):
    schedules: list[ScheduleLine] = Field(description="By name.")


class Schedule(ScheduleLine):
    created: datetime = Field(description="UTC.")
    updated: datetime = Field(description="UTC.")
    pairs: int = Field(description="Pairs that a canary measures.")
    script: str = Field(description="Path of the launch script.")
    script_hash: str = Field(description="SHA-256 of the script when it was registered, or last accepted.")
    request: dict[str, Any] = Field(description="What was asked for when it was registered.")
    reference: dict[str, Any] | None = Field(description="What nights are compared with.")


class RunNow(BaseModel):
    """How long the night may run."""

    model_config = ConfigDict(extra="forbid", strict=True)

    minutes: int | None = Field(None, ge=1, le=1440, description="null: as long as the schedule's window.")


# -- from records ----------------------------------------------------------------------------------------------------------


def shape(kind: type[Shape], values: Mapping[str, Any]) -> Shape:
    """The values in that shape, without credentials."""
    return kind.model_validate(redact_json(values))


def paged(page: Page[Any], asked: int, name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A page of rows under a name. The store gives the last page for every page beyond it; here that one is empty, so
    that whoever reads page after page comes to an end."""
    shown = list(rows) if page.number == asked else []
    return {"page": asked, "pages": page.pages, "size": page.size, "total": page.total, name: shown}


def study_line(study: StudySummary | StudyRecord, *, interrupted: bool) -> dict[str, Any]:
    """A study in a list."""
    verdict = study.verdict or {}
    return {
        "id": study.id,
        "name": study.name,
        "workload": study.workload,
        "created": study.created_at,
        "updated": study.updated_at,
        "state": "interrupted" if interrupted else study.state,
        "trials": study.trials,
        "best": verdict.get("best_number"),
        "gain": verdict.get("gain"),
        "decision": verdict.get("decision"),
        "gpus": study.n_gpus,
        "simulated": study.simulated,
    }


def whole_study(
    study: StudyRecord, own: TrialSummary | None, best: TrialSummary | None, *, interrupted: bool
) -> dict[str, Any]:
    """A study without its trials."""
    return {
        **study_line(study, interrupted=interrupted),
        "fingerprint": study.workload_fingerprint,
        "environment": study.environment,
        "verdict": study.verdict or None,
        "baseline": None if own is None else trial_line_json(own),
        "best_trial": None if best is None else trial_line_json(best),
    }


def whole_trial(study: str, trial: TrialRecord, steps: Sequence[StepRecord]) -> dict[str, Any]:
    """A trial with steps of it."""
    return {
        **trial_json(trial),
        "study": study,
        "steps": [
            {
                "step": step.step,
                "seconds": step.seconds,
                "tokens": step.tokens,
                "phases": step.phases,
                "mfu": step.mfu,
                "memory": step.memory_gb,
                "settling": step.settling,
                "invalid": step.invalid,
            }
            for step in steps
        ],
        "steps_total": trial.settling_steps + trial.counted_steps + trial.invalid_steps,
    }


def night_json(night: NightRecord) -> dict[str, Any]:
    """A night without its lease: the token in it is for the process that runs the night alone."""
    return {
        "schedule": night.schedule,
        "slot": night.slot,
        "state": night.state.value,
        "reason": night.reason,
        "planned": night.planned_at,
        "until": night.until,
        "started": night.started_at,
        "ended": night.ended_at,
        "attempts": night.attempts,
        "study": night.study,
        "study_id": night.study_id,
        "script_hash": night.script_hash,
        "simulated": night.simulated,
        "environment": night.environment,
        "canary": night.canary,
        "verdict": night.verdict or None,
        "regressed": night.regressed,
    }


def schedule_line(
    schedule: ScheduleRecord, now: datetime, *, current: NightRecord | None, last: NightRecord | None
) -> dict[str, Any]:
    """A schedule in a list."""
    try:
        due = next_run(schedule, now)
    except BadInput:
        due = None  # registered where its time zone was known; the others must be shown all the same
    return {
        "name": schedule.name,
        "cron": schedule.cron,
        "tz": schedule.tz,
        "window": schedule.window,
        "next": due,
        "state": schedule.state,
        "host": schedule.host,
        "running": None if current is None else current.slot,
        "last": None
        if last is None
        else {"slot": last.slot, "state": last.state.value, "decision": (last.verdict or {}).get("decision")},
    }


def whole_schedule(
    schedule: ScheduleRecord, now: datetime, *, current: NightRecord | None, last: NightRecord | None
) -> dict[str, Any]:
    """A schedule with what it does."""
    return {
        **schedule_line(schedule, now, current=current, last=last),
        "created": schedule.created_at,
        "updated": schedule.updated_at,
        "pairs": schedule.pairs,
        "script": schedule.script_path,
        "script_hash": schedule.script_hash,
        "request": schedule.request,
        "reference": schedule.reference,
    }
