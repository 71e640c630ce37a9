"""The echo, with stand-ins for verl's and vLLM's modules."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from autotune.inside import PROTOCOL, echo

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOTUNE_ECHO_DIR", str(tmp_path))
    return tmp_path


def reports(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def test_a_report_names_protocol_role_and_process(folder: Path) -> None:
    echo.Echo("engine").say({"a.b": 1}, {"note": 2})
    (report,) = reports(folder)
    assert (report["protocol"], report["role"], report["values"], report["extra"]) == (
        PROTOCOL,
        "engine",
        {"a.b": 1},
        {"note": 2},
    )
    assert isinstance(report["pid"], int)


def test_values_of_later_calls_are_added_to_the_same_file(folder: Path) -> None:
    said = echo.Echo("trainer")
    said.say({"a": 1})
    said.say({"b": 2, "a": 3})
    assert [report["values"] for report in reports(folder)] == [{"a": 3, "b": 2}]


def test_no_half_written_file_is_left_beside_the_report(folder: Path) -> None:
    echo.Echo("trainer").say({"a": 1})
    assert [path.suffix for path in folder.iterdir()] == [".json"]


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOTUNE_ECHO_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    echo.Echo("trainer").say({"a": 1})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [object(), {1, 2}])
def test_a_value_that_json_lacks_is_complained_about_and_raises_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], value: object
) -> None:
    echo.Echo("trainer").say({"a": value})
    assert reports(folder) == []
    assert "could not be written" in capsys.readouterr().err


def test_a_folder_that_is_gone_raises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AUTOTUNE_ECHO_DIR", str(tmp_path / "gone"))
    echo.Echo("trainer").say({"a": 1})
    assert "could not be written" in capsys.readouterr().err


class Config:
    def __init__(self, forward_only: bool = False) -> None:
        self.forward_only = forward_only


def fake_training() -> Any:
    """A stand-in for verl's FSDP engine module: it cuts a batch into pieces of `micro_batch_size_per_gpu`."""
    module: Any = types.ModuleType("fake_fsdp")

    def prepare_micro_batches(data: dict[str, Any], dp_group: object = None) -> tuple[list[int], None]:
        return list(range(data["rows"] // (data["micro_batch_size_per_gpu"] or 1))), None

    class FSDPEngine:
        def __init__(self, forward_only: bool = False, cuts: bool = True) -> None:
            self.engine_config = Config(forward_only)
            self.cuts = cuts

        def forward_backward_batch(self, data: Any, loss_function: Any, forward_only: bool = False) -> str:
            if self.cuts:
                module.prepare_micro_batches(data=data)
            return "result"

    class FSDPEngineWithValueHead(FSDPEngine):
        pass

    module.prepare_micro_batches = prepare_micro_batches
    module.FSDPEngine = FSDPEngine
    module.FSDPEngineWithValueHead = FSDPEngineWithValueHead
    return module


@pytest.fixture
def training(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    utilities: Any = types.ModuleType("verl.utils.tensordict_utils")
    utilities.get_non_tensor_data = lambda data, key, default: data.get(key, default)
    parent: Any = types.ModuleType("verl.utils")
    parent.tensordict_utils = utilities
    monkeypatch.setitem(sys.modules, "verl", types.ModuleType("verl"))
    monkeypatch.setitem(sys.modules, "verl.utils", parent)
    monkeypatch.setitem(sys.modules, "verl.utils.tensordict_utils", utilities)
    module = fake_training()
    echo._watch_training(module)
    return module


def batch(*, dynamic: bool = False, tokens: int | None = None, micro: int | None = 4) -> dict[str, Any]:
    return {
        "rows": 16,
        "use_dynamic_bsz": dynamic,
        "max_token_len_per_gpu": tokens,
        "micro_batch_size_per_gpu": micro,
    }


def test_an_update_reports_its_micro_batch_and_how_many_there_were(training: Any, folder: Path) -> None:
    assert training.FSDPEngine().forward_backward_batch(batch(), None) == "result"
    (report,) = reports(folder)
    assert report["values"] == {f"{ACTOR}.use_dynamic_bsz": False, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4}
    assert report["extra"] == {"update_actor.micro_batches": 4}


def test_with_dynamic_batching_the_token_budget_counts_and_the_micro_batch_does_not(
    training: Any, folder: Path
) -> None:
    training.FSDPEngine().forward_backward_batch(batch(dynamic=True, tokens=2048), None, forward_only=True)
    (report,) = reports(folder)
    assert report["values"] == {
        f"{ROLLOUT}.log_prob_use_dynamic_bsz": True,
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu": 2048,
    }


@pytest.mark.parametrize(
    ("engine", "forward_only", "phase"),
    [
        ("FSDPEngine", False, "update_actor"),
        ("FSDPEngine", True, "old_log_prob"),
        ("FSDPEngineWithValueHead", False, "update_critic"),
        ("FSDPEngineWithValueHead", True, "values"),
    ],
)
def test_the_phase_follows_from_engine_and_direction(
    training: Any, folder: Path, engine: str, forward_only: bool, phase: str
) -> None:
    getattr(training, engine)().forward_backward_batch(batch(), None, forward_only=forward_only)
    assert list(reports(folder)[0]["extra"]) == [f"{phase}.micro_batches"]


def test_a_forward_only_engine_is_the_reference_policy(training: Any, folder: Path) -> None:
    training.FSDPEngine(forward_only=True).forward_backward_batch(batch(), None, forward_only=True)
    assert reports(folder)[0]["values"]["actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu"] == 4


def test_an_engine_that_cuts_its_batch_elsewhere_reports_nothing_of_the_call_before(
    training: Any, folder: Path
) -> None:
    training.FSDPEngine().forward_backward_batch(batch(), None)
    training.FSDPEngineWithValueHead(cuts=False).forward_backward_batch(batch(), None)
    assert list(reports(folder)[0]["extra"]) == ["update_actor.micro_batches"]


@pytest.mark.parametrize("watch", [echo._watch_training, echo._watch_engine, echo._watch_poll])
def test_a_release_without_the_watched_names_is_left_as_it_is(
    watch: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = types.ModuleType("another_release")
    names = set(vars(module))
    watch(module)
    assert set(vars(module)) == names
    assert "its values are not reported" in capsys.readouterr().err


def test_the_engine_reports_what_it_was_built_with(folder: Path) -> None:
    class EngineCore:
        def _initialize_kv_caches(self, vllm_config: Any) -> str:
            vllm_config.cache_config.num_gpu_blocks = 267
            return "sized"

    module: Any = types.ModuleType("fake_core")
    module.EngineCore = EngineCore
    echo._watch_engine(module)
    config = types.SimpleNamespace(
        scheduler_config=types.SimpleNamespace(
            max_num_seqs=8, max_num_batched_tokens=1024, enable_chunked_prefill=True
        ),
        cache_config=types.SimpleNamespace(
            gpu_memory_utilization=0.1, enable_prefix_caching=False, num_gpu_blocks=None, block_size=128
        ),
        parallel_config=types.SimpleNamespace(tensor_parallel_size=2),
        model_config=types.SimpleNamespace(max_model_len=128, enforce_eager=True),
    )
    assert EngineCore()._initialize_kv_caches(config) == "sized"
    (report,) = reports(folder)
    assert report["values"] == {
        f"{ROLLOUT}.max_num_seqs": 8,
        f"{ROLLOUT}.max_num_batched_tokens": 1024,
        f"{ROLLOUT}.enable_chunked_prefill": True,
        f"{ROLLOUT}.gpu_memory_utilization": 0.1,
        f"{ROLLOUT}.enable_prefix_caching": False,
        f"{ROLLOUT}.tensor_model_parallel_size": 2,
        f"{ROLLOUT}.max_model_len": 128,
        f"{ROLLOUT}.enforce_eager": True,
    }
    assert report["extra"] == {"kv_blocks": 267, "kv_block_size": 128}


def test_the_largest_batch_is_reported_once_it_shrinks_and_only_when_it_grew() -> None:
    said: list[int] = []
    peak = echo.Peak(said.append)
    for running in (1, 5, 8, 8):
        peak.see(running)
    assert said == []
    for running in (7, 3, 0, 6, 8, 2, 9, 1):
        peak.see(running)
    assert said == [8, 9]


def test_the_poll_interval_tells_whether_the_hook_is_in_use(folder: Path) -> None:
    class ReplayBuffer:
        def __init__(self, poll_interval: float = 2.0) -> None:
            self.poll_interval = poll_interval

    module: Any = types.ModuleType("fake_buffer")
    module.ReplayBuffer = ReplayBuffer
    echo._watch_poll(module)
    ReplayBuffer(poll_interval=0.05)
    (report,) = reports(folder)
    assert (report["values"], report["extra"]) == ({"hook.fast_poll": True}, {"poll_interval": 0.05})
