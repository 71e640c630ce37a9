"""Trajectories at their limits, made of shorter ones."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
tensordict = pytest.importorskip("tensordict")

from autotune.inside.stretched import NotStretchable, stretched  # noqa: E402

pytestmark = pytest.mark.verl
LENGTHS = ((2, 3), (4, 1))
"""Prompt and response of two trajectories."""


def ragged(rows):
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


@pytest.fixture
def rows():
    fields = {
        "prompts": ragged([[1, 2], [1, 2, 3, 4]]),
        "responses": ragged([[7, 8, 9], [5]]),
        "response_mask": ragged([[1, 0, 1], [1]]),
        "input_ids": ragged([[1, 2, 7, 8, 9], [1, 2, 3, 4, 5]]),
        "position_ids": ragged([[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]),
        "num_turns": torch.tensor([2, 2]),
    }
    tags = [{"prompt_len": p, "response_len": r, "seq_len": p + r, "status": "success"} for p, r in LENGTHS]
    return tensordict.TensorDict(fields, batch_size=2), tags


def lists(column):
    return [row.tolist() for row in column.unbind()]


def test_every_column_is_as_long_as_the_job_allows(rows):
    fields, tags = stretched(*rows, prompt=5, response=4)
    assert lists(fields["prompts"]) == [[1, 2, 1, 2, 1], [1, 2, 3, 4, 1]]
    assert lists(fields["responses"]) == [[7, 8, 9, 7], [5, 5, 5, 5]]
    assert lists(fields["response_mask"]) == [[1, 0, 1, 1], [1, 1, 1, 1]]
    assert lists(fields["input_ids"]) == [[1, 2, 1, 2, 1, 7, 8, 9, 7], [1, 2, 3, 4, 1, 5, 5, 5, 5]]
    assert lists(fields["position_ids"]) == [list(range(9))] * 2
    assert fields["num_turns"].tolist() == [2, 2]
    assert [(tag["prompt_len"], tag["response_len"], tag["seq_len"]) for tag in tags] == [(5, 4, 9)] * 2
    assert {tag["status"] for tag in tags} == {"success"}


def test_what_was_given_stays_as_it_was(rows):
    stretched(*rows, prompt=5, response=4)
    fields, tags = rows
    assert lists(fields["responses"]) == [[7, 8, 9], [5]]
    assert tags[0]["response_len"] == 3


def test_columns_with_several_values_a_token_are_repeated_along_their_tokens(rows):
    fields, tags = rows
    fields["experts"] = torch.nested.as_nested_tensor(
        [torch.arange(5)[:, None].expand(5, 2).contiguous() for _ in LENGTHS], layout=torch.jagged
    )
    found, _ = stretched(fields, tags, prompt=5, response=4)
    assert [row[0] for row in found["experts"].unbind()[0].tolist()] == [0, 1, 0, 1, 0, 2, 3, 4, 2]


def test_positions_in_several_dimensions_are_refused(rows):
    fields, tags = rows
    fields["position_ids"] = torch.zeros(2, 3, 5, dtype=torch.int64)
    with pytest.raises(NotStretchable, match="several dimensions"):
        stretched(fields, tags, prompt=5, response=4)


def test_pictures_are_refused(rows):
    fields, tags = rows
    fields["multi_modal_inputs"] = tensordict.NonTensorStack(
        tensordict.NonTensorData({}), tensordict.NonTensorData({"pixel_values": [1]})
    )
    with pytest.raises(NotStretchable, match="pictures"):
        stretched(fields, tags, prompt=5, response=4)
