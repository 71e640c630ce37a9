"""Taking a study up again where its tuner left it: which one, with what request, and whether it is still the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autotune.redaction import MASK, redact, redact_json
from autotune.store.records import StudyRecord
from autotune.store.store import Store
from autotune.tuner.lease import held
from autotune.tuner.prepare import Prepared
from autotune.tuner.request import RunRequest
from autotune.values import BadInput, TrialKind, TrialState

SHOWN_KEYS = 5


def resumable(store: Store, name: str | None) -> StudyRecord:
    """The study of that name, or the newest that has not come to its end.

    Raises:
        BadInput: there is none, it runs, it has ended, or its user's command cannot run.
    """
    if name is None:
        unfinished = [study for study in store.studies() if study.state in ("running", "stopped") and not held(study)]
        if not unfinished:
            raise BadInput(f"no study in {store.url} is unfinished; autotune studies lists them")
        return unfinished[-1]
    study = store.study(name)
    if held(study):
        lease = study.lease
        assert lease is not None
        raise BadInput(f"the study {name!r} runs right now: process {lease.pid} on {lease.host}")
    if study.state == "finished":
        raise BadInput(f"the study {name!r} has come to its end; see autotune show {name}, or start another one")
    if study.state == "failed" and not _baseline_may_be_repeated(store, study):
        raise BadInput(
            f"in the study {name!r} the user's own command cannot run (autotune show {name}); repair it and start another study"
        )
    return study


def stored_request(study: StudyRecord, *, storage: str, env: Mapping[str, str], setup: str | None) -> RunRequest:
    """The request of a study, completed by what is never stored.

    Args:
        env: variables given again.
        setup: the set-up command given again.

    Raises:
        BadInput: the study is of another release, or secrets of its request are needed once more.
    """
    shown = study.settings.get("request")
    if not isinstance(shown, dict):
        raise BadInput(f"the study {study.name!r} was made by a release that stored too little to go on with it")
    try:
        request = RunRequest.from_json(shown, storage=storage)
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"the study {study.name!r} was made by another release of autotune (request: {error}); go on with that one"
        ) from error
    request = replace(request, env={**request.env, **env}, setup=setup or request.setup)
    for name, value in request.env.items():
        if MASK in value:
            raise BadInput(f"the value of {name} is a secret and was not stored; give it again with --env {name}=…")
    for key, value in request.set_overrides.items():
        if MASK in value:
            raise BadInput(f"the value of --set {key} is a secret and was not stored, so that the study cannot go on")
    if request.setup is not None and MASK in request.setup:
        raise BadInput("the set-up command holds a secret and was not stored; give it again with --setup")
    return request


def folder_of(study: StudyRecord) -> str | None:
    """The folder in which the study was started; relative paths of its script mean something there alone."""
    shown = study.settings.get("request")
    return str(shown["cwd"]) if isinstance(shown, dict) and "cwd" in shown else None


def check_unchanged(study: StudyRecord, prepared: Prepared) -> None:
    """Makes sure that what would be measured now can be compared with what was.

    Raises:
        BadInput: the script, its configuration, the search space or a version has changed since.
    """
    again = "start a new study with autotune run"
    if redact(prepared.launch.text) != study.script_text:
        raise BadInput(f"{study.script_path} has changed since the study {study.name!r} began; {again}")
    before, now = dict(study.config), stored_config(prepared)
    differing = sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
    if differing:
        shown = "; ".join(f"{key}: {before.get(key)} → {now.get(key)}" for key in differing[:SHOWN_KEYS])
        more = f" and {len(differing) - SHOWN_KEYS} more" if len(differing) > SHOWN_KEYS else ""
        raise BadInput(f"the command composes to another configuration than before ({shown}{more}); {again}")
    versions = prepared.stack.versions()
    moved = [
        f"{name} {study.environment[name]} → {version}"
        for name, version in versions.items()
        if name in study.environment and study.environment[name] != version
    ]
    if moved:
        raise BadInput(f"the environment has changed since the study began ({', '.join(moved)}); {again}")
    if study.space.get("dimensions") != stored_space(prepared)["dimensions"]:
        raise BadInput(f"the search space has changed since the study {study.name!r} began; {again}")


def stored_config(prepared: Prepared) -> dict[str, Any]:
    """The composed configuration as a study stores it."""
    shown: dict[str, Any] = redact_json(json.loads(json.dumps(dict(prepared.config), default=str)))
    return shown


def stored_space(prepared: Prepared) -> dict[str, Any]:
    """The search space as a study stores it."""
    space: dict[str, Any] = json.loads(
        json.dumps(
            {
                "name": prepared.request.space,
                "dimensions": {d.key: list(d.choices) for d in prepared.space.dimensions},
                "fixed": dict(prepared.space.fixed),
            }
        )
    )
    return space


def _baseline_may_be_repeated(store: Store, study: StudyRecord) -> bool:
    own = [trial for trial in store.trials(study.id) if trial.kind is TrialKind.BASELINE]
    return not own or own[-1].state is TrialState.FAILED
