"""The user's command: read a launch script without running it, hold it as a value, write it back."""

from autotune.launch.hydra import format_override
from autotune.launch.launch import Launch, LaunchError, Override
from autotune.launch.script import read_launch
from autotune.launch.setup import capture_environment
from autotune.launch.write import diff, write_back

__all__ = [
    "Launch",
    "LaunchError",
    "Override",
    "capture_environment",
    "diff",
    "format_override",
    "read_launch",
    "write_back",
]
