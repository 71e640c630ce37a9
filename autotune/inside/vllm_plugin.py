"""vLLM's general plugin, run in each of its processes (entry point group `vllm.general_plugins`)."""

import os
from typing import Any

from autotune.inside import echo, session
from autotune.inside.imports import after_import

KEEP_ONEDNN = "AUTOTUNE_KEEP_ONEDNN"
"""Set to 1 to leave oneDNN on: the second weight load then fails and verl hangs (a test of the watchdog uses it)."""


def _keep_weights(module: Any) -> None:
    """Plain torch linear layers on the CPU.

    vLLM packs a layer's weight for oneDNN and drops the original (model_executor/layers/utils.py,
    `dispatch_cpu_unquantized_gemm`); verl then has nothing to load the next weights into.
    """
    module._supports_onednn = False


def register() -> None:
    """Called by vLLM."""
    echo.watch_engine()
    session.watch_engine()
    if os.environ.get("VERL_PLATFORM") == "cpu" and os.environ.get(KEEP_ONEDNN) != "1":
        after_import("vllm._custom_ops", _keep_weights)
