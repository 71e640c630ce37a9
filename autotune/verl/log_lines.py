"""The few lines that matter among the gigabytes of a log, found without decoding the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

KEYWORDS = (
    "step:", '{"step"', "rror", "xception", "illed", "emory", "OOM", "oom", "SIG", "ignal", "CANCELLED", "nterrupt", 'File "', "ray::",
    "inal validation", "Total training", "raining Progress", "ostname:", "Ray ", "Watchdog", "NCCL", "CUresult", "died", " dead", "raph failed", "Could not",
    "in struct", "GCS", "lacement group", "erminated", "space left", "\tpid:", "KV cache", "concurrency for", "leep mode", "preemption",
    "will always be", "esuming from", "Unschedulable", "available node", "faulthandler",
)  # fmt: skip
"""Every line that a rule of `failure_rules`, the step reader or a hint can match holds one of these."""

_NEEDLES = tuple(word.encode() for word in KEYWORDS)
_BLOCK = 1 << 20
_MAX_LINE = 1 << 20
_MAX_LAST = 2000


def matters(line: str) -> bool:
    """Whether the line holds one of the keywords."""
    return any(word in line for word in KEYWORDS)


class LineScanner:
    """Takes the bytes of a log as they come and gives back the lines that matter, in order, without their newline.

    Memory is bounded by the size of a piece and of one line; of a line longer than 1 MiB the beginning is read.
    """

    def __init__(self) -> None:
        self.every_line = False
        """While True, the lines that follow are given back whatever they hold; the consumer may switch it between two lines."""
        self.last_line = ""
        """The last line that was not blank, progress bars included."""
        self._tail = b""
        self._skipping = False

    def feed(self, data: bytes) -> Iterator[str]:
        """The lines that matter among those that `data` completes."""
        if self._skipping:
            _, newline, data = data.partition(b"\n")
            if not newline:
                return
            self._skipping = False
        end = data.rfind(b"\n")
        if end < 0:
            self._tail += data
            yield from self._shorten_tail()
            return
        block = self._tail + data[: end + 1]
        self._tail = data[end + 1 :]
        yield from self._lines(block)
        yield from self._shorten_tail()

    def lines_of(self, file: BinaryIO) -> Iterator[str]:
        """The lines that matter in a whole file."""
        while block := file.read(_BLOCK):
            yield from self.feed(block)
        yield from self.flush()

    def flush(self) -> Iterator[str]:
        """The last line of a log that does not end in a newline."""
        block, self._tail = self._tail, b""
        if block:
            yield from self._lines(block + b"\n")

    def _shorten_tail(self) -> Iterator[str]:
        if len(self._tail) <= _MAX_LINE:
            return
        at = self._tail.rfind(b"\r")  # a progress bar writes no newline for hours
        if at >= 0:
            block, self._tail = self._tail[: at + 1], self._tail[at + 1 :]
        else:
            block, self._tail, self._skipping = self._tail, b"", True
        yield from self._lines(block + b"\n")

    def _lines(self, block: bytes) -> Iterator[str]:
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        position = 0
        starts = _line_starts(block)
        index = 0
        while True:
            if self.every_line:
                start = position
            else:
                while index < len(starts) and starts[index] < position:
                    index += 1
                if index == len(starts):
                    break
                start = starts[index]
            end = block.find(b"\n", start)
            if end < 0:
                break
            position = end + 1
            yield block[start : min(end, start + _MAX_LINE)].decode("utf-8", "replace")
        if (last := _last_line(block)) is not None:
            self.last_line = last


def _line_starts(block: bytes) -> list[int]:
    """Where lines begin that hold a keyword, sorted."""
    found: set[int] = set()
    for needle in _NEEDLES:
        at = block.find(needle)
        while at >= 0:
            found.add(block.rfind(b"\n", 0, at) + 1)
            end = block.find(b"\n", at)
            at = block.find(needle, end) if end >= 0 else -1
    return sorted(found)


def _last_line(block: bytes) -> str | None:
    text = block[-2 * _MAX_LAST :].decode("utf-8", "replace").rstrip()
    last = text.rpartition("\n")[2].strip()
    return last[-_MAX_LAST:] or None
