"""Requests made from the API's own document, fitting and not: none of them breaks it, and none changes anything without the token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.generation import GenerationMode

from autotune.dashboard.app import create_app
from autotune.service.api import MOUNTED_AT, create_api
from autotune.service.token import Token
from autotune.store.schedules import NightState
from autotune.store.store import Store
from tests.service.registered import NOW, add_night, register
from tests.service.test_api import BEARER, SECRET, rows
from tests.studies import finished_study

pytestmark = pytest.mark.slow
EXAMPLES = 25
"""For each operation and each kind of request."""
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
ALWAYS_FIT = ("GET /schedules", "GET /schedules/{name}")
"""They take nothing, or any text that an address can hold: there is no request that does not fit."""
KNOWN = {"study_id": 1, "number": 0, "name": "nightly"}
"""What stands in the store. Requests that guess at names would never reach anything."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(f"sqlite:///{tmp_path}/trials.db")
    finished_study(opened)
    add_night(opened, register(opened), 1)
    add_night(opened, register(opened, "busy"), state=NightState.DUE)
    yield opened
    opened.close()


def requests(operation: Any, mode: GenerationMode) -> Any:
    """Requests for an operation that guess at what is stored, and those that know it."""
    guessed = operation.as_strategy(generation_mode=mode)
    known = {name: value for name, value in KNOWN.items() if f"{{{name}}}" in operation.path}
    more = len(operation.query.items) + len(operation.body.items)
    if not known or (mode is GenerationMode.NEGATIVE and not more):
        return guessed
    return st.one_of(guessed, operation.as_strategy(generation_mode=mode, path_parameters=known))


def campaign(store: Store, mode: GenerationMode, headers: dict[str, str]) -> Counter[tuple[str, int]]:
    """Sends generated requests for every operation; returns how many got which status, by method."""
    app = create_app(store, hosts=("localhost", "testserver"))
    app.mount(MOUNTED_AT, create_api(store, token=Token(SECRET), now=lambda: NOW))
    schema = schemathesis.openapi.from_asgi(f"{MOUNTED_AT}/openapi.json", app)
    answers: Counter[tuple[str, int]] = Counter()
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) == 13
    for operation in operations:
        if mode is GenerationMode.NEGATIVE and operation.label in ALWAYS_FIT:
            continue

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=requests(operation, mode))
        def send(case: Any) -> None:
            answer = case.call_and_validate(headers=headers, checks=CHECKS)
            answers[case.method, answer.status_code] += 1

        send()
    return answers


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_nothing_that_is_sent_with_the_token_breaks_it(store, mode):
    answers = campaign(store, mode, BEARER)
    assert not [status for _, status in answers if status >= 500]
    if mode is GenerationMode.POSITIVE:
        assert not [status for _, status in answers if status == 401]
        # It did reach what is behind the token, and what is stored.
        assert answers["POST", 200] > 0
        assert answers["POST", 202] > 0
        assert answers["GET", 200] > 50


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("header", [None, "Bearer guessed-guessed-guessed"])
def test_nothing_that_is_sent_without_the_token_changes_anything(store, mode, header):
    before = rows(store)
    answers = campaign(store, mode, {} if header is None else {"Authorization": header})
    assert {status for method, status in answers if method == "POST"} == {401}
    assert answers["POST", 401] > EXAMPLES
    assert rows(store) == before
