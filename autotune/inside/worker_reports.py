"""What a session asks of each training process between two steps, by Ray's `__ray_call__`."""

import gc
import os
from typing import Any

from autotune.inside import echo


def begin_point(worker: Any) -> None:
    """Forgets what the Point before left: peak memory, unused reserved memory, what was reported."""
    from verl.utils.device import get_torch_device

    device = get_torch_device()
    device.empty_cache()
    device.reset_peak_memory_stats()
    echo.collect()


def give_back(worker: Any) -> None:
    """After a step that failed: what the failed call still holds in reference cycles, and what the allocator keeps. verl
    wakes vLLM next, which wants that memory."""
    from verl.utils.device import get_torch_device

    gc.collect()
    get_torch_device().empty_cache()


def surroundings(worker: Any) -> dict[str, Any]:
    """Of this rank's device, while vLLM sleeps: its bytes, and those in use outside this process' allocator. Empty where there
    is no such device: a job on the CPU shares the host's memory with everybody."""
    from verl.utils.device import get_device_name, get_torch_device

    if get_device_name() != "cuda":
        return {}
    device = get_torch_device()
    free, total = device.mem_get_info()
    return {"device_bytes": int(total), "outside_bytes": int(total - free - device.memory_reserved())}


def report(worker: Any) -> dict[str, Any]:
    """Rank, peak bytes since `begin_point`, bytes held now (between two steps), and the values that took effect."""
    from verl.utils.device import get_torch_device

    device = get_torch_device()
    return {
        "rank": int(os.environ.get("RANK", "0")),
        "pid": os.getpid(),
        "reserved_bytes": int(device.max_memory_reserved()),
        "allocated_bytes": int(device.max_memory_allocated()),
        "held_bytes": int(device.memory_allocated()),
        **echo.collect(keep=True),
    }
