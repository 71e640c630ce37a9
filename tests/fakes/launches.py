"""Launch scripts for the double of verl, and the environment in which it is found."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from autotune.launch import read_launch
from autotune.measure.cold import ColdJob
from autotune.measure.payload import write_payload
from autotune.verl.compose import Composer

FAKE_VERL = Path(__file__).resolve().parent / "fake_verl"
SCRIPT = """\
#!/bin/bash
set -x
MODEL=${MODEL:-/models/base-7b}
export NCCL_DEBUG=WARN

python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_batch_size=128 \\
    data.max_prompt_length=512 \\
    data.max_response_length=1536 \\
    actor_rollout_ref.model.path=$MODEL \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.n=8 \\
    actor_rollout_ref.rollout.max_num_seqs=64 \\
    actor_rollout_ref.rollout.max_model_len=2048 \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 \\
    trainer.device=cpu \\
    trainer.n_gpus_per_node=8 \\
    trainer.logger='["console","wandb"]'
"""


def write_script(folder: Path, text: str = SCRIPT) -> Path:
    """A script that launches the double."""
    path = folder / "train.sh"
    path.write_text(text)
    return path


def environment(**faults: str) -> dict[str, str]:
    """This process' environment with the double on the path; `faults` are its FAKE_VERL_… variables without the prefix."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FAKE_VERL_", "PYTHONPATH"))}
    named = {f"FAKE_VERL_{name.upper()}": value for name, value in faults.items()}
    return {
        **kept,
        "PYTHONPATH": str(FAKE_VERL),
        "PATH": f"{Path(sys.executable).parent}:{kept.get('PATH', '')}",
        **named,
    }


@lru_cache(maxsize=1)
def composed_config() -> Mapping[str, Any]:
    """The configuration of the double's script; composing it takes a second, and it is always the same."""
    with tempfile.TemporaryDirectory() as folder:
        launch = read_launch(write_script(Path(folder)), env={})
        with Composer(sys.executable, env=environment(), cwd=folder) as composer:
            config = composer.compose(launch.hydra_flags, launch.arguments())
    assert isinstance(config, Mapping)
    return config


def job_of_double(folder: Path, *, gpus: int = 8, **faults: str) -> ColdJob:
    """The double's script in `folder`, ready to be launched; `faults` as for `environment`."""
    text = SCRIPT.replace("n_gpus_per_node=8", f"n_gpus_per_node={gpus}")
    launch = read_launch(write_script(folder, text), env={})
    return ColdJob(
        python=sys.executable,
        entrypoint=launch.entrypoint,
        arguments=tuple(launch.arguments()),
        env=environment(**faults),
        cwd=str(folder),
        config={**composed_config(), "trainer.n_gpus_per_node": gpus},
        world_size=gpus,
        gpus=(),
        payload=write_payload(folder / "inside", cpu=False, vllm_cpu_version=None),
        simulated=True,
    )
