"""Rewards of a session: what a trajectory scored and how long that took, kept from whole steps and given back in probes.

verl scores a trajectory where it was generated: the agent loop's worker calls a reward worker and waits (agent_loop.py:967-1026),
so that a slow reward (a sandbox, a judge behind HTTP) is part of `gen` as far as generation does not hide it. A loop that
comes with a score of its own is not scored again (agent_loop.py:972), which is how a recorded one is given back.

The recorded seconds are those that the loop's worker waited: the reward itself, the way to its worker and back, and the
wait for a free one. They stay in the trainer's memory and go with it.
"""

import asyncio
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

LIVE, REPLAY, RECORD = "live", "replay", "record"
"""What an order says of rewards: call them; give the recorded ones back; call them and keep what they came to."""
REWARDS = "autotune_rewards"
"""Column of a prompt: score and seconds of each of its responses; absent where rewards are called."""
REPLAYED = "autotune_reward_replayed"
"""Extra field of a trajectory that was given its recorded reward."""
COLOCATED = "a reward model on the job's own GPUs scores after generation, in a phase of its own"
TURNS = "with several turns or tools the reward needs what was really said"
OWN_LOOP = "the job has an agent loop of its own"
NOT_RECORDED = "no whole step has given every response a score"


def table(
    rewards: Iterable[tuple[int, int, float, float]], *, prompts: int, samples: int
) -> list[list[list[float]]] | None:
    """Score and seconds of every response of every prompt.

    Args:
        rewards: (prompt, response, score, seconds) of each trajectory, in any order.

    Returns:
        None where one is missing, or is no number: that response could not be given a reward.
    """
    found: list[dict[int, list[float]]] = [{} for _ in range(prompts)]
    for prompt, response, score, seconds in rewards:
        if not (math.isfinite(score) and math.isfinite(seconds) and seconds >= 0.0):
            return None
        found[prompt][response] = [score, seconds]
    if any(sorted(of_prompt) != list(range(samples)) for of_prompt in found):
        return None
    return [[of_prompt[response] for response in range(samples)] for of_prompt in found]


def tally(seconds: Sequence[float], replayed: Sequence[bool]) -> dict[str, float]:
    """The rewards of one step in numbers.

    Args:
        seconds: of each trajectory, 0 where nothing was called or waited for.
        replayed: whether it was given its recorded reward.

    Returns:
        `session/reward/…`: `calls` of the user's reward, `replayed` ones, and of both the seconds that their trajectories
        waited. Trajectories wait at the same time, also while others generate: `seconds_total` is no part of the step's.
    """
    waited = [each for each, given in zip(seconds, replayed, strict=True) if given or each > 0.0]
    given_back = sum(replayed)
    return {
        "session/reward/calls": float(len(waited) - given_back),
        "session/reward/replayed": float(given_back),
        "session/reward/seconds_total": math.fsum(waited),
        "session/reward/seconds_mean": math.fsum(waited) / len(waited) if waited else 0.0,
        "session/reward/seconds_max": max(waited, default=0.0),
    }


async def give_back(output: Any, score: float, seconds: float) -> None:
    """Gives a loop's output its recorded score after the recorded seconds, as if the reward had been called.

    Args:
        output: verl's `AgentLoopOutput`, changed in place.
    """
    begin = time.perf_counter()
    await asyncio.sleep(seconds)
    output.reward_score = score
    output.metrics.compute_score = time.perf_counter() - begin
    output.extra_fields.update({"reward_extra_info": {}, REPLAYED: True})
