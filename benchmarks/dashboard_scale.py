"""How long the dashboard's pages take over a large database: 2,000 studies, 200,000 trials, 1,000,000 steps, and 20 schedules
with a year of nights each.

    python -m benchmarks.dashboard_scale --database scale.db      # makes it if it is missing (about 1 GB), then measures

Prints the table of docs/dashboard.md and writes benchmarks/results/dashboard_scale-<date>.json. Every figure in the
database is made up and labelled simulated; the measured thing is the time of the pages.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import httpx
import psutil
from sqlalchemy import create_engine, func, insert, select

from autotune.store.schedules import NightState
from autotune.store.store import Store
from autotune.store.tables import NightRow, ScheduleRow, StepRow, StudyRow, TrialRow
from autotune.values import Point, StepRecord, TrialKind
from autotune.verl import keys

STUDIES, TRIALS, STEPS_EACH = 2000, 200_000, 5
SCHEDULES, NIGHTS, PAIRS = 20, 365, 5
LARGEST = 3000
"""Trials of the largest study."""
WORKLOADS = 40
PHASES = {"gen": 0.55, "old_log_prob": 0.08, "ref": 0.07, "adv": 0.01, "update_actor": 0.25, "update_weights": 0.02}
CONFIG_KEYS = 700
"""Keys of a composed verl 0.9.1 configuration."""


def main() -> None:
    """Makes the database if it is missing, measures the pages, prints and stores the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", type=Path, default=Path("scale.db"))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    parser.add_argument(
        "--share", type=float, default=1.0, help="make so much of the studies and trials, to try this out"
    )
    asked = parser.parse_args()
    made = asked.database.exists()
    store = Store.open(f"sqlite:///{asked.database.resolve()}")
    if not made:
        begin = time.monotonic()
        fill(asked.database, asked.share)
        print(f"made {asked.database} in {time.monotonic() - begin:.0f} s")
    with store.reading() as session:
        counts = {
            name: session.scalar(select(func.count()).select_from(table)) or 0
            for name, table in (
                ("studies", StudyRow),
                ("trials", TrialRow),
                ("steps", StepRow),
                ("schedules", ScheduleRow),
                ("nights", NightRow),
            )
        }
        largest = session.execute(
            select(TrialRow.study_id, func.count()).group_by(TrialRow.study_id).order_by(func.count().desc()).limit(1)
        ).one()[0]
        ordinary = session.scalar(
            select(StudyRow.id).where(StudyRow.state == "finished", StudyRow.id != largest).limit(1)
        )
        fingerprint = session.scalar(select(StudyRow.workload_fingerprint).where(StudyRow.id == ordinary))
    assert ordinary is not None
    load = os.getloadavg()[0]
    rows = measure(asked.database, pages(ordinary, largest, str(fingerprint)), asked.repeats)
    writing = writes(store, asked.database)
    result = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **counts,
        "bytes": asked.database.stat().st_size,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "load": round(load, 1),
        "pages": rows,
        "write_ms": writing,
    }
    print(table(result))
    asked.results.mkdir(parents=True, exist_ok=True)
    path = asked.results / f"dashboard_scale-{datetime.now(timezone.utc):%Y%m%d}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\n{path}")


def pages(ordinary: int, largest: int, fingerprint: str) -> dict[str, str]:
    """Address of every page that is measured, by what it shows."""
    return {
        "home": "/",
        "home, last page of workloads": "/?page=5",
        "studies, first page": "/studies",
        "studies, last page": "/studies?page=40",
        "studies, searched": "/studies?q=night-17&state=finished",
        "workload, 50 nights": f"/workloads/{fingerprint}?simulated=true",
        "study of 98 trials": f"/studies/{ordinary}",
        f"study of {LARGEST:,} trials": f"/studies/{largest}",
        f"trial table of {LARGEST:,}, sorted, page 20": f"/studies/{largest}/trials?sort=throughput&descending=true&page=20",
        f"trial table of {LARGEST:,}, searched": f"/studies/{largest}/trials?q=max_num_seqs%22%3A%20512",
        f"pictures of {LARGEST:,} trials (JSON)": f"/studies/{largest}/figures",
        "trial": f"/studies/{ordinary}/trials/3",
        f"schedules, {SCHEDULES}": "/schedules",
        f"schedule of {NIGHTS} nights": "/schedules/job-07",
        f"schedule of {NIGHTS} nights, last page": "/schedules/job-07?page=13",
        "compare, 6 studies": "/compare?" + "&".join(f"s={ordinary + i}" for i in range(6)),
        "read": "/read",
    }


