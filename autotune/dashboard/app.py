"""The web application: routes, and nothing that they show."""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from autotune.dashboard import pages, pasted, schedules, templating
from autotune.dashboard.security import LOOPBACK, Guard, api_problem
from autotune.dashboard.tokens import digest
from autotune.store import queries
from autotune.store.records import gains_of, own_command
from autotune.store.store import Store

ASSETS = frozenset(
    {
        "app.css",
        "app.js",
        "charts.js",
        "theme.js",
        "icon.svg",
        "vendor/htmx.min.js",
        "vendor/htmx-sse.min.js",
        "vendor/plotly-strict.min.js",
    }
)
POLL_SECONDS = 1.0
_ALIVE_SECONDS = 15.0
_STATES = ("", "running", "finished", "stopped", "failed")
_FOR_EVER = {"Cache-Control": "public, max-age=31536000, immutable"}


@dataclass(frozen=True, slots=True)
class Asked:
    """Which trials a page shows, as its address says."""

    sort: str = "number"
    descending: bool = False
    state: str = ""
    q: str = ""
    page: int = 1


def create_app(
    store: Store, *, hosts: Collection[str] = LOOPBACK, stopping: Callable[[], bool] = lambda: False
) -> FastAPI:
    """The dashboard over one store.

    Args:
        hosts: names under which it answers.
        stopping: whether the server is about to end; streams of events would hold it up.
    """
    app = FastAPI(title="autotune", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, hosts=hosts)
    templates = templating.environment()
    bodies = {name: templating.asset_text(name).encode() for name in ASSETS}

    def page(name: str, values: Mapping[str, Any], *, status: int = 200) -> HTMLResponse:
        return HTMLResponse(templates.get_template(name).render(**values), status_code=status)

    def missing(what: str) -> HTMLResponse:
        return page("error.html", {"title": "Not found", "message": what}, status=404)

    @app.exception_handler(HTTPException)
    def refused(request: Request, error: HTTPException) -> Response:
        shown = api_problem(request.scope["path"], error.status_code, error.detail)
        values = {"title": str(error.status_code), "message": error.detail}
        return shown or page("error.html", values, status=error.status_code)

    @app.exception_handler(RequestValidationError)
    def unreadable(request: Request, error: Exception) -> Response:
        return page("error.html", {"title": "Bad address", "message": "This address cannot be read."}, status=422)

    @app.get("/healthz")
    def healthy() -> Response:
        return PlainTextResponse("ok\n")

    @app.get("/favicon.ico")
    def icon() -> Response:
        return Response(bodies["icon.svg"], media_type="image/svg+xml", headers=_FOR_EVER)

    @app.get("/static/{version}/{name:path}")
    def asset(version: str, name: str) -> Response:
        if name not in ASSETS:
            return PlainTextResponse("no such file\n", status_code=404)
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return Response(bodies[name], media_type=kind, headers=_FOR_EVER)

    @app.get("/")
    def home(page_: Annotated[int, Query(alias="page")] = 1) -> Response:
        return page("home.html", pages.home(store, page_))

    @app.get("/studies")
    def studies(q: str = "", state: str = "", page_: Annotated[int, Query(alias="page")] = 1) -> Response:
        state = state if state in _STATES else ""
        return page("studies.html", {**pages.studies(store, text=q[:200], state=state, page=page_), "states": _STATES})

    @app.get("/workloads/{fingerprint}")
    def workload(fingerprint: str, simulated: bool = False) -> Response:
        found = pages.workload(store, fingerprint, simulated=simulated)
        return page("workload.html", found) if found else missing("No study has this workload.")

    @app.get("/studies/{study_id}")
    def study(study_id: int, asked: Annotated[Asked, Depends()]) -> Response:
        shown = pages.study(store, study_id)
        if shown is None:
            return missing("There is no such study in this database.")
        return page("study.html", {"page": shown, **_table(store, study_id, asked)})

    @app.get("/studies/{study_id}/trials")
    def trials(study_id: int, asked: Annotated[Asked, Depends()]) -> Response:
        found = queries.study_summaries(store, [study_id])
        if not found:
            return missing("There is no such study in this database.")
        return page("trials.html", {"study": found[0], **_table(store, study_id, asked)})

    @app.get("/studies/{study_id}/figures")
    def study_figures(study_id: int) -> Response:
        shown = pages.study(store, study_id, with_script=False)
        return JSONResponse(dict(shown.figures)) if shown else JSONResponse({}, status_code=404)

    @app.get("/studies/{study_id}/trials/{number}")
    def trial(study_id: int, number: int) -> Response:
        shown = pages.trial(store, study_id, number)
        return page("trial.html", {"page": shown}) if shown else missing("There is no such trial in this database.")

    @app.get("/compare")
    def compare(
        s: Annotated[list[int] | None, Query()] = None, t: Annotated[list[str] | None, Query()] = None
    ) -> Response:
        return page("compare.html", pages.compare(store, study_ids=s or [], trial_ids=t or []))

    @app.get("/read")
    def read() -> Response:
        return page("read.html", {"text": "", "kind": "auto", "result": None, "shown_steps": pasted.SHOWN_STEPS})

    @app.post("/read")
    async def read_pasted(request: Request) -> Response:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > 3 * pasted.MOST:
                return page(
                    "error.html", {"title": "Too large", "message": "At most 16 MiB of text are read."}, status=413
                )
        form = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=10)
        text, kind = form.get("text", [""])[0].replace("\r\n", "\n"), form.get("kind", ["auto"])[0]
        if len(text) > pasted.MOST:
            return page("error.html", {"title": "Too large", "message": "At most 16 MiB of text are read."}, status=413)
        result = await run_in_threadpool(pasted.read, text, kind) if text.strip() else None
        values = {"text": text, "kind": kind, "result": result, "shown_steps": pasted.SHOWN_STEPS}
        return await run_in_threadpool(page, "read.html", values)

    @app.get("/schedules")
    def schedule_list() -> Response:
        return page("schedules.html", schedules.schedules(store))

    @app.get("/schedules/{name:path}")
    def schedule(name: str, page_: Annotated[int, Query(alias="page")] = 1) -> Response:
        shown = schedules.schedule(store, name, page=page_)
        return (
            page("schedule.html", {"page": shown}) if shown else missing("There is no such schedule in this database.")
        )

    @app.get("/events")
    def events(since: str = "", of: str = "") -> Response:
        token = queries.schedules_token if of == "schedules" else queries.store_token
        return _stream(_changes(lambda: token(store), since, running=lambda: True, stopping=stopping))

    @app.get("/studies/{study_id}/events")
    def study_events(study_id: int, since: str = "") -> Response:
        def running() -> bool:
            found = queries.study_summaries(store, [study_id])
            return bool(found) and pages.may_change(found[0].state, found[0].updated_at)

        return _stream(
            _changes(lambda: queries.study_token(store, study_id), since, running=running, stopping=stopping)
        )

    return app


