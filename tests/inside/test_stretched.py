"""Trajectories at their limits, made of shorter ones."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.verl
LENGTHS = ((2, 3), (4, 1))
"""Prompt and response of two trajectories."""


@pytest.fixture
def torch():
    """Imported when one of these tests runs: it takes seconds, which every run without them would spend."""
    return pytest.importorskip("torch")


@pytest.fixture
def tensordict(torch):
    return pytest.importorskip("tensordict")


@pytest.fixture
def room(torch):
    from autotune.inside import stretched

    return stretched


def ragged(torch, rows):
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


@pytest.fixture
def rows(torch, tensordict):
    fields = {
        "prompts": ragged(torch, [[1, 2], [1, 2, 3, 4]]),
        "responses": ragged(torch, [[7, 8, 9], [5]]),
        "response_mask": ragged(torch, [[1, 0, 1], [1]]),
        "input_ids": ragged(torch, [[1, 2, 7, 8, 9], [1, 2, 3, 4, 5]]),
        "position_ids": ragged(torch, [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]),
        "num_turns": torch.tensor([2, 2]),
    }
    tags = [{"prompt_len": p, "response_len": r, "seq_len": p + r, "status": "success"} for p, r in LENGTHS]
    return tensordict.TensorDict(fields, batch_size=2), tags


def lists(column):
    return [row.tolist() for row in column.unbind()]


def test_every_column_is_as_long_as_the_job_allows(room, rows):
    fields, tags = room.stretched(*rows, prompt=5, response=4)
    assert lists(fields["prompts"]) == [[1, 2, 1, 2, 1], [1, 2, 3, 4, 1]]
    assert lists(fields["responses"]) == [[7, 8, 9, 7], [5, 5, 5, 5]]
    assert lists(fields["response_mask"]) == [[1, 0, 1, 1], [1, 1, 1, 1]]
    assert lists(fields["input_ids"]) == [[1, 2, 1, 2, 1, 7, 8, 9, 7], [1, 2, 3, 4, 1, 5, 5, 5, 5]]
    assert lists(fields["position_ids"]) == [list(range(9))] * 2
    assert fields["num_turns"].tolist() == [2, 2]
    assert [(tag["prompt_len"], tag["response_len"], tag["seq_len"]) for tag in tags] == [(5, 4, 9)] * 2
    assert {tag["status"] for tag in tags} == {"success"}


def test_what_was_given_stays_as_it_was(room, rows):
    room.stretched(*rows, prompt=5, response=4)
    fields, tags = rows
    assert lists(fields["responses"]) == [[7, 8, 9], [5]]
    assert tags[0]["response_len"] == 3


def test_columns_with_several_values_a_token_are_repeated_along_their_tokens(room, rows, torch):
    fields, tags = rows
    fields["experts"] = torch.nested.as_nested_tensor(
        [torch.arange(5)[:, None].expand(5, 2).contiguous() for _ in LENGTHS], layout=torch.jagged
    )
    found, _ = room.stretched(fields, tags, prompt=5, response=4)
    assert [row[0] for row in found["experts"].unbind()[0].tolist()] == [0, 1, 0, 1, 0, 2, 3, 4, 2]


def test_positions_in_several_dimensions_are_refused(room, rows, torch):
    fields, tags = rows
    fields["position_ids"] = torch.zeros(2, 3, 5, dtype=torch.int64)
    with pytest.raises(room.NotStretchable, match="several dimensions"):
        room.stretched(fields, tags, prompt=5, response=4)


def test_pictures_are_refused(room, rows, tensordict):
    fields, tags = rows
    fields["multi_modal_inputs"] = tensordict.NonTensorStack(
        tensordict.NonTensorData({}), tensordict.NonTensorData({"pixel_values": [1]})
    )
    with pytest.raises(room.NotStretchable, match="pictures"):
        room.stretched(fields, tags, prompt=5, response=4)