def measure(database: Path, addresses: dict[str, str], repeats: int) -> list[dict[str, Any]]:
    """Server time of every page in milliseconds, over a loopback connection."""
    found = []
    with served(database) as (base, process), httpx.Client(base_url=base, timeout=60) as client:
        client.get("/healthz")
        for name, address in addresses.items():
            times = []
            client.get(address).raise_for_status()
            before = sum(process.cpu_times()[:2])
            for _ in range(repeats):
                begin = time.perf_counter()
                answer = client.get(address)
                times.append((time.perf_counter() - begin) * 1000)
                answer.raise_for_status()
            found.append(
                {
                    "page": name,
                    "median_ms": round(statistics.median(times), 1),
                    "worst_ms": round(max(times), 1),
                    "cpu_ms": round((sum(process.cpu_times()[:2]) - before) / repeats * 1000, 1),
                    "kilobytes": round(len(answer.content) / 1000, 1),
                }
            )
    return found


def writes(store: Store, database: Path, steps: int = 200) -> dict[str, float]:
    """Milliseconds that storing a step takes while nobody reads, and while four readers ask for the largest pages without a pause."""
    study = store.create_study(
        name=f"writer-{time.time_ns()}", workload="writer", workload_fingerprint="writer", script_path="", script_text="",
        launch={}, config={}, space={}, settings={}, environment={}, n_gpus=8, simulated=True,
    )  # fmt: skip
    number = store.add_trial(
        study, kind=TrialKind.BASELINE, point=Point(()), overrides=[], origin="", optuna_number=None, simulated=True
    )
    store.start_trial(study, number, run_dir="")

    def store_steps(first: int) -> list[float]:
        times = []
        for step in range(first, first + steps):
            begin = time.perf_counter()
            store.add_step(study, number, StepRecord(step, 90.0, 1_000_000, {"gen": 50.0}))
            times.append((time.perf_counter() - begin) * 1000)
        return times

    alone = store_steps(1)
    done = threading.Event()
    with served(database) as (base, _):

        def read() -> None:
            with httpx.Client(base_url=base, timeout=60) as client:
                while not done.is_set():
                    for address in ("/", "/studies", "/studies/1"):
                        client.get(address).raise_for_status()

        readers = [threading.Thread(target=read) for _ in range(4)]
        for reader in readers:
            reader.start()
        beside = store_steps(1 + steps)
        done.set()
        for reader in readers:
            reader.join()
    store.set_study_state(study, "stopped")
    return {
        "alone_median": round(statistics.median(alone), 2),
        "alone_worst": round(max(alone), 2),
        "beside_readers_median": round(statistics.median(beside), 2),
        "beside_readers_worst": round(max(beside), 2),
    }


def table(result: dict[str, Any]) -> str:
    """The table of docs/dashboard.md."""
    lines = ["| page | median, ms | worst, ms | CPU, ms | size, kB |", "|---|---:|---:|---:|---:|"]
    lines += [
        f"| {row['page']} | {row['median_ms']:.0f} | {row['worst_ms']:.0f} | {row['cpu_ms']:.0f} | {row['kilobytes']:.0f} |"
        for row in result["pages"]
    ]
    said = result["write_ms"]
    lines += [
        "",
        f"{result['studies']:,} studies, {result['trials']:,} trials, {result['steps']:,} steps, "
        f"{result['schedules']:,} schedules, {result['nights']:,} nights; "
        f"{result['bytes'] / 1e9:.1f} GB of SQLite; {result['machine']}, load {result['load']}.",
        f"Storing a step: median {said['alone_median']} ms (worst {said['alone_worst']}) while nobody reads, "
        f"{said['beside_readers_median']} ms (worst {said['beside_readers_worst']}) beside four readers without a pause.",
    ]
    return "\n".join(lines)


