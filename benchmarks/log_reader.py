"""How fast and in how much memory a log is read, and whether spoiled logs are read safely.

python benchmarks/log_reader.py              1 GB of log: seconds and peak memory of `autotune logs --json`
python benchmarks/log_reader.py --fuzz 100000  as many spoiled logs: none may crash, hang, or lose a step line that was left alone
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.verl_logs.checks import check  # noqa: E402
from tests.verl_logs.mutations import mutate, sources  # noqa: E402

CASES = ROOT / "tests" / "cases"
WORDS = [
    "the",
    "model",
    "response",
    "is",
    "so",
    "we",
    "have",
    "that",
    "3",
    "+",
    "4",
    "=",
    "7",
    "then",
    "compute",
    "all",
    "step",
    "by",
    "step",
]
MIXES = {"text": 400, "frames": 40, "steps": 0}
"""Lines of other text between two steps: generated responses, tracebacks of workers that were survived, or none at all."""


def make_log(path: Path, size: int, other: int) -> int:
    """Writes a log of about `size` bytes with `other` lines between two steps; returns the number of steps."""
    rng = random.Random(1)
    step_line = next(
        line for line in (CASES / "logs" / "l01_console_current.log").read_text().splitlines() if "step:2 - " in line
    )
    text = [
        f"(TaskRunner pid=21873) [response] {' '.join(rng.choices(WORDS, k=rng.randint(5, 40)))}\n" for _ in range(2000)
    ]
    frames = [
        f'(WorkerDict pid=9)   File "/opt/verl/verl/workers/fsdp_workers.py", line {n}, in update_actor\n'
        for n in range(200)
    ]
    steps = written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            steps += 1
            body = "".join(rng.choices(frames if other == MIXES["frames"] else text, k=other)) if other else ""
            written += file.write(body + step_line.replace("step:2 - ", f"step:{steps} - ", 1) + "\n")
    return steps


def measure(size: int, mix: str) -> dict[str, object]:
    """Seconds and peak memory (MB) of the command on such a log, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "big.log"
        steps = make_log(path, size, MIXES[mix])
        megabytes = path.stat().st_size / 1e6
        code = (
            "import resource, sys\n"
            "import typer\n"
            "from autotune.cli.logs import logs\n"
            "try:\n"
            "    typer.run(logs)\n"
            "finally:\n"
            "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)\n"
        )
        with (Path(folder) / "out.json").open("w") as out:
            began = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-c", code, "--json", str(path)], cwd=ROOT, stdout=out, stderr=subprocess.PIPE, text=True, check=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
            seconds = time.monotonic() - began
        with (Path(folder) / "out.json").open() as out:
            read = sum(line.lstrip().startswith('{"step":') for line in out)
    if read != steps:
        raise SystemExit(f"{mix}: {read} steps were read of {steps}")
    return {
        "mix": mix,
        "megabytes": round(megabytes),
        "steps": steps,
        "seconds": round(seconds, 1),
        "peak_mb": round(int(done.stderr.split()[-1]) / 1024),
    }


def fuzz(count: int, seed: int) -> dict[str, object]:
    """Reads `count` spoiled logs; the first that is misread raises AssertionError."""
    logs, rng = sources(CASES), random.Random(seed)
    began, slowest, kept = time.monotonic(), 0.0, 0
    for _ in range(count):
        log = mutate(rng.choice(logs), rng)
        start = time.monotonic()
        kept += check(log, rng)
        slowest = max(slowest, time.monotonic() - start)
    return {
        "logs": count,
        "seed": seed,
        "untouched_steps": kept,
        "seconds": round(time.monotonic() - began),
        "slowest_s": round(slowest, 3),
    }


def main() -> None:
    """Prints one JSON object a measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--mix", choices=[*MIXES, "all"], default="text")
    parser.add_argument("--fuzz", type=int, metavar="LOGS", help="read spoiled logs instead")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.fuzz:
        print(json.dumps(fuzz(options.fuzz, options.seed)))
        return
    for mix in MIXES if options.mix == "all" else (options.mix,):
        print(json.dumps(measure(options.megabytes * 1_000_000, mix)), flush=True)


if __name__ == "__main__":
    main()
