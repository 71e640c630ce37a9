"""Commands that are not a bash script; the set-up command; what is refused and what is warned about."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.launch import LaunchError, capture_environment, read_launch, write_back
from autotune.values import BadInput

LAUNCH = "python3 -m verl.trainer.main_ppo data.train_batch_size=8 trainer.nnodes=1"


def _codes(text: str, **options: object) -> list[tuple[str, int | None]]:
    return [(f.code, f.line) for f in read_launch(text, env={}, **options).lint]  # type: ignore[arg-type]


def test_yaml_of_overrides_is_read_flat_nested_and_as_a_list(tmp_path: Path) -> None:
    shapes = {
        "flat": "data.train_batch_size: 8\ntrainer.logger: [console, file]\ndata.path: null\n",
        "nested": "data:\n  train_batch_size: 8\n  path: null\ntrainer:\n  logger: [console, file]\n",
        "list": "- data.train_batch_size=8\n- trainer.logger=[console,file]\n- data.path=null\n",
        "full": "env: {A: 1}\noverrides:\n  data.train_batch_size: 8\n  trainer.logger: [console, file]\n  data.path:\n",
    }
    for name, text in shapes.items():
        file = tmp_path / f"{name}.yaml"
        file.write_text(text)
        launch = read_launch(file, env={})
        assert launch.value("data.train_batch_size") == 8, name
        assert launch.value("trainer.logger") == ["console", "file"], name
        assert launch.value("data.path") is None, name
        assert {o.line for o in launch.overrides} <= set(range(1, 7)), name
        assert launch.env == ({"A": "1"} if name == "full" else {}), name


def test_a_hydra_config_is_read_by_file_folder_and_name(tmp_path: Path) -> None:
    (tmp_path / "grpo.yaml").write_text("defaults:\n  - ppo_trainer\n  - _self_\ndata:\n  train_batch_size: 4\n")
    for source in (tmp_path, tmp_path / "grpo", tmp_path / "grpo.yaml"):
        launch = read_launch(source, env={})
        assert launch.hydra_flags == {"config-path": str(tmp_path), "config-name": "grpo"}
        written = read_launch(write_back(launch, {"data.train_batch_size": 16}), env={})
        assert written.value("data.train_batch_size") == 16
        assert written.hydra_flags == launch.hydra_flags


@pytest.mark.parametrize(
    "text",
    ["a: &x 1\nb: *x\n", "[" * 3000, "a: [1\n", "", "just text", "overrides: 3\n", "a: !!python/object:os.system x\n"],
)
def test_yaml_that_is_no_file_of_overrides_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(LaunchError):
        read_launch(tmp_path / "x.yaml", env={})


def test_a_pasted_command_is_read() -> None:
    launch = read_launch(LAUNCH, env={})
    assert (launch.kind, launch.value("data.train_batch_size")) == ("command", 8)


def test_a_launch_in_another_script_takes_its_changes_through_the_arguments(tmp_path: Path) -> None:
    (tmp_path / "base.sh").write_text(LAUNCH + ' "$@"\n')
    (tmp_path / "top.sh").write_text("export A=1\nbash base.sh trainer.total_epochs=2\n")
    launch = read_launch(tmp_path / "top.sh", env={}, cwd=str(tmp_path))
    assert launch.env == {"A": "1"}
    written = write_back(launch, {"data.train_batch_size": 16})
    assert written == "export A=1\nbash base.sh trainer.total_epochs=2 data.train_batch_size=16\n"


def test_several_launches_are_named_and_one_can_be_chosen() -> None:
    text = f"for lr in 1 2; do\n  {LAUNCH} data.lr=$lr\ndone\n"
    with pytest.raises(LaunchError) as caught:
        read_launch(text, env={})
    assert (caught.value.code, caught.value.line) == ("MULTIPLE_LAUNCHES", 2)
    assert "data.lr=1" in caught.value.message
    assert "data.lr=2" in caught.value.message
    assert read_launch(text, env={}, choose=2).value("data.lr") == 2


def test_a_given_value_settles_what_only_a_shell_could_know() -> None:
    text = f"N=$(nvidia-smi -L | wc -l)\n{LAUNCH} trainer.n_gpus_per_node=$N\n"
    assert [u.key for u in read_launch(text, env={}).unresolved] == ["trainer.n_gpus_per_node"]
    assert read_launch(text, env={}, given={"N": "4"}).value("trainer.n_gpus_per_node") == 4
    settled = read_launch(text, env={}, set_overrides={"trainer.n_gpus_per_node": "2"})
    assert (settled.unresolved, settled.value("trainer.n_gpus_per_node")) == ((), 2)


def test_a_branch_that_only_a_shell_can_decide_is_not_guessed() -> None:
    text = f"if [ $(hostname) = head ]; then TP=4; else TP=2; fi\n{LAUNCH} data.tp=$TP\n"
    assert [u.key for u in read_launch(text, env={}).unresolved] == ["data.tp"]


@pytest.mark.parametrize(
    ("entrypoint", "kind"),
    [
        ("verl.trainer.main_ppo", "ppo"),
        ("recipe.dapo.main_dapo", "recipe"),
        ("recipe.one_step_off_policy.main_ppo", "async"),
        ("verl.experimental.fully_async_policy.fully_async_main", "async"),
        ("my.trainer", "own"),
    ],
)
def test_entry_points_are_recognised_and_said_to_be_supported_or_not(entrypoint: str, kind: str) -> None:
    launch = read_launch(LAUNCH.replace("verl.trainer.main_ppo", entrypoint), env={})
    assert (launch.entrypoint_kind, launch.supported) == (kind, kind == "ppo")
    assert launch.supported or entrypoint in (launch.unsupported_reason or "")
    assert ("ASYNC_TRAINER" in [f.code for f in launch.lint]) == (kind == "async")


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("\ufeff" + LAUNCH + "\n", ("BOM", 1)),
        ("BS = 4\n" + LAUNCH + "\n", ("BAD_ASSIGNMENT", 1)),
        ("BS= 4\n" + LAUNCH + "\n", ("BAD_ASSIGNMENT", 1)),
        ("$BS=4\n" + LAUNCH + "\n", ("BAD_ASSIGNMENT", 1)),
        (LAUNCH + " \\\n trainer.experiment_name=实验\n", ("HYDRA_NON_ASCII_UNQUOTED", 2)),
        (LAUNCH + " trainer.resume_mode=auto\n", ("RESUME_AUTO", None)),
        (LAUNCH + " trainer.nnodes=2\n", ("DUPLICATE_KEY", None)),
        (LAUNCH + ' data.x="$NOPE"\n', ("EMPTY_VALUE", 1)),
    ],
)
def test_a_command_that_hardly_means_what_it_says_gets_a_warning(text: str, finding: tuple[str, int | None]) -> None:
    assert _codes(text) == [finding]


def test_a_sound_command_gets_none() -> None:
    assert _codes(LAUNCH + " trainer.experiment_name='实验 1'".replace("'实验 1'", "\"'实验 1'\"")) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("python3 -m verl.trainer.main_ppo \\\n  data.a=1 \\ \n  data.b=2\n", 2),
        ("python3 -m verl.trainer.main_ppo \\\n  data.a=1 \\\n\n  data.b=2\n", 3),
        ("python3 -m verl.trainer.main_ppo \\\n  data.a=1 data.c=1\n  data.b=2 \\\n  $@\n", 2),
        ("python3 -m verl.trainer.main_ppo \\\n  data.a=1 \\\n  # data.x=1 \\\n  # data.y=1\n  data.b=2\n", 3),
    ],
)
def test_a_broken_continuation_is_refused_where_it_breaks(text: str, line: int) -> None:
    with pytest.raises(LaunchError) as caught:
        read_launch(text, env={})
    assert (caught.value.code, caught.value.line) == ("SHELL_BROKEN_CONTINUATION", line)
    assert "data.b=2" in caught.value.message


def test_a_script_without_a_launch_is_refused() -> None:
    with pytest.raises(LaunchError) as caught:
        read_launch("echo a\necho b\n", env={})
    assert caught.value.code == "NO_LAUNCH_FOUND"


def test_the_setup_command_gives_what_it_exports(tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("export ONE='a b'\nTWO=2\nexport THREE=$'x\\ny'\necho noise\n")
    found = capture_environment(
        f"source {tmp_path}/env.sh; export FOUR=$GIVEN", timeout_s=20, env={"GIVEN": "g", "ONE": "old"}
    )
    assert found == {"ONE": "a b", "THREE": "x\ny", "FOUR": "g"}


def test_a_setup_command_that_fails_or_hangs_is_refused() -> None:
    with pytest.raises(BadInput, match="status 3"):
        capture_environment("exit 3", timeout_s=20, env={})
    with pytest.raises(BadInput, match="not done"):
        capture_environment("sleep 60", timeout_s=0.3, env={})


def test_a_script_that_the_script_writes_itself_is_followed() -> None:
    text = f"cat > run.sh <<'EOF'\n{LAUNCH}\nEOF\nbash run.sh\n"
    assert read_launch(text, env={}).value("data.train_batch_size") == 8


def test_a_missing_argument_is_asked_for_as_an_argument() -> None:
    with pytest.raises(LaunchError) as caught:
        read_launch("M=${1:?usage}\n" + LAUNCH + "\n", env={})
    assert (caught.value.code, caught.value.line) == ("UNSET_VARIABLE", 1)
    assert "after --" in caught.value.message


def test_a_module_glued_to_its_flag_is_read() -> None:
    launch = read_launch(LAUNCH.replace("-m verl", "-mverl"), env={})
    assert (launch.launcher, launch.entrypoint) == ("python3", "verl.trainer.main_ppo")


def test_a_file_sourced_from_beside_the_script_is_read(tmp_path):
    """`BASH_SOURCE` is how most scripts find their neighbours."""
    (tmp_path / "model.inc").write_text("MODEL=/models/base-7b\n")
    script = tmp_path / "train.sh"
    script.write_text(
        'HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)\n'
        'source "$HERE/model.inc"\n'
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=$MODEL\n"
    )
    launch = read_launch(script, env={})
    assert launch.value("actor_rollout_ref.model.path") == "/models/base-7b"
    assert launch.not_executed == ()
