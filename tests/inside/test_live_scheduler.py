"""The live scheduler's arithmetic, and what it does around a scheduler: here a double with vLLM's attributes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.inside.scheduler import Admission, Tally, _live_class, lowered


@given(st.integers(2, 5000), st.data())
def test_an_allocation_that_admission_allows_leaves_the_reserve_free(total, data):
    longest = data.draw(st.integers(1, total))
    usable = data.draw(st.integers(longest, 2 * total))
    free = data.draw(st.integers(0, total))
    admission = Admission(total, longest)
    admission.limit(usable)
    taken = admission.free(free)
    assert 0 <= taken <= free
    used = total - free
    assert used + taken <= max(used, min(usable, total))  # never more in use than the smaller pool has


@given(st.integers(2, 5000), st.integers(0, 5000))
def test_without_a_limit_admission_changes_nothing(total, free):
    admission = Admission(total, 1)
    admission.limit(1)
    admission.limit(None)
    assert admission.free(free) == free
    assert admission.reserve == 0


def test_a_pool_that_holds_no_sequence_is_refused_and_the_old_limit_stays():
    admission = Admission(100, 8)
    admission.limit(20)
    with pytest.raises(ValueError, match="at least 8"):
        admission.limit(7)
    assert admission.usable == 20


@pytest.mark.parametrize(("wanted", "got"), [(None, 64), (8, 8), (64, 64), (9999, 64)])
def test_a_limit_is_never_above_what_the_engine_was_started_with(wanted, got):
    assert lowered(64, wanted) == got


def test_the_tally_keeps_the_extremes_until_it_is_cleared():
    tally = Tally()
    tally.scheduled(3, 100, 0, 50)
    tally.scheduled(7, 20, 2, 40)
    tally.scheduled(1, 1, 0, 60)
    assert tally.as_dict() == {
        "largest_batch": 7,
        "largest_tokens": 100,
        "least_free": 40,
        "refused": 0,
        "preempted": 2,
        "resets": 0,
        "failed_resets": 0,
    }
    tally.clear()
    assert tally.as_dict()["largest_batch"] == 0
    assert tally.as_dict()["least_free"] == -1


class Pool:
    def __init__(self, blocks):
        self.num_gpu_blocks = blocks + 1  # vLLM's null block
        self.free = blocks

    def get_num_free_blocks(self):
        return self.free


class Base:
    """The part of vLLM's scheduler that the live one touches; every request takes four blocks."""

    def __init__(self):
        self.max_num_running_reqs, self.max_num_scheduled_tokens = 64, 4096
        self.max_model_len = 128
        group = SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=16))
        self.kv_cache_config = SimpleNamespace(kv_cache_groups=[group])
        self.kv_cache_manager = SimpleNamespace(block_pool=Pool(100), allocate_slots=self.allocate)
        self.running, self.waiting = [], list(range(30))

    def allocate(self, request, need):
        pool = self.kv_cache_manager.block_pool
        if need > pool.get_num_free_blocks():
            return None
        pool.free -= need
        return [request] * need

    def schedule(self):
        while self.waiting and len(self.running) < self.max_num_running_reqs:
            if self.kv_cache_manager.allocate_slots(self.waiting[0], need=4) is None:
                break
            self.running.append(self.waiting.pop(0))
        return SimpleNamespace(total_num_scheduled_tokens=len(self.running), preempted_req_ids=None)

    def finish(self):
        self.kv_cache_manager.block_pool.free += 4 * len(self.running)
        self.running = []

    def reset_prefix_cache(self, reset_running_requests=False):
        pool = self.kv_cache_manager.block_pool
        return pool.num_gpu_blocks - pool.get_num_free_blocks() == 1  # as v1/core/block_pool.py:772


Live = _live_class(Base)


def test_a_smaller_pool_admits_as_many_as_it_holds_and_no_block_is_held():
    scheduler = Live()
    scheduler.autotune_live({"kv_blocks": 40})
    scheduler.schedule()
    told = scheduler.autotune_live(None)
    assert told["largest_batch"] == 10
    assert told["refused"] == 1
    assert told["kv_blocks_free"] == 60  # the pool itself has them all
    scheduler.finish()
    assert scheduler.reset_prefix_cache()
    told = scheduler.autotune_live(None)
    assert (told["resets"], told["failed_resets"]) == (1, 0)


def test_a_cap_that_never_bound_shows():
    scheduler = Live()
    scheduler.autotune_live({"kv_blocks": 99, "max_num_seqs": 12})
    scheduler.schedule()
    told = scheduler.autotune_live(None)
    assert (told["largest_batch"], told["refused"]) == (12, 0)


def test_limits_go_back_to_those_of_the_start_when_they_are_not_named():
    scheduler = Live()
    scheduler.autotune_live({"max_num_seqs": 8, "max_num_batched_tokens": 256, "kv_blocks": 50})
    told = scheduler.autotune_live({})
    assert (told["max_num_seqs"], told["max_num_batched_tokens"], told["kv_blocks"]) == (64, 4096, 100)


def test_limits_do_not_change_under_running_requests():
    scheduler = Live()
    scheduler.schedule()
    with pytest.raises(RuntimeError, match="still run"):
        scheduler.autotune_live({"max_num_seqs": 8})
    assert scheduler.autotune_live(None)["max_num_seqs"] == 64  # asking is allowed


def test_a_reset_that_fails_is_counted():
    scheduler = Live()
    scheduler.schedule()
    assert not scheduler.reset_prefix_cache()
    assert scheduler.autotune_live(None)["failed_resets"] == 1
