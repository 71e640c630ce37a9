"""A platform of verl for machines without an accelerator, and two places where stock verl 0.9.1 cannot do without.

The platform goes through verl's own registry (verl.plugin.platform). Changed behind verl's back are the backend
string of the process group (utils/distributed.py:89) and pinned memory of an offloaded reference model
(engine/fsdp/transformer_impl.py:457). The value model is in `cpu_critic`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import types
from collections.abc import Iterator
from typing import Any

import psutil
import torch

from autotune.inside.imports import after_import


class DeviceId(str):
    """verl hands its device id to torch and also writes it behind `cpu:`. torch takes a bare 0 for accelerator 0, so this
    is the name of the device that prints as a number."""

    def __new__(cls) -> DeviceId:
        return super().__new__(cls, "cpu")

    def __format__(self, spec: str) -> str:
        return "0"

    def __int__(self) -> int:
        return 0

    def __index__(self) -> int:
        return 0


class _Device(types.ModuleType):
    """torch.cpu with the functions that verl expects of an accelerator's module; memory is that of the process."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _resident(*args: Any, **kwargs: Any) -> int:
    return psutil.Process().memory_info().rss


def _peak_resident(*args: Any, **kwargs: Any) -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _forget_peak(*args: Any, **kwargs: Any) -> None:
    """Linux lets a process forget the highest resident size that it ever had (proc(5), clear_refs)."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as sink:
        sink.write("5")


def _free_and_total(*args: Any, **kwargs: Any) -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def _device_module() -> types.ModuleType:
    device: Any = _Device("autotune_cpu_device")
    for name in ("set_device", "synchronize", "empty_cache", "ipc_collect"):
        setattr(device, name, _nothing)
    device.reset_peak_memory_stats = _forget_peak
    device.is_available = lambda: True
    device.get_device_name = lambda *args, **kwargs: "CPU"  # verl's table of peak FLOPS has this name
    device.memory_allocated = device.memory_reserved = _resident
    device.max_memory_allocated = device.max_memory_reserved = _peak_resident
    device.mem_get_info = _free_and_total
    device.manual_seed = device.manual_seed_all = torch.manual_seed
    device.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    device.set_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    module: types.ModuleType = device
    return module


def _register() -> None:
    from verl.plugin.platform import PlatformBase, PlatformRegistry

    module = _device_module()

    class CpuPlatform(PlatformBase):  # type: ignore[misc]  # verl is not there where types are checked
        """One slot of this machine in the place of a GPU."""

        device_name = property(lambda self: "cpu")
        vendor_name = property(lambda self: "cpu")
        device_module = property(lambda self: module)

        def is_available(self) -> bool:
            return True

        def current_device(self) -> DeviceId:
            return DeviceId()

        def device_count(self) -> int:
            return 1

        def set_device(self, device_index: Any) -> None:
            return None

        def synchronize(self, device_index: Any = None) -> None:
            return None

        def manual_seed(self, seed: int) -> None:
            torch.manual_seed(seed)

        def manual_seed_all(self, seed: int) -> None:
            torch.manual_seed(seed)

        def set_allocator_settings(self, settings: Any) -> None:
            return None

        def empty_cache(self) -> None:
            return None

        def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
            return (None, None)

        def communication_backend_name(self) -> str:
            return "gloo"

        def visible_devices_envvar(self) -> str:
            return "CUDA_VISIBLE_DEVICES"  # Ray sets it for the logical GPU below

        @contextlib.contextmanager
        def nvtx_range(self, msg: str) -> Iterator[None]:
            yield

        def profiler_start(self) -> None:
            return None

        def profiler_stop(self) -> None:
            return None

        def ray_resource_name(self) -> str:
            return "GPU"  # the resource check knows GPU and NPU only; the job declares logical ones

        def ray_noset_envvars(self) -> list[str]:
            return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

        def is_ipc_supported(self) -> bool:
            return False  # weights then travel through POSIX shared memory

        def rollout_env_vars(self) -> dict[str, str]:
            passed = ("VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND", "OMP_NUM_THREADS")
            return {name: os.environ[name] for name in passed if name in os.environ}

        def cudart(self) -> None:
            return None

    PlatformRegistry.register(platform="cpu")(CpuPlatform)


def _plain_gloo(module: Any) -> None:
    """torch refuses `cpu:gloo,cpu:gloo`, which verl would ask for here."""
    original = module.initialize_global_process_group_ray

    @functools.wraps(original)
    def initialize_global_process_group_ray(timeout_second: Any = None, backend: Any = None) -> Any:
        return original(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    module.initialize_global_process_group_ray = initialize_global_process_group_ray


def _unpinned_offload(module: Any) -> None:
    """Memory cannot be pinned for an accelerator that is not there."""
    policy = module.CPUOffloadPolicy
    original = policy.__init__

    @functools.wraps(original)
    def __init__(self: Any, pin_memory: bool = True) -> None:
        original(self, pin_memory=pin_memory and torch.accelerator.is_available())

    policy.__init__ = __init__


def install() -> None:
    """Registers the platform; the rest happens when verl imports the modules concerned."""
    _register()
    after_import("verl.utils.distributed", _plain_gloo)
    after_import("torch.distributed.fsdp", _unpinned_offload)
