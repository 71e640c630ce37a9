"""A vLLM scheduler whose limits can be lowered while the engine runs.

Named by `engine_kwargs.vllm.scheduler_cls=autotune.inside.scheduler.live_scheduler`; vLLM calls what that names as it would
call a class (vllm/v1/engine/core.py:147). The engine is started with the largest limits that will be wanted.

A smaller KV cache is an admission rule: an allocation is refused where it would leave fewer blocks free than the reserve,
so that vLLM waits or preempts exactly where a smaller pool would make it. No block is ever held: `reset_prefix_cache` fails
while one is in use (v1/core/block_pool.py:665), and then prefixes computed with old weights would survive a weight update.
What a smaller pool would do and this does not: forget cached prefixes earlier.
"""

from typing import Any


class Admission:
    """The arithmetic of a pool that pretends to be smaller."""

    def __init__(self, total: int, longest: int) -> None:
        """
        Args:
            total: blocks of the pool that requests can have.
            longest: blocks that one sequence of the greatest length needs.
        """
        self.total = total
        self.longest = longest
        self.usable = total

    def limit(self, usable: int | None) -> None:
        """Lets requests have `usable` blocks at most; None: all.

        Raises:
            ValueError: a sequence of the greatest length would not fit, so that it would wait for ever. vLLM refuses to
                start with such a pool (v1/core/kv_cache_utils.py, `_check_enough_kv_cache_memory`).
        """
        if usable is None:
            self.usable = self.total
            return
        if usable < self.longest:
            raise ValueError(
                f"No available memory for the cache blocks: {usable} KV cache blocks are needed to be at least "
                f"{self.longest} to serve one request with the model's max seq len"
            )
        self.usable = min(usable, self.total)

    @property
    def reserve(self) -> int:
        """Blocks that must stay free."""
        return self.total - self.usable

    def free(self, really_free: int) -> int:
        """Blocks that an allocation may take."""
        return max(0, really_free - self.reserve)


class Tally:
    """What the scheduler really did since it was last asked."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Starts anew."""
        self.largest_batch = 0
        self.largest_tokens = 0
        self.least_free = -1
        self.refused = 0
        self.preempted = 0
        self.resets = 0
        self.failed_resets = 0

    def scheduled(self, running: int, tokens: int, preempted: int, free: int) -> None:
        """One scheduling pass: requests that run, tokens of this pass, requests sent back, blocks left free."""
        self.largest_batch = max(self.largest_batch, running)
        self.largest_tokens = max(self.largest_tokens, tokens)
        self.preempted += preempted
        self.least_free = free if self.least_free < 0 else min(self.least_free, free)

    def as_dict(self) -> dict[str, int]:
        """Counts by name."""
        return dict(vars(self))


def lowered(ceiling: int, wanted: int | None) -> int:
    """The limit in effect: never above what the engine was started with (its buffers are that large)."""
    return ceiling if wanted is None else min(ceiling, wanted)


def live_scheduler(*args: Any, **kwargs: Any) -> Any:
    """The scheduler that vLLM would have chosen (vllm/config/scheduler.py, `get_scheduler_cls`), with limits that move."""
    config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
    if config.scheduler_config.async_scheduling:
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler as Base
    else:
        from vllm.v1.core.sched.scheduler import Scheduler as Base
    return _live_class(Base)(*args, **kwargs)


