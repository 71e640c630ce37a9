"""`autotune parse`: one JSON object on stdout, exit status 2 for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from autotune.cli import parse

CASES = Path(__file__).parents[1] / "cases" / "scripts"
app = typer.Typer()
app.command("parse")(parse.parse)


def test_json_holds_the_overrides_with_env_and_set_applied() -> None:
    script = str(CASES / "s02_default_vars.sh")
    result = CliRunner().invoke(
        app, [script, "--env", "UTIL=0.7", "--set", "data.seed=1", "--json", "--", "trainer.x=2"]
    )
    assert result.exit_code == 0
    shown = json.loads(result.stdout)
    values = {o["key"]: o["typed"] for o in shown["overrides"]}
    assert values["actor_rollout_ref.rollout.gpu_memory_utilization"] == 0.7
    assert (values["data.seed"], values["trainer.x"]) == (1, 2)
    assert (shown["entrypoint"], shown["passthrough"], shown["supported"]) == ("verl.trainer.main_ppo", "quoted", True)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([str(CASES / "s30_missing_backslash.sh")], "SHELL_BROKEN_CONTINUATION"),
        (["nowhere.sh"], "FILE_NOT_FOUND"),
        ([str(CASES / "s02_default_vars.sh"), "--set", "x"], "BAD_SET"),
        ([str(CASES / "s02_default_vars.sh"), "--env", "x"], "BAD_INPUT"),
    ],
)
def test_bad_input_is_an_error_object_and_status_two(arguments: list[str], code: str) -> None:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 2
    error = json.loads(result.stdout)["error"]
    assert set(error) == {"code", "line", "message"}
    assert error["code"] == code


def test_people_get_lines_and_warnings() -> None:
    result = CliRunner().invoke(app, [str(CASES / "s37_deprecated_and_conflict.sh")])
    assert result.exit_code == 0
    assert "BOTH_MICRO_BATCH_KEYS" in result.stdout
    assert "ppo_mini_batch_size" in result.stdout
