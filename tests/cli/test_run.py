"""`autotune run` from the outside, with the double of verl. Every figure in here is simulated."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import psutil
import pytest
import yaml
from typer.testing import CliRunner

from autotune.cli.main import app
from autotune.launch import read_launch
from tests.fakes.launches import SCRIPT, environment, write_script

AUTOTUNE = [sys.executable, "-m", "autotune.cli.main"]
ROOT = str(Path(__file__).resolve().parents[2])


def env_of(**faults: str) -> dict[str, str]:
    env = environment(**faults)
    return {**env, "PYTHONPATH": f"{ROOT}:{env['PYTHONPATH']}", "COLUMNS": "400"}


@dataclass(frozen=True)
class Ran:
    """A command that was run in this process."""

    returncode: int
    stdout: str
    stderr: str


def autotune(folder: Path, *arguments: str, **faults: str) -> Ran:
    """The command in `folder` with the double of verl on its path."""
    before, here = dict(os.environ), Path.cwd()
    os.environ.clear()
    os.environ.update(env_of(**faults))
    os.chdir(folder)
    try:
        result = CliRunner().invoke(app, list(arguments))
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(before)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.stdout, result.stderr)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A whole study of eight Points, seen from its folder."""
    folder = tmp_path_factory.mktemp("study")
    write_script(folder)
    ran = autotune(
        folder, "run", "train.sh", "--trials", "8", "--confirmations", "1", "--study", "one", "--json", noise="0.01"
    )
    assert ran.returncode == 0, ran.stderr
    return folder, json.loads(ran.stdout)


def test_a_study_finds_faster_settings_and_says_by_how_much(study):
    _, shown = study
    verdict = shown["verdict"]
    assert verdict["decision"] == "better"
    low, high = verdict["interval"]
    assert 0 < low < verdict["gain"] < high
    assert shown["baseline"]["number"] == 0
    assert shown["best"]["throughput"] > shown["baseline"]["throughput"]
    assert verdict["equivalent"] == {"config": True, "gradient": True, "trajectory": None}
    assert verdict["hook_gain"] is not None


def test_the_baseline_is_the_users_own_command_untouched(study):
    _, shown = study
    assert shown["trials"][0]["kind"] == "baseline"
    assert shown["trials"][0]["point"]["hook.fast_poll"] is False
    command = json.loads((Path(shown["trials"][0]["run_dir"]) / "command.json").read_text())["argv"]
    assert not any("custom_sampler" in argument for argument in command)


def test_everything_simulated_is_labelled(study):
    folder, shown = study
    assert shown["simulated"]
    assert all(trial["simulated"] for trial in shown["trials"])
    assert "SIMULATED" in (folder / "autotune-out/one/report.md").read_text()
    assert "SIMULATED" in (folder / "autotune-out/one/report.html").read_text()
    assert "SIMULATED" in autotune(folder, "show").stdout


def test_the_finalists_are_launched_once_more(study):
    _, shown = study
    again = [trial for trial in shown["trials"] if trial["kind"] == "confirm"]
    assert {json.dumps(trial["point"], sort_keys=True) for trial in again} == {
        json.dumps(shown["baseline"]["point"], sort_keys=True),
        json.dumps(shown["best"]["point"], sort_keys=True),
    }


def test_the_best_setting_trains_long_enough_to_show_whether_its_memory_grows(study, tmp_path):
    _, shown = study
    assert shown["verdict"]["memory"]["slope"] == 0.0
    write_script(tmp_path)
    ran = autotune(tmp_path, "run", "train.sh", "--trials", "3", "--confirmations", "1", "--runner", "cold", leak="0.8")
    assert "Its peak still grew by 0.8 GiB in every step of a launch" in " ".join(ran.stdout.split())
    assert "SIMULATED: " in ran.stdout.splitlines()[ran.stdout[: ran.stdout.index("Study ")].count("\n")]
    assert "SIMULATED Faster by" in ran.stdout


