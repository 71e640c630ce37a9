"""How many tokens a training phase holds at once on one GPU: what its memory grows with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from autotune.verl import keys
from autotune.verl.config import FlatConfig, flag, integer

_CRITIC_MINI_BATCH = "critic.ppo_mini_batch_size"
_UPDATES = {"update_actor": keys.ACTOR_MINI_BATCH, "update_critic": _CRITIC_MINI_BATCH}
"""Phases that work on one mini-batch at a time; the others have all of the step's trajectories before them."""


@dataclass(frozen=True, slots=True, order=True)
class Load:
    """Tokens of the fullest micro-batch of a phase on one GPU. Which trajectories meet in it is not known, so there are two."""

    least: float
    """As if every micro-batch had trajectories of mean length."""
    most: float
    """As if the longest of them met in one."""


Loads: TypeAlias = Mapping[str, Load]
"""By phase."""


@dataclass(frozen=True, slots=True)
class Peak:
    """What training at some setting really took on the rank that took most."""

    loads: Loads
    bytes: int
    """Most that torch's allocator had reserved."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The tightest GPU of a session, bytes."""

    total: int
    outside: int
    """In use while the trainer works, and not by its allocator: contexts, NCCL, a vLLM that sleeps (or does not)."""
    idle: int
    """What the trainer holds between two steps: weights and optimiser, as far as they are not offloaded."""


def loads_of(
    phases: Mapping[str, Mapping[str, Any]], lengths: Sequence[int], config: FlatConfig, world_size: int
) -> dict[str, Load]:
    """The loads of a setting; empty where the lengths are not known.

    Args:
        phases: batching by phase, as a session gets it (`autotune.verl.live.session_settings`).
        lengths: tokens of every trajectory of the step, prompt and response.
        config: composed configuration of the job.
    """
    if not lengths:
        return {}
    parallel = max(
        integer(config, f"{keys.ACTOR}.ulysses_sequence_parallel_size") or 1,
        integer(config, f"{keys.ACTOR}.fsdp_config.ulysses_sequence_parallel_size") or 1,
    )
    ordered = sorted(lengths, reverse=True)
    share = max(1, len(ordered) * parallel // max(1, world_size))
    samples = integer(config, keys.SAMPLES) or 1
    padded = not flag(config, f"{keys.MODEL}.use_remove_padding", True)
    found: dict[str, Load] = {}
    for phase, batching in phases.items():
        rows = share
        if phase in _UPDATES and (mini := integer(config, _UPDATES[phase])) is not None:
            rows = max(1, min(share, mini * samples * parallel // max(1, world_size)))
        load = _load(batching, ordered, rows, padded=padded)
        if load is not None:
            found[phase] = Load(load.least / parallel, load.most / parallel)
    return found


def _load(batching: Mapping[str, Any], ordered: Sequence[int], rows: int, *, padded: bool) -> Load | None:
    """Tokens of one micro-batch of a group of ranks that share its sequences.

    Args:
        ordered: lengths of all trajectories, the longest first.
        rows: trajectories that the group has to do.
    """
    mean = sum(ordered) / len(ordered)
    everything = Load(rows * mean, float(sum(ordered[:rows])))
    if batching.get("use_dynamic_bsz"):
        budget = batching.get("max_token_len_per_gpu")
        if not budget:
            return None
        # verl makes as few micro-batches as fit and evens them out (utils/seqlen_balancing.py:384).
        even = everything.least / math.ceil(everything.least / budget)
        return Load(even, min(everything.most, max(float(budget), ordered[0])))
    micro = batching.get("micro_batch_size_per_gpu")
    if not micro:
        return None
    together = min(int(micro), rows)
    longest = float(together * ordered[0] if padded else sum(ordered[:together]))
    return Load(min(together * mean, everything.least), longest)
