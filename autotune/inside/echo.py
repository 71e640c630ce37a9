"""Reports the values that really took effect, one JSON file per process, into $AUTOTUNE_ECHO_DIR.

A setting that was asked for and never arrived makes a measurement a lie (verl issues 2960, 140, 677): the tuner
compares what stands here with what it wanted. Without the variable nothing is written.
"""

import functools
import json
import os

from autotune.inside import PROTOCOL
from autotune.inside.imports import after_import

FOLDER = "AUTOTUNE_ECHO_DIR"

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_REF = "actor_rollout_ref.ref"
_KEYS = {
    "update_actor": (
        f"{_ACTOR}.use_dynamic_bsz",
        f"{_ACTOR}.ppo_max_token_len_per_gpu",
        f"{_ACTOR}.ppo_micro_batch_size_per_gpu",
    ),
    "old_log_prob": (
        f"{_ROLLOUT}.log_prob_use_dynamic_bsz",
        f"{_ROLLOUT}.log_prob_max_token_len_per_gpu",
        f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    ),
    "ref": (
        f"{_REF}.log_prob_use_dynamic_bsz",
        f"{_REF}.log_prob_max_token_len_per_gpu",
        f"{_REF}.log_prob_micro_batch_size_per_gpu",
    ),
    "values": (None, "critic.ppo_infer_max_token_len_per_gpu", None),
    "update_critic": (None, "critic.ppo_infer_max_token_len_per_gpu", None),
}


class Echo:
    """The report of one process; written again whenever something in it changed."""

    def __init__(self, role):
        self._role = role
        self._values = {}
        self._extra = {}

    def say(self, values, extra=None):
        """Adds values by knob key, and facts that are no knobs."""
        before = (dict(self._values), dict(self._extra))
        self._values.update(values)
        self._extra.update(extra or {})
        if (self._values, self._extra) != before:
            self._write()

    def _write(self):
        folder = os.environ.get(FOLDER)
        if not folder:
            return
        report = {
            "protocol": PROTOCOL,
            "role": self._role,
            "pid": os.getpid(),
            "values": self._values,
            "extra": self._extra,
        }
        path = os.path.join(folder, f"{self._role}-{os.getpid()}.json")
        try:
            with open(path + ".new", "w", encoding="utf-8") as sink:
                json.dump(report, sink)
            os.replace(path + ".new", path)
        except OSError as error:  # a full disk must not end the training; the tuner sees that the report is missing
            print(f"autotune: the echo could not be written: {error}", flush=True)


def training_phase(engine, forward_only):
    """The phase that an engine call belongs to, by what kind of engine it is."""
    kind = type(engine).__name__
    if "ValueHead" in kind:
        return "values" if forward_only else "update_critic"
    if getattr(engine.engine_config, "forward_only", False):
        return "ref"
    return "old_log_prob" if forward_only else "update_actor"


def training_values(phase, dynamic, tokens, micro_batch):
    """What took effect in a phase, by knob key; the size that is not used is left out."""
    dynamic_key, tokens_key, micro_key = _KEYS[phase]
    values = {}
    if dynamic_key is not None:
        values[dynamic_key] = bool(dynamic)
    if dynamic and tokens_key is not None and tokens is not None:
        values[tokens_key] = int(tokens)
    if not dynamic and micro_key is not None and micro_batch is not None:
        values[micro_key] = int(micro_batch)
    return values


def _watch_training(module):
    """FSDP engines: reads the sizes where the batch is cut (engine/fsdp/transformer_impl.py:737)."""
    from verl.utils import tensordict_utils as tu

    echo = Echo("trainer")
    engine_class = module.FSDPEngine
    cut = module.prepare_micro_batches
    run = engine_class.forward_backward_batch
    last = {}

    @functools.wraps(cut)
    def prepare_micro_batches(*args, **kwargs):
        data = kwargs["data"] if "data" in kwargs else args[0]
        result = cut(*args, **kwargs)
        for key in ("use_dynamic_bsz", "max_token_len_per_gpu", "micro_batch_size_per_gpu"):
            last[key] = tu.get_non_tensor_data(data=data, key=key, default=None)
        last["micro_batches"] = len(result[0])
        return result

    @functools.wraps(run)
    def forward_backward_batch(self, data, loss_function, forward_only=False):
        result = run(self, data, loss_function, forward_only=forward_only)
        phase = training_phase(self, forward_only)
        values = training_values(
            phase, last["use_dynamic_bsz"], last["max_token_len_per_gpu"], last["micro_batch_size_per_gpu"]
        )
        echo.say(values, {f"{phase}.micro_batches": last["micro_batches"]})
        return result

    module.prepare_micro_batches = prepare_micro_batches
    engine_class.forward_backward_batch = forward_backward_batch


def engine_values(config):
    """What a vLLM engine was really built with, by knob key."""
    scheduler, cache, parallel, model = (
        config.scheduler_config,
        config.cache_config,
        config.parallel_config,
        config.model_config,
    )
    return {
        f"{_ROLLOUT}.max_num_seqs": scheduler.max_num_seqs,
        f"{_ROLLOUT}.max_num_batched_tokens": scheduler.max_num_batched_tokens,
        f"{_ROLLOUT}.gpu_memory_utilization": cache.gpu_memory_utilization,
        f"{_ROLLOUT}.tensor_model_parallel_size": parallel.tensor_parallel_size,
        f"{_ROLLOUT}.max_model_len": model.max_model_len,
        f"{_ROLLOUT}.enforce_eager": model.enforce_eager,
    }


def _watch_engine(module):
    """vLLM's engine core, once it has sized its cache (v1/core of vLLM, `_initialize_kv_caches`)."""
    echo = Echo("engine")
    core_class = module.EngineCore
    sized = core_class._initialize_kv_caches

    @functools.wraps(sized)
    def _initialize_kv_caches(self, vllm_config):
        result = sized(self, vllm_config)
        echo.say(
            engine_values(vllm_config),
            {
                "kv_blocks": vllm_config.cache_config.num_gpu_blocks,
                "kv_block_size": vllm_config.cache_config.block_size,
            },
        )
        return result

    core_class._initialize_kv_caches = _initialize_kv_caches


def _watch_poll(module):
    """The interval at which the v1 trainer looks for the end of generation (replay_buffer.py:144)."""
    echo = Echo("sampler")
    made = module.ReplayBuffer.__init__

    @functools.wraps(made)
    def __init__(self, *args, **kwargs):
        made(self, *args, **kwargs)
        interval = float(self.poll_interval)
        echo.say({"hook.fast_poll": interval < 1.0}, {"poll_interval": interval})

    module.ReplayBuffer.__init__ = __init__


def watch_trainer():
    """In processes that import verl."""
    if os.environ.get(FOLDER):
        after_import("verl.workers.engine.fsdp.transformer_impl", _watch_training)
        after_import("verl.trainer.ppo.v1.replay_buffer", _watch_poll)


def watch_engine():
    """In processes of vLLM."""
    if os.environ.get(FOLDER):
        after_import("vllm.v1.engine.core", _watch_engine)
