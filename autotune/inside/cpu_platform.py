"""A platform of verl for machines without an accelerator, and the four places where stock verl 0.9.1 cannot do without.

The platform goes through verl's own registry (verl.plugin.platform). Changed behind verl's back are: the backend string
of the process group (utils/distributed.py:89), pinned memory of an offloaded reference model
(engine/fsdp/transformer_impl.py:457), and the attention of the value model (utils/model.py:649).
"""

import contextlib
import functools
import os
import resource
import types

import psutil
import torch

from autotune.inside.imports import after_import


class DeviceId(str):
    """verl hands its device id to torch and also writes it behind `cpu:`. torch takes a bare 0 for accelerator 0, so this
    is the name of the device that prints as a number."""

    def __new__(cls):
        return super().__new__(cls, "cpu")

    def __format__(self, spec):
        return "0"

    def __int__(self):
        return 0

    def __index__(self):
        return 0


class _Device(types.ModuleType):
    """torch.cpu with the functions that verl expects of an accelerator's module; memory is that of the process."""

    def __getattr__(self, name):
        return getattr(torch.cpu, name)


def _nothing(*args, **kwargs):
    return None


def _resident(*args, **kwargs):
    return psutil.Process().memory_info().rss


def _peak_resident(*args, **kwargs):
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _free_and_total(*args, **kwargs):
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def _device_module():
    device = _Device("autotune_cpu_device")
    for name in ("set_device", "synchronize", "empty_cache", "ipc_collect", "reset_peak_memory_stats"):
        setattr(device, name, _nothing)
    device.is_available = lambda: True
    device.get_device_name = lambda *args, **kwargs: "CPU"  # verl's table of peak FLOPS has this name
    device.memory_allocated = device.memory_reserved = _resident
    device.max_memory_allocated = device.max_memory_reserved = _peak_resident
    device.mem_get_info = _free_and_total
    device.manual_seed = device.manual_seed_all = torch.manual_seed
    device.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    device.set_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    return device


def _register():
    from verl.plugin.platform import PlatformBase, PlatformRegistry

    module = _device_module()

    class CpuPlatform(PlatformBase):
        """One slot of this machine in the place of a GPU."""

        device_name = property(lambda self: "cpu")
        vendor_name = property(lambda self: "cpu")
        device_module = property(lambda self: module)

        def is_available(self):
            return True

        def current_device(self):
            return DeviceId()

        def device_count(self):
            return 1

        def set_device(self, device_index):
            return None

        def synchronize(self, device_index=None):
            return None

        def manual_seed(self, seed):
            torch.manual_seed(seed)

        def manual_seed_all(self, seed):
            torch.manual_seed(seed)

        def set_allocator_settings(self, settings):
            return None

        def empty_cache(self):
            return None

        def get_device_capability(self, device_index=0):
            return (None, None)

        def communication_backend_name(self):
            return "gloo"

        def visible_devices_envvar(self):
            return "CUDA_VISIBLE_DEVICES"  # Ray sets it for the logical GPU below

        @contextlib.contextmanager
        def nvtx_range(self, msg):
            yield

        def profiler_start(self):
            return None

        def profiler_stop(self):
            return None

        def ray_resource_name(self):
            return "GPU"  # the resource check knows GPU and NPU only; the job declares logical ones

        def ray_noset_envvars(self):
            return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

        def is_ipc_supported(self):
            return False  # weights then travel through POSIX shared memory

        def rollout_env_vars(self):
            passed = ("VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND", "OMP_NUM_THREADS")
            return {name: os.environ[name] for name in passed if name in os.environ}

        def cudart(self):
            return None

    PlatformRegistry.register(platform="cpu")(CpuPlatform)


def _plain_gloo(module):
    """torch refuses `cpu:gloo,cpu:gloo`, which verl would ask for here."""
    original = module.initialize_global_process_group_ray

    @functools.wraps(original)
    def initialize_global_process_group_ray(timeout_second=None, backend=None):
        return original(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    module.initialize_global_process_group_ray = initialize_global_process_group_ray


def _unpinned_offload(module):
    """Memory cannot be pinned for an accelerator that is not there."""
    policy = module.CPUOffloadPolicy
    original = policy.__init__

    @functools.wraps(original)
    def __init__(self, pin_memory=True):
        original(self, pin_memory=pin_memory and torch.accelerator.is_available())

    policy.__init__ = __init__


def _value_model(module):
    """The value model with the attention that its configuration names, instead of FlashAttention-2 in any case."""

    def load_valuehead_model(local_path, torch_dtype, model_config, trust_remote_code):
        from transformers import AutoModelForTokenClassification

        return AutoModelForTokenClassification.from_pretrained(
            pretrained_model_name_or_path=local_path,
            torch_dtype=torch_dtype,
            config=model_config,
            attn_implementation=getattr(model_config, "_attn_implementation", None) or "sdpa",
            trust_remote_code=trust_remote_code,
        )

    module.load_valuehead_model = load_valuehead_model


def install():
    """Registers the platform; the rest happens when verl imports the modules concerned."""
    _register()
    after_import("verl.utils.distributed", _plain_gloo)
    after_import("torch.distributed.fsdp", _unpinned_offload)
    after_import("verl.utils.model", _value_model)
