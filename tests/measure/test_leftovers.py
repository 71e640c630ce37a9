"""What an ended job left is removed; what somebody still holds never is."""

from __future__ import annotations

import multiprocessing
import uuid
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from autotune.measure.leftovers import SHARED_MEMORY, Leftovers


def new() -> Leftovers:
    leftovers = Leftovers.before_job(f"at-test-{uuid.uuid4().hex[:8]}")
    leftovers.make()
    return leftovers


@pytest.mark.parametrize("name", ["psm_test_", "verl_weights_", "torch_1_", "nccl-test"])
def test_a_segment_that_nobody_holds_is_removed_with_the_private_folder(name):
    leftovers = new()
    orphan = SHARED_MEMORY / f"{name}{uuid.uuid4().hex}"
    orphan.write_bytes(b"x")
    assert str(orphan) in leftovers.remove()
    assert not orphan.exists()
    assert not leftovers.private.exists()


def test_what_was_there_before_the_job_stays():
    earlier = SHARED_MEMORY / f"psm_test_{uuid.uuid4().hex}"
    earlier.write_bytes(b"x")
    try:
        new().remove()
        assert earlier.exists()
    finally:
        earlier.unlink()


def test_what_a_user_copies_to_shared_memory_during_a_job_stays():
    leftovers = new()
    model = SHARED_MEMORY / f"model-{uuid.uuid4().hex}.safetensors"
    model.write_bytes(b"x")
    try:
        leftovers.remove()
        assert model.exists()
    finally:
        model.unlink()


def test_a_private_folder_that_somebody_made_before_is_not_used():
    leftovers = new()
    try:
        with pytest.raises(FileExistsError):
            leftovers.make()
    finally:
        leftovers.remove()


def test_a_segment_that_a_living_process_has_mapped_stays():
    leftovers = new()
    segment = shared_memory.SharedMemory(create=True, size=64)
    try:
        leftovers.remove()
        assert Path("/dev/shm", segment.name).exists()
    finally:
        segment.close()
        segment.unlink()


def test_a_named_semaphore_of_another_job_stays():
    """Its name is not the one in the maps of its maker: removing it by name once broke another verl's start."""
    leftovers = new()
    semaphore = multiprocessing.get_context("spawn").Semaphore(1)
    made = Path("/dev/shm", "sem." + semaphore._semlock.name.removeprefix("/"))
    assert made.exists()
    leftovers.remove()
    assert made.exists()
    assert semaphore.acquire(block=False)
