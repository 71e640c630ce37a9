"""What `autotune parse` and `autotune logs` say about a pasted text. Nothing of it is run, stored, or looked up on this host."""

from __future__ import annotations

import re
from dataclasses import dataclass

from autotune.launch import Launch, LaunchError
from autotune.launch.launch import Context
from autotune.launch.read import MAX_BYTES, Source, read_text
from autotune.verl.log_report import LogReader, LogReport
from autotune.verl.metrics import PHASES

MOST = 16 << 20
"""Bytes of a text that are taken."""
SHOWN_STEPS = 60
_LOG = re.compile(
    r"step:\d+ - |\"timing_s/|timing_s/step|^Traceback |\[36m\(|\(\w+ pid=\d+|^(?:INFO|WARNING|ERROR) \d\d-\d\d ",
    re.MULTILINE,
)
_SCRIPT = re.compile(r"\A\s*#!|main_ppo|\\\n|^\s*(?:python3?|torchrun|ray job submit)\s", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Pasted:
    """A text and what it turned out to be."""

    kind: str
    """`script` or `log`."""
    launch: Launch | None = None
    log: LogReport | None = None
    phases: tuple[str, ...] = ()
    """Phases that the log's steps have."""
    error: str | None = None
    """Why the text cannot be read as what it is."""
    line: int | None = None


def kind_of(text: str) -> str:
    """`log` for what looks like the output of a run, otherwise `script`."""
    head = text[: 1 << 20]
    if _LOG.search(head):
        return "log"
    return "script" if _SCRIPT.search(head) else "log"


def read(text: str, kind: str) -> Pasted:
    """Reads a text as a `script`, a `log`, or whichever it looks like (`auto`)."""
    kind = kind if kind in ("script", "log") else kind_of(text)
    return _script(text) if kind == "script" else _log(text)


def _script(text: str) -> Pasted:
    # Without this process' environment and files: whoever pastes must not see what the one who started the dashboard can.
    context = Context({}, "/", None, (), {}, (), None, reads_files=False)
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        return Pasted("script", error=f"the text is larger than {MAX_BYTES:,} bytes, the most a launch script may have")
    try:
        return Pasted(
            "script",
            launch=read_text(Source(text if text.endswith("\n") else text + "\n", None, "script", {}), context),
        )
    except LaunchError as error:
        return Pasted("script", error=error.message, line=error.line)


def _log(text: str) -> Pasted:
    reader = LogReader()
    reader.feed(text.encode("utf-8", "replace"))
    reader.close()
    report = reader.report()
    named = {phase for row in report.rows for phase in row.record.phases}
    return Pasted("log", log=report, phases=tuple(phase for phase in PHASES if phase in named))
