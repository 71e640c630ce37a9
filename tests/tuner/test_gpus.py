"""A study has its GPUs to itself or does not start; with --wait it waits and says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.measure import gpu_lease
from autotune.measure.gpu import Gpu
from autotune.measure.gpu_lease import GpuBusy, GpuLease, Holder, lease_name
from autotune.measure.gpu_processes import GpuProcess
from autotune.tuner import gpus
from autotune.tuner.gpus import ASK_EVERY, SAY_EVERY, Patience, hold_gpus
from tests.cli.test_run import autotune
from tests.fakes.launches import write_script

HOST = [Gpu(index, f"GPU-{index}{index}", "NVIDIA H200") for index in range(4)]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[GpuProcess, ...]]:
    """A host of four GPUs; what computes on them can be set."""
    busy: dict[str, tuple[GpuProcess, ...]] = {}
    monkeypatch.delenv(gpu_lease.FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(gpu_lease, "FOLDER", tmp_path / "leases")
    monkeypatch.setattr(gpus, "host_gpus", lambda: HOST)
    monkeypatch.setattr(gpus, "read_processes", lambda uuids: {uuid: busy.get(uuid, ()) for uuid in uuids})
    return busy


def others(*indices: int) -> GpuLease:
    return GpuLease.acquire([HOST[i].uuid for i in indices], Holder.of_this_process("theirs"))


def test_the_chosen_gpus_are_held_until_they_are_released(host):
    lease = hold_gpus((1, 3), "mine", None)
    assert lease.uuids == ("GPU-11", "GPU-33")
    with pytest.raises(GpuBusy, match="study mine"):
        hold_gpus((3,), "second", None)
    hold_gpus((0, 2), "second", None).release()
    lease.release()
    hold_gpus((3,), "second", None).release()


def test_a_foreign_process_is_refused_and_nothing_stays_held(host):
    host["GPU-11"] = (GpuProcess(os.getpid(), 1 << 30),)
    with pytest.raises(GpuBusy, match=f"pid {os.getpid()}"):
        hold_gpus((1, 2), "mine", None)
    hold_gpus((2,), "second", None).release()


def test_the_cpu_holds_nothing(host, tmp_path):
    assert hold_gpus((), "mine", None).uuids == ()
    assert not (tmp_path / "leases").exists()


def test_waiting_ends_when_lease_and_processes_are_gone(host):
    lease = others(1)
    host["GPU-22"] = (GpuProcess(os.getpid(), None),)
    asked = []

    def wait(busy: GpuBusy) -> bool:
        asked.append(str(busy))
        lease.release() if len(asked) == 1 else host.clear()
        return True

    with hold_gpus((1, 2), "mine", wait) as mine:
        assert mine.uuids == ("GPU-11", "GPU-22")
    assert "held by study theirs" in asked[0]
    assert "other processes compute" in asked[1]
    assert len(asked) == 2


def test_what_is_waited_for_is_said_once_and_then_every_few_minutes():
    clock, said = [0.0], []
    patience = Patience(
        said.append, sleep=lambda seconds: clock.__setitem__(0, clock[0] + seconds), now=lambda: clock[0]
    )
    for _ in range(int(2 * SAY_EVERY / ASK_EVERY) + 1):
        assert patience(GpuBusy("GPU 1 is held by study a; wait for it with --wait"))
    assert said == [
        "waiting: GPU 1 is held by study a",
        "waiting for 5 min now: GPU 1 is held by study a",
        "waiting for 10 min now: GPU 1 is held by study a",
    ]
    patience(GpuBusy("GPU 1 is held by study b; wait for it with --wait"))
    assert said[-1].endswith("study b")


def test_run_holds_its_gpus_and_refuses_busy_ones_before_anything_is_written(tmp_path, host, monkeypatch):
    monkeypatch.setattr("autotune.tuner.prepare._check_gpus", lambda request, job, env: (0, 1))
    monkeypatch.setattr("autotune.measure.cold.GpuSampler", _NoSampler)
    folder = tmp_path / "work"
    folder.mkdir()
    write_script(folder)
    arguments = ("run", "train.sh", "--trials", "1", "--confirmations", "0", "--study", "one")
    with others(1):
        refused = autotune(folder, *arguments)
    assert refused.returncode == 2
    assert "GPU-11 is held by study theirs" in " ".join(refused.stderr.split())
    assert [path.name for path in folder.iterdir()] == ["train.sh"]
    assert autotune(folder, *arguments).returncode == 0
    assert '"study": "one"' in (tmp_path / "leases" / lease_name("GPU-00")).read_text()
    others(0, 1).release()


class _NoSampler:
    """There is no NVML here."""

    def __init__(self, indices: object) -> None:
        self.indices = indices

    def usage(self, begin: float, end: float) -> tuple[()]:
        return ()

    def close(self) -> None:
        pass