def _table(store: Store, study_id: int, asked: Asked) -> dict[str, Any]:
    text = asked.q[:200]
    rows = pages.trial_table(
        store, study_id, sort=asked.sort, descending=asked.descending, state=asked.state, text=text, page=asked.page
    )
    levels = queries.levels(store, study_id)
    shown = {"sort": asked.sort, "descending": asked.descending, "state": asked.state, "q": text}
    return {"table": rows, "asked": shown, "own": own_command(levels), "gains": gains_of(rows.rows, levels)}


def _stream(lines: AsyncIterator[str]) -> StreamingResponse:
    return StreamingResponse(lines, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


async def _changes(
    token: Callable[[], str], since: str, *, running: Callable[[], bool], stopping: Callable[[], bool] = lambda: False
) -> AsyncIterator[str]:
    """Server-sent events: `change` whenever the token changes, `end` once nothing can change any more.

    Args:
        since: digest of the token that the page was made from, so that nothing between its making and this call is missed.
    """
    seen, quiet = since, 0.0
    yield "retry: 3000\n\n"
    while not stopping():
        goes_on = await run_in_threadpool(running)
        now = digest(await run_in_threadpool(token))
        if now != seen:
            seen, quiet = now, 0.0
            yield f"event: change\ndata: {now}\n\n"
        if not goes_on:
            yield "event: end\ndata: end\n\n"
            return
        if quiet >= _ALIVE_SECONDS:
            quiet = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(POLL_SECONDS)
        quiet += POLL_SECONDS
