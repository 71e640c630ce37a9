"""`autotune dashboard` from the outside."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.cli.main import app
from autotune.store.store import Store
from tests.studies import finished_study


def call(*arguments: str):
    return CliRunner().invoke(app, ["dashboard", *arguments])


@pytest.fixture
def url(tmp_path):
    store = Store.open(f"sqlite:///{tmp_path}/trials.db")
    finished_study(store)
    store.close()
    return f"sqlite:///{tmp_path}/trials.db"


def test_a_database_that_does_not_exist_is_not_made(tmp_path):
    result = call("--storage", f"sqlite:///{tmp_path}/none.db")
    assert result.exit_code == 2
    assert "no study was run here yet" in result.stderr
    assert not (tmp_path / "none.db").exists()


def test_a_network_address_in_the_clear_is_refused(url):
    result = call("--storage", url, "--host", "0.0.0.0")
    assert result.exit_code == 2
    assert "--behind-proxy" in result.stderr


def test_a_port_in_use_is_named(url):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = call("--storage", url, "--port", str(port))
    assert result.exit_code == 2
    assert f"cannot listen on 127.0.0.1, port {port}" in result.stderr
    assert "--port" in result.stderr


def test_it_says_where_it_listens_and_ends_with_ctrl_c_while_a_page_is_open(url):
    command = [sys.executable, "-m", "autotune.cli.main", "dashboard", "--storage", url, "--port", "0"]
    root = Path(__file__).resolve().parents[2]
    server = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout is not None
    line = server.stdout.readline()
    address = line.split()[-1]
    with urllib.request.urlopen(f"{address}events", timeout=60) as events:
        assert events.readline() == b"retry: 3000\n"
        server.send_signal(signal.SIGINT)
        _, complained = server.communicate(timeout=60)
    assert server.returncode == 0
    assert complained == ""