def test_what_the_hypervisor_took_of_the_deciding_launches_is_said(study, tmp_path):
    _, shown = study
    assert shown["verdict"]["cpu_stolen"] is None
    write_script(tmp_path)
    ran = autotune(tmp_path, "run", "train.sh", "--trials", "3", "--confirmations", "1", stolen="0.164")
    sentence = "The hypervisor took 16% of the CPU time that this host wanted in the launches that decided"
    assert sentence in " ".join(ran.stdout.split())
    assert sentence in " ".join(autotune(tmp_path, "show").stdout.split())


def test_best_sh_differs_from_the_script_in_tuned_overrides_alone(study):
    folder, _ = study
    path = folder / "autotune-out/one/best.sh"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    changed = yaml.safe_load((folder / "autotune-out/one/best.yaml").read_text())
    before, after = read_launch(folder / "train.sh", env={}), read_launch(path, env={})
    own = {override.key: override.typed for override in before.overrides}
    new = {override.key: override.typed for override in after.overrides}
    assert {key: value for key, value in new.items() if own.get(key) != value} == changed
    assert own.keys() <= new.keys()
    kept = [line for line in SCRIPT.splitlines() if line in path.read_text().splitlines()]
    assert len(kept) >= len(SCRIPT.splitlines()) - len(changed) - 1


def test_the_other_commands_read_what_the_study_wrote(study):
    folder, shown = study
    assert json.loads(autotune(folder, "show", "one", "--json").stdout) == shown
    listed = json.loads(autotune(folder, "studies", "--json").stdout)["studies"]
    assert [(entry["name"], entry["state"], entry["trials"]) for entry in listed] == [
        ("one", "finished", len(shown["trials"]))
    ]
    best = json.loads(autotune(folder, "best", "--format", "json").stdout)
    assert best["script"] == (folder / "autotune-out/one/best.sh").read_text()
    assert set(best["changed"]) <= set(best["overrides"])
    exported = autotune(folder, "export", "one", "--out", "again")
    assert exported.returncode == 0
    frame = pd.read_parquet(folder / "again/trials.parquet")
    assert list(frame["number"]) == [trial["number"] for trial in shown["trials"]]
    assert frame["phase_gen_s"].notna().any()


def test_a_baseline_that_fails_stops_the_study_and_says_why(tmp_path):
    write_script(tmp_path)
    ran = autotune(tmp_path, "run", "train.sh", "--trials", "5", crash="train_batch_size")
    assert ran.returncode == 1
    assert "the user's own command failed" in ran.stdout
    assert "ray_actor_died" in ran.stdout
    launch, failed, cause, again, *_ = ran.stdout[ran.stdout.index("t000") :].splitlines()
    assert launch == "t000 starting verl: the user's own command"
    assert failed.startswith("t000 failed: ray_actor_died")
    assert re.match(r" {5}\S", cause)
    assert again == "t001 starting verl: the user's own command (again)"
    (entry,) = json.loads(autotune(tmp_path, "studies", "--json").stdout)["studies"]
    assert entry["state"] == "failed"


def test_a_point_that_runs_out_of_memory_does_not_end_the_study(tmp_path):
    space = tmp_path / "s.yaml"
    key = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
    space.write_text(f"name: s\nknobs: {{{key}: [2, 64]}}\ntry_first: [{{{key}: 64}}]\n")
    write_script(tmp_path)
    ran = autotune(tmp_path, "run", "train.sh", "--space", "s.yaml", "--trials", "4", "--json")
    shown = json.loads(ran.stdout)
    assert ran.returncode == 0
    own, point = (trial for trial in shown["trials"] if trial["kind"] in ("baseline", "search"))
    assert (own["state"], point["state"]) == ("measured", "infeasible")
    assert point["failure"]["class"] == "oom_gpu"
    assert shown["verdict"]["decision"] == "nothing_fits"
    assert (tmp_path / f"autotune-out/{shown['study']}/best.sh").read_text() == SCRIPT


