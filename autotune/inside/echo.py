"""Reports the values that really took effect, one JSON file per process, into $AUTOTUNE_ECHO_DIR.

A setting that was asked for and never arrived makes a measurement a lie (verl issues 2960, 140, 677): the tuner
compares what stands here with what it wanted. Without the variable nothing is written.
"""

import functools
import json
import os
import sys
from collections.abc import Callable
from typing import Any

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


_TALKERS: "list[Echo]" = []
"""Every report of this process."""


class Echo:
    """The report of one process; written again whenever something in it changed."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._values: dict[str, Any] = {}
        self._extra: dict[str, Any] = {}
        _TALKERS.append(self)

    def say(self, values: dict[str, Any], extra: dict[str, Any] | None = None) -> None:
        """Adds values by knob key, and facts that are no knobs."""
        before = (dict(self._values), dict(self._extra))
        self._values.update(values)
        self._extra.update(extra or {})
        if (self._values, self._extra) != before:
            self._write()

    def told(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What was said: values by knob key, and facts that are no knobs."""
        return self._values, self._extra

    def forget(self) -> None:
        """Starts anew: what the next setting leaves unsaid must not seem to be in effect."""
        self._values, self._extra = {}, {}

    def _write(self) -> None:
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
        except (OSError, TypeError, ValueError) as error:
            # A full disk or a value that JSON lacks must not end the training; the tuner sees that the report is missing.
            complain(f"the report {path} could not be written: {error}")


def collect(*, keep: bool = False) -> dict[str, Any]:
    """What this process has said (`values`, `extra`) since it was last asked, or since ever with `keep`."""
    values: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for talker in _TALKERS:
        said, facts = talker.told()
        values.update(said)
        extra.update(facts)
        if not keep:
            talker.forget()
    return {"values": values, "extra": extra}


def complain(message: str) -> None:
    """One line on standard error; standard output belongs to the job."""
    print(f"autotune echo: {message}", file=sys.stderr, flush=True)


def parts(owner: Any, *names: str) -> list[Any] | None:
    """The named attributes of a module or class; None if one is absent, as in a release that this was not written for.

    A report that cannot be made must not turn the import of verl's or vLLM's module into an error.
    """
    found = [getattr(owner, name, None) for name in names]
    absent = [name for name, value in zip(names, found, strict=True) if value is None]
    if absent:
        complain(f"{getattr(owner, '__name__', owner)} has no {', '.join(absent)}; its values are not reported")
        return None
    return found


def training_phase(engine: Any, forward_only: bool) -> str:
    """The phase that an engine call belongs to, by what kind of engine it is.

    A reference policy that is the actor without its LoRA adapter runs on the actor's engine and counts as `old_log_prob`:
    its sizes are then those of the actor's engine too (engine_workers.py:407-410).
    """
    if "ValueHead" in type(engine).__name__:
        return "values" if forward_only else "update_critic"
    if getattr(getattr(engine, "engine_config", None), "forward_only", False):
        return "ref"
    return "old_log_prob" if forward_only else "update_actor"


def training_values(phase: str, dynamic: Any, tokens: Any, micro_batch: Any) -> dict[str, Any]:
    """What took effect in a phase, by knob key; the size that is not used is left out, and so is what is unknown."""
    dynamic_key, tokens_key, micro_key = _KEYS[phase]
    values = {}
    if dynamic_key is not None and isinstance(dynamic, bool):
        values[dynamic_key] = dynamic
    if dynamic and tokens_key is not None and _whole(tokens):
        values[tokens_key] = tokens
    if dynamic is False and micro_key is not None and _whole(micro_batch):
        values[micro_key] = micro_batch
    return values


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _watch_training(module: Any) -> None:
    """FSDP engines: reads the sizes where the batch is cut (engine/fsdp/transformer_impl.py:737)."""
    found = parts(module, "FSDPEngine", "prepare_micro_batches")
    if found is None:
        return
    engine_class, cut = found
    running = parts(engine_class, "forward_backward_batch")
    if running is None:
        return
    (run,) = running
    from verl.utils import tensordict_utils as tu

    echo = Echo("trainer")
    last: dict[str, Any] = {}

    @functools.wraps(cut)
    def prepare_micro_batches(*args: Any, **kwargs: Any) -> Any:
        result = cut(*args, **kwargs)
        data = kwargs["data"] if "data" in kwargs else args[0]
        for key in ("use_dynamic_bsz", "max_token_len_per_gpu", "micro_batch_size_per_gpu"):
            last[key] = tu.get_non_tensor_data(data=data, key=key, default=None)
        last["micro_batches"] = len(result[0])
        return result

    @functools.wraps(run)
    def forward_backward_batch(self: Any, data: Any, loss_function: Any, forward_only: bool = False) -> Any:
        last.clear()  # an engine that cuts its batch elsewhere must not be given the sizes of the call before
        result = run(self, data, loss_function, forward_only=forward_only)
        if last:
            phase = training_phase(self, forward_only)
            values = training_values(
                phase, last["use_dynamic_bsz"], last["max_token_len_per_gpu"], last["micro_batch_size_per_gpu"]
            )
            echo.say(values, {f"{phase}.micro_batches": last["micro_batches"]})
        return result

    module.prepare_micro_batches = prepare_micro_batches
    engine_class.forward_backward_batch = forward_backward_batch


