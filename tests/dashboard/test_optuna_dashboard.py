"""optuna-dashboard reads the same file. It writes into what it is given, so that it gets a copy."""

from __future__ import annotations

import shutil
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

import optuna
import pytest

from autotune.store.store import Store
from tests.studies import finished_study

pytest.importorskip("optuna_dashboard", reason="pip install optuna-dashboard")


def test_it_shows_our_studies_beside_us_on_a_copy(tmp_path: Path):
    store = Store.open(f"sqlite:///{tmp_path}/trials.db")
    finished_study(store, "night")
    study = optuna.create_study(storage=store.optuna_storage(), study_name="night", direction="maximize")
    trial = study.ask()
    trial.suggest_categorical("actor_rollout_ref.rollout.max_num_seqs", [64, 128])
    study.tell(trial, 375.0)
    copy = tmp_path / "copy.db"
    # What docs/dashboard.md says: a copy by SQLite itself holds what is still in the write-ahead log.
    with closing(sqlite3.connect(tmp_path / "trials.db")) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    program = Path(sys.executable).with_name("optuna-dashboard")
    command = [str(program)] if program.exists() else [shutil.which("optuna-dashboard") or "optuna-dashboard"]
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with (tmp_path / "said").open("wb") as sink:
        server = subprocess.Popen([*command, f"sqlite:///{copy}", "--port", str(port)], stdout=sink, stderr=sink)
    try:
        answer = None
        for _ in range(300):
            assert server.poll() is None, (tmp_path / "said").read_text()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/studies", timeout=5) as got:
                    answer = got.read().decode()
                break
            except urllib.error.URLError:
                time.sleep(0.1)
        assert answer is not None
        assert '"night"' in answer
    finally:
        server.terminate()
        server.wait(timeout=20)
    reopened = Store.open(f"sqlite:///{copy}")
    assert [s.name for s in reopened.studies()] == ["night"], "our own tables are untouched"
