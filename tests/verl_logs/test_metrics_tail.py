"""The reader of verl's growing metrics file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.verl.jsonl import MetricsTail, parse_line
from autotune.verl.metrics import NotATrainingStep, clean_seconds, step_record, throughput

STEP = {
    "timing_s/step": 10.0,
    "timing_s/gen": 6.0,
    "timing_s/update_actor": 3.0,
    "perf/total_num_tokens": 4000,
    "perf/throughput": 200.0,
    "perf/mfu/actor": 0.3,
    "actor/perf/max_memory_reserved_gb": 40.0,
}


def line(step: int, **changes: object) -> str:
    return json.dumps({"step": step, "data": {**STEP, **changes}}) + "\n"


def test_a_file_that_is_not_there_yet_has_no_steps(tmp_path: Path) -> None:
    tail = MetricsTail(tmp_path / "later.jsonl")
    assert tail.poll() == []
    (tmp_path / "later.jsonl").write_text(line(1))
    assert [record.step for record in tail.poll()] == [1]


def test_a_step_is_reported_once_and_in_our_terms(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(line(1))
    tail = MetricsTail(path)
    (record,) = tail.poll()
    assert (record.seconds, record.tokens, record.mfu, record.memory_gb) == (10.0, 4000, 0.3, 40.0)
    assert record.phases == {"gen": 6.0, "update_actor": 3.0}
    assert not record.settling
    assert tail.poll() == []


def test_a_torn_tail_waits_for_the_rest_of_its_line(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    text = line(1) + line(2)
    path.write_text(text[:-40])
    tail = MetricsTail(path)
    assert [record.step for record in tail.poll()] == [1]
    with path.open("a") as file:
        file.write(text[-40:])
    assert [record.step for record in tail.poll()] == [2]


def test_a_file_written_anew_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(line(1) + line(2))
    tail = MetricsTail(path)
    assert len(tail.poll()) == 2
    path.write_text(line(1, **{"timing_s/step": 11.0}))
    assert [record.seconds for record in tail.poll()] == [11.0]
    path.write_text(line(1, **{"timing_s/step": 12.0}) + line(2) + line(3))
    assert [record.step for record in tail.poll()] == [1, 2, 3]
    assert tail.runs == 3


def test_nulls_and_what_is_no_number_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(
        line(1, **{"actor/pg_loss": None, "actor/note": "text", "actor/flag": True, "actor/grad_norm": float("nan")})
    )
    (record,) = MetricsTail(path).poll()
    assert not {"actor/pg_loss", "actor/note", "actor/flag", "actor/grad_norm"} & set(record.metrics)


def test_a_validation_is_not_a_step(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(json.dumps({"step": 0, "data": {"val-core/math/reward/mean@1": 0.4}}) + "\n" + line(1))
    assert [record.step for record in MetricsTail(path).poll()] == [1]


def test_a_run_that_wrote_on_behind_a_torn_line_is_read() -> None:
    found = parse_line('{"step":3,"data":{"timing_s/step":1.5,"actor/l' + line(1))
    assert found is not None
    assert found.step == 1


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"step":"1","data":{}}', '{"step":1,"data":[]}', '{"step":true,"data":{}}']
)
def test_what_is_no_step_is_none(text: str) -> None:
    assert parse_line(text) is None


def test_an_mfu_of_zero_or_over_one_is_not_known() -> None:
    assert step_record(1, {**STEP, "perf/mfu/actor": 0.0}).mfu is None
    assert step_record(1, {**STEP, "perf/mfu/actor": 1.7}).mfu is None
    assert step_record(1, {"timing_s/step": 1.0, "mfu/actor": 0.3}).mfu == 0.3


def test_metrics_without_a_time_are_refused() -> None:
    with pytest.raises(NotATrainingStep, match="timing_s/step"):
        step_record(0, {"val/test_score/math": 0.5})


def test_validation_and_checkpoint_are_taken_out_where_they_fit_into_the_step() -> None:
    inside = {
        "timing_s/step": 30.0,
        "timing_s/gen": 6.0,
        "timing_s/update_actor": 3.0,
        "timing_s/testing": 15.0,
        "timing_s/save_checkpoint": 5.0,
    }
    assert clean_seconds(inside) == pytest.approx(10.0)
    assert clean_seconds({**inside, "timing_s/step": 10.0}) == pytest.approx(10.0)
    assert clean_seconds({**inside, "timing_s/step": 15.0}) == pytest.approx(10.0)


def test_the_release_narrows_what_can_be_inside() -> None:
    slow_data = {"timing_s/step": 20.0, "timing_s/gen": 9.0, "timing_s/testing": 4.0, "timing_s/save_checkpoint": 5.0}
    assert clean_seconds(slow_data, release="0.7.1") == 20.0
    assert clean_seconds(slow_data, release="0.9.1") == 15.0
    assert clean_seconds(slow_data, release="0.4.1") == 11.0
    assert clean_seconds(slow_data, usual_rest=11.0) == 20.0


def test_throughput_before_it_was_reported_is_derived() -> None:
    assert throughput({"timing_s/step": 10.0, "global_seqlen/mean": 5000.0}) == (500.0, True)
    assert throughput({**STEP, "timing_s/step": 20.0, "timing_s/testing": 10.0}) == (400.0, False)
