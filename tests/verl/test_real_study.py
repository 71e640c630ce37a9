"""A whole study of real verl 0.9.1 with real vLLM on the CPU: measured, rejected, confirmed, written back, cleaned up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from autotune.launch import read_launch
from autotune.verl import keys

pytestmark = [pytest.mark.verl, pytest.mark.timeout(1500)]

SPACE = f"""\
name: short
about: Points that tell; one of them cannot start
knobs:
  {keys.ACTOR_MICRO_BATCH}: [1, 16]
  {keys.LOG_PROB_MICRO_BATCH}: [1, 32]
  {keys.MAX_NUM_SEQS}: [8, 64]
  {keys.GPU_MEMORY}: [0.01, 0.1]
try_first:
  - {keys.GPU_MEMORY}: 0.01
"""


def processes_of(folder: Path) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder) in " ".join(process.cmdline()) or str(folder) in str(process.environ()):
                found.append(f"{process.pid} {process.name()}")
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue
    return found


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    (folder / "space.yaml").write_text(SPACE)
    shared_memory, temporary = set(os.listdir("/dev/shm")), set(Path("/tmp").glob("at-*"))
    arguments = [
        "--demo",
        "--space",
        "space.yaml",
        "--trials",
        "3",
        "--confirmations",
        "2",
        "--out",
        "out",
        "--study",
        "real",
        "--json",
    ]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [sys.executable, "-m", "autotune.cli.main", "run", *arguments],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    left = {
        "processes": processes_of(folder),
        "shared_memory": sorted(set(os.listdir("/dev/shm")) - shared_memory),
        "temporary": sorted(set(Path("/tmp").glob("at-*")) - temporary),
    }
    return folder, json.loads(ran.stdout), left


def drifted(trial):
    """Whether it was measured once more because the host became faster or slower inside the session."""
    return "drifted" in trial["origin"]


def test_the_baseline_is_measured_and_a_point_that_verl_rejects_is_survived(study):
    _, shown, _ = study
    states = {
        kind: [t["state"] for t in shown["trials"] if t["kind"] == kind and not drifted(t)]
        for kind in ("baseline", "search", "confirm")
    }
    assert states == {"baseline": ["measured"], "search": ["infeasible", "measured"], "confirm": ["measured"] * 4}
    rejected = next(t for t in shown["trials"] if t["state"] == "infeasible")
    assert rejected["failure"]["class"] == "vllm_kv_cache"
    assert rejected["failure"]["phase"] == "init_rollout"
    assert not shown["simulated"]


def test_the_search_ran_in_a_session_and_the_finalists_in_launches_of_their_own(study):
    _, shown, _ = study
    assert len(shown["sessions"]) == 1 + any(drifted(trial) for trial in shown["trials"])
    for session in shown["sessions"]:
        assert session["points"] >= 1
        assert session["baseline_throughput"] > 0
    found = {(t["kind"], t["session"] is None) for t in shown["trials"] if t["state"] == "measured"}
    assert found == {("baseline", True), ("search", False), ("anchor", False), ("confirm", True)}
    assert shown["verdict"]["equivalent"]["gradient"] is True


def test_larger_batches_are_faster_and_the_verdict_says_so(study):
    _, shown, _ = study
    verdict = shown["verdict"]
    assert verdict["decision"] == "better"
    assert verdict["interval"][0] > 0
    assert shown["best"]["point"][keys.MAX_NUM_SEQS] == 64
    assert verdict["equivalent"]["config"] is True


def test_what_was_asked_for_is_what_verl_and_vllm_ran_with(study):
    _, shown, _ = study
    echo = shown["best"]["echo"]
    assert echo[keys.MAX_NUM_SEQS] == 64
    assert echo[keys.ACTOR_MICRO_BATCH] == 16
    assert echo[keys.LOG_PROB_MICRO_BATCH] == 32


def test_a_measurement_has_its_phases_and_leaves_the_first_step_out(study):
    _, shown, _ = study
    baseline = shown["baseline"]
    assert baseline["settling_steps"] == 1
    assert baseline["counted_steps"] >= 2
    for phase in ("gen", "old_log_prob", "update_actor", "update_weights"):
        assert baseline["phases"][phase] > 0
    assert sum(baseline["phases"].values()) == pytest.approx(baseline["step_seconds"], rel=0.02)


def test_best_sh_is_the_users_script_with_the_winning_overrides(study):
    folder, _, _ = study
    best = read_launch(folder / "out/best.sh", env={})
    assert best.value(keys.MAX_NUM_SEQS) == 64
    assert best.value(keys.ACTOR_MICRO_BATCH) == 16
    assert subprocess.run(["bash", "-n", str(folder / "out/best.sh")], check=False).returncode == 0
    assert (folder / "out/report.md").is_file()


def test_nothing_is_left_behind(study):
    _, _, left = study
    assert left == {"processes": [], "shared_memory": [], "temporary": []}
