"""`studies`, `show`, `best` and `export` over a database filled in by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from autotune.cli import console as terminal
from autotune.cli.main import app
from autotune.store.store import Store
from autotune.values import Point, TrialKind
from autotune.verl import keys
from tests.studies import BASELINE, CHANGES, add_study, add_trial, failure, finished_study, measurement, verdict

Call = Callable[..., Result]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'trials.db'}"


@pytest.fixture
def store(url: str) -> Store:
    return Store.open(url)


@pytest.fixture
def call(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs a command on the database, wide enough that no line breaks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(terminal.out, "_width", 400)

    def run(*arguments: str, storage: str = url) -> Result:
        return CliRunner().invoke(app, [*arguments, "--storage", storage], catch_exceptions=False)

    return run


def loads(result: Result) -> Any:
    def no_constant(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(result.stdout, parse_constant=no_constant)


def test_studies_are_listed_oldest_first(store: Store, call: Call) -> None:
    finished_study(store, "old")
    add_study(store, "new", workload="[red]x[/red]")
    result = call("studies")
    assert result.exit_code == 0
    lines = [line for line in result.stdout.splitlines() if "SIMULATED" in line]
    assert ["old" in lines[0], "new" in lines[1]] == [True, True]
    assert "+50.0 %" in lines[0]
    assert "[red]x[/red]" in lines[1]


def test_studies_as_json(store: Store, call: Call) -> None:
    finished_study(store, "old")
    add_study(store, "new")
    found = loads(call("studies", "--json"))
    assert list(found) == ["studies"]
    old, new = found["studies"]
    assert {key: old[key] for key in ("name", "trials", "best", "gain", "state")} == {
        "name": "old", "trials": 4, "best": 3, "gain": 0.5, "state": "finished",
    }  # fmt: skip
    assert old["created"].endswith("+00:00")
    assert (new["best"], new["gain"], new["state"], new["trials"]) == (None, None, "interrupted", 0)


def test_show_takes_the_newest_study_by_default(store: Store, call: Call) -> None:
    finished_study(store, "old")
    add_study(store, "new")
    assert loads(call("show", "--json"))["study"] == "new"
    assert loads(call("show", "old", "--json"))["study"] == "old"


def test_show_as_json_has_the_promised_shape(store: Store, call: Call) -> None:
    finished_study(store)
    found = loads(call("show", "--json"))
    assert {"study", "baseline", "best", "verdict", "trials", "sessions"} <= set(found)
    assert {"decision", "gain", "hook_gain", "interval", "launches", "equivalent"} <= set(found["verdict"])
    assert found["verdict"]["equivalent"] == {"config": True, "gradient": None, "trajectory": None}
    assert (found["baseline"]["number"], found["best"]["number"]) == (0, 3)
    promised = {
        "number", "state", "point", "throughput", "mfu", "phases", "memory", "failure", "session", "source", "work",
        "engine", "settling_steps", "simulated",
    }  # fmt: skip
    for trial in found["trials"]:
        assert promised <= set(trial)
    assert [trial["state"] for trial in found["trials"]] == ["measured", "infeasible", "measured", "measured"]
    assert found["trials"][1]["failure"] == failure().to_json()
    assert found["trials"][2]["point"] == {**BASELINE.as_dict(), **CHANGES}
    assert found["trials"][2]["throughput"] == pytest.approx(400.0)
    assert all(trial["simulated"] for trial in found["trials"])


def test_show_of_a_running_study_tells_live_steps_and_no_verdict(store: Store, call: Call) -> None:
    study = add_study(store)
    add_trial(store, study, BASELINE, TrialKind.BASELINE)
    found = loads(call("show", "--json"))
    assert (found["verdict"], found["best"], found["trials"][0]["state"]) == (None, None, "running")
    result = call("show")
    assert result.exit_code == 0
    assert "no verdict yet" in result.stdout


def test_show_prints_verdict_phases_trials_and_remedies(store: Store, call: Call) -> None:
    finished_study(store)
    said = call("show").stdout
    assert "night SIMULATED" in said
    assert "Faster by +50.0 % (95 % interval +40.0 % to +60.0 %)." in said
    assert "config: yes, gradient: not measured, trajectory: not measured" in said
    assert said.index("your command (t000): 2.00 s/step, 250.0 tokens/s/GPU") < said.index("best (t003): 1.33 s/step")
    assert any("gen" in line and "1.20 s" in line and "60%" in line for line in said.splitlines())
    assert "t001 oom_gpu in update_actor: torch.OutOfMemoryError: CUDA out of memory" in said
    assert "Lower the micro-batch." in said
    row = next(line for line in said.splitlines() if "t002" in line)
    assert "+60.0 %" in row
    assert "rollout.max_num_seqs=64" in row


def test_show_prints_markup_in_stored_text_as_it_is(store: Store, call: Call) -> None:
    study = add_study(store, workload="[bold]w[/bold]")
    add_trial(store, study, BASELINE, TrialKind.BASELINE, measurement(2.0))
    add_trial(store, study, Point.of({**BASELINE.as_dict(), "a.b.c": "[/x]"}), outcome=failure("[link=x] [/] \\"))
    store.set_verdict(
        study, verdict(decision="no_meaningful_difference", gain=None, reason="[/] [red]", best_number=None)
    )
    result = call("show")
    assert result.exit_code == 0
    for text in ("[bold]w[/bold]", "[/x]", "[link=x] [/] \\", "[/] [red]"):
        assert text in result.stdout


@pytest.fixture
def written(store: Store, tmp_path: Path) -> Path:
    """A finished study whose best.sh is there."""
    out = tmp_path / "out"
    out.mkdir()
    finished_study(store, settings={"out": str(out), "baseline": BASELINE.as_dict()})
    (out / "best.sh").write_text("python3 -m verl.trainer.main_ppo \\\n  a=ü\n", encoding="utf-8")
    return out


def test_best_prints_the_script_byte_by_byte(written: Path, call: Call) -> None:
    result = call("best", "night")
    assert result.exit_code == 0
    assert result.stdout_bytes == (written / "best.sh").read_bytes()


def test_best_as_json_has_every_knob_and_the_script(written: Path, call: Call) -> None:
    found = loads(call("best", "--json"))
    assert found == {
        "overrides": {keys.MAX_NUM_SEQS: 64, keys.ACTOR_MICRO_BATCH: 4, keys.FAST_POLL: False},
        "changed": sorted(CHANGES),
        "script": (written / "best.sh").read_text(encoding="utf-8"),
    }
    assert loads(call("best", "--format", "json")) == found


def test_best_as_yaml_has_what_changed(written: Path, call: Call) -> None:
    assert yaml.safe_load(call("best", "--format", "yaml").stdout) == CHANGES


def test_best_without_its_script_says_so_and_still_gives_the_settings(written: Path, call: Call) -> None:
    (written / "best.sh").unlink()
    for arguments in (("best",), ("best", "--json")):
        result = call(*arguments)
        assert result.exit_code == 1
        assert "best.sh, which the study wrote, is gone" in " ".join(result.stderr.split())
    assert yaml.safe_load(call("best", "--format", "yaml").stdout) == CHANGES


def test_best_of_a_study_without_a_result_fails(store: Store, call: Call) -> None:
    add_study(store)
    result = call("best", "--json")
    assert result.exit_code == 1
    assert loads(result)["error"]["code"] == "RUN_FAILED"
    assert "no result yet (it is running)" in result.stderr


def test_export_writes_report_settings_and_trials(store: Store, call: Call, tmp_path: Path) -> None:
    finished_study(store)
    result = call("export", "night", "--out", "there", "--json")
    assert result.exit_code == 0
    assert {Path(path).name for path in loads(result)["files"]} == {
        "report.html",
        "report.md",
        "best.yaml",
        "trials.parquet",
    }
    assert yaml.safe_load((tmp_path / "there" / "best.yaml").read_text()) == CHANGES
    assert "Faster by" in (tmp_path / "there" / "report.md").read_text()


def test_export_does_not_write_over_files_of_the_current_folder(store: Store, call: Call, tmp_path: Path) -> None:
    finished_study(store)
    (tmp_path / "report.md").write_text("mine")
    assert call("export").exit_code == 0
    assert (tmp_path / "report.md").read_text() == "mine"
    assert (tmp_path / "autotune-export" / "night" / "report.md").is_file()


def test_export_into_a_file_is_bad_input(store: Store, call: Call, tmp_path: Path) -> None:
    finished_study(store)
    (tmp_path / "there").write_text("mine")
    result = call("export", "--out", "there")
    assert result.exit_code == 2
    assert "output folder" in result.stderr


COMMANDS = [("studies",), ("show",), ("best",), ("export",)]


@pytest.mark.parametrize("command", COMMANDS)
def test_database_that_is_not_there_is_bad_input_and_is_not_made(
    command: tuple[str], call: Call, tmp_path: Path
) -> None:
    result = call(*command, "--json")
    assert result.exit_code == 2
    assert loads(result)["error"]["code"] == "BAD_INPUT"
    assert "no study was run here yet" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_file_that_is_no_database_is_bad_input(command: tuple[str], call: Call, tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("no database at all")
    result = call(*command, storage="sqlite:///notes.db")
    assert result.exit_code == 2
    assert "no SQLite database" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("command", COMMANDS[1:])
def test_unknown_study_is_bad_input_that_names_near_ones(command: tuple[str], store: Store, call: Call) -> None:
    finished_study(store)
    result = call(*command, "nihgt")
    assert result.exit_code == 2
    assert "did you mean night?" in result.stderr


@pytest.mark.parametrize("command", COMMANDS[1:])
def test_database_without_a_study_is_bad_input(command: tuple[str], store: Store, call: Call) -> None:
    result = call(*command)
    assert result.exit_code == 2
    assert "holds no study yet" in result.stderr