def _live_class(base: Any) -> Any:
    class LiveScheduler(base):  # type: ignore[misc]  # vLLM is not there where types are checked
        """`base` with `autotune_live`."""

        max_num_running_reqs: int
        max_num_scheduled_tokens: int

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._at_ceiling = (self.max_num_running_reqs, self.max_num_scheduled_tokens)
            self._at_tally = Tally()
            pool = self.kv_cache_manager.block_pool
            self._at_admission = Admission(pool.num_gpu_blocks - 1, _longest(self))  # one block is vLLM's null block
            self._at_really_free = pool.get_num_free_blocks
            self._at_allocate = self.kv_cache_manager.allocate_slots
            self._at_allocating = False
            pool.get_num_free_blocks = self._at_free
            self.kv_cache_manager.allocate_slots = self._at_allocate_slots

        def _at_free(self) -> int:
            free: int = self._at_really_free()
            return self._at_admission.free(free) if self._at_allocating else free

        def _at_allocate_slots(self, *args: Any, **kwargs: Any) -> Any:
            self._at_allocating = True
            try:
                blocks = self._at_allocate(*args, **kwargs)
            finally:
                self._at_allocating = False
            if blocks is None:
                self._at_tally.refused += 1
            return blocks

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            result = super().schedule(*args, **kwargs)
            self._at_tally.scheduled(
                len(self.running),
                result.total_num_scheduled_tokens,
                len(getattr(result, "preempted_req_ids", None) or ()),
                self._at_really_free(),
            )
            return result

        def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
            done = super().reset_prefix_cache(*args, **kwargs)
            self._at_tally.resets += 1
            self._at_tally.failed_resets += not done
            return done

        def autotune_live(self, limits: dict[str, Any] | None) -> dict[str, Any]:
            """Sets limits where some are given (between two steps, when nothing runs), and tells what is in effect.

            Args:
                limits: `max_num_seqs`, `max_num_batched_tokens`, `kv_blocks`; an absent one goes back to what the engine was
                    started with. None: only asks.

            Raises:
                RuntimeError: requests are still running.
                ValueError: the KV blocks do not hold one sequence.
            """
            if limits is not None:
                if self.running:
                    raise RuntimeError(f"{len(self.running)} requests still run; limits change between steps only")
                self._at_admission.limit(limits.get("kv_blocks"))
                sequences, tokens = self._at_ceiling
                self.max_num_running_reqs = lowered(sequences, limits.get("max_num_seqs"))
                self.max_num_scheduled_tokens = lowered(tokens, limits.get("max_num_batched_tokens"))
                self._at_tally.clear()
            return {
                "max_num_seqs": self.max_num_running_reqs,
                "max_num_batched_tokens": self.max_num_scheduled_tokens,
                "kv_blocks": self._at_admission.usable,
                "kv_blocks_total": self._at_admission.total,
                "kv_blocks_free": self._at_really_free(),
                "scheduler": base.__name__,
                **self._at_tally.as_dict(),
            }

    return LiveScheduler


def _longest(scheduler: Any) -> int:
    """Blocks that one sequence of the greatest length needs in every KV cache group."""
    return sum(
        -(-scheduler.max_model_len // group.kv_cache_spec.block_size)
        for group in scheduler.kv_cache_config.kv_cache_groups
    )


def engine_facts(core: Any) -> dict[str, Any]:
    """What decides how many KV blocks another memory share would give.

    vLLM gives to the cache what its share of the device's memory leaves over weights and the largest activations, and
    cuts it into blocks (v1/worker/gpu_worker.py, cpu_worker.py `determine_available_memory`): one more byte of share is
    one more byte of cache. `total_memory` is what the share is a share of.
    """
    config = core.scheduler.kv_cache_config
    size = sum(tensor.size for tensor in config.kv_cache_tensors)
    cache = core.vllm_config.cache_config
    return {
        "gpu_memory_utilization": cache.gpu_memory_utilization,
        "kv_bytes": size,
        "pool_blocks": config.num_blocks,
        "total_memory": _total_memory(core),
        "longest": _longest(core.scheduler),
    }


def _total_memory(core: Any) -> int | None:
    """Asked of a worker: on a GPU, the engine's own process must not open a CUDA context for it, which would take memory
    from the job (and is an error where the process was forked from one that has a context)."""
    if getattr(core.vllm_config.device_config, "device_type", None) == "cuda":
        try:
            told = core.collective_rpc(WORKER_MEMORY)[0]
        except (RuntimeError, AttributeError, NotImplementedError):  # a worker of another class, without the method
            return None
        return None if told is None else int(told)
    try:  # the CPU build takes its share of one NUMA node's memory (v1/worker/cpu_worker.py:73)
        from vllm.utils.cpu_resource_utils import get_allowed_cpu_list, get_memory_node_info
    except ImportError:
        return None
    return int(get_memory_node_info(get_allowed_cpu_list()[0].numa_node).total_memory)


WORKER_MEMORY = "autotune_total_memory"
"""Method of a GPU worker, put in by `add_worker_method`."""


def add_worker_method(module: Any) -> None:
    """In vllm.v1.worker.gpu_worker: the memory of which `gpu_memory_utilization` is a share (worker/utils.py,
    `request_memory`); NVML and CUDA tell different sizes of the same GPU."""

    def autotune_total_memory(self: Any) -> int | None:
        snapshot = getattr(self, "init_snapshot", None)
        total = getattr(snapshot, "total_memory", None)
        return None if total is None else int(total)

    module.Worker.autotune_total_memory = autotune_total_memory
