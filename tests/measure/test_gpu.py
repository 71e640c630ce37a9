"""A launch runs on the GPUs that are sampled and locked for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.measure import gpu
from autotune.measure.cold import launch_environment
from autotune.measure.gpu import Gpu, pinned_environment
from autotune.measure.leftovers import Leftovers
from tests.fakes.launches import job_of_double

HOST = [Gpu(index, f"GPU-{index}{index}", "NVIDIA H200") for index in range(4)]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host of four GPUs."""
    monkeypatch.setattr(gpu, "host_gpus", lambda: HOST)


@pytest.mark.parametrize("env", [{}, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, {"CUDA_VISIBLE_DEVICES": "GPU-00,GPU-11,2"}])
def test_a_job_that_would_see_more_gpus_than_are_held_is_shown_those_alone(host, env):
    assert pinned_environment(env, (0, 1)) == {"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize("env", [{"CUDA_VISIBLE_DEVICES": "1,0"}, {"CUDA_VISIBLE_DEVICES": "GPU-11,GPU-00"}])
def test_a_job_that_sees_just_what_is_held_keeps_its_environment(host, env):
    assert pinned_environment(env, (1, 0)) == env
    assert pinned_environment({"A": "b"}, ()) == {"A": "b"}
    assert pinned_environment({"A": "b"}, (0, 1, 2, 3)) == {"A": "b"}


def test_every_launch_sees_its_own_gpus_alone(tmp_path: Path, host: None) -> None:
    """One that was to run on GPU 1 would otherwise run on GPU 0, beside the job there, while GPU 1 is sampled and locked."""
    job = replace(job_of_double(tmp_path), gpus=(1,))
    env = launch_environment(job, Leftovers.before_job("autotune-none"), tmp_path / "metrics.jsonl", tmp_path / "echo")
    assert env["CUDA_VISIBLE_DEVICES"] == "1"
