"""Loaded by `import verl` in every process of a job (VERL_USE_EXTERNAL_MODULES)."""

import os

from autotune.inside import echo

echo.watch_trainer()
if os.environ.get("VERL_PLATFORM") == "cpu":
    from autotune.inside import cpu_critic, cpu_platform

    cpu_platform.install()
    cpu_critic.install()
