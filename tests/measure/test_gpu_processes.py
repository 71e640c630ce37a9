"""Which GPUs a launch would see, and who else computes on them."""

from __future__ import annotations

import os

import psutil
import pytest

from autotune.measure.gpu import visible_gpus
from autotune.measure.gpu_lease import GpuBusy
from autotune.measure.gpu_processes import GpuProcess, check_free, foreign_processes, read_processes

UUIDS = ["GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44"]


@pytest.mark.parametrize(
    ("named", "indices"),
    [
        (None, (0, 1, 2, 3)),
        ("", ()),
        ("2,0", (2, 0)),
        (" 1 , 3 ", (1, 3)),
        ("GPU-bb33,GPU-aa11", (2, 0)),
        ("GPU-b", (2,)),
        ("GPU-aa", ()),
        ("0,-1,1", (0,)),
        ("0,9,1", (0,)),
        ("0,GPU-nothing,1", (0,)),
        ("1,1", ()),
        ("1,GPU-aa22", ()),
        ("MIG-aa11", ()),
        ("NoDevFiles", ()),
    ],
)
def test_visible_gpus_are_those_that_cuda_would_show(named, indices):
    assert visible_gpus(named, UUIDS) == indices


def test_no_gpu_is_visible_where_there_is_none():
    assert visible_gpus(None, []) == ()
    assert visible_gpus("0", []) == ()


def test_processes_of_our_own_are_not_foreign():
    readings = {"GPU-b": [GpuProcess(7, 100)], "GPU-a": [GpuProcess(9, None), GpuProcess(8, 5)]}
    found = foreign_processes(readings, {8})
    assert [(entry.gpu, entry.process.pid) for entry in found] == [("GPU-a", 9), ("GPU-b", 7)]
    check_free(readings, {7, 8, 9})


def test_a_busy_gpu_is_refused_with_pid_user_and_memory():
    with pytest.raises(GpuBusy) as refused:
        check_free({"GPU-a": [GpuProcess(os.getpid(), 518 << 20)], "GPU-b": []})
    said = str(refused.value)
    assert f"GPU GPU-a: pid {os.getpid()} of {psutil.Process().username()}, 518 MiB" in said
    assert "--wait" in said


def test_a_process_that_cannot_be_looked_up_is_told_by_its_pid():
    with pytest.raises(GpuBusy, match=r"pid 999999999 \(of another container, or gone meanwhile\)"):
        check_free({"GPU-a": [GpuProcess(999_999_999, None)]})


def test_nothing_is_asked_of_a_driver_that_is_not_needed():
    assert read_processes([]) == {}
