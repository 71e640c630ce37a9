"""Whether something else than the Point under test decided how long a step took.

Foreign processes on our GPUs, GPUs that throttle, CPU time that the hypervisor took, and on the CPU other programs of the
host. A power cap is no throttling: it belongs to the machine as the user has it, and so does what a hypervisor takes all the time.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low

import psutil
import pynvml

from autotune.measure.gpu_processes import GpuProcess, described, foreign_processes, read_processes
from autotune.values import KnobValue

CPU_STOLEN = "host.cpu_stolen"
"""In the echo of a measurement: share of the wanted CPU time that the hypervisor usually took, where it was worth to be named."""
_THROTTLE_REASONS: Mapping[str, int] = {
    "hardware thermal slowdown": pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
    "hardware power brake": pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
    "hardware slowdown": pynvml.nvmlClocksThrottleReasonHwSlowdown,
    "software thermal slowdown": pynvml.nvmlClocksThrottleReasonSwThermalSlowdown,
}
"""Why a GPU may run slower than its settings let it; the first that is set is told, since the third includes the first two."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """From where on a step does not count. They are about as large as the noise that steps have anyway."""

    throttled: float = 0.05
    """Share of a step's samples in which one GPU throttled."""
    foreign_samples: int = 2
    """Samples in which a foreign process was on a GPU (or all of them, where a step has fewer): one may be a passing tool."""
    stolen: float = 0.05
    """CPU time that the hypervisor gave to other machines, as a share of what this one wanted …"""
    usual_theft: float = 2.0
    """… and this many times what it usually takes of this job. Without it no step would ever count on a host whose CPUs are
    promised twice: a job there lost 11 to 19 % in every step, and its steps were within 3 % of their mean."""
    others: float = 0.25
    """CPU time of other programs, as a share of all CPUs, on CPU jobs alone …"""
    idle: float = 0.10
    """… and only while less than this share of the CPUs was idle: programs that take idle CPUs take nothing from the job."""


@dataclass(frozen=True, slots=True)
class CpuReading:
    """CPU seconds of the host since its start, over all CPUs."""

    busy: float
    idle: float
    stolen: float
    ours: float | None = None
    """CPU seconds of the job's processes since their start; None: not read."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The host at one moment."""

    at: float
    """`time.monotonic()`."""
    cpu: CpuReading | None = None
    processes: Mapping[str, Sequence[GpuProcess]] = field(default_factory=dict)
    """Who computes on the GPUs of the job, by UUID."""
    throttled: Mapping[str, str] = field(default_factory=dict)
    """Why a GPU throttles, by UUID, for those that do."""


def interference(
    readings: Sequence[Reading],
    ours: Collection[int] = (),
    *,
    thresholds: Thresholds | None = None,
    thefts: Sequence[float] = (),
) -> str | None:
    """What disturbed a step, in one phrase; None: nothing did, as far as was seen.

    Args:
        readings: of the step, in order; CPU time counts from the first to the last of them.
        ours: pids of the job.
        thefts: `stolen_share` of the job's earlier steps, the settling one included.
    """
    limits = thresholds or Thresholds()
    return (
        _foreign(readings, ours, limits)
        or _throttled(readings, limits)
        or _stolen(readings, limits, thefts)
        or _others(readings, limits)
    )


def stolen_share(readings: Sequence[Reading]) -> float | None:
    """CPU time that the hypervisor took, as a share of what the machine wanted; None: not read, or nothing was wanted."""
    first, last = (readings[0].cpu, readings[-1].cpu) if readings else (None, None)
    if first is None or last is None:
        return None
    stolen = last.stolen - first.stolen
    wanted = last.busy - first.busy + stolen
    return stolen / wanted if wanted > 0 else None


def told_theft(echo: Mapping[str, KnobValue]) -> float:
    """The share that a measurement's echo names (`CPU_STOLEN`); 0 where it was not worth to be named."""
    share = echo.get(CPU_STOLEN)
    return share if isinstance(share, float) else 0.0


def usual_theft(thefts: Sequence[float]) -> float:
    """What the hypervisor usually takes of a job; the lower of the two middle shares, so that one bad step says nothing."""
    return median_low(thefts) if thefts else 0.0


def _foreign(readings: Sequence[Reading], ours: Collection[int], limits: Thresholds) -> str | None:
    seen = [reading for reading in readings if reading.processes]
    # In a container NVML may tell pids of the host, by which the job's own processes cannot be known: then nothing is said.
    if not any(process.pid in ours for reading in seen for found in reading.processes.values() for process in found):
        return None
    times: dict[tuple[str, int], int] = {}
    shown: dict[tuple[str, int], GpuProcess] = {}
    for reading in seen:
        for found in foreign_processes(reading.processes, ours):
            key = (found.gpu, found.process.pid)
            times[key] = times.get(key, 0) + 1
            shown[key] = found.process
    for key, count in times.items():
        if count >= min(limits.foreign_samples, len(seen)):
            return f"another process computed on GPU {key[0]} ({described(shown[key])})"
    return None


def _throttled(readings: Sequence[Reading], limits: Thresholds) -> str | None:
    sampled = [reading for reading in readings if reading.processes or reading.throttled]
    counts: dict[str, int] = {}
    reasons: dict[str, str] = {}
    for reading in sampled:
        for gpu, reason in reading.throttled.items():
            counts[gpu] = counts.get(gpu, 0) + 1
            reasons[gpu] = reason
    for gpu, count in counts.items():
        if count / len(sampled) > limits.throttled:
            return f"GPU {gpu} throttled in {count / len(sampled):.0%} of the step ({reasons[gpu]})"
    return None


