"""Write-back: the change and nothing else."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.launch import LaunchError, diff, format_override, read_launch, write_back
from autotune.launch.hydra_grammar import read_override
from autotune.values import KnobValue

CASES = Path(__file__).parents[1] / "cases" / "scripts"
CHANGES: dict[str, KnobValue] = {
    "actor_rollout_ref.rollout.gpu_memory_utilization": 0.77,
    "actor_rollout_ref.actor.use_dynamic_bsz": False,
    "trainer.hook.path": "/a b/it's $HOME/`x`.py",
    "actor_rollout_ref.rollout.max_model_len": None,
    "data.train_batch_size": 48,
}
READABLE = [
    path for path in sorted(CASES.glob("*.json")) if "expect_error" not in json.loads(path.read_text(encoding="utf-8"))
]

values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**12), 10**12),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n"), max_size=30),
)  # fmt: skip


@pytest.mark.parametrize("path", READABLE, ids=[path.stem for path in READABLE])
def test_every_given_script_takes_a_change_and_nothing_else(path: Path) -> None:
    assumed = json.loads(path.read_text(encoding="utf-8"))["assumed"]
    options = {"env": assumed["env"], "cwd": assumed["cwd"], "home": assumed["home"]}
    launch = read_launch(path.with_suffix(".sh"), **options)
    written = write_back(launch, CHANGES, new_keys={"trainer.hook.path"})
    again = read_launch(written, **options)
    assert {key: again.value(key) for key in CHANGES} == CHANGES
    assert [(o.op, o.key, o.value) for o in again.overrides if o.key not in CHANGES] == [
        (o.op, o.key, o.value) for o in launch.overrides if o.key not in CHANGES
    ]
    assert (again.launcher, again.hydra_flags, again.env, again.wrappers) == (
        launch.launcher,
        launch.hydra_flags,
        launch.env,
        launch.wrappers,
    )
    assert write_back(again, CHANGES, new_keys={"trainer.hook.path"}) == again.text


@pytest.mark.parametrize("path", READABLE, ids=[path.stem for path in READABLE])
def test_no_change_gives_the_same_bytes(path: Path) -> None:
    assumed = json.loads(path.read_text(encoding="utf-8"))["assumed"]
    launch = read_launch(path.with_suffix(".sh"), env=assumed["env"], cwd="/launch", home="/home/user")
    text = path.with_suffix(".sh").read_bytes().decode()
    assert launch.text == text
    assert write_back(launch, {}) == text.replace("\r\n", "\n")


def test_a_literal_value_changes_where_it_stands_in_the_quotes_it_had() -> None:
    text = "python3 -m verl.trainer.main_ppo a.x=1 a.y=\"2\" 'a.z=3' \\\n    $EXTRA  # end\n"
    written = write_back(read_launch(text, env={}), {"a.x": 10, "a.y": 20, "a.z": 30})
    assert written == "python3 -m verl.trainer.main_ppo a.x=10 a.y=\"20\" 'a.z=30' \\\n    $EXTRA  # end\n"


def test_a_value_from_a_variable_is_left_and_overridden_before_the_users_own_arguments() -> None:
    text = 'B=4\npython3 -m verl.trainer.main_ppo \\\n    a.x=$B \\\n    a.y=1 \\\n    "$@" 2>&1 | tee log\n'
    launch = read_launch(text, env={})
    written = write_back(launch, {"a.x": 8, "a.new": 1}, new_keys={"a.new"})
    assert written == text.replace("    a.y=1 \\\n", "    a.y=1 \\\n    a.x=8 \\\n    +a.new=1 \\\n")
    assert "+    a.x=8 \\" in diff(launch, written)


def test_the_last_of_several_overrides_of_a_key_is_the_one_that_changes() -> None:
    written = write_back(read_launch("python3 -m verl.trainer.main_ppo a.x=1 a.y=2 a.x=3\n", env={}), {"a.x": 5})
    assert written == "python3 -m verl.trainer.main_ppo a.x=1 a.y=2 a.x=5\n"


def test_a_place_that_cannot_carry_the_change_is_named(tmp_path: Path) -> None:
    (tmp_path / "fixed.sh").write_text("python3 -m verl.trainer.main_ppo a.x=1 a.y=2\n")
    launch = read_launch("export A=1\nbash fixed.sh\n", env={}, cwd=str(tmp_path))
    with pytest.raises(LaunchError) as caught:
        write_back(launch, {"a.x": 7})
    assert (caught.value.code, caught.value.line) == ("WRITE_BACK", 2)


def test_an_unknown_op_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown op"):
        format_override("a", 1, "remove")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values)
def test_hydra_reads_back_what_is_formatted(value: KnobValue) -> None:
    read = read_override(format_override("a.b", value))
    assert read.error is None
    assert (type(read.typed), read.typed) == (type(value), value)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), values), min_size=1, max_size=6),
    st.dictionaries(st.sampled_from("abcdefgh"), values, min_size=1, max_size=4),
    st.sampled_from(["inline", "lines", "array"]),
)
def test_reading_a_written_script_gives_the_change_and_nothing_else(
    own: list[tuple[str, KnobValue]], changes: dict[str, KnobValue], shape: str
) -> None:
    words = [shlex.quote(format_override(f"data.{key}", value)) for key, value in own]
    head = "python3 -m verl.trainer.main_ppo"
    text = {
        "inline": f"{head} {' '.join(words)}\n",
        "lines": f"{head} \\\n  " + " \\\n  ".join(words) + ' \\\n  "$@" 2>&1 | tee out\n',
        "array": "A=(\n  " + "\n  ".join(words) + f'\n)\n{head} "${{A[@]}}"\n',
    }[shape]
    launch = read_launch(text, env={})
    assert [(o.key, o.typed) for o in launch.overrides] == [(f"data.{key}", value) for key, value in own]
    named = {f"data.{key}": value for key, value in changes.items()}
    again = read_launch(write_back(launch, named), env={})
    assert {key: again.value(key) for key in named} == named
    kept = [(o.key, o.typed) for o in launch.overrides if o.key not in named]
    assert [(o.key, o.typed) for o in again.overrides if o.key not in named] == kept


def test_an_error_names_what_is_wrong() -> None:
    with pytest.raises(LaunchError) as caught:
        read_launch("python3 -m verl.trainer.main_ppo data.x=1\n", env={}, set_overrides=["nonsense"])
    assert caught.value.code == "BAD_SET"