_ENGINE_KEYS = {
    "max_num_seqs": ("scheduler_config", "max_num_seqs"),
    "max_num_batched_tokens": ("scheduler_config", "max_num_batched_tokens"),
    "enable_chunked_prefill": ("scheduler_config", "enable_chunked_prefill"),
    "gpu_memory_utilization": ("cache_config", "gpu_memory_utilization"),
    "enable_prefix_caching": ("cache_config", "enable_prefix_caching"),
    "tensor_model_parallel_size": ("parallel_config", "tensor_parallel_size"),
    "max_model_len": ("model_config", "max_model_len"),
    "enforce_eager": ("model_config", "enforce_eager"),
}


def engine_values(config: Any) -> dict[str, Any]:
    """What a vLLM engine was really built with, by knob key; what a release calls otherwise is left out."""
    values = {}
    for name, (section, attribute) in _ENGINE_KEYS.items():
        value = getattr(getattr(config, section, None), attribute, None)
        if value is not None:
            values[f"{_ROLLOUT}.{name}"] = value
    return values


class Peak:
    """The largest number of requests that ran together. Reported when the batch shrinks again, about once per wave of
    requests, so that watching costs the scheduler next to nothing."""

    def __init__(self, report: Callable[[int], object]) -> None:
        self._report = report
        self._largest = 0
        self._reported = 0

    def see(self, running: int) -> None:
        """Takes the number of requests that run after one scheduling pass."""
        if running > self._largest:
            self._largest = running
        elif running < self._largest and self._largest > self._reported:
            self._reported = self._largest
            self._report(self._largest)


def _watch_engine(module: Any) -> None:
    """vLLM's engine core, once it has sized its cache (vllm/v1/engine/core.py, `_initialize_kv_caches`)."""
    found = parts(module, "EngineCore")
    if found is None:
        return
    (core_class,) = found
    sizing = parts(core_class, "_initialize_kv_caches")
    if sizing is None:
        return
    (sized,) = sizing
    echo = Echo("engine")

    @functools.wraps(sized)
    def _initialize_kv_caches(self: Any, vllm_config: Any) -> Any:
        result = sized(self, vllm_config)
        cache = getattr(vllm_config, "cache_config", None)
        echo.say(
            engine_values(vllm_config),
            {
                "kv_blocks": getattr(cache, "num_gpu_blocks", None),
                "kv_block_size": getattr(cache, "block_size", None),
            },
        )
        return result

    core_class._initialize_kv_caches = _initialize_kv_caches
    after_import("vllm.v1.core.sched.scheduler", lambda scheduling: _watch_batch(scheduling, echo))


def _watch_batch(module: Any, echo: Echo) -> None:
    """How many requests really ran together (vllm/v1/core/sched/scheduler.py, `schedule`)."""
    found = parts(module, "Scheduler")
    if found is None:
        return
    (scheduler_class,) = found
    scheduling = parts(scheduler_class, "schedule")
    if scheduling is None:
        return
    (schedule,) = scheduling
    peak = Peak(lambda largest: echo.say({}, {"largest_batch": largest}))

    @functools.wraps(schedule)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = schedule(self, *args, **kwargs)
        peak.see(len(getattr(self, "running", ())))
        return result

    scheduler_class.schedule = watched


def _watch_poll(module: Any) -> None:
    """The interval at which the v1 trainer looks for the end of generation (replay_buffer.py:144)."""
    found = parts(module, "ReplayBuffer")
    if found is None:
        return
    (buffer_class,) = found
    echo = Echo("sampler")
    made = buffer_class.__init__

    @functools.wraps(made)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        interval = getattr(self, "poll_interval", None)
        if interval is not None:
            echo.say({"hook.fast_poll": interval < 1.0}, {"poll_interval": interval})

    buffer_class.__init__ = __init__


def watch_trainer() -> None:
    """In processes that import verl."""
    if os.environ.get(FOLDER):
        after_import("verl.workers.engine.fsdp.transformer_impl", _watch_training)
        after_import("verl.trainer.ppo.v1.replay_buffer", _watch_poll)


def watch_engine() -> None:
    """In processes of vLLM."""
    if os.environ.get(FOLDER):
        after_import("vllm.v1.engine.core", _watch_engine)
