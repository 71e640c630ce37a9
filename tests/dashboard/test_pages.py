"""Pages as a browser gets them. Every figure in here is simulated."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from autotune.dashboard import pages
from autotune.store.store import Store
from autotune.values import Failure, FailureClass, GpuUsage, Measurement, Phase, Point, TrialKind, TrialState
from autotune.verl import keys
from tests.studies import BASELINE, FASTER, add_study, add_trial, failure, finished_study, measurement, step, verdict

ALL = [
    "/",
    "/studies",
    "/studies/1",
    "/studies/1/trials",
    "/studies/1/trials/0",
    "/studies/1/trials/1",
    "/compare?s=1",
    "/read",
]
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


class Parsed(HTMLParser):
    """What a page loads, and what stands in it as markup."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    @property
    def addresses(self) -> list[str]:
        return [
            value
            for tag, attributes in self.tags
            for name, value in attributes.items()
            if name in ("href", "src", "action", "hx-get", "sse-connect", "data-figures") and value
        ]


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


@pytest.mark.parametrize("path", ALL)
def test_every_page_answers_and_stays_on_this_host(reader, path):
    answer = reader.get(path)
    assert answer.status_code == 200
    assert [address for address in Parsed(answer.text).addresses if not address.startswith(("/", "#"))] == []


@pytest.mark.parametrize(
    "path", ["/studies/2", "/studies/1/trials/99", "/studies/0", "/workloads/none", f"/studies/{2**40}", "/nothing"]
)
def test_what_does_not_exist_is_not_found(reader, path):
    answer = reader.get(path)
    assert answer.status_code == 404
    assert "<h1>" in answer.text


@pytest.mark.parametrize("address", ["/studies/night", "/studies/1/trials/best", "/studies?page=x"])
def test_an_address_with_a_word_for_a_number_is_answered_with_a_page(client, address):
    answer = client.get(address)
    assert answer.status_code == 422
    assert "This address cannot be read" in answer.text


def test_an_empty_store_says_how_to_begin(client):
    assert "autotune run" in client.get("/").text


def test_every_simulated_figure_is_labelled(store, client):
    finished_study(store)
    for path in [*ALL[:-1], "/workloads/0123456789abcdef?simulated=true"]:
        assert "SIMULATED" in client.get(path).text, path


def test_a_measured_study_carries_no_label(store, client):
    study = add_study(store, simulated=False)
    number = store.add_trial(
        study, kind=TrialKind.BASELINE, point=BASELINE, overrides=[], origin="", optuna_number=None, simulated=False
    )
    store.start_trial(study, number, run_dir="/nowhere")
    real = Measurement((step(1, 2.0, settling=True), step(2, 2.0), step(3, 2.0)), world_size=2)
    store.finish_trial(study, number, TrialState.MEASURED, measurement=real, failure=None)
    assert "SIMULATED" not in client.get(f"/studies/{study}").text


def test_composed_figures_and_short_work_are_labelled(store, client):
    study = add_study(store)
    number = store.add_trial(
        study, kind=TrialKind.SEARCH, point=BASELINE, overrides=[], origin="", optuna_number=None, simulated=False
    )
    store.start_trial(study, number, run_dir="/nowhere")
    from autotune.values import Source

    made = Measurement((step(1, 2.0), step(2, 2.0)), world_size=2, source=Source.COMPOSED, work="1 of 8 mini-batches")
    store.finish_trial(study, number, TrialState.MEASURED, measurement=made, failure=None)
    page = client.get(f"/studies/{study}").text
    assert "COMPOSED" in page
    assert "SHORT WORK" in page