def test_a_setting_that_never_took_effect_is_not_counted(tmp_path):
    space = tmp_path / "s.yaml"
    key = "actor_rollout_ref.rollout.max_num_seqs"
    space.write_text(f"name: s\nknobs: {{{key}: [256, 128]}}\n")
    write_script(tmp_path, SCRIPT.replace("max_num_seqs=64", "max_num_seqs=256"))
    options = ["--space", "s.yaml", "--trials", "3", "--runner", "cold", "--json"]
    ran = autotune(tmp_path, "run", "train.sh", *options, deaf=key)
    shown = json.loads(ran.stdout)
    assert [trial["state"] for trial in shown["trials"]] == ["measured", "invalid"]
    assert "asked for 128, in effect was 256" in shown["trials"][1]["failure"]["evidence"]


def test_equal_settings_give_no_meaningful_difference_and_the_users_script(tmp_path):
    space = tmp_path / "s.yaml"
    space.write_text("name: s\nknobs: {actor_rollout_ref.rollout.gpu_memory_utilization: [0.5, 0.6, 0.7]}\n")
    write_script(tmp_path)
    ran = autotune(tmp_path, "run", "train.sh", "--space", "s.yaml", "--trials", "3", "--json", noise="0.03")
    shown = json.loads(ran.stdout)
    assert shown["verdict"]["decision"] == "no_meaningful_difference"
    assert (tmp_path / f"autotune-out/{shown['study']}/best.sh").read_text() == SCRIPT


def test_what_was_set_on_the_command_line_is_in_the_emitted_script(tmp_path):
    write_script(tmp_path)
    ran = autotune(
        tmp_path,
        "run",
        "train.sh",
        "--set",
        "data.max_response_length=1024",
        "--trials",
        "1",
        "--confirmations",
        "0",
        "--out",
        "o",
    )
    assert ran.returncode == 0, ran.stderr
    assert read_launch(tmp_path / "o/best.sh", env={}).value("data.max_response_length") == 1024


def test_a_run_name_that_only_a_shell_knows_does_not_stop_a_study(tmp_path):
    write_script(
        tmp_path, SCRIPT.replace("trainer.device=cpu", "trainer.experiment_name=run-$(date +%s) trainer.device=cpu")
    )
    ran = autotune(tmp_path, "run", "train.sh", "--trials", "1", "--confirmations", "0", "--out", "o")
    assert ran.returncode == 0, ran.stderr
    assert "trainer.experiment_name=run-$(date +%s)" in (tmp_path / "o/best.sh").read_text()


def test_any_other_value_that_only_a_shell_knows_is_asked_for(tmp_path):
    write_script(tmp_path, SCRIPT.replace("data.train_batch_size=128", "data.train_batch_size=$(cat size)"))
    ran = autotune(tmp_path, "run", "train.sh")
    assert ran.returncode == 2
    assert "data.train_batch_size" in ran.stderr
    assert "--set" in ran.stderr


def test_a_launch_through_a_cluster_tool_is_not_started_in_its_place(tmp_path):
    write_script(tmp_path, SCRIPT.replace("python3 -m", "srun --nodes=1 python3 -m"))
    ran = autotune(tmp_path, "run", "train.sh")
    assert ran.returncode == 2
    assert "through srun" in ran.stderr


