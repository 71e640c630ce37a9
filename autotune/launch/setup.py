"""Running the user's `--setup` command once, and taking over what it exports."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

from autotune.values import BadInput

_SHELLS_OWN = frozenset({"_", "SHLVL", "PWD", "OLDPWD"})


def capture_environment(command: str, *, timeout_s: float, env: Mapping[str, str]) -> dict[str, str]:
    """The variables that a bash command exports or changes.

    Args:
        command: what the user gave to `--setup`, such as `source env.sh`. It is run, once, in the current folder.
        env: variables on top of this process' own.

    Raises:
        BadInput: it fails, or takes longer than `timeout_s` seconds.
    """
    before = {**os.environ, **env}
    # The command is the user's own shell text, and running it is what was asked for; it is passed as an argument to eval,
    # so that the frame around it cannot be broken by its quotes.
    frame = 'eval "$1" 1>&2 || exit; env -0'
    try:
        ran = subprocess.run(
            ["bash", "-c", frame, "setup", command], env=before, capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BadInput(f"--setup {command!r} did not end within {timeout_s:.0f} s") from error
    if ran.returncode != 0:
        last = ran.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise BadInput(f"--setup {command!r} failed with exit status {ran.returncode}: {last[0]}")
    after = dict(part.split("=", 1) for part in ran.stdout.decode(errors="replace").split("\0") if "=" in part)
    return {name: value for name, value in after.items() if name not in _SHELLS_OWN and before.get(name) != value}
