"""Predicted peaks, against arithmetic and against peaks that were measured on an H200 (docs/benchmarks.md)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.search.memory import LIMIT, predicted_oom, predicted_peak, slope, too_full
from autotune.values import Failure, FailureClass, MemoryCheck, Phase, Point
from autotune.verl import keys
from autotune.verl.loads import DeviceMemory, Load, Peak, loads_of

GIB = 2**30
REMOVE_PADDING = "actor_rollout_ref.model.use_remove_padding"
H200 = Path(__file__).parents[2] / "benchmarks/data/h200/records.jsonl"
DEVICE = DeviceMemory(total=80 * GIB, outside=2 * GIB, idle=10 * GIB)


def exactly(**tokens: float) -> dict[str, Load]:
    return {phase: Load(value, value) for phase, value in tokens.items()}


def peak(gib: float, **tokens: float) -> Peak:
    return Peak(exactly(**tokens), int(gib * GIB))


def predicted(peaks: list[Peak], idle: float = 10, **tokens: float) -> float:
    found = predicted_peak(exactly(**tokens), peaks, int(idle * GIB))
    assert found is not None
    return found / GIB


def test_one_peak_grows_in_proportion_above_the_idle_level():
    assert predicted([peak(20, update_actor=1000)], update_actor=3000) == pytest.approx(40)


def test_fewer_tokens_are_not_predicted_to_take_less():
    assert predicted([peak(20, update_actor=1000)], update_actor=100) == pytest.approx(20)


def test_a_phase_is_bounded_by_every_peak_with_more_of_it():
    """The second peak was made by the log-probs, and still says what the update takes at most."""
    peaks = [peak(20, update_actor=1000, old_log_prob=1000), peak(30, update_actor=4000, old_log_prob=9000)]
    assert predicted(peaks, update_actor=4000, old_log_prob=1000) == pytest.approx(30)


def test_a_phase_without_a_large_peak_is_not_excused_by_one_of_another():
    peaks = [peak(20, update_actor=1000, old_log_prob=1000), peak(22, update_actor=1000, old_log_prob=9000)]
    assert predicted(peaks, update_actor=9000, old_log_prob=1000) == pytest.approx(100)


def test_two_peaks_of_the_same_phase_give_its_slope():
    peaks = [
        peak(20, update_actor=1000, old_log_prob=1000),
        peak(24, update_actor=2000, old_log_prob=1000),
        peak(28, update_actor=3000, old_log_prob=1000),
    ]
    assert predicted(peaks, update_actor=6000, old_log_prob=1000) == pytest.approx(28 + 1.1 * 4 * 3)


def test_without_peaks_or_loads_nothing_is_predicted():
    assert predicted_peak(exactly(update_actor=1), [], 0) is None
    assert predicted_peak({}, [peak(1, update_actor=1)], 0) is None


def test_what_would_not_fit_is_refused_with_its_numbers():
    failure = predicted_oom(exactly(update_actor=8000), [peak(20, update_actor=1000)], DEVICE)
    assert failure is not None
    assert "predicted 92.0 GiB of 80.0 GiB" in failure.evidence
    assert (failure.failure_class, failure.phase) == (FailureClass.OOM_GPU, Phase.UPDATE_ACTOR)
    assert failure.not_tried
    assert predicted_oom(exactly(update_actor=6000), [peak(20, update_actor=1000)], DEVICE) is None


def test_what_other_processes_hold_counts():
    tight = DeviceMemory(total=80 * GIB, outside=20 * GIB, idle=10 * GIB)
    assert predicted_oom(exactly(update_actor=6000), [peak(20, update_actor=1000)], tight) is not None


def test_what_was_run_is_not_refused_however_tight_it_was():
    ran = peak(79, update_actor=1000)
    assert predicted_oom(ran.loads, [ran], DEVICE) is None
    assert predicted_oom(exactly(update_actor=1001), [ran], DEVICE) is not None


pairs = st.tuples(st.floats(100, 1e5), st.floats(100, 1e5))
line = st.tuples(st.floats(0, 30), st.floats(1e-4, 1e-2))


@given(seen=st.lists(pairs, min_size=1, max_size=6), wanted=pairs, one=line, other=line, held=st.floats(0, 20))
def test_a_step_that_is_made_of_lines_never_takes_more_than_predicted(seen, wanted, one, other, held):
    def really(update: float, log_prob: float) -> float:
        return held + max(one[0] + one[1] * update, other[0] + other[1] * log_prob)

    peaks = [peak(really(*tokens), update_actor=tokens[0], old_log_prob=tokens[1]) for tokens in seen]
    said = predicted(peaks, idle=held, update_actor=wanted[0], old_log_prob=wanted[1])
    assert said >= really(*wanted) * (1 - 1e-4)  # bytes are whole


def h200_lengths(tokens: int) -> list[int]:
    """128 lengths with everything that the records say of them: prompts of 69 to 288 tokens with a mean of 145, responses of
    20 to 512 of which 79 are at the limit, and the sum."""
    prompts = [69 + round(219 * (place / 31) ** 1.87) for place in range(32) for _ in range(4)]
    short = [20 + round(place * 495 / 48) for place in range(49)]
    responses = [512] * 128
    for place, length in enumerate(short):
        responses[(place * 53) % 128] = min(512, length)
    lengths = [prompt + response for prompt, response in zip(prompts, responses, strict=True)]
    assert sum(lengths) == pytest.approx(tokens, rel=0.01)
    return lengths


def h200() -> tuple[list[tuple[dict[str, Load], float]], int]:
    """What training took in the session on an H200, in the order of the session; bytes that it held while it generated."""
    records = [json.loads(text) for text in H200.read_text().splitlines()]
    config = dict(argument.lstrip("+").split("=", 1) for argument in records[0]["job"])
    whole = next(r for r in records if r["kind"] == "step" and r["work"] == "whole")
    lengths = h200_lengths(whole["step"]["tokens"])
    taken, idle = [], 0
    for record in records:
        if record["kind"] != "step" or "step" not in record:
            continue
        if record["work"] == "generation":
            idle = int(record["step"]["memory_gb"] * GIB)
            continue
        numbers = {**{k: int(v) for k, v in config.items() if v.isdigit()}, REMOVE_PADDING: True}
        taken.append((loads_of(record["settings"]["phases"], lengths, numbers, 1), record["step"]["memory_gb"]))
    return taken, idle


def test_longest_trajectories_took_no_more_on_an_h200_than_their_predecessors_let_expect():
    """Up to 137.2 of 139.8 GiB, which the rule would not have let pass where running out of memory ends the session."""
    records = [json.loads(text) for text in H200.with_name("longest.jsonl").read_text().splitlines()]
    config = {keys.SAMPLES: 4, keys.ACTOR_MINI_BATCH: 32, REMOVE_PADDING: True}
    lengths: list[int] = []
    peaks: list[Peak] = []
    said = []
    for record in records:
        if record["kind"] != "step" or record["work"] == "generation":
            continue
        lengths = record["lengths"] if record["work"] == "whole" and record["lengths"] else lengths
        of_step = record["lengths"] if record["work"] == "longest" else lengths
        loads = loads_of(record["settings"]["phases"], of_step, config, 1)
        if record["work"] == "longest":
            device = DeviceMemory(**record["device"])
            bound = predicted_peak(loads, peaks, device.idle)
            assert bound is not None
            said.append((round(bound / GIB, 1), round(record["peak_bytes"] / GIB, 1)))
            refused = predicted_oom(loads, peaks, device) is not None
        peaks.append(Peak(loads, record["peak_bytes"]))
    assert said == [(40.2, 25.2), (44.8, 41.7), (113.8, 107.4), (130.7, 107.4), (155.1, 137.2)]
    assert refused


def test_no_setting_took_more_on_an_h200_than_its_predecessors_let_expect():
    taken, idle = h200()
    peaks: list[Peak] = []
    checked = 0
    for loads, gib in taken:
        if len(peaks) >= 6 and not any(peak.loads == loads for peak in peaks):
            said = predicted_peak(loads, peaks, idle)
            assert said is not None
            assert gib <= said / GIB <= 3.5 * gib, (loads, gib, said / GIB)
            checked += 1
        peaks.append(Peak(loads, int(gib * GIB)))
    assert checked >= 10


def test_the_setting_that_ran_out_of_memory_on_the_h200_would_have_been_refused():
    taken, idle = h200()
    config = {"actor_rollout_ref.actor.ppo_mini_batch_size": 32, "actor_rollout_ref.rollout.n": 4}
    batching = {"use_dynamic_bsz": True, "max_token_len_per_gpu": 131072}
    loads = loads_of(dict.fromkeys(("update_actor", "old_log_prob", "ref"), batching), h200_lengths(72165), config, 1)
    peaks = [Peak(known, int(gib * GIB)) for known, gib in taken]
    device = DeviceMemory(total=150109880320, outside=0, idle=idle)
    assert predicted_oom(loads, peaks, device) is not None
    assert (
        LIMIT * device.total / GIB > max(gib for _, gib in taken) - 1
    )  # and the largest one that ran would not by itself


OOM = Failure(FailureClass.OOM_GPU, Phase.UPDATE_ACTOR, "Less.", "tried to allocate 9 GiB", False)


def check(gib: float | None, failure: Failure | None = None) -> MemoryCheck:
    peak = None if gib is None else int((gib - 2) * GIB)
    return MemoryCheck(Point.of({}), "s", 1000, peak, 2 * GIB, 80 * GIB, failure)


@pytest.mark.parametrize(
    ("finalist", "own", "left_out"),
    [
        (check(75.9), check(30), None),
        (check(76.1), check(30), "it takes 76.1 of 80.0 GiB, more than 95%"),
        (check(76.1), None, "it takes 76.1 of 80.0 GiB, more than 95%"),
        (check(77.0), check(78.0), None),
        (check(78.5), check(78.0), "it takes 78.5 of 80.0 GiB, more than 95%"),
        (check(None, OOM), check(30), "oom_gpu in update_actor: tried to allocate 9 GiB"),
        (check(None, OOM), check(None, OOM), None),
        (check(None), check(30), None),
    ],
)
def test_a_finalist_is_left_out_where_it_may_run_out_of_memory_and_the_users_command_does_not(finalist, own, left_out):
    assert too_full(finalist, own) == left_out


@pytest.mark.parametrize(
    ("peaks", "grown"),
    [
        ([37.0, 41.1, 41.4], None),  # too few steps
        ([18.3, 18.3, 18.3, 18.3], 0.0),
        ([15.1, 17.9, 18.7, 18.7], 0.0),  # the longest batch of a few steps, on an H200
        ([20.0, 21.0, 22.0, 23.0], 1.0),
        ([20.0, 20.01, 20.02, 20.03], 0.0),  # the allocator's rounding
        ([50.0, 60.0, 60.0, 61.0, 62.0, 63.0], 1.0),  # the last four
        ([20.0, 21.0, 22.0, 23.0, 23.0], 0.0),
    ],
)
def test_memory_that_reaches_a_new_height_in_every_step_is_a_slope(peaks, grown):
    assert slope(peaks) == (None if grown is None else pytest.approx(grown))
