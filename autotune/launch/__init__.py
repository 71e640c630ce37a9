"""The user's command: read a bash script, YAML file, Hydra config or pasted command without running it, and write it back."""

from autotune.launch.errors import LaunchError
from autotune.launch.hydra_grammar import format_override
from autotune.launch.launch import Finding, Launch, Override, Unresolved
from autotune.launch.read import read_launch
from autotune.launch.setup import capture_environment
from autotune.launch.write import diff, write_back

__all__ = [
    "Finding",
    "Launch",
    "LaunchError",
    "Override",
    "Unresolved",
    "capture_environment",
    "diff",
    "format_override",
    "read_launch",
    "write_back",
]
