"""The JSON lines of verl's file logger: one `{"step": N, "data": {...}}` a step (`verl/utils/tracking.py`, 0.6.1 and later)."""

from __future__ import annotations

import json
import os
from pathlib import Path

from autotune.values import StepRecord
from autotune.verl.metrics import LoggedStep, finite_numbers, is_training_step, step_record

_HEAD = 512
_MAX_LINE = 8 << 20


def parse_line(line: str | bytes) -> LoggedStep | None:
    """The step of one line; None for anything else.

    A line that a killed run left torn and the next run wrote on is read from where the later object begins.
    """
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    found = _parse(text)
    if found is None and (again := text.rfind('{"step":')) > 0:
        found = _parse(text[again:])
    return found


def _parse(text: str) -> LoggedStep | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("data"), dict):
        return None
    step = value.get("step")
    if isinstance(step, bool) or not isinstance(step, int):
        return None
    data: dict[str, float | None] = {}
    for name, number in value["data"].items():
        whole = isinstance(number, int) and not isinstance(number, bool) and abs(number) < 1 << 62
        if number is None or whole or isinstance(number, float):
            data[name] = number
    return LoggedStep(step, data)


class MetricsTail:
    """Reads a growing file of metrics a piece at a time.

    A line is returned once, when its newline has arrived; until then it is kept. The file may not exist yet. verl truncates it when
    it starts: a shorter file, or one with another beginning, is a new run, read from its start.
    """

    def __init__(self, path: str | os.PathLike[str], *, release: str | None = None) -> None:
        self.path = Path(path)
        self.release = release
        self.runs = 0
        """Files begun so far: 1 after the first bytes, one more whenever the file was written anew."""
        self._offset = 0
        self._tail = b""
        self._head = b""

    def poll(self) -> list[StepRecord]:
        """The training steps that were completed since the last call, in the order of the file; validations are left out."""
        return [record for line in self._lines() if (record := self._record(line)) is not None]

    def _record(self, line: bytes) -> StepRecord | None:
        found = parse_line(line)
        if found is None:
            return None
        metrics = finite_numbers(found.metrics.items())
        return step_record(found.step, metrics, release=self.release) if is_training_step(metrics) else None

    def _lines(self) -> list[bytes]:
        try:
            with self.path.open("rb") as file:
                self._start_anew_if_rewritten(file.read(_HEAD), os.fstat(file.fileno()).st_size)
                file.seek(self._offset)
                new = file.read()
        except FileNotFoundError:
            return []
        if new and not self._offset:
            self.runs += 1
        self._offset += len(new)
        *whole, self._tail = (self._tail + new).split(b"\n")
        if (
            len(self._tail) > _MAX_LINE
        ):  # a file without newlines is not verl's: keep no more of it than a line can hold
            self._tail = b""
        return whole

    def _start_anew_if_rewritten(self, head: bytes, size: int) -> None:
        if size < self._offset or not head.startswith(self._head):
            self._offset = 0
            self._tail = b""
        self._head = head
