"""Logs spoiled at random, in ways that leave it known which steps must still be read exactly.

A log is a list of lines; a mutation puts lines in between, changes or removes lines, or changes how lines end. Step lines that it left alone
come back with their numbers; anything else may be missing, but nothing may crash or hang.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

JUNK = (
    "(raylet) Spilled 2048 MiB, 4 objects, write throughput 500 MiB/s.",
    "(WorkerDict pid=99, ip=10.0.0.7) INFO hello",
    "(TaskRunner pid=21873) [response] step:77 - think step by step - result:7",
    "(TaskRunner pid=21873) step:8 - x:1 - y:2",
    "(TaskRunner pid=21873) the log said step:5 - timing_s/step:1.0 - perf/throughput:1.0",
    "Traceback (most recent call last):",
    '  File "/opt/verl/verl/workers/fsdp_workers.py", line 1, in update_actor',
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "\x1b[32mgreen\x1b[0m", "7", "66.5", "- score:5", "", " ", "{", '{"step":', '{"step":3,"data":{"a":', "步骤：三", "Killed", "\x00\x01\x02",
    "Training Progress:   7%|█| 1/14 [01:11<1:00:01, 201.31s/it]", "step:", "step:4", "step:4 - ", "step:4 -", "a/b:1 - c/d:2", "]" * 300, "(" * 300,
    "(TaskRunner pid=1) " * 20, "[36m" * 50, "x" * 5000,
)  # fmt: skip


@dataclass
class Mutated:
    """A spoiled log."""

    data: bytes
    kept: list[str] = field(default_factory=list)
    """Step lines that are still there as they were printed, in order."""


def is_step(line: str) -> bool:
    return "step:" in line and "timing_s/step:" in line and "perf/time_per_step:" in line


def mutate(lines: list[str], rng: random.Random) -> Mutated:
    """One spoiled log made of `lines`."""
    out: list[tuple[str, bool]] = []
    for line in lines:
        step = is_step(line)
        dice = rng.random()
        if step and dice < 0.15:
            out.append((_spoil(line, rng), False))
        elif step and dice < 0.2:
            continue
        elif not step and dice < 0.3:
            out.append((_spoil(line, rng), False))
        else:
            out.append((line, step))
        while rng.random() < 0.3:
            out.append((rng.choice(JUNK), False))
    ending = rng.choice(("\n", "\n", "\n", "\r\n", "\x1b[0m\n"))
    data = "".join(line + ending for line, _ in out).encode("utf-8", "surrogatepass")
    if rng.random() < 0.2:
        data = data[: rng.randrange(len(data) + 1)]
        kept, at = [], 0
        for line, whole in out:
            at += len((line + ending).encode("utf-8", "surrogatepass"))
            if whole and at <= len(data):
                kept.append(line)
        return Mutated(data, kept)
    return Mutated(data, [line for line, whole in out if whole])


def _spoil(line: str, rng: random.Random) -> str:
    """The line with some characters lost, doubled, exchanged, or with another line in its middle."""
    if not line:
        return rng.choice(JUNK)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(line) + 1)
        match rng.randrange(6):
            case 0:
                line = line[:at]
            case 1:
                line = line[at:]
            case 2:
                line = line[:at] + rng.choice(JUNK) + line[at:]
            case 3:
                line = line[:at] + "\n" + line[at:]
            case 4:
                line = line[:at] + chr(rng.choice((0, 13, 27, 58, 45, 48, 0x4E00, 0x202E, 0x1F600))) + line[at:]
            case _:
                line = line[:at] + line[max(0, at - rng.randint(0, 40)) :]
        if not line:
            break
    return line


def sources(cases: Path) -> list[list[str]]:
    """The written and the real logs, as lines."""
    paths = [
        *sorted((cases / "logs").glob("*.log")),
        *sorted((cases / "logs").glob("*.jsonl")),
        *sorted((cases / "logs_real").glob("*.log")),
    ]
    return [
        path.read_bytes().decode().replace("\r\n", "\n").split("\n") for path in paths if path.stat().st_size < 20_000
    ]
