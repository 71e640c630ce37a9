"""Faster polling for the end of generation in verl's v1 trainer (sync mode). It changes no result, only how soon it is seen.

verl 0.9.1 looks every 2.0 seconds whether all responses of a step are there (trainer/ppo/v1/replay_buffer.py:144), so that
each step waits up to two seconds for nothing. This sampler looks twenty times a second. It is used by two overrides:

    trainer.v1.sampler.custom_sampler.path=/where/this/file/is/autotune_hooks.py
    trainer.v1.sampler.custom_sampler.name=FastPollReplayBuffer

For `trainer.v1.trainer_mode=sync` only. verl gives a custom sampler six of its settings (trainer_base.py:155-162) but keeps
back `filter_groups_metric`, `train_batch_size`, `gen_batch_size`, `max_inflight_gen_batches` and `sync_refill_failed_groups`.
The last four matter only together with DAPO's filter groups or refilling, so do not use this file when
`algorithm.filter_groups.enable` or `trainer.v1.sampler.sync_refill_failed_groups` is set: both would silently be off.
"""

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

POLL_SECONDS = 0.05


class FastPollReplayBuffer(ReplayBuffer):  # type: ignore[misc]  # verl is not there where types are checked
    """verl's own replay buffer with another poll interval."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("poll_interval", POLL_SECONDS)  # verl passes everything by name, and never this one
        super().__init__(*args, **kwargs)
