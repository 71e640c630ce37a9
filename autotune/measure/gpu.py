"""GPUs as NVML sees them: how many there are, and what they did during a measurement."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import pynvml

from autotune.values import GpuUsage

_THROTTLED = (
    pynvml.nvmlClocksThrottleReasonHwSlowdown
    | pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
    | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this host."""

    index: int
    """NVML's, which is the order on the PCI bus."""
    uuid: str
    name: str


def host_gpus() -> list[Gpu]:
    """The GPUs of this host by index; empty where there is no NVIDIA driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [
            Gpu(index, _text(pynvml.nvmlDeviceGetUUID(handle)), _text(pynvml.nvmlDeviceGetName(handle)))
            for index, handle in enumerate(handles)
        ]
    finally:
        pynvml.nvmlShutdown()


_SETTINGS: Mapping[str, Callable[[Any], str]] = {
    "model": lambda handle: _text(pynvml.nvmlDeviceGetName(handle)),
    "power limit": lambda handle: f"{pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) // 1000} W",
    "greatest clock": lambda handle: f"{pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)} MHz",
    "clock setting": lambda handle: f"{pynvml.nvmlDeviceGetApplicationsClock(handle, pynvml.NVML_CLOCK_SM)} MHz",
}


def gpu_settings() -> dict[str, str]:
    """What decides how fast the GPUs can be, beside the programs on them: driver, models, power limits, greatest clocks; by
    name. Empty where there is no NVIDIA driver; what the driver does not tell is left out."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    try:
        found = {"NVIDIA driver": _text(pynvml.nvmlSystemGetDriverVersion())}
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            for name, read in _SETTINGS.items():
                with contextlib.suppress(pynvml.NVMLError):
                    found[f"GPU {index} {name}"] = read(handle)
        return found
    finally:
        pynvml.nvmlShutdown()


def gpu_names() -> list[str]:
    """Names of the GPUs of this host; empty where there is no NVIDIA driver."""
    return [gpu.name for gpu in host_gpus()]


def visible_gpus(named: str | None, uuids: Sequence[str]) -> tuple[int, ...]:
    """Indices of the GPUs that CUDA would show, in its order.

    As CUDA does, it stops at the first entry that names none (`-1` therefore hides the rest), and takes the beginning of
    a UUID where only one GPU has it. A GPU that is named twice hides all; slices of one (MIG) are no GPUs to train on.

    Args:
        named: CUDA_VISIBLE_DEVICES; None: not set.
        uuids: UUID of every GPU of the host, by index.
    """
    if named is None:
        return tuple(range(len(uuids)))
    found: list[int] = []
    for part in named.split(","):
        entry = part.strip()
        if entry.isdigit():
            matching = [int(entry)] if int(entry) < len(uuids) else []
        else:
            matching = [i for i, uuid in enumerate(uuids) if entry.startswith("GPU-") and uuid.startswith(entry)]
        if len(matching) != 1:
            break
        found += matching
    return tuple(found) if len(set(found)) == len(found) else ()


def pinned_environment(env: Mapping[str, str], indices: Sequence[int]) -> dict[str, str]:
    """The environment in which a job finds these GPUs and no other: Ray takes whichever it sees, and the first of them first.

    It is left as it is where that is so already.
    """
    visible = visible_gpus(env.get("CUDA_VISIBLE_DEVICES"), [gpu.uuid for gpu in host_gpus()])
    if not indices or visible == tuple(indices):
        return dict(env)
    # NVML counts in the order of the bus; CUDA does so only when told.
    return {
        **env,
        "CUDA_VISIBLE_DEVICES": ",".join(str(index) for index in indices),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    utilisation: float
    power_watts: float
    clock_mhz: float
    memory_bytes: int
    throttled: bool


class GpuSampler:
    """Samples some GPUs from a thread of its own until it is closed; without GPUs it does nothing."""

    def __init__(self, indices: Sequence[int], *, every: float = 1.0) -> None:
        self._indices = tuple(indices)
        self._every = every
        self._samples: dict[int, list[_Sample]] = {index: [] for index in self._indices}
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        if self._indices:
            pynvml.nvmlInit()
            self._thread = threading.Thread(target=self._loop, name="autotune-nvml", daemon=True)
            self._thread.start()

    def usage(self, begin: float, end: float) -> tuple[GpuUsage, ...]:
        """Means between two times of `time.monotonic()`, one entry per GPU that was sampled in between."""
        names = gpu_names() if self._indices else []
        result = []
        for index in self._indices:
            window = [sample for sample in self._samples[index] if begin <= sample.at <= end]
            if window:
                result.append(
                    GpuUsage(
                        index=index,
                        name=names[index],
                        utilisation=fmean(s.utilisation for s in window),
                        power_watts=fmean(s.power_watts for s in window),
                        clock_mhz=fmean(s.clock_mhz for s in window),
                        peak_memory_bytes=max(s.memory_bytes for s in window),
                        throttled=any(s.throttled for s in window),
                    )
                )
        return tuple(result)

    def close(self) -> None:
        """Ends the thread."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            pynvml.nvmlShutdown()

    def _loop(self) -> None:
        handles = {index: pynvml.nvmlDeviceGetHandleByIndex(index) for index in self._indices}
        while not self._done.wait(self._every):
            for index, handle in handles.items():
                try:
                    sample = _Sample(
                        at=time.monotonic(),
                        utilisation=pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
                        power_watts=pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
                        clock_mhz=float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
                        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).used),
                        throttled=bool(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) & _THROTTLED),
                    )
                except pynvml.NVMLError:
                    continue  # a reading that the driver refuses now and then (a reset, MIG) is a missing sample
                self._samples[index].append(sample)


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
