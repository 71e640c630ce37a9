"""Whether a session's engine is the one that the user's own command gets."""

from __future__ import annotations

import pytest

from autotune.search.seat import AT_MOST, differences, reseat
from autotune.values import GpuUsage, KnobValue, Measurement, StepRecord
from autotune.verl import keys

SEQS, TOKENS = keys.MAX_NUM_SEQS, keys.MAX_BATCHED_TOKENS


def measured(
    *gens: float, update: float = 10.0, adv: float = 0.1, tokens: int = 1000, kv: int | None = None, gib: float = 0.0
) -> Measurement:
    """One counted step for each of `gens`."""
    steps = tuple(
        StepRecord(
            step=place,
            seconds=gen + update + adv + 1,
            tokens=tokens,
            phases={"gen": gen, "update_actor": update, "adv": adv, "update_weights": 1.0},
        )
        for place, gen in enumerate(gens)
    )
    echo: dict[str, KnobValue] = {} if kv is None else {"engine.kv_blocks": kv}
    gpus = (GpuUsage(0, "H200", 0.5, 300.0, 1980.0, int(gib * 2**30), False),) if gib else ()
    return Measurement(steps, 8, echo=echo, gpus=gpus)


def what(own: Measurement, inside: Measurement) -> list[str]:
    return [difference.what for difference in differences(own, inside)]


def test_the_same_is_the_same():
    assert what(measured(20, 20, kv=100, gib=50), measured(20, 20, kv=100, gib=50)) == []


def test_a_phase_that_takes_longer_than_noise_and_five_percent_differs():
    (found,) = differences(measured(40, 40.2), measured(46, 46.2))
    assert found.what == "gen"
    assert found.change == pytest.approx(0.15, abs=0.01)
    assert str(found) == "gen 46.1 s instead of 40.1 s (+15%)"
    assert what(measured(40, 40.2), measured(41, 41.2)) == []


def test_a_difference_that_steps_have_among_themselves_is_noise():
    assert what(measured(40, 50), measured(48, 54)) == []


def test_steps_that_agree_by_chance_are_judged_by_the_spread_of_the_other_phases():
    noisy = Measurement(
        tuple(
            StepRecord(step=n, seconds=60, tokens=1000, phases={"gen": 40.0, "ref": ref, "update_actor": ref})
            for n, ref in enumerate((5.0, 8.0))
        ),
        8,
    )
    faster = Measurement(tuple(StepRecord(1, 56, 1000, {"gen": 36.0, "ref": 6.0}) for _ in range(2)), 8)
    assert what(noisy, faster) == []


def test_generation_is_known_to_the_two_seconds_of_verls_poll():
    assert what(measured(6.1, 6.1), measured(8.0, 8.0)) == []
    assert what(measured(6.1, 6.1), measured(8.2, 8.2)) == ["gen"]


def test_a_phase_of_a_moment_decides_nothing():
    assert what(measured(40, 40, adv=0.1), measured(40, 40, adv=0.2)) == []


def test_seconds_are_compared_at_equal_tokens():
    assert what(measured(40, 40, update=20, tokens=2000), measured(20, 20, update=10, tokens=1000)) == []
    assert what(measured(40, 40, update=20, tokens=2000), measured(40, 40, update=20, tokens=1000)) == [
        "gen",
        "update_actor",
    ]


def test_a_smaller_cache_and_more_memory_in_use_differ():
    assert what(measured(20, 20, kv=1000, gib=60), measured(20, 20, kv=900, gib=65)) == [
        "KV blocks",
        "memory in use",
    ]
    assert what(measured(20, 20, kv=1000), measured(20, 20)) == []


def test_the_next_limits_are_half_way_to_the_users():
    text, lower = reseat(
        measured(40, 40), measured(50, 50), {SEQS: 512, TOKENS: 8192}, {SEQS: 64, TOKENS: 8192}, 0
    ) or ("", None)
    assert lower == {SEQS: 288, TOKENS: 8192}
    assert "max_num_seqs 288" in text


@pytest.mark.parametrize(("ceiling", "before"), [(512, AT_MOST), (64, 0)])
def test_after_two_times_or_at_the_users_limits_it_goes_on(ceiling, before):
    text, lower = reseat(measured(40, 40), measured(50, 50), {SEQS: ceiling}, {SEQS: 64}, before) or ("", {})
    assert lower is None
    assert "goes on" in text


def test_training_that_is_faster_is_not_the_engines_doing():
    """On an H200 the processor was shared with others, and a launch of its own had the bad luck."""
    text, lower = reseat(measured(40, 40, update=20), measured(40, 40, update=17), {SEQS: 512}, {SEQS: 64}, 0) or (
        "",
        {},
    )
    assert lower is None
    assert "update_actor 17 s instead of 20 s" in text
    _, lower = reseat(measured(40, 40, update=20), measured(40, 40, update=23), {SEQS: 512}, {SEQS: 64}, 0) or ("", {})
    assert lower is None, "nor is training that is slower"


def test_generation_that_is_slower_with_everything_else_is_the_hosts_doing():
    own = measured(40, 40, update=20)
    _, lower = reseat(own, measured(60, 60, update=30), {SEQS: 512}, {SEQS: 64}, 0) or ("", {})
    assert lower is None
    _, lower = reseat(own, measured(70, 70, update=30), {SEQS: 512}, {SEQS: 64}, 0) or ("", {})
    assert lower == {SEQS: 288}


def test_an_equal_session_is_left_alone():
    assert reseat(measured(40, 40), measured(40, 40), {SEQS: 512}, {SEQS: 64}, 0) is None
