"""Loaded by `import verl` in every process of a job (VERL_USE_EXTERNAL_MODULES)."""

import os

from autotune.inside import echo, session

echo.watch_trainer()
session.watch_session()
if os.environ.get("VERL_PLATFORM") == "cpu":
    from autotune.inside import cpu_critic, cpu_platform

    cpu_platform.install()
    cpu_critic.install()
