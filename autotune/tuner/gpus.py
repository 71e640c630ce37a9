"""Getting the GPUs of a study to ourselves, and waiting for them where the user asked for that."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from autotune.measure.gpu import host_gpus
from autotune.measure.gpu_lease import GpuBusy, GpuLease, Holder
from autotune.measure.gpu_processes import check_free, read_processes

ASK_EVERY = 5.0
"""Seconds between two looks at busy GPUs."""
SAY_EVERY = 300.0
"""Seconds between two lines that say what is waited for."""


class Patience:
    """Waits between two looks at busy GPUs: says what it waits for once, when that changes, and every few minutes."""

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say = say
        self._sleep = sleep
        self._now = now
        self._begin: float | None = None
        self._said: tuple[str, float] | None = None

    def __call__(self, busy: GpuBusy) -> bool:
        now = self._now()
        if self._begin is None:
            self._begin = now
        text = str(busy).split(";", 1)[0]
        if self._said is None or self._said[0] != text or now - self._said[1] >= SAY_EVERY:
            waited = round((now - self._begin) / 60)
            self._say(f"waiting{f' for {waited} min now' if waited else ''}: {text}")
            self._said = (text, now)
        self._sleep(ASK_EVERY)
        return True


def hold_gpus(indices: Sequence[int], study: str, wait: Callable[[GpuBusy], bool] | None) -> GpuLease:
    """The GPUs with these NVML indices, held against other tuners and free of anybody's processes.

    Args:
        indices: empty on the CPU: nothing is held.
        study: named to those who want the GPUs meanwhile.
        wait: asked while they are busy, as `GpuLease.acquire` does; None: not at all.

    Raises:
        GpuBusy: another tuner holds one of them, or somebody computes there.
    """
    uuids = [gpu.uuid for gpu in host_gpus() if gpu.index in indices] if indices else []
    lease = GpuLease.acquire(uuids, Holder.of_this_process(study), wait=wait)
    try:
        # Held meanwhile: who computes there without a lease does not wait for us, and the next tuner does not overtake.
        while True:
            try:
                check_free(read_processes(uuids))
                return lease
            except GpuBusy as busy:
                if wait is None or not wait(busy):
                    raise
    except BaseException:
        lease.release()
        raise
