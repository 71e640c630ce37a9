"""Configurations of made-up jobs for tests of pure code."""

from __future__ import annotations

from typing import Any

from autotune.verl import keys
from autotune.verl.workload import Workload, workload_of


def config(**changes: Any) -> dict[str, Any]:
    """A flat configuration: 8 GPUs, 128 prompts × 8, 512 + 1536 tokens, GRPO. `changes` use `__` for dots."""
    flat: dict[str, Any] = {
        "actor_rollout_ref.model.path": "/models/base-7b",
        "actor_rollout_ref.rollout.name": "vllm",
        "algorithm.adv_estimator": "grpo",
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": 8,
        "trainer.device": "cuda",
        keys.ACTOR_STRATEGY: "fsdp",
        keys.TRAIN_BATCH: 128,
        keys.ACTOR_MINI_BATCH: 64,
        keys.SAMPLES: 8,
        keys.MAX_PROMPT: 512,
        keys.MAX_RESPONSE: 1536,
        keys.DYNAMIC: False,
        keys.LOG_PROB_DYNAMIC: False,
        keys.ACTOR_MICRO_BATCH: 2,
        keys.LOG_PROB_MICRO_BATCH: 4,
        keys.ACTOR_TOKENS: 16384,
        keys.LOG_PROB_TOKENS: 16384,
        keys.MAX_NUM_SEQS: 256,
        keys.MAX_BATCHED_TOKENS: 8192,
        keys.MAX_MODEL_LEN: 2048,
        keys.GPU_MEMORY: 0.5,
        keys.TENSOR_PARALLEL: 2,
        keys.CHUNKED_PREFILL: True,
        keys.USE_V1: True,
        keys.V1_MODE: "sync",
        keys.SAMPLER_PATH: None,
    }
    return {**flat, **{key.replace("__", "."): value for key, value in changes.items()}}


def job(**changes: Any) -> Workload:
    """The workload of `config(**changes)`."""
    return workload_of(config(**changes))
