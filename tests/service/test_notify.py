"""Messages, and sending them to a receiver on this host."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from autotune.service import notify
from autotune.service.notify import Message, Notifier
from autotune.store.schedules import NightRecord, NightState, ScheduleRecord

NOW = datetime(2026, 11, 30, 1, tzinfo=timezone.utc)
SCHEDULE = ScheduleRecord(
    id=1,
    name="math-7b",
    created_at=NOW,
    updated_at=NOW,
    state="active",
    host="gpu-node-1",
    cron="0 2 * * *",
    tz="Europe/Berlin",
    window="02:00-06:00",
    pairs=5,
    script_path="/jobs/train.sh",
    script_hash="0" * 64,
    request={},
    reference=None,
)
NIGHT = NightRecord(
    id=7,
    schedule="math-7b",
    schedule_id=1,
    slot="2026-11-30T02:00",
    state=NightState.FINISHED,
    reason="",
    planned_at=NOW,
    until=NOW + timedelta(hours=4),
    started_at=NOW,
    ended_at=NOW + timedelta(hours=3),
    attempts=1,
    lease=None,
    study_id=3,
    study="math-7b-20261130",
    script_hash="0" * 64,
    simulated=False,
    environment={},
    canary=None,
    verdict={
        "decision": "regression",
        "text": "Your command took 6.1 % more time than in the 19 nights before.",
        "phases": ["gen"],
        "tests": [
            {"subject": "own", "quantity": "gen", "change": 0.102, "band": 0.021, "beyond": True},
            {"subject": "own", "quantity": "update_actor", "change": 0.001, "band": 0.02, "beyond": False},
        ],
        "nights": 19,
        "environment": ["vLLM went from 0.15.0 to 0.16.0"],
    },
)
MESSAGE = Message("test", "a title", "a body")
SECRET = "s3cr3t-t0ken-9f8e7d"


class Receiver:
    """What arrived, and how to answer."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.status = 200
        self.hold: threading.Event | None = None
        self.port = 0