@contextmanager
def served(database: Path) -> Iterator[tuple[str, psutil.Process]]:
    """The dashboard as a process of its own, as people start it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "autotune.cli.main", "dashboard", "--port", str(port)]
    process = subprocess.Popen([*command, "--storage", f"sqlite:///{database.resolve()}"], stdout=subprocess.DEVNULL)
    base = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                httpx.get(f"{base}/healthz").raise_for_status()
                break
            except httpx.TransportError:
                time.sleep(0.05)
        yield base, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


# -- data ------------------------------------------------------------------------------------------------------------------


def fill(database: Path, share: float = 1.0) -> None:
    """Nights of forty workloads; one night in twenty is slower than noise explains.

    Args:
        share: of the studies and trials that are made.
    """
    dice = random.Random(8)
    config = {f"section_{i // 40}.group_{i // 8}.a_setting_of_verl_{i}": i for i in range(CONFIG_KEYS)}
    studies, largest = max(10, round(share * STUDIES)), round(share * LARGEST)
    sizes = [largest, *_sizes(round(share * TRIALS) - largest, studies - 1)]
    begin = datetime.now(timezone.utc) - timedelta(days=60)
    trial_id = 0
    engine = create_engine(f"sqlite:///{database.resolve()}")
    for at, size in enumerate(sizes):
        workload, night = at % WORKLOADS, at // WORKLOADS
        base = 800 + 90 * workload
        slow = 0.85 if dice.random() < 0.05 else 1.0
        created = begin + timedelta(days=night, minutes=13 * workload)
        state = "running" if at >= studies - 3 else "finished"
        trials, steps = _trials(dice, size, trial_id, at + 1, base * slow, created, running=state == "running")
        trial_id += size
        speeds = [t["throughput"] for t in trials if t["throughput"]]
        best = max(speeds)
        number = next(t["number"] for t in trials if t["throughput"] == best)
        verdict = {
            "decision": "better", "gain": best / trials[0]["throughput"] - 1, "hook_gain": 0.02, "interval": [0.2, 0.6], "launches": 4,
            "equivalent": {"config": True, "gradient": None, "trajectory": None}, "reason": "the whole interval lies above zero",
            "best_number": number, "best_throughput": best, "best_range": [0.97 * best, 1.03 * best], "launch_noise": 0.012, "refused": 12,
            "emitted": {"overrides": trials[number]["point"], "changed": [keys.MAX_NUM_SEQS, keys.ACTOR_MICRO_BATCH]},
        }  # fmt: skip
        with engine.begin() as session:
            session.execute(
                insert(StudyRow),
                [
                    {
                        "id": at + 1, "name": f"night-{night:02d}-{workload:02d}", "created_at": created,
                        "updated_at": created + timedelta(hours=6), "state": state,
                        "workload": f"model-{workload}b · grpo · 1024×8 · 10240 tokens · 8 GPUs", "workload_fingerprint": f"{workload:016x}",
                        "script_path": "train.sh", "script_text": "python3 -m verl.trainer.main_ppo \\\n" * 60, "n_gpus": 8,
                        "simulated": True, "launch": {"entrypoint": "verl.trainer.main_ppo", "arguments": []}, "config": config,
                        "space": {"name": "grpo_fsdp_vllm", "dimensions": {}, "fixed": {}}, "settings": {"trials": size, "confirmations": 2},
                        "environment": {"verl": "0.9.1", "vllm": f"0.{20 + night // 20}.0"},
                        "verdict": None if state == "running" else verdict,
                    }
                ],
            )  # fmt: skip
            session.execute(insert(TrialRow), trials)
            session.execute(insert(StepRow), steps)
    with engine.begin() as session:
        for at in range(1, SCHEDULES + 1):
            about, nights = _schedule(dice, at, studies)
            session.execute(insert(ScheduleRow), [about])
            session.execute(insert(NightRow), nights)


def _schedule(dice: random.Random, at: int, studies: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A schedule and a year of its nights: one in thirty skipped, one in fifty an alarm."""
    own, now = 800.0 + 90 * at, datetime.now(timezone.utc).replace(minute=0, second=0, microsecond=0)
    overrides = {keys.MAX_NUM_SEQS: 256, keys.ACTOR_MICRO_BATCH: 8}
    schedule = {
        "id": at, "name": f"job-{at:02d}", "created_at": now, "updated_at": now, "state": "active", "host": "gpu-node",
        "cron": "0 2 * * *", "tz": "Europe/Berlin", "window": "02:00-06:00", "pairs": PAIRS, "script_path": f"/jobs/{at}/train.sh",
        "script_hash": "ab" * 32, "request": {"space": "grpo_fsdp_vllm", "gpus": 8, "trials": 30},
        "reference": {"point": overrides, "overrides": overrides, "gain": 0.3, "study": f"night-00-{at:02d}", "slot": "2026-01-01T02:00", "script_hash": "ab" * 32},
    }  # fmt: skip
    nights = []
    for night in range(NIGHTS):
        planned = now - timedelta(days=NIGHTS - night)
        skipped, slow = dice.random() < 1 / 30, dice.random() < 1 / 50
        tests = [
            {"subject": subject, "quantity": name, "change": dice.gauss(0.06 if slow and name == "gen" else 0.0, 0.008), "band": 0.025, "beyond": slow and name == "gen"}
            for subject in ("own", "best")
            for name in (*PHASES, "rest", "step")
        ]  # fmt: skip
        nights.append(
            {
                "schedule_id": at, "slot": f"{planned:%Y-%m-%dT02:00}", "state": (NightState.SKIPPED if skipped else NightState.FINISHED).value,
                "reason": "the node was busy until the window closed" if skipped else "", "planned_at": planned, "until": planned + timedelta(hours=4),
                "started_at": planned, "ended_at": planned + timedelta(hours=3), "attempts": 1, "lease": None,
                "study_id": None if skipped else dice.randint(1, studies), "script_hash": "ab" * 32, "simulated": True,
                "environment": {"verl": "0.9.1", "vllm": "0.20.0", "driver": "580.82"},
                "canary": None if skipped else {"how": "session", "pairs": PAIRS, "own": _side(dice, own), "best": _side(dice, 1.3 * own)},
                "verdict": None if skipped else {
                    "decision": "regression" if slow else "steady", "text": "gen takes more time." if slow else "As fast as before.",
                    "phases": ["gen"] if slow else [], "tests": tests, "nights": min(night, 10), "environment": [],
                },
            }
        )  # fmt: skip
    return schedule, nights


