"""Runs the command that the user gave with `--setup`, and keeps what it exports. The only place where this room runs anything."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping

from autotune.values import BadInput

_TRANSIENT = {"_", "SHLVL", "PWD", "OLDPWD", "BASH_EXECUTION_STRING"}


def capture_environment(command: str, *, timeout_s: float, env: Mapping[str, str]) -> dict[str, str]:
    """What `command` adds to or changes in the environment.

    It runs once in bash, on the user's explicit consent. What it prints goes to stderr.

    Args:
        command: such as `source env.sh`.
        timeout_s: seconds after which it is ended, with everything it started in its process group.
        env: on top of this process's own environment.

    Returns:
        Names and values of what it exports that was not there before, or had another value.

    Raises:
        BadInput: it failed, or took too long, or there is no bash.
    """
    before = {**os.environ, **env}
    reader, writer = os.pipe()
    script = f'eval "$1" 1>&2 || exit $?\nexec env -0 >&{writer}'
    try:
        process = subprocess.Popen(
            ["bash", "-c", script, "setup", command],
            env=before,
            pass_fds=(writer,),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        os.close(reader)
        os.close(writer)
        raise BadInput(f"--setup needs bash, which cannot be started: {error.strerror}") from None
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        try:
            status = process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _end(process)
            raise BadInput(f"--setup {command!r} was not done after {timeout_s:g} s and was ended") from None
        if status != 0:
            raise BadInput(f"--setup {command!r} failed with status {status}; its output is above")
        data = pipe.read()
    after = dict(pair.split("=", 1) for pair in data.decode("utf-8", "surrogateescape").split("\0") if "=" in pair)
    return {
        name: value
        for name, value in after.items()
        if before.get(name) != value and name not in _TRANSIENT and re.fullmatch(r"[A-Za-z_]\w*", name)
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    for sig in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sig)
            process.wait(timeout=5)
            return
        except ProcessLookupError:
            process.wait()
            return
        except subprocess.TimeoutExpired:
            continue