@contextmanager
def serving(receiver: Receiver) -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if receiver.hold is not None:
                receiver.hold.wait(30)
                return
            receiver.bodies.append(json.loads(body))
            self.send_response(receiver.status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield receiver
    finally:
        if receiver.hold is not None:
            receiver.hold.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver on a free port."""
    with serving(Receiver()) as made:
        yield made


def to(*urls: str, **more: str) -> Notifier:
    return Notifier.from_environment({"AUTOTUNE_NOTIFY": " ".join(urls), **more})


def test_a_message_arrives_as_it_was_written(receiver: Receiver) -> None:
    assert to(f"json://127.0.0.1:{receiver.port}/hook").send(MESSAGE) == []
    assert [(body["title"], body["message"], body["type"]) for body in receiver.bodies] == [
        ("a title", "a body", "info")
    ]


def test_without_addresses_nothing_is_sent_and_nothing_is_wrong() -> None:
    for environment in ({}, {"AUTOTUNE_NOTIFY": " \n, "}):
        notifier = Notifier.from_environment(environment)
        assert notifier.addresses == ()
        assert notifier.send(MESSAGE) == []


def test_addresses_are_separated_by_blanks_or_commas_and_may_hold_commas() -> None:
    text = "json://127.0.0.1:1/a,json://127.0.0.1:2/b\n mailto://u:p@example.com?to=x@example.com,y@example.com , jsons://h/c"
    assert to(text).addresses == (
        "address 1 of AUTOTUNE_NOTIFY (JSON at 127.0.0.1)",
        "address 2 of AUTOTUNE_NOTIFY (JSON at 127.0.0.1)",
        "address 3 of AUTOTUNE_NOTIFY (E-Mail at example.com)",
        "address 4 of AUTOTUNE_NOTIFY (JSON at h)",
    )


def test_one_that_fails_does_not_keep_the_others_from_being_told(receiver: Receiver) -> None:
    problems = to("json://127.0.0.1:1/down", "no-service://x", f"json://127.0.0.1:{receiver.port}/").send(MESSAGE)
    assert len(receiver.bodies) == 1
    assert problems == [
        "address 1 of AUTOTUNE_NOTIFY (JSON at 127.0.0.1): could not be reached, or did not answer",
        "address 2 of AUTOTUNE_NOTIFY: Apprise cannot read it; see its list of services for how it is written (AUTOTUNE_NOTIFY)",
    ]


@pytest.mark.parametrize(
    ("status", "said"),
    [(500, "refused with HTTP status 500"), (403, "refused with HTTP status 403 (check its token)")],
)
def test_what_the_receiver_answers_is_said(receiver: Receiver, status: int, said: str) -> None:
    receiver.status = status
    assert to(f"json://127.0.0.1:{receiver.port}/").send(MESSAGE) == [
        f"address 1 of AUTOTUNE_NOTIFY (JSON at 127.0.0.1): {said}"
    ]


def test_a_receiver_that_hangs_is_not_waited_for(receiver: Receiver) -> None:
    receiver.hold = threading.Event()
    [delivery] = to(f"json://127.0.0.1:{receiver.port}/?rto=60").deliver(MESSAGE, patience=0.3)
    assert delivery.problem == "no answer within 0.3 s"


@pytest.mark.parametrize(
    "url",
    [
        f"json://user:{SECRET}@127.0.0.1:1/hook",
        f"json://127.0.0.1:1/hook/{SECRET}",
        f"json://127.0.0.1:1/hook?+X-Token={SECRET}",
        f"no-service://{SECRET}@host/{SECRET}",
        f"slack://{SECRET}",
        f"discord://{SECRET}/{SECRET}",
    ],
)
def test_the_secret_of_an_address_is_never_shown(
    url: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing leaves this host: whatever service it is, it goes by a proxy that is not there.
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "")
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger().addHandler(handler)
    try:
        notifier = to(url)
        problems = notifier.send(MESSAGE)
    finally:
        logging.getLogger().removeHandler(handler)
    assert len(problems) == 1
    shown = "".join([*problems, *notifier.addresses, *capfd.readouterr(), log.getvalue()])
    assert SECRET not in shown


def test_secrets_are_taken_out_of_what_is_sent(receiver: Receiver) -> None:
    notifier = to(f"json://u:{SECRET}@127.0.0.1:{receiver.port}/", HF_TOKEN="hub-value-4711")
    body = f"evidence: WANDB_API_KEY=abcdef123456 and {SECRET} and hub-value-4711"
    assert notifier.send(Message("failure", f"it was {SECRET}", body)) == []
    [sent] = receiver.bodies
    assert sent["title"] == "it was ***"
    assert sent["message"] == "evidence: WANDB_API_KEY=*** and *** and ***"


def test_ordinary_words_of_an_address_stay_in_messages(receiver: Receiver) -> None:
    assert (
        to(f"json://127.0.0.1:{receiver.port}/autotune/webhooks").send(Message("test", "autotune", "127.0.0.1")) == []
    )
    assert (receiver.bodies[0]["title"], receiver.bodies[0]["message"]) == ("autotune", "127.0.0.1")


def test_an_alarm_names_the_phase_the_node_and_what_changed() -> None:
    message = notify.regression(SCHEDULE, NIGHT, link="http://dash/schedules/math-7b")
    assert message.kind == "regression"
    assert message.title == "math-7b is slower than before"
    assert message.body.split("\n") == [
        "math-7b on gpu-node-1, night 2026-11-30T02:00 (Europe/Berlin), /jobs/train.sh",
        "Your command took 6.1 % more time than in the 19 nights before.",
        "Slower in: gen",
        "- gen of your command: +10.2% seconds (noise: up to 2.1%)",
        "Changed since the nights before:",
        "- vLLM went from 0.15.0 to 0.16.0",
        "http://dash/schedules/math-7b",
    ]


def test_phases_that_became_faster_are_not_in_the_alarm() -> None:
    faster = {"subject": "own", "quantity": "ref", "change": -0.2, "band": 0.02, "beyond": True}
    verdict = {**(NIGHT.verdict or {}), "tests": [faster]}
    assert "ref of your command" not in notify.regression(SCHEDULE, replace(NIGHT, verdict=verdict)).body


def test_an_alarm_without_a_change_of_the_environment_says_so() -> None:
    verdict = {**(NIGHT.verdict or {}), "environment": []}
    body = notify.regression(SCHEDULE, replace(NIGHT, verdict=verdict)).body
    assert "Nothing that autotune looks at changed" in body


def test_a_new_best_says_how_much_and_what_changed() -> None:
    message = notify.new_best(SCHEDULE, NIGHT, "Faster by 25 %.", changed=["a.b: 1 → 2"], files=["/out/best.sh"])
    assert message.title == "math-7b: a better setting was found"
    for part in ("Faster by 25 %.", "- a.b: 1 → 2", "Script: /out/best.sh"):
        assert part in message.body


def test_a_failure_gives_the_reason_and_whether_anything_was_tried() -> None:
    failed = notify.failure(SCHEDULE, replace(NIGHT, state=NightState.FAILED, reason="verl could not be imported"))
    skipped = notify.failure(SCHEDULE, replace(NIGHT, state=NightState.SKIPPED, reason="the node was busy"))
    assert (failed.title, skipped.title) == ("math-7b: the night failed", "math-7b: the night was skipped")
    assert "verl could not be imported" in failed.body
    assert "the node was busy" in skipped.body


@pytest.mark.parametrize("kind", ["regression", "new_best", "failure"])
def test_whatever_a_night_says_is_in_its_message(kind: notify.Kind) -> None:
    message = notify.message_of(kind, "What there is to say.", SCHEDULE, NIGHT, link="http://dash/x")
    assert message.kind == kind
    assert "What there is to say." in message.body
    assert message.body.endswith("http://dash/x")


def test_simulated_figures_are_labelled() -> None:
    message = notify.regression(SCHEDULE, replace(NIGHT, simulated=True))
    assert message.title.startswith("SIMULATED")
    assert message.body.startswith("SIMULATED")


def test_names_cannot_become_mentions_links_or_markup() -> None:
    hostile = "<!channel> @everyone [click](http://evil) `x` <b>*bold*</b>\nInjected: line\x1b[31m"
    message = notify.failure(
        replace(SCHEDULE, script_path=hostile), replace(NIGHT, state=NightState.FAILED, reason=hostile)
    )
    for forbidden in ("<", ">", "@", "[", "`", "*", "\x1b"):
        assert forbidden not in message.title + message.body
    assert "\n" not in message.title


def test_messages_are_bounded() -> None:
    message = notify.failure(SCHEDULE, replace(NIGHT, reason="x" * 100_000))
    assert len(message.body) <= notify.LONGEST_BODY


@pytest.mark.parametrize(
    ("url", "link"),
    [
        ("https://dash.example/", "https://dash.example/schedules/math-7b"),
        ("", None),
        ("javascript:alert(1)", None),
        ("http://x\nBcc: y", None),
    ],
)
def test_the_link_to_the_dashboard_is_used_where_it_is_one(url: str, link: str | None) -> None:
    assert notify.link_to("math-7b", {"AUTOTUNE_URL": url}) == link