def test_hostile_text_stays_text(store, client, tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "console.log").write_text(f"torch.OutOfMemoryError: {HOSTILE}\n")
    study = add_study(
        store,
        name=f"night {HOSTILE}",
        workload=HOSTILE,
        script_path=HOSTILE,
        script_text=HOSTILE,
        environment={"verl": HOSTILE},
        settings={"baseline": {}, "out": HOSTILE},
    )
    add_trial(store, study, BASELINE, TrialKind.BASELINE, measurement(2.0), origin=HOSTILE)
    number = store.add_trial(
        study, kind=TrialKind.SEARCH, point=Point.of({HOSTILE: HOSTILE, keys.MAX_NUM_SEQS: 9}), overrides=[HOSTILE],
        origin=HOSTILE, optuna_number=None, simulated=True,
    )  # fmt: skip
    store.start_trial(study, number, run_dir=str(run_dir))
    bad = Failure(FailureClass.OOM_GPU, Phase.GEN, HOSTILE, f"torch.OutOfMemoryError: {HOSTILE}", False)
    store.finish_trial(study, number, TrialState.INFEASIBLE, measurement=None, failure=bad)
    emitted = {"overrides": {HOSTILE: HOSTILE}, "changed": [HOSTILE]}
    store.set_verdict(study, verdict(emitted=emitted, reason=HOSTILE, decision="indicative"))
    for path in ["/", "/studies", "/studies/1", "/studies/1/trials/0", "/studies/1/trials/1", "/compare?s=1&t=1.1",
                 "/workloads/0123456789abcdef?simulated=true"]:  # fmt: skip
        page = client.get(path)
        assert page.status_code == 200, path
        tags = Parsed(page.text).tags
        assert not any("onerror" in attributes for _, attributes in tags), path
        assert not any(tag == "img" for tag, _ in tags), path
        inline = [a for tag, a in tags if tag == "script" and "src" not in a and a.get("type") != "application/json"]
        assert inline == [], path
    for figure in client.get("/studies/1/figures").json().values():
        # Plotly takes tags in its texts for markup; its own line break is the only one that may be there.
        assert "<" not in json.dumps(figure).replace("<br>", "").replace("<extra></extra>", "")


def test_hostile_pasted_text_stays_text(client):
    page = client.post("/read", data={"text": HOSTILE, "kind": "log"}).text
    assert not any(tag == "img" for tag, _ in Parsed(page).tags)


def test_credentials_are_masked_everywhere(store, client, tmp_path):
    secret = "s3cr3tvalue0123456789"
    out, run_dir = tmp_path / "out", tmp_path / "run"
    out.mkdir()
    run_dir.mkdir()
    (out / "best.sh").write_text(f"export WANDB_API_KEY={secret}\npython3 -m verl.trainer.main_ppo\n")
    (run_dir / "console.log").write_text(
        f"logged in with {secret}\ntorch.OutOfMemoryError: CUDA out of memory {secret}\n"
    )
    study = add_study(store, script_text=f"export HF_TOKEN={secret}", settings={"out": str(out), "baseline": {}})
    add_trial(store, study, BASELINE, TrialKind.BASELINE, measurement(2.0))
    number = store.add_trial(
        study, kind=TrialKind.SEARCH, point=FASTER, overrides=[f"+trainer.api_key={secret}"], origin="tpe",
        optuna_number=None, simulated=True,
    )  # fmt: skip
    store.start_trial(study, number, run_dir=str(run_dir))
    bad = failure(f"torch.OutOfMemoryError: CUDA out of memory api_key={secret}")
    store.finish_trial(study, number, TrialState.INFEASIBLE, measurement=None, failure=bad)
    store.set_verdict(study, verdict(best_number=0))
    shown = {path: client.get(path).text for path in ("/", "/studies/1", "/studies/1/trials/1", "/studies/1/figures")}
    assert [path for path, page in shown.items() if secret in page] == []
    assert "WANDB_API_KEY=***" in shown["/studies/1"]
    assert "does not run as it stands" in shown["/studies/1"]
    assert "logged in with ***" in shown["/studies/1/trials/1"]


def test_the_script_can_be_copied_as_it_runs(store, client, tmp_path):
    script = "#!/bin/bash\npython3 -m verl.trainer.main_ppo a.b=1 'c=<x> & \"y\"'\n"
    (tmp_path / "best.sh").write_text(script)
    finished_study(store, settings={"out": str(tmp_path), "baseline": BASELINE.as_dict()})
    page = client.get("/studies/1").text
    shown = re.search(r'<code id="script">(.*?)</code>', page, re.DOTALL)
    assert shown is not None
    import html

    assert html.unescape(shown[1]) == script
    assert 'data-copy="script"' in page


