"""Faster polling for the end of generation in verl's v1 trainer (sync mode). It changes no result, only how soon it is seen.

verl 0.9.1 looks every 2.0 seconds whether all responses of a step are there (trainer/ppo/v1/replay_buffer.py:144), so that
each step waits up to two seconds for nothing. This sampler looks twenty times a second. It is used by two overrides:

    trainer.v1.sampler.custom_sampler.path=/where/this/file/is/autotune_hooks.py
    trainer.v1.sampler.custom_sampler.name=FastPollReplayBuffer

Not for DAPO's filter groups or for `sync_refill_failed_groups`: verl passes those settings to its own sampler only.
"""

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

POLL_SECONDS = 0.05


class FastPollReplayBuffer(ReplayBuffer):
    """verl's own replay buffer with another poll interval."""

    def __init__(self, *args, **kwargs):
        kwargs.setdefault("poll_interval", POLL_SECONDS)
        super().__init__(*args, **kwargs)