def _side(dice: random.Random, speed: float) -> dict[str, Any]:
    """What a canary measured of one setting."""
    speeds = [speed * dice.gauss(1.0, 0.012) for _ in range(PAIRS)]
    seconds = {
        name: [share * 1000 / s for s in speeds] for name, share in {**PHASES, "rest": 0.02, "step": 1.0}.items()
    }
    return {"point": {keys.MAX_NUM_SEQS: 256}, "throughput": speeds, "seconds": seconds, "failure": None}


def _sizes(total: int, parts: int) -> list[int]:
    whole, rest = divmod(total, parts)
    return [whole + (i < rest) for i in range(parts)]


def _trials(
    dice: random.Random, size: int, first_id: int, study: int, base: float, created: datetime, *, running: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    trials, steps = [], []
    for number in range(size):
        point = {
            keys.MAX_NUM_SEQS: dice.choice([64, 128, 256, 512, 1024]),
            keys.MAX_BATCHED_TOKENS: dice.choice([4096, 8192, 16384]),
            keys.ACTOR_MICRO_BATCH: dice.choice([1, 2, 4, 8, 16]),
            keys.LOG_PROB_MICRO_BATCH: dice.choice([2, 4, 8, 16, 32]),
            keys.DYNAMIC: False,
            keys.GPU_MEMORY: dice.choice([0.4, 0.5, 0.6, 0.7]),
            keys.FAST_POLL: number > 0,
        }
        fails = number > 0 and dice.random() < 0.12
        gain = (
            1.0
            if number == 0
            else 0.8 + 0.05 * (point[keys.MAX_NUM_SEQS].bit_length() + point[keys.ACTOR_MICRO_BATCH].bit_length())
        )
        speed = base * gain * dice.gauss(1.0, 0.012)
        seconds = 80_000_000 / speed / 1000
        started = created + timedelta(minutes=3.6 * number * 98 / size)
        state = "infeasible" if fails else "running" if running and number == size - 1 else "measured"
        measured = state == "measured"
        phases = {name: share * seconds for name, share in PHASES.items()}
        trials.append(
            {
                "id": first_id + number + 1, "study_id": study, "number": number, "optuna_number": number,
                "kind": "baseline" if number == 0 else "search", "state": state, "point": point, "overrides": [f"{k}={v}" for k, v in point.items()],
                "origin": "the user's own command" if number == 0 else "tpe", "source": "whole" if measured else None,
                "work": "full" if measured else None, "engine": "cold" if measured else None, "session": None, "simulated": True,
                "started_at": started, "ended_at": None if state == "running" else started + timedelta(minutes=3.5),
                "startup_seconds": 60.0 if measured else None, "wall_seconds": 200.0 if measured else None, "world_size": 8 if measured else None,
                "throughput": speed if measured else None, "mfu": 0.3 * gain if measured else None, "step_seconds": seconds if measured else None,
                "memory_gb": 30 + 2.5 * point[keys.ACTOR_MICRO_BATCH] if measured else None, "phases": {**phases, "rest": 0.02 * seconds} if measured else {},
                "echo": point if measured else {}, "gpus": [], "run_dir": f"/nowhere/t{number:03d}",
                "failure": {"class": "oom_gpu", "phase": "update_actor", "remedy": "Lower the micro-batch.", "evidence": "torch.OutOfMemoryError: CUDA out of memory.", "retryable": False} if fails else None,
            }
        )  # fmt: skip
        steps += [
            {
                "trial_id": first_id + number + 1, "step": step, "settling": step == 1, "seconds": seconds * (3 if step == 1 else 1),
                "tokens": 80_000_000, "mfu": 0.3 * gain, "memory_gb": 40.0, "phases": phases,
                "metrics": {f"timing_s/{name}": value for name, value in phases.items()},
            }
            for step in range(1, STEPS_EACH + 1)
        ]  # fmt: skip
    return trials, steps


if __name__ == "__main__":
    main()
