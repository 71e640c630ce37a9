"""The value model's attention, with a stand-in for transformers."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from autotune.inside import cpu_critic


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What transformers was asked to load."""
    asked: list[dict[str, Any]] = []
    transformers: Any = types.ModuleType("transformers")
    transformers.AutoModelForTokenClassification = types.SimpleNamespace(
        from_pretrained=lambda **arguments: asked.append(arguments) or "model"
    )
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    return asked


@pytest.mark.parametrize(("named", "used"), [("eager", "eager"), ("sdpa", "sdpa"), (None, "sdpa")])
def test_the_attention_is_the_one_that_the_configuration_names(
    loaded: list[dict[str, Any]], named: str | None, used: str
) -> None:
    config = types.SimpleNamespace(_attn_implementation=named)
    assert cpu_critic.load_valuehead_model("/m", "float32", config, False) == "model"
    assert loaded[0]["attn_implementation"] == used
    assert (loaded[0]["pretrained_model_name_or_path"], loaded[0]["config"]) == ("/m", config)


def test_it_takes_the_place_of_verls_function(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("verl.utils.model")
    module.load_valuehead_model = None
    monkeypatch.setitem(sys.modules, "verl.utils.model", module)
    cpu_critic.install()
    assert module.load_valuehead_model is cpu_critic.load_valuehead_model
