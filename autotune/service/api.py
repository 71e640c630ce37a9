"""The REST API: everything that is stored can be read; what is registered can be started, stopped, paused and resumed.

Nothing else can be changed through it. Above all no script comes in: schedules are registered on the command line alone.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import FastAPI, Path, Query, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

import autotune
from autotune.launch.best_script import best_script
from autotune.service import api_shapes as shapes
from autotune.service import control
from autotune.service.bearer import BearerGate, problem
from autotune.service.token import Token
from autotune.store import queries, schedules
from autotune.store.json_shapes import trial_line_json
from autotune.store.queries import StudySummary
from autotune.store.records import StudyRecord, WrongTransition, own_command
from autotune.store.schedules import NightRecord, NightState, ScheduleRecord
from autotune.store.store import Store
from autotune.store.trouble import StoreTrouble
from autotune.tuner.lease import interrupted
from autotune.values import BadInput

MOUNTED_AT = "/api/v1"
_MOST_ROWS = 200
_NO_NUL = r"^[^\x00]*$"
"""PostgreSQL takes no NUL, in no text."""

Number: TypeAlias = Annotated[int, Query(ge=1, le=1_000_000, description="From 1.")]
Size: TypeAlias = Annotated[int, Query(ge=1, le=_MOST_ROWS, description="Rows of a page.")]
StudyId: TypeAlias = Annotated[int, Path(ge=1, lt=2**31, description="Id of the study.")]
TrialNumber: TypeAlias = Annotated[int, Path(ge=0, lt=2**31, description="Number of the trial in its study.")]
Steps: TypeAlias = Annotated[int, Query(ge=0, le=500, description="How many of the last steps.")]
Text: TypeAlias = Annotated[
    str, Query(max_length=200, pattern=_NO_NUL, description="Part of the study's name or of its workload.")
]
Name: TypeAlias = Annotated[
    str, Path(min_length=1, max_length=schedules.NAME_LENGTH, pattern=_NO_NUL, description="Name of the schedule.")
]
StudyState: TypeAlias = Annotated[
    Literal["running", "finished", "stopped", "failed"] | None,
    Query(description="Only studies in this state; interrupted ones are found among the running."),
]

_Responses: TypeAlias = dict[int | str, dict[str, Any]]
_REFUSALS: _Responses = {
    404: {"model": shapes.Problem, "description": "There is none."},
    422: {"model": shapes.Problem, "description": "A parameter or the body cannot be used."},
    503: {"model": shapes.Problem, "description": "The database cannot be used now."},
}
_CHANGE_REFUSALS: _Responses = {
    400: {"model": shapes.Problem, "description": "The body cannot be read."},
    401: {
        "model": shapes.Problem,
        "description": "The token is missing or wrong.",
        "headers": {"WWW-Authenticate": {"schema": {"type": "string"}}},
    },
    409: {"model": shapes.Problem, "description": "Not in the state in which the schedule or its night is."},
    413: {"model": shapes.Problem, "description": "The body is too long."},
}
_TOKEN = [Security(HTTPBearer(auto_error=False, description="The text of the service's token file."))]
"""For the document; `BearerGate` is what asks for it."""


def create_api(store: Store, *, token: Token, now: Callable[[], datetime]) -> FastAPI:
    """The API, to be mounted at `MOUNTED_AT` behind the dashboard's `Guard`.

    Args:
        token: what every change needs.
        now: the time, UTC.
    """
    api = FastAPI(
        title="autotune",
        version=autotune.__version__,
        description="Studies, trials and schedules of one autotune service. Reading needs no token; changes do.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
        responses=_REFUSALS,
    )
    api.add_middleware(BearerGate, token=token)
    _tell_refusals(api)
    _add_studies(api, store)
    _add_schedules(api, store, now)
    _add_changes(api, store, now)
    return api


def _tell_refusals(api: FastAPI) -> None:
    @api.exception_handler(HTTPException)
    def refused(request: Request, error: HTTPException) -> Response:
        return problem(error.status_code, str(error.detail), headers=error.headers)

    @api.exception_handler(RequestValidationError)
    def unusable(request: Request, error: RequestValidationError) -> Response:
        said = [f"{'.'.join(str(part) for part in each['loc'])[:80]}: {each['msg']}" for each in error.errors()]
        return problem(422, "; ".join(said[:5]), code="UNUSABLE")

    @api.exception_handler(BadInput)
    @api.exception_handler(WrongTransition)
    def conflict(request: Request, error: Exception) -> Response:
        return problem(409, str(error))

    @api.exception_handler(StoreTrouble)
    def unavailable(request: Request, error: Exception) -> Response:
        return problem(503, str(error), code="UNAVAILABLE")

    @api.exception_handler(Exception)
    def broken(request: Request, error: Exception) -> Response:
        return problem(500, "this should not happen; the service's log has the reason", code="INTERNAL")


# -- studies ---------------------------------------------------------------------------------------------------------------


def _add_studies(api: FastAPI, store: Store) -> None:
    @api.get("/studies", tags=["studies"], summary="Every study")
    def studies(q: Text = "", state: StudyState = None, page: Number = 1, size: Size = 50) -> shapes.Studies:
        found = queries.studies_page(store, text=q, state=state or "", page=page, size=size)
        rows = [shapes.study_line(study, interrupted=_interrupted(store, study)) for study in found.rows]
        return shapes.shape(shapes.Studies, shapes.paged(found, page, "studies", rows))

    @api.get("/studies/{study_id}", tags=["studies"], summary="One study")
    def study(study_id: StudyId) -> shapes.Study:
        record = _study(store, study_id)
        number = (record.verdict or {}).get("best_number")
        best = queries.trial_summary(store, study_id, number) if isinstance(number, int) else None
        own = own_command(queries.levels(store, study_id))
        return shapes.shape(shapes.Study, shapes.whole_study(record, own, best, interrupted=interrupted(record)))

    @api.get("/studies/{study_id}/verdict", tags=["studies"], summary="What a study says")
    def verdict(study_id: StudyId) -> shapes.StudyVerdict:
        record = _study(store, study_id)
        if not record.verdict:
            raise HTTPException(404, f"the study {record.name!r} has no verdict; it is {record.state}")
        about = {"study": record.name, "state": record.state, "simulated": record.simulated}
        return shapes.shape(shapes.StudyVerdict, {**about, "verdict": record.verdict})

    @api.get("/studies/{study_id}/trials", tags=["studies"], summary="Trials of a study")
    def trials(study_id: StudyId, page: Number = 1, size: Size = 100) -> shapes.Trials:
        record = _summary(store, study_id)
        found = queries.trials_page(store, study_id, page=page, size=size)
        rows = [trial_line_json(trial) for trial in found.rows]
        return shapes.shape(shapes.Trials, {"study": record.name, **shapes.paged(found, page, "trials", rows)})

    @api.get("/studies/{study_id}/trials/{number}", tags=["studies"], summary="One trial with its measurements")
    def trial(study_id: StudyId, number: TrialNumber, steps: Steps = 100) -> shapes.WholeTrial:
        record = _summary(store, study_id)
        found = queries.trial(store, study_id, number)
        if found is None:
            raise HTTPException(404, f"the study {record.name!r} has no trial {number}")
        measured = queries.steps_of(store, study_id, number, most=steps)
        return shapes.shape(shapes.WholeTrial, shapes.whole_trial(record.name, found, measured))

    @api.get(
        "/studies/{study_id}/script",
        tags=["studies"],
        summary="The best script",
        description="best.sh without its credentials, as text; where it is not on this host, the tuned settings as JSON. "
        "The header Autotune-Masked says whether a credential was taken out, so that the text does not run as it stands.",
        response_model=None,
        responses={
            200: {
                "model": shapes.Overrides,
                "description": "The script, or the settings.",
                "content": {"text/plain": {"schema": {"type": "string"}}},
            }
        },
    )
    def script(study_id: StudyId) -> Response:
        record = _study(store, study_id)
        emitted = (record.verdict or {}).get("emitted")
        if not emitted:
            raise HTTPException(404, f"the study {record.name!r} has no result; it is {record.state}")
        found = best_script(str(record.settings.get("out") or ""))
        if found is None:
            told = shapes.shape(shapes.Overrides, {"study": record.name, **emitted})
            return JSONResponse(told.model_dump(mode="json"))
        return PlainTextResponse(found.text, headers={"Autotune-Masked": "yes" if found.masked else "no"})


def _study(store: Store, study_id: int) -> StudyRecord:
    found = queries.study_by_id(store, study_id)
    if found is None:
        raise HTTPException(404, f"there is no study {study_id}")
    return found


def _summary(store: Store, study_id: int) -> StudySummary:
    found = queries.study_summaries(store, [study_id])
    if not found:
        raise HTTPException(404, f"there is no study {study_id}")
    return found[0]


def _interrupted(store: Store, study: StudySummary) -> bool:
    record = queries.study_by_id(store, study.id) if study.state == "running" else None
    return record is not None and interrupted(record)


# -- schedules -------------------------------------------------------------------------------------------------------------


def _add_schedules(api: FastAPI, store: Store, now: Callable[[], datetime]) -> None:
    @api.get("/schedules", tags=["schedules"], summary="Every schedule")
    def every() -> shapes.Schedules:
        moment, active, last = now(), _active(store), schedules.last_nights(store)
        rows = [
            shapes.schedule_line(found, moment, current=active.get(found.id), last=last.get(found.id))
            for found in schedules.schedules(store)
        ]
        return shapes.shape(shapes.Schedules, {"schedules": rows})

    @api.get("/schedules/{name}", tags=["schedules"], summary="One schedule")
    def one(name: Name) -> shapes.Schedule:
        return _told(store, _schedule(store, name), now())

    @api.get("/schedules/{name}/nights", tags=["schedules"], summary="Nights of a schedule, with their verdicts")
    def nights(name: Name, page: Number = 1, size: Size = 30) -> shapes.Nights:
        record = _schedule(store, name)
        found = schedules.nights_page(store, record.id, page=page, size=size)
        rows = [shapes.night_json(night) for night in found.rows]
        return shapes.shape(shapes.Nights, {"schedule": record.name, **shapes.paged(found, page, "nights", rows)})


def _add_changes(api: FastAPI, store: Store, now: Callable[[], datetime]) -> None:
    def change(path: str, summary: str, *, status: int = 200) -> Callable[[Any], Any]:
        return api.post(
            f"/schedules/{{name}}/{path}",
            tags=["schedules"],
            summary=summary,
            status_code=status,
            dependencies=_TOKEN,
            responses=_CHANGE_REFUSALS,
        )

    @change("run-now", "Begin a night within seconds", status=202)
    def run_now(name: Name, body: shapes.RunNow | None = None) -> shapes.Night:
        length = timedelta(minutes=body.minutes) if body is not None and body.minutes is not None else None
        return shapes.shape(
            shapes.Night, shapes.night_json(control.run_now(store, _schedule(store, name), now(), length=length))
        )

    @change("stop", "End the night that runs, after its step", status=202)
    def stop(name: Name) -> shapes.Night:
        return shapes.shape(shapes.Night, shapes.night_json(control.stop_night(store, _schedule(store, name))))

    @change("pause", "Plan no further nights; one that runs goes on")
    def pause(name: Name) -> shapes.Schedule:
        return _set_state(store, name, "paused", now())

    @change("resume", "Plan nights again")
    def resume(name: Name) -> shapes.Schedule:
        return _set_state(store, name, "active", now())


def _set_state(store: Store, name: str, state: str, now: datetime) -> shapes.Schedule:
    schedules.change_schedule(store, _schedule(store, name).id, state=state)
    return _told(store, _schedule(store, name), now)


def _told(store: Store, record: ScheduleRecord, now: datetime) -> shapes.Schedule:
    last = schedules.nights(store, record.id, most=1)
    current = control.current_night(store, record)
    told = shapes.whole_schedule(record, now, current=current, last=last[-1] if last else None)
    return shapes.shape(shapes.Schedule, told)


def _active(store: Store) -> dict[int, NightRecord]:
    found = schedules.nights_in(store, [NightState.DUE, NightState.RUNNING])
    return {night.schedule_id: night for night in reversed(found)}


def _schedule(store: Store, name: str) -> ScheduleRecord:
    try:
        return schedules.schedule(store, name)
    except BadInput as error:
        raise HTTPException(404, str(error)) from error
