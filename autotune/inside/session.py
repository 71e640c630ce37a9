"""Puts the parts of a session in place in the processes that need them; does nothing in any other launch.

A launch is a session when AUTOTUNE_SESSION_SOCKET is set. The trainer goes through verl's own registry
(`trainer.v1.trainer_mode=autotune_session`), the agent loop through its registry of loops, the scheduler through vLLM's
`scheduler_cls`. What has no official way in is one method each on vLLM's engine core and on verl's server of it, by which
the trainer reaches that scheduler.
"""

import os
from typing import Any

from autotune.inside.imports import after_import
from autotune.inside.wire import SOCKET

MODE = "autotune_session"
"""Value of `trainer.v1.trainer_mode`."""


def _add_trainer(module: Any) -> None:
    from autotune.inside import session_trainer  # noqa: F401  # registers itself


def _add_loop(module: Any) -> None:
    from verl.experimental.agent_loop.agent_loop import register

    from autotune.inside.replay_loop import NAME, ReplayLoop

    register(NAME)(ReplayLoop)


def _add_server_method(module: Any) -> None:
    """verl's actor around an engine (vllm_async_server.py:87). Ray takes an actor's methods from its class in the process
    that starts it and runs them in its own: the module is watched in both."""

    async def autotune_live(self: Any, limits: Any) -> Any:
        return await self.engine.engine_core.call_utility_async("autotune_live", limits)

    module.vLLMHttpServer.autotune_live = autotune_live


def watch_session() -> None:
    """In processes that import verl."""
    if os.environ.get(SOCKET):
        after_import("verl.trainer.ppo.v1.trainer_sync", _add_trainer)
        after_import("verl.experimental.agent_loop.single_turn_agent_loop", _add_loop)
        after_import("verl.workers.rollout.vllm_rollout.vllm_async_server", _add_server_method)


def _add_core_method(module: Any) -> None:
    from autotune.inside.scheduler import engine_facts

    def autotune_live(self: Any, limits: Any) -> Any:
        return {**self.scheduler.autotune_live(limits), **engine_facts(self)}

    module.EngineCore.autotune_live = autotune_live


def _add_worker_method(module: Any) -> None:
    from autotune.inside.scheduler import add_worker_method

    add_worker_method(module)


def watch_engine() -> None:
    """In processes of vLLM."""
    if os.environ.get(SOCKET):
        after_import("vllm.v1.engine.core", _add_core_method)
        after_import("vllm.v1.worker.gpu_worker", _add_worker_method)
