"""Our own launch scripts, read by the reader and run by bash with stand-in commands in a throw-away folder: both must agree.

Only the scripts in `tests/cases/scripts_bash`, which belong to this project, are ever run.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.launch import read_launch, write_back

SCRIPTS = sorted((Path(__file__).parents[1] / "cases" / "scripts_bash").glob("*.sh"))
STAND_IN = """#!{python} -S
import json, os, sys
name, argv = os.path.basename(sys.argv[0]), sys.argv[1:]
if name not in ("python3", "python"):
    at = next((i for i, word in enumerate(argv) if word in ("python3", "python", "bash", "env")), None)
    if at is not None:
        os.environ.update(word.split("=", 1) for before, word in zip(argv, argv[1:at]) if before == "-e")
        os.execvp(argv[at], argv[at:])
    sys.exit(0)
with open({record!r}, "a") as out:
    out.write(json.dumps({{"argv": argv, "env": dict(os.environ), "cwd": os.getcwd()}}) + "\\n")
"""

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    text = STAND_IN.format(python=sys.executable, record=str(tmp_path / "record.jsonl"))
    for name in ("python3", "python", "torchrun", "ray", "srun", "docker", "conda"):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def _env(stage: Path) -> dict[str, str]:
    return {"PATH": f"{stage}/bin:/usr/bin:/bin", "HOME": str(stage / "home")}


def _run(stage: Path, script: Path) -> dict[str, Any]:
    subprocess.run(
        ["bash", str(script)],
        cwd=stage,
        env=_env(stage),
        timeout=20,
        check=False,
        capture_output=True,
    )
    lines = (stage / "record.jsonl").read_text().splitlines()
    (stage / "record.jsonl").unlink()
    assert len(lines) == 1
    record: dict[str, Any] = json.loads(lines[0])
    return record


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_bash_passes_what_the_reader_says(stage: Path, path: Path) -> None:
    script = Path(shutil.copy(path, stage / path.name))
    launch = read_launch(script, env=_env(stage), cwd=str(stage))
    real = _run(stage, script)
    start = real["argv"].index(launch.entrypoint) + 1
    assert launch.arguments() == real["argv"][start:]
    assert launch.cwd == real["cwd"]
    assert {name: real["env"].get(name) for name in launch.env} == dict(launch.env)
    added = set(real["env"]) - set(_env(stage)) - {"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}
    assert added - set(launch.env) == set()
    assert launch.unresolved == ()


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_bash_passes_what_was_written_back(stage: Path, path: Path) -> None:
    script = Path(shutil.copy(path, stage / path.name))
    launch = read_launch(script, env=_env(stage), cwd=str(stage))
    changes = {
        "data.train_batch_size": 96,
        "actor_rollout_ref.rollout.gpu_memory_utilization": 0.65,
        "trainer.hook.path": "/a b/it's.py",
    }
    before = launch.arguments()
    script.write_text(write_back(launch, changes, new_keys={"trainer.hook.path"}))
    again = read_launch(script, env=_env(stage), cwd=str(stage))
    real = _run(stage, script)
    arguments = real["argv"][real["argv"].index(launch.entrypoint) + 1 :]
    assert again.arguments() == arguments
    assert {key: again.value(key) for key in changes} == changes
    tuned = tuple(f"{mark}{key}=" for key in changes for mark in ("", "+"))
    assert [a for a in arguments if not a.startswith(tuned)] == [a for a in before if not a.startswith(tuned)]
