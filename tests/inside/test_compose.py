"""The composer, run as a script over a small configuration folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import autotune.inside
from autotune.inside import compose

SCRIPT = Path(autotune.inside.__file__).parent / "compose.py"
CONFIG = """\
defaults:
  - group: plain
  - _self_
a:
  b: 1
  twice: ${a.b}
  lost: ${no.such.key}
  unknown: ${nobody_registered_this:1}
must: ???
items: [1, "${a.b}"]
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder that looks like an installed verl to the composer."""
    config = tmp_path / "site" / "verl" / "trainer" / "config"
    (config / "group").mkdir(parents=True)
    (tmp_path / "site" / "verl" / "__init__.py").write_text("raise RuntimeError('verl must not be imported')\n")
    (config / "ppo_trainer.yaml").write_text(CONFIG)
    (config / "group" / "plain.yaml").write_text("size: 8\n")
    return tmp_path / "site"


def ask(*requests: dict[str, Any], site: Path | None, flags: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """The lines that the composer writes: its greeting, then one answer per request."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if site is not None:
        env["PYTHONPATH"] = str(site)
    done = subprocess.run(
        [sys.executable, *flags, str(SCRIPT)],
        input="".join(json.dumps(request) + "\n" for request in requests),
        capture_output=True,
        text=True,
        env=env,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def request(*overrides: str, **more: Any) -> dict[str, Any]:
    return {"id": 1, "config_name": "ppo_trainer", "overrides": list(overrides), "validate": False, **more}


def test_a_composed_configuration_is_resolved_and_what_cannot_be_is_listed(site: Path) -> None:
    _, answer = ask(request("a.b=3", "+new.key=x"), site=site)
    assert answer["config"] == {
        "group": {"size": 8},
        "a": {"b": 3, "twice": 3, "lost": None, "unknown": None},
        "must": None,
        "items": [1, 3],
        "new": {"key": "x"},
    }
    assert answer["missing"] == ["a.lost", "a.unknown", "must"]


def test_a_wrong_key_is_an_answer_and_the_next_request_is_served(site: Path) -> None:
    _, refused, served = ask(request("a.typo=3"), {**request("a.b=2"), "id": 2}, site=site)
    assert refused["error"]["kind"] == "hydra"
    assert "a.typo" in refused["error"]["message"]
    assert (served["id"], served["config"]["a"]["twice"]) == (2, 2)


def test_an_override_that_hydra_cannot_parse_is_an_answer(site: Path) -> None:
    _, answer = ask(request("a.b=[1"), site=site)
    assert answer["error"]["kind"] == "hydra"


def test_groups_of_another_folder_are_found_by_config_dir(site: Path, tmp_path: Path) -> None:
    (tmp_path / "mine" / "group").mkdir(parents=True)
    (tmp_path / "mine" / "group" / "big.yaml").write_text("size: 64\n")
    _, answer = ask(request("group=big", config_dir=str(tmp_path / "mine")), site=site)
    assert answer["config"]["group"] == {"size": 64}


def test_a_configuration_of_ones_own_is_found_by_config_path(site: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "job.yaml").write_text("x: 1\n")
    _, answer = ask(request("x=2", config_name="job", config_path=str(tmp_path / "own")), site=site)
    assert answer["config"] == {"x": 2}


def test_the_greeting_names_what_is_absent_as_null() -> None:
    (greeting,) = ask(site=None, flags=("-S",))
    assert greeting["protocol"] == 1
    assert greeting["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    absent = ("verl", "vllm", "vllm_distribution", "torch", "ray", "transformers")
    assert [greeting[name] for name in absent] == [None] * 6


def test_without_hydra_a_request_is_answered_with_an_import_error() -> None:
    _, answer = ask(request(), site=None, flags=("-S",))
    assert answer["error"]["kind"] == "import"


def test_gpus_are_counted_from_the_driver_and_limited_by_what_is_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert compose.cuda_devices(str(tmp_path)) == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert compose.cuda_devices(str(tmp_path)) == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert compose.cuda_devices(str(tmp_path)) == 0
    assert compose.cuda_devices(str(tmp_path / "no driver")) is None
