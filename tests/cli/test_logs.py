"""`autotune logs` as its user sees it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from autotune.cli.logs import _follow, logs, sparkline

CASES = Path(__file__).parents[1] / "cases"
app = typer.Typer()
app.command()(logs)


def call(*arguments: object, text: bytes | None = None) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=text, env={"COLUMNS": "160"})


@pytest.mark.parametrize("case", sorted((CASES / "logs").glob("*.json")), ids=lambda path: path.stem)
def test_json_has_the_steps_of_the_case(case: Path) -> None:
    expected = json.loads(case.read_text())
    done = call("--json", case.with_name(expected["source"]))
    assert done.exit_code == 0
    said = json.loads(done.stdout)
    assert said["steps"] == expected["steps"]
    assert {"steps", "score", "failure"} <= said.keys()
    assert set(said["score"]) >= {"throughput_tok_s_gpu", "mfu_actor", "steps_used"}
    if said["failure"] is not None:
        assert set(said["failure"]) == {"class", "phase", "remedy", "evidence", "retryable"}


def test_people_see_phases_speed_and_the_decisive_line() -> None:
    done = call(CASES / "logs" / "f01_oom_update_actor.log")
    assert done.exit_code == 0
    assert [word in done.stdout.splitlines()[1] for word in ("actor", "log_prob", "%")] == [True] * 3
    assert "762.8 tok/s/GPU" in done.stdout
    assert "failure  oom_gpu in phase update_actor" in done.stdout
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.27 GiB" in done.stdout
    assert "Lower actor.ppo_micro_batch_size_per_gpu" in done.stdout


def test_a_finished_run_is_called_finished() -> None:
    assert "end      finished" in call(CASES / "logs" / "l01_console_current.log").stdout


def test_what_the_caller_knows_of_the_end_counts() -> None:
    path = CASES / "logs" / "f20_silent_no_progress.log"
    assert json.loads(call("--json", path).stdout)["failure"] is None
    assert json.loads(call("--json", "--ended-by", "time_limit", path).stdout)["failure"]["class"] == "hang_no_progress"


def test_standard_input_is_read() -> None:
    data = (CASES / "logs" / "l04_console_ansi_ip.log").read_bytes()
    assert [step["step"] for step in json.loads(call("--json", "-", text=data).stdout)["steps"]] == [1, 2, 3]


def test_a_file_that_is_not_there_cannot_be_followed() -> None:
    done = call("--follow", CASES / "logs" / "wrong")
    assert done.exit_code == 2
    assert "does not exist" in done.stderr


@pytest.mark.parametrize("kind", ["missing", "directory", "binary", "compressed"])
def test_what_is_no_log_is_refused_in_one_sentence(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "thing"
    if kind == "directory":
        path.mkdir()
    elif kind != "missing":
        path.write_bytes(b"\x7fELF\x00\x00" if kind == "binary" else b"\x1f\x8b\x08rest")
    done = call("--json", path)
    assert done.exit_code == 2
    assert str(path) in done.stderr.replace("\n", "")
    assert "error" in json.loads(done.stdout)


def test_an_empty_log_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "empty.log"
    path.write_bytes(b"")
    done = call(path)
    assert done.exit_code == 0
    assert "No training step" in done.stdout


def test_a_sparkline_shows_the_course_and_gaps() -> None:
    assert sparkline((1.0, float("nan"), 8.0)) == "▁·█"
    assert sparkline(()) == ""
    assert sparkline((3.0, 3.0)) == "▁▁"
    assert len(sparkline(tuple(float(n) for n in range(1000)))) <= 60


def test_following_a_pipe_shows_its_steps_and_ends_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    os.write(writing, (CASES / "logs" / "l02_console_three_decimals.log").read_bytes())
    os.close(writing)
    with os.fdopen(reading, "rb") as source:
        _follow(source, exit_code=None, ended_by=None)
    assert "587.7 tok/s/GPU" in capsys.readouterr().out