def test_a_dry_run_launches_nothing_and_writes_nothing(tmp_path):
    write_script(tmp_path)
    ran = autotune(tmp_path, "run", "train.sh", "--dry-run", "--json")
    assert ran.returncode == 0
    said = json.loads(ran.stdout)
    assert said["baseline"]["actor_rollout_ref.rollout.max_num_seqs"] == 64
    assert 64 in said["space"]["actor_rollout_ref.rollout.max_num_seqs"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.sh"]


def test_an_interrupt_keeps_what_was_measured_and_leaves_no_process(tmp_path):
    write_script(tmp_path)
    running = subprocess.Popen(
        [*AUTOTUNE, "run", "train.sh", "--trials", "30", "--study", "cut"],
        cwd=tmp_path,
        env=env_of(step_seconds="0.15"),
        stdout=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not list(tmp_path.glob("autotune-out/cut/runs/t001/*")):
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    output, _ = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "autotune show cut" in output
    shown = json.loads(autotune(tmp_path, "show", "cut", "--json").stdout)
    assert shown["state"] == "stopped"
    assert shown["trials"][0]["state"] == "measured"
    assert {(t["failure"] or {}).get("class", t["state"]) for t in shown["trials"][1:]} <= {"measured", "interrupted"}
    assert len(shown["trials"]) < 30
    assert not [p for p in psutil.process_iter() if _in(p, tmp_path)]


def _in(process: psutil.Process, folder: Path) -> bool:
    try:
        return str(folder) in " ".join(process.cmdline())
    except psutil.Error:
        return False


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "nothing.sh"], "nothing.sh"),
        (["run"], "no script was named"),
        (["run", "empty.sh"], "launches no verl trainer"),
        (["run", "train.sh", "--gpus", "4"], "trains on 8"),
        (["run", "train.sh", "--space", "nope"], "grpo_fsdp_vllm"),
        (["run", "train.sh", "--space", "bad.yaml"], "did you mean"),
        (["run", "train.sh", "--python", "/bin/true"], "/bin/true"),
        (["run", "train.sh", "--python", "no-such-python"], "no such program"),
        (["run", "train.sh", "--storage", "sqlite:////nowhere/t.db"], "/nowhere"),
        (["run", "train.sh", "--storage", "oracle://x"], "SQLite or PostgreSQL"),
        (["run", "train.sh", "--set", "no-equals"], "NAME=VALUE"),
        (["run", "train.sh", "--set", "a.b.c=1"], "a.b.c"),
        (["run", "train.sh", "--set", "data.train_batch_size=127"], "127"),
        (["run", "train.sh", "--set", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=3"], "does not divide"),
        (["run", "train.sh", "--set", "trainer.nnodes=2", "--gpus", "16"], "2 nodes"),
        (["run", "train.sh", "--set", "trainer.device=cuda"], "GPUs; this host shows"),
        (["run", "train.sh", "--allow", "semantic"], "never changes what the model learns"),
        (["run", "train.sh", "--time-budget", "soon"], "6h"),
        (["run", "train.sh", "--setup", "true"], "--yes"),
        (["run", "train.sh", "--demo"], "brings its own script"),
        (["show"], "no study was run here"),
        (["best", "x"], "no study was run here"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_sentence_with_exit_2_and_nothing_written(tmp_path, arguments, said):
    write_script(tmp_path)
    if arguments == ["run"]:
        (tmp_path / "train.sh").unlink()
    (tmp_path / "empty.sh").write_text("echo hello\n")
    (tmp_path / "bad.yaml").write_text("name: bad\nknobs: {actor_rollout_ref.rollout.max_num_seq: auto}\n")
    before = sorted(path.name for path in tmp_path.iterdir())
    ran = autotune(tmp_path, *arguments)
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert said in " ".join(ran.stderr.split())
    assert ran.stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_an_interpreter_without_verl_is_named(tmp_path):
    write_script(tmp_path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    env = {**env_of(), "PYTHONPATH": ROOT}
    ran = subprocess.run(
        [*AUTOTUNE, "run", "train.sh", "--python", "bare/bin/python"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert "has no verl" in ran.stderr
    assert "--python" in ran.stderr


def test_a_study_name_is_used_once(study):
    folder, _ = study
    ran = autotune(folder, "run", "train.sh", "--study", "one")
    assert ran.returncode == 2
    assert "choose another name" in ran.stderr


def test_a_password_in_the_script_reaches_no_stored_text(tmp_path):
    write_script(tmp_path, SCRIPT.replace("export NCCL_DEBUG=WARN", "export WANDB_API_KEY=sk-very-secret-1234"))
    ran = autotune(tmp_path, "run", "train.sh", "--trials", "1", "--confirmations", "0")
    assert ran.returncode == 0, ran.stderr
    assert b"sk-very-secret-1234" not in (tmp_path / "trials.db").read_bytes()
    assert os.path.exists(tmp_path / "trials.db")