def test_the_verdict_comes_first_with_its_interval(store, client):
    finished_study(store)
    page = text_of(client.get("/studies/1").text)
    assert "Faster by +50.0 % (95 % interval +40.0 % to +60.0 %)." in page
    assert page.index("Faster by") < page.index("A step, by phase") < page.index("Trials 4")
    assert "Same trajectory over several optimiser steps not measured" in page


def test_a_failure_shows_its_line_and_its_remedy(store, client, tmp_path):
    (tmp_path / "console.log").write_text(
        "noise\n" * 3 + "torch.OutOfMemoryError: CUDA out of memory\n" + "later noise\n" * 400
    )
    study = add_study(store)
    add_trial(store, study, BASELINE, TrialKind.BASELINE, measurement(2.0))
    number = store.add_trial(
        study, kind=TrialKind.SEARCH, point=FASTER, overrides=[], origin="", optuna_number=None, simulated=True
    )
    store.start_trial(study, number, run_dir=str(tmp_path))
    store.finish_trial(study, number, TrialState.INFEASIBLE, measurement=None, failure=failure())
    page = client.get("/studies/1/trials/1").text
    assert "<mark>torch.OutOfMemoryError: CUDA out of memory</mark>" in page
    assert "Lower the micro-batch." in page
    assert "Around the decisive line" in page


def test_what_was_reported_beside_the_settings_is_listed(store, client):
    study = add_study(store)
    told = {**measurement(2.0).echo, "engine.kv_blocks": 2400, "reward.mode": "replayed", "host.cpu_stolen": 0.16}
    add_trial(store, study, BASELINE, TrialKind.BASELINE, replace(measurement(2.0), echo=told))
    add_trial(store, study, FASTER, outcome=failure())
    page = text_of(client.get("/studies/1/trials/0").text)
    rows = page[page.index("Also reported") : page.index("A step, by phase")].replace(" ", "")
    for shown in ("host.cpu_stolen0.16", "engine.kv_blocks2400", "reward.modereplayed"):
        assert shown in rows
    assert "max_num_seqs" not in rows
    assert "Also reported" not in client.get("/studies/1/trials/1").text


def test_gpu_figures_are_shown_where_they_were_sampled_and_absent_elsewhere(store, client):
    study = add_study(store)
    add_trial(store, study, BASELINE, TrialKind.BASELINE, measurement(2.0))
    number = store.add_trial(
        study, kind=TrialKind.SEARCH, point=FASTER, overrides=[], origin="", optuna_number=None, simulated=True
    )
    store.start_trial(study, number, run_dir="/nowhere")
    seen = GpuUsage(3, "NVIDIA H200", 0.87, 612.0, 1755.0, 90 << 30, True)
    made = Measurement(
        (step(1, 2.0, settling=True), step(2, 2.0), step(3, 2.0)), world_size=2, gpus=(seen,), simulated=True
    )
    store.finish_trial(study, number, TrialState.MEASURED, measurement=made, failure=None)
    page = text_of(client.get("/studies/1/trials/1").text)
    assert "NVIDIA H200" in page
    assert "612 W" in page
    assert "90.0 GiB" in page
    assert "Not sampled" in text_of(client.get("/studies/1/trials/0").text)


def test_the_trial_table_sorts_filters_and_pages(store, client):
    study = add_study(store)
    add_trial(store, study, BASELINE, TrialKind.BASELINE, measurement(2.0))
    for at in range(120):
        point = Point.of({**BASELINE.as_dict(), keys.ACTOR_MICRO_BATCH: at})
        add_trial(store, study, point, outcome=failure() if at == 7 else measurement(1.0 + at / 100))

    def numbers(query: str) -> list[int]:
        return [
            int(n) for n in re.findall(r'href="/studies/1/trials/(\d+)"', client.get(f"/studies/1/trials?{query}").text)
        ]

    assert len(numbers("")) == 100
    assert len(numbers("page=2")) == 21
    assert numbers("sort=throughput&descending=true")[0] == 1
    assert numbers("sort=throughput&page=2")[-1] == 8, "what has no figure comes last"
    assert numbers("state=infeasible") == [8]
    assert numbers("q=OutOfMemory") == [8]
    assert len(numbers("sort=nonsense&page=999")) == 21


