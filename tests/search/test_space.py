"""Spaces: what a file may say, and what a job makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.search.first_points import first_points
from autotune.search.space import Dimension, Space, ladder_with
from autotune.search.space_file import SpaceFile, build_space, find_space, first_values, load_space_file
from autotune.values import BadInput, Point
from autotune.verl import keys
from autotune.verl.knobs import Safety, catalogue
from tests.jobs import config, job

SHIPPED = Path(__file__).resolve().parents[2] / "search_spaces"
KNOBS = catalogue("0.9.1")


def space_of(name="grpo_fsdp_vllm", allow=(Safety.NEUTRAL,), hooks=True, **changes):
    file = load_space_file(SHIPPED / f"{name}.yaml")
    return build_space(file, KNOBS, config(**changes), job(**changes), allow=allow, hooks=hooks)


def test_every_shipped_space_fits_the_catalogue():
    for path in SHIPPED.glob("*.yaml"):
        file = load_space_file(path)
        assert set(file.knobs) <= set(KNOBS)
        assert file.name == path.stem


def test_the_users_own_value_is_on_every_ladder():
    space = space_of(**{keys.ACTOR_TOKENS.replace(".", "__"): 17000})
    assert 17000 in space.dimension(keys.ACTOR_TOKENS).choices
    assert space.point(space.rungs(space.baseline)) == space.baseline


def test_rungs_that_can_never_be_legal_or_different_are_not_offered():
    space = space_of()
    assert max(space.dimension(keys.ACTOR_MICRO_BATCH).choices) == 64  # 64·8 sequences ÷ 8 ranks
    assert all(choice >= 2048 for choice in space.dimension(keys.ACTOR_TOKENS).choices)
    assert max(space.dimension(keys.MAX_NUM_SEQS).choices) == 1024
    assert space.dimension(keys.TENSOR_PARALLEL).choices == (1, 2, 4, 8)


def test_knobs_without_effect_are_left_out_with_the_reason():
    fixed = dict(space_of(hooks=False).fixed)
    assert "reference" in fixed[keys.REF_MICRO_BATCH]
    assert "critic" in fixed[keys.CRITIC_TOKENS]
    assert fixed[keys.FAST_POLL] == "--no-hooks"


def test_numeric_knobs_need_to_be_allowed():
    file = SpaceFile(name="x", knobs={keys.ACTOR_STRATEGY: "auto", keys.MAX_NUM_SEQS: "auto"})
    without = build_space(file, KNOBS, config(), job())
    assert keys.ACTOR_STRATEGY not in without
    allowed = build_space(file, KNOBS, config(), job(), allow=(Safety.NEUTRAL, Safety.NUMERIC))
    assert keys.ACTOR_STRATEGY in allowed


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"actor_rollout_ref.rollout.max_num_seq": "auto"}, "did you mean actor_rollout_ref.rollout.max_num_seqs"),
        ({"actor_rollout_ref.actor.grad_clip": "auto"}, "never reads it"),
        ({"nonsense": "auto"}, "unknown knob nonsense"),
        ({keys.CRITIC_TOKENS: "auto"}, "leaves nothing to tune"),
    ],
)
def test_a_wrong_knob_is_one_clear_sentence(knobs, said):
    with pytest.raises(BadInput, match=said.replace(".", r"\.")):
        build_space(SpaceFile(name="x", knobs=knobs), KNOBS, config(), job())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: x\nknobs: {}\n", "knobs"),
        ("name: x\nknobs: {a: auto}\nextra: 1\n", "extra"),
        ("- 1\n", "no mapping"),
        ("a: [", "not YAML"),
    ],
)
def test_a_broken_space_file_is_one_clear_sentence(tmp_path, text, said):
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(BadInput, match=said):
        load_space_file(path)


def test_an_unknown_space_lists_the_shipped_ones():
    with pytest.raises(BadInput, match="grpo_fsdp_vllm"):
        find_space("grpo", [SHIPPED])
    assert find_space("demo_cpu", [SHIPPED]).name == "demo_cpu.yaml"


def test_try_first_must_be_on_the_ladders():
    file = SpaceFile(name="x", knobs={keys.MAX_NUM_SEQS: [8, 16]}, try_first=[{keys.MAX_NUM_SEQS: 12}])
    space = build_space(file, KNOBS, config(), job())
    with pytest.raises(BadInput, match="12"):
        first_values(file, space)


def test_the_first_points_start_with_the_hook_alone_and_never_repeat():
    space = space_of()
    first = first_points(space, job(), engines=4, asked=[space.baseline])
    assert first[0].point.changes_from(space.baseline) == {keys.FAST_POLL: True}
    points = [item.point for item in first]
    assert len(points) == len(set(points))
    assert space.baseline not in points
    wide = points[1].as_dict()
    assert wide[keys.MAX_NUM_SEQS] * 4 >= 128 * 8
    assert wide[keys.ACTOR_MICRO_BATCH] == 16
    assert points[2].as_dict()[keys.DYNAMIC] is True


@given(
    st.lists(st.one_of(st.integers(), st.booleans(), st.floats(allow_nan=False), st.text()), max_size=6),
    st.one_of(st.integers(), st.booleans(), st.none()),
)
def test_a_ladder_always_holds_the_own_value_once(choices, own):
    ladder = ladder_with(choices, own)
    assert sum(type(choice) is type(own) and choice == own for choice in ladder) == 1


def test_true_and_1_are_different_rungs():
    dimension = Dimension("k", (1, True))
    assert dimension.index(True) == 1
    assert dimension.index(1) == 0
    assert Point.of({"k": 1}) != Point.of({"k": True})


def test_the_size_is_the_product_of_the_ladders():
    assert Space((Dimension("a", (1, 2)), Dimension("b", (1, 2, 3))), Point.of({"a": 1, "b": 1})).size == 6
