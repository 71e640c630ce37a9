"""Credentials leave the text; numbers and verl's own keys stay."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.redaction import redact, redact_json


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("export WANDB_API_KEY=0123456789abcdef", "export WANDB_API_KEY=***"),
        ("HF_TOKEN='hf_abcdefghijklmnopqrst'", "HF_TOKEN='***'"),
        ("{'AWS_SECRET_ACCESS_KEY': 'wJalrXUtnFEMI'}", "{'AWS_SECRET_ACCESS_KEY': '***'}"),
        ("git clone https://user:hunter22@host/x", "git clone https://***@host/x"),
        ("Authorization: Bearer abcdefgh12345678", "Authorization: Bearer ***"),
        ("PASSWORD=topsecret then topsecret again", "PASSWORD=*** then *** again"),
    ],
)
def test_credentials_are_masked_wherever_they_stand(text: str, clean: str) -> None:
    assert redact(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        "max_token_len=12192 and max_seq_len=15488",
        "data.prompt_key=prompt data.reward_fn_key=data_source",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=24000",
        "TOKENIZERS_PARALLELISM=true",
        "eos_token_id: 151645",
        "https://docs.vllm.ai/en/latest/ and user@host",
    ],
)
def test_what_is_no_credential_stays(text: str) -> None:
    assert redact(text) == text


def test_values_that_the_caller_knows_are_masked() -> None:
    assert redact("connect with s3cr3t-value", ["s3cr3t-value", "ab"]) == "connect with ***"


def test_json_is_masked_in_texts_keys_and_what_a_telling_key_names() -> None:
    shown = redact_json(
        {
            "WANDB_API_KEY": "0123456789ab cdef",
            "hf_password": "\udcffsecret",
            "nested": [{"note": "HF_TOKEN=hf_abcdefghijklmnopqrst"}, ("https://me:hunter22@host/x",)],
            "hf_abcdefghijklmnopqrst": 1,
            "data.prompt_key": "prompt",
            "max_tokens": 4096,
            "flag": None,
            "surrogate": "\ud800",
        }
    )
    assert shown == {
        "WANDB_API_KEY": "***",
        "hf_password": "***",
        "nested": [{"note": "HF_TOKEN=***"}, ["https://***@host/x"]],
        "***": 1,
        "data.prompt_key": "prompt",
        "max_tokens": 4096,
        "flag": None,
        "surrogate": "?",
    }


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({"setup": 'export HF_TOKEN="$HF_TOKEN"'}, {"setup": 'export HF_TOKEN="$HF_TOKEN"'}),
        ({"setup": 'export HF_TOKEN="abcdef"; x'}, {"setup": 'export HF_TOKEN="***"; x'}),
        ({"env": {"HF_TOKEN": "two words", "A": "b"}}, {"env": {"HF_TOKEN": "***", "A": "b"}}),
        ({"HF_TOKEN": "abcdef", "note": "it was abcdef"}, {"HF_TOKEN": "***", "note": "it was ***"}),
        ({"trainer.api_key": ["abcdef", "ghijkl"]}, {"trainer.api_key": ["***", "***"]}),
        (["--hf_token", "abcdef", "abcdef"], ["--hf_token", "***", "***"]),
        ({"HF_TOKEN": 5, "API_KEY": None, "SECRET": True}, {"HF_TOKEN": 5, "API_KEY": None, "SECRET": True}),
        ({"HF_TOKEN": "${HF_TOKEN}"}, {"HF_TOKEN": "${HF_TOKEN}"}),
        ({"data.prompt_key": "prompt", "data.max_tokens": "5"}, {"data.prompt_key": "prompt", "data.max_tokens": "5"}),
        ({"url": "https://user:hunter22@host/x"}, {"url": "https://***@host/x"}),
    ],
)
def test_json_is_redacted_by_its_values(value: object, kept: object) -> None:
    assert redact_json(value) == kept


names = st.sampled_from(["HF_TOKEN", "API_KEY", "api_key", "plain", "password", 'x"'])
texts = st.text(st.sampled_from("ab12 =:\"'\\,;[]{}$\n/@é"), max_size=12) | st.builds(
    lambda name, mark, rest: name + mark + rest, names, st.sampled_from(["=", ": ", '="', "='"]), st.text(max_size=8)
)
values = st.recursive(
    texts | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


def shape(value: object) -> object:
    """Everything of a JSON value but its texts."""
    if isinstance(value, dict):
        return [shape(item) for item in value.values()]
    if isinstance(value, list):
        return [shape(item) for item in value]
    return str if isinstance(value, str) else value


@given(values)
@settings(max_examples=200, deadline=None)
def test_json_keeps_its_shape(value: object) -> None:
    assert shape(json.loads(json.dumps(redact_json(value)))) == shape(value)
