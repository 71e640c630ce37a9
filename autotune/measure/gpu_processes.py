"""Who computes on a GPU: what NVML reads, and which of it is somebody else's."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import psutil
import pynvml

from autotune.measure.gpu_lease import GpuBusy

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process with a compute context on a GPU."""

    pid: int
    """As NVML tells it: the host's, which a container may not know."""
    memory_bytes: int | None
    """None: the driver does not tell."""


@dataclass(frozen=True, slots=True)
class ForeignProcess:
    """Somebody else's process on a GPU."""

    gpu: str
    process: GpuProcess


def read_processes(uuids: Sequence[str]) -> dict[str, tuple[GpuProcess, ...]]:
    """The processes that compute on these GPUs now, by UUID; a GPU that the driver does not answer for is left out."""
    if not uuids:
        return {}
    found: dict[str, tuple[GpuProcess, ...]] = {}
    pynvml.nvmlInit()
    try:
        for uuid in uuids:
            try:
                handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                entries = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            except pynvml.NVMLError:
                continue
            found[uuid] = tuple(GpuProcess(int(entry.pid), _bytes(entry.usedGpuMemory)) for entry in entries)
    finally:
        pynvml.nvmlShutdown()
    return found


def foreign_processes(
    readings: Mapping[str, Sequence[GpuProcess]], ours: Collection[int] = ()
) -> tuple[ForeignProcess, ...]:
    """Those of the processes that are not ours, by GPU and pid.

    Args:
        readings: processes by GPU.
        ours: pids of our own.
    """
    return tuple(
        ForeignProcess(gpu, process)
        for gpu in sorted(readings)
        for process in sorted(readings[gpu], key=lambda process: process.pid)
        if process.pid not in ours
    )


def check_free(readings: Mapping[str, Sequence[GpuProcess]], ours: Collection[int] = ()) -> None:
    """Makes sure that nobody else computes on the GPUs of a study before it starts.

    Raises:
        GpuBusy: somebody does; the message names pid, user and memory.
    """
    foreign = foreign_processes(readings, ours)
    if foreign:
        told = "; ".join(f"GPU {found.gpu}: {described(found.process)}" for found in foreign)
        raise GpuBusy(
            f"other processes compute on the GPUs of this study ({told}); end them, wait with --wait, "
            "or choose other GPUs with CUDA_VISIBLE_DEVICES (--env CUDA_VISIBLE_DEVICES=…)"
        )


def described(process: GpuProcess) -> str:
    """`pid 4711 of anna, 518 MiB`."""
    try:
        of = f" of {psutil.Process(process.pid).username()}"
    except psutil.Error:
        of = " (of another container, or gone meanwhile)"
    memory = "" if process.memory_bytes is None else f", {process.memory_bytes // _MIB} MiB"
    return f"pid {process.pid}{of}{memory}"


def _bytes(used: int | None) -> int | None:
    # NVML has no figure for some drivers and modes; older bindings then give the largest number instead of None.
    return None if used is None or used >= 1 << 63 else int(used)
