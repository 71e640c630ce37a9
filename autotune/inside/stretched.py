"""Trajectories as long as a job allows, made from shorter ones: what a step takes of memory when every response runs to its limit.

A row of verl's queue has columns of the prompt's length, of the response's, of both, and others
(trainer/ppo/v1/agent_loop_tq.py:180-205). Tokens are repeated until the limits are reached: what they say plays no part in
how much memory they take.
"""

from typing import Any

import torch


class NotStretchable(ValueError):
    """A column whose meaning is bound to its own tokens."""


def stretched(
    fields: Any, tags: list[dict[str, Any]], *, prompt: int, response: int
) -> tuple[Any, list[dict[str, Any]]]:
    """All trajectories with `prompt` and `response` tokens.

    Args:
        fields: columns by name (a TensorDict), one row a trajectory; rows of a column may differ in length.
        tags: of each row, with its `prompt_len` and `response_len`.

    Raises:
        NotStretchable: positions in several dimensions, or pictures.
    """
    found = fields.copy()
    for name in list(found.keys()):
        column = found[name]
        if name == "multi_modal_inputs" and any(bool(getattr(row, "data", row)) for row in column):
            raise NotStretchable("trajectories with pictures cannot be made longer than they are")
        if not isinstance(column, torch.Tensor):
            continue
        had = column.unbind()
        rows = [
            _stretched(name, row, int(tag["prompt_len"]), int(tag["response_len"]), prompt, response)
            for row, tag in zip(had, tags, strict=True)
        ]
        if all(row is before for row, before in zip(rows, had, strict=True)):
            continue
        found[name] = (
            torch.nested.as_nested_tensor(rows, layout=torch.jagged) if column.is_nested else torch.stack(rows)
        )
    lengths = {"prompt_len": prompt, "response_len": response, "seq_len": prompt + response}
    return found, [{**tag, **lengths} for tag in tags]


def _stretched(name: str, row: Any, had_prompt: int, had_response: int, prompt: int, response: int) -> Any:
    if row.dim() == 0:
        return row
    if name == "position_ids":
        if row.dim() > 1:
            raise NotStretchable("positions in several dimensions cannot be made longer than they are")
        return torch.arange(prompt + response, dtype=row.dtype)
    if name == "prompts":
        return _repeated(row, prompt)
    if row.size(0) == had_response:
        return _repeated(row, response)
    if row.size(0) == had_prompt + had_response:
        return torch.cat([_repeated(row[:had_prompt], prompt), _repeated(row[had_prompt:], response)])
    return row


def _repeated(row: Any, length: int) -> Any:
    times = -(-length // row.size(0))
    return row.repeat(times, *[1] * (row.dim() - 1))[:length]