def _stolen(readings: Sequence[Reading], limits: Thresholds, thefts: Sequence[float]) -> str | None:
    share, usual = stolen_share(readings), usual_theft(thefts)
    if share is None or share <= max(limits.stolen, limits.usual_theft * usual):
        return None
    text = f"the hypervisor took {share:.0%} of the CPU time that this machine wanted"
    return f"{text}, {usual:.0%} is usual here" if thefts else text


def _others(readings: Sequence[Reading], limits: Thresholds) -> str | None:
    first, last = (readings[0].cpu, readings[-1].cpu) if readings else (None, None)
    if first is None or last is None or first.ours is None or last.ours is None:
        return None
    busy, idle, stolen = last.busy - first.busy, last.idle - first.idle, last.stolen - first.stolen
    total = busy + stolen + idle
    others = max(0.0, busy - (last.ours - first.ours))
    if total > 0 and others / total > limits.others and idle / total < limits.idle:
        return f"other programs took {others / total:.0%} of the CPUs, and {idle / total:.0%} were idle"
    return None


def host_cpu(stat: str, ticks: int) -> CpuReading:
    """The first line of /proc/stat in seconds.

    Args:
        ticks: clock ticks in a second.
    """
    # user nice system idle iowait irq softirq steal guest guest_nice; the guests' time is in the first two already.
    figures = [int(part) / ticks for part in stat.split("\n", 1)[0].split()[1:9]]
    user, nice, system, idle, iowait, irq, softirq, stolen = [*figures, *[0.0] * (8 - len(figures))]
    return CpuReading(busy=user + nice + system + irq + softirq, idle=idle + iowait, stolen=stolen)


class InterferenceWatch:
    """Takes a reading every second from a thread of its own until it is closed, and judges steps by them."""

    def __init__(
        self, uuids: Sequence[str], ours: Callable[[], Collection[int]], *, on_cpu: bool, every: float = 1.0
    ) -> None:
        """
        Args:
            uuids: the GPUs of the job; empty on the CPU.
            ours: the pids of every process of the job that was ever seen.
            on_cpu: whether the job computes on the CPU, so that other programs of the host disturb it.
        """
        self._uuids = tuple(uuids)
        self._ours = ours
        self._on_cpu = on_cpu
        self._every = every
        self._cpu_seconds: dict[int, float] = {}
        self._thefts: list[float] = []
        self._readings: list[Reading] = []
        self._lock = threading.Lock()
        self._done = threading.Event()
        if self._uuids:
            pynvml.nvmlInit()
        self._take()
        self._thread: threading.Thread | None = threading.Thread(
            target=self._loop, name="autotune-interference", daemon=True
        )
        self._thread.start()

    def between(self, begin: float, end: float, *, thresholds: Thresholds | None = None) -> str | None:
        """What disturbed the job in a step between two times of `time.monotonic()`; a reading is taken for the end.

        It is asked for every step in turn, the settling one included: what the hypervisor usually takes is learnt from them.
        """
        self._take()
        with self._lock:
            readings = window(self._readings, begin, end)
        found = interference(readings, self._ours(), thresholds=thresholds, thefts=self._thefts)
        share = stolen_share(readings)
        if share is not None:
            self._thefts.append(share)
        return found

    @property
    def theft(self) -> float:
        """Share of the wanted CPU time that the hypervisor usually took in the steps so far."""
        return usual_theft(self._thefts)

    def close(self) -> None:
        """Ends the thread; calling it again does nothing."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            if self._uuids:
                pynvml.nvmlShutdown()

    def _loop(self) -> None:
        while not self._done.wait(self._every):
            self._take()

    def _take(self) -> None:
        with self._lock:
            self._readings.append(
                Reading(
                    at=time.monotonic(),
                    cpu=self._read_cpu(),
                    processes=read_processes(self._uuids),
                    throttled=_read_throttling(self._uuids),
                )
            )

    def _read_cpu(self) -> CpuReading | None:
        try:
            host = host_cpu(Path("/proc/stat").read_text(encoding="ascii"), os.sysconf("SC_CLK_TCK"))
        except OSError:
            return None  # no Linux, or a sandbox without it: CPU interference is not seen there
        if not self._on_cpu:
            return host
        for pid in self._ours():
            # A process that ended keeps the seconds it was last seen with.
            with contextlib.suppress(psutil.Error):
                used = psutil.Process(pid).cpu_times()
                self._cpu_seconds[pid] = max(self._cpu_seconds.get(pid, 0.0), used.user + used.system)
        return CpuReading(host.busy, host.idle, host.stolen, sum(self._cpu_seconds.values()))


def window(readings: Sequence[Reading], begin: float, end: float) -> list[Reading]:
    """The readings of a time: those within, and the last one before for what is counted as a difference.

    The end is covered by the first reading at or after it. Only differences of CPU time are taken from the two at the edges.
    """
    before = [reading for reading in readings if reading.at <= begin]
    after = [reading for reading in readings if reading.at >= end]
    within = [reading for reading in readings if begin < reading.at < end]
    edges = [Reading(reading.at, reading.cpu) for reading in before[-1:]]
    return [*edges, *within, *after[:1]]


def _read_throttling(uuids: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for uuid in uuids:
        try:
            set_now = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(pynvml.nvmlDeviceGetHandleByUUID(uuid))
        except pynvml.NVMLError:
            continue  # a reading that the driver refuses now and then is a missing sample
        reason = next((name for name, bit in _THROTTLE_REASONS.items() if set_now & bit), None)
        if reason is not None:
            found[uuid] = reason
    return found
