"""An agent loop that answers with recorded lengths, so that every whole step of a session generates equally many tokens.

verl's single-turn loop, with `max_tokens` and `ignore_eos` for each response (vllm_async_server.py:602-634 passes both on).
What is said differs from step to step, how long it is does not. Where the prompt carries recorded rewards, the loop comes
back with one of them, and verl calls none.
"""

from typing import Any

from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

from autotune.inside.rewards import REWARDS, give_back

NAME = "autotune_replay"
LENGTHS = "autotune_lengths"
"""Column of a prompt: the length of each of its responses, tokens; absent while lengths are recorded."""


def replayed(sampling_params: dict[str, Any], length: int) -> dict[str, Any]:
    """The sampling parameters of a response of exactly `length` tokens."""
    return {**sampling_params, "max_tokens": length, "ignore_eos": True}


class ReplayLoop(SingleTurnAgentLoop):  # type: ignore[misc]  # verl is not there where types are checked
    """verl's single-turn loop with the recorded length and reward where there are some."""

    async def run(self, sampling_params: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        lengths = kwargs.get(LENGTHS)
        if lengths is not None:
            sampling_params = replayed(sampling_params, int(lengths[kwargs["session_id"]]))
        output = await super().run(sampling_params, *args, **kwargs)
        rewards = kwargs.get(REWARDS)
        if rewards is not None:
            await give_back(output, *rewards[kwargs["session_id"]])
        return output
