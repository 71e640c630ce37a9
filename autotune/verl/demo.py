"""The demo's training job: a launch script of the plain form for a tiny model, made on the spot."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

from autotune.values import BadInput

_ASSETS = Path(__file__).resolve().parents[1] / "inside" / "demo_assets.py"

# The start is deliberately timid (micro-batch 1, eight sequences at a time), as many scripts are on which a job once ran
# out of memory. Everything else is what the CPU needs: fp32 (bf16 training crawls without AMX), sdpa attention, eager
# vLLM without sleep mode, weights in small buckets, and logical CPUs and a logical GPU for Ray.
_SCRIPT = """\
#!/usr/bin/env bash
# GRPO with a tiny random model on the CPU: real verl, real vLLM, no GPU. Made by `autotune run --demo`.
set -euo pipefail

{exports}
PYTHON={python}
DEMO={folder}

"$PYTHON" -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    algorithm.use_kl_in_reward=False \\
    data.train_files="$DEMO/train.parquet" \\
    data.val_files="$DEMO/val.parquet" \\
    data.train_batch_size=16 \\
    data.max_prompt_length=64 \\
    data.max_response_length=32 \\
    data.dataloader_num_workers=0 \\
    actor_rollout_ref.model.path="$DEMO/model" \\
    actor_rollout_ref.model.use_remove_padding=False \\
    actor_rollout_ref.model.enable_gradient_checkpointing=False \\
    +actor_rollout_ref.model.override_config.attn_implementation=sdpa \\
    actor_rollout_ref.actor.strategy=fsdp2 \\
    actor_rollout_ref.actor.optim.lr=1e-5 \\
    actor_rollout_ref.actor.use_kl_loss=False \\
    actor_rollout_ref.actor.ppo_mini_batch_size=16 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \\
    actor_rollout_ref.actor.fsdp_config.use_torch_compile=False \\
    +actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32 \\
    +actor_rollout_ref.actor.fsdp_config.mixed_precision.reduce_dtype=fp32 \\
    +actor_rollout_ref.actor.fsdp_config.mixed_precision.buffer_dtype=fp32 \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.n=4 \\
    actor_rollout_ref.rollout.dtype=float32 \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.1 \\
    actor_rollout_ref.rollout.max_model_len=128 \\
    actor_rollout_ref.rollout.max_num_seqs=8 \\
    actor_rollout_ref.rollout.max_num_batched_tokens=1024 \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 \\
    actor_rollout_ref.rollout.enforce_eager=True \\
    actor_rollout_ref.rollout.free_cache_engine=False \\
    +actor_rollout_ref.rollout.enable_sleep_mode=False \\
    actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=64 \\
    actor_rollout_ref.rollout.agent.num_workers=1 \\
    reward.num_workers=1 \\
    reward.custom_reward_function.path="$DEMO/reward.py" \\
    transfer_queue.backend.SimpleStorage.num_data_storage_units=1 \\
    trainer.device=cpu \\
    trainer.nnodes=1 \\
    trainer.n_gpus_per_node=1 \\
    trainer.total_epochs=100 \\
    trainer.total_training_steps=5 \\
    trainer.val_before_train=False \\
    trainer.test_freq=-1 \\
    trainer.save_freq=-1 \\
    trainer.resume_mode=disable \\
    trainer.default_local_dir="$DEMO/checkpoints" \\
    trainer.project_name=autotune \\
    trainer.experiment_name=demo \\
    trainer.logger=[console,file] \\
    ray_kwargs.ray_init.num_cpus=16 \\
    +ray_kwargs.ray_init.num_gpus=1 \\
    +ray_kwargs.ray_init.include_dashboard=False
"""

_OFFLINE: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
}


def write_demo(folder: Path, python: str, *, environment: Mapping[str, str]) -> Path:
    """Makes model, tokenizer, data and reward under `folder` and writes the script that trains on them.

    Args:
        python: interpreter that has verl; it also makes the model.
        environment: what verl needs to be told on the CPU; exported by the script, so that plain bash runs it too.

    Returns:
        Path of `demo.sh`.

    Raises:
        BadInput: the folder cannot be written, or the interpreter lacks torch, transformers or tokenizers.
    """
    folder = folder.resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"cannot make the demo's folder {folder}: {error.strerror}; choose another one with --out"
        ) from error
    made = subprocess.run(
        [python, str(_ASSETS), str(folder)], capture_output=True, text=True, env={**os.environ, **_OFFLINE}, check=False
    )
    if made.returncode != 0:
        last = made.stderr.strip().splitlines()[-1:] or ["no message"]
        raise BadInput(
            f"{python} cannot make the demo's model ({last[0]}); the demo needs verl with torch and transformers there"
        )
    # Ray gives its workers nice 15: beside any other program on the same cores the demo would crawl.
    variables = {
        **environment,
        **_OFFLINE,
        "RAY_worker_niceness": "0",
        "OMP_NUM_THREADS": str(min(4, os.cpu_count() or 1)),
    }
    exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in sorted(variables.items()))
    script = folder / "demo.sh"
    script.write_text(
        _SCRIPT.format(exports=exports, python=shlex.quote(python), folder=shlex.quote(str(folder))), encoding="utf-8"
    )
    script.chmod(0o755)
    return script