def test_points_of_a_session_stand_beside_the_users_command_in_that_session(store, client):
    study = add_study(store)
    add_trial(store, study, BASELINE, TrialKind.BASELINE, measurement(2.0))
    add_trial(store, study, BASELINE, TrialKind.ANCHOR, replace(measurement(1.0), session="s1"))
    add_trial(store, study, FASTER, outcome=replace(measurement(0.8), session="s1"))
    page = client.get("/studies/1/trials/2").text
    assert "your command, same session" in page
    assert "+25.0 %" in text_of(page)
    table = text_of(client.get("/studies/1/trials").text)
    assert "+25.0 %" in table
    assert "+150.0 %" not in table
    assert "yours, in session" in table


def test_launches_can_be_compared_across_studies(store, client):
    finished_study(store, "first")
    finished_study(store, "second", environment={"verl": "0.9.2"})
    page = text_of(client.get("/compare?s=1&s=2").text)
    assert page.count("your command") >= 2
    assert "versions that differ" in page
    assert "Different work" not in page
    other = add_study(store, "third", workload_fingerprint="another")
    add_trial(store, other, BASELINE, TrialKind.BASELINE, measurement(1.0))
    assert "Different work" in client.get("/compare?t=1.0&t=3.0&t=nonsense&t=9.9").text


def test_a_pasted_script_is_read_without_this_hosts_files(client, tmp_path):
    (tmp_path / "secret.sh").write_text("MODEL=/models/of-somebody-else\n")
    script = f"source {tmp_path}/secret.sh\npython3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=$MODEL data.train_batch_size=64\n"
    page = text_of(client.post("/read", data={"text": script, "kind": "auto"}).text)
    assert "Read as a script" in page
    assert "data.train_batch_size" in page
    assert "of-somebody-else" not in page


def test_a_pasted_script_does_not_see_the_environment(client, monkeypatch):
    monkeypatch.setenv("PASTED_PROBE", "seen-from-the-outside")
    script = "python3 -m verl.trainer.main_ppo trainer.project_name=${PASTED_PROBE:-unset} data.train_batch_size=64\n"
    assert "seen-from-the-outside" not in client.post("/read", data={"text": script, "kind": "script"}).text


def test_a_pasted_log_says_why_the_run_died(client):
    log = (Path(__file__).parents[1] / "cases/logs/f01_oom_update_actor.log").read_text()
    page = text_of(client.post("/read", data={"text": log, "kind": "auto"}).text)
    assert "Read as a log" in page
    assert "oom_gpu in phase update_actor" in page


def test_a_script_that_cannot_be_read_says_where(client):
    page = text_of(client.post("/read", data={"text": "echo hello\n", "kind": "script"}).text)
    assert "Cannot be read" in page


def test_a_regression_is_marked_on_the_home_page(store, client):
    for night, seconds in enumerate([2.0, 2.0, 2.0, 2.6]):
        study = add_study(store, f"night-{night}", environment={"verl": "0.9.1" if night < 3 else "0.9.2"})
        add_trial(store, study, BASELINE, TrialKind.BASELINE, measurement(seconds))
    page = text_of(client.get("/").text)
    assert "Regression:" in page
    assert "verl 0.9.1 → 0.9.2" in page


def test_live_pages_connect_to_their_events_and_ended_ones_do_not(store, client, monkeypatch):
    finished_study(store, "done")
    running = add_study(store, "running")
    add_trial(store, running, BASELINE, TrialKind.BASELINE)
    assert f'sse-connect="/studies/{running}/events' in client.get(f"/studies/{running}").text
    assert "sse-connect" in client.get("/studies/1").text, "its script is stored a moment after its end"
    monkeypatch.setattr(pages, "SETTLES_SECONDS", 0.0)
    assert "sse-connect" not in client.get("/studies/1").text


def test_no_page_changes_the_database(store: Store, client):
    finished_study(store)
    before = store.study("night"), store.trials(1)
    for path in ALL:
        client.get(path)
    assert (store.study("night"), store.trials(1)) == before
