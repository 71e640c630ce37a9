"""The list of commands, and what a command loads."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from autotune.cli.main import COMMANDS, app

SEEN = """
import json, sys
from typer.testing import CliRunner
from autotune.cli.main import app
result = CliRunner().invoke(app, sys.argv[1:])
assert result.exit_code == 0, result.output
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_tells_how_it_is_used(name: str) -> None:
    result = CliRunner().invoke(app, [name, "--help"])
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: autotune {name} [OPTIONS]")


def test_the_help_lists_every_command_but_the_one_that_the_service_starts() -> None:
    result = CliRunner().invoke(app, ["--help"])
    listed = [line.split()[0] for line in result.stdout.partition("Commands:\n")[2].splitlines() if line.strip()]
    assert listed == [name for name in COMMANDS if name != "night"]


def test_a_mistyped_command_is_told_the_nearest_one() -> None:
    result = CliRunner().invoke(app, ["stdies"])
    assert result.exit_code == 2
    assert "studies" in result.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["logs", "--help"], ["parse", "--help"]])
def test_commands_that_open_no_database_load_neither_it_nor_the_sampler(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", SEEN, *arguments], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert "autotune" in loaded
    assert not loaded & {"optuna", "sqlalchemy", "alembic", "pandas", "scipy", "fastapi", "apprise"}
