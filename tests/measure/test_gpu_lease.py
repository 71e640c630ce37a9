"""Two tuners never hold one GPU: real locks between real processes, and files that somebody prepared."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.measure.gpu_lease import FOLDER_VARIABLE, GpuBusy, GpuLease, Holder, lease_name
from autotune.values import BadInput

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import sys, time
from pathlib import Path
from autotune.measure.gpu_lease import GpuLease, Holder
lease = GpuLease.acquire(sys.argv[2:], Holder.of_this_process("theirs"), folder=Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[object]:
    """Starts processes that hold GPUs; they are killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def hold(*uuids: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path / "leases"), *uuids],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def take(tmp_path: Path, *uuids: str, **how: object) -> GpuLease:
    return GpuLease.acquire(uuids, Holder.of_this_process("mine"), folder=tmp_path / "leases", **how)


def test_a_gpu_of_another_process_is_refused_with_its_holder_and_the_way_out(tmp_path, other):
    holder = other("GPU-a", "GPU-b")
    with pytest.raises(GpuBusy) as refused:
        take(tmp_path, "GPU-b", "GPU-c")
    said = str(refused.value)
    assert "GPU GPU-b is held by study theirs" in said
    assert f"pid {holder.pid})" in said
    assert "--wait" in said
    assert isinstance(refused.value, BadInput)


def test_one_process_cannot_hold_a_gpu_twice(tmp_path):
    with take(tmp_path, "GPU-a"), pytest.raises(GpuBusy):
        take(tmp_path, "GPU-a")
    take(tmp_path, "GPU-a").release()


def test_a_killed_tuner_frees_its_gpus(tmp_path, other):
    holder = other("GPU-a")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with take(tmp_path, "GPU-a") as lease:
        assert lease.uuids == ("GPU-a",)


def test_all_are_taken_or_none(tmp_path, other):
    other("GPU-b")
    with pytest.raises(GpuBusy):
        take(tmp_path, "GPU-a", "GPU-b", "GPU-c")
    with take(tmp_path, "GPU-c", "GPU-a") as lease:
        assert lease.uuids == ("GPU-a", "GPU-c")


def test_waiting_ends_when_the_gpu_is_free_and_holds_nothing_meanwhile(tmp_path, other):
    holder = other("GPU-b")
    told = []

    def wait(busy: GpuBusy) -> bool:
        told.append(str(busy))
        take(tmp_path, "GPU-a").release()
        holder.kill()
        holder.wait()
        return True

    with take(tmp_path, "GPU-a", "GPU-b", wait=wait) as lease:
        assert lease.uuids == ("GPU-a", "GPU-b")
    assert len(told) == 1


def test_waiting_can_be_given_up(tmp_path, other):
    other("GPU-a")
    with pytest.raises(GpuBusy):
        take(tmp_path, "GPU-a", wait=lambda busy: False)


def test_a_process_that_inherited_the_lease_holds_it_after_the_tuner_released_it(tmp_path):
    lease = take(tmp_path, "GPU-a")
    supervisor = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=lease.fds)
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        lease.release()
        with pytest.raises(GpuBusy):
            take(tmp_path, "GPU-a")
        supervisor.communicate(b"\n")
        take(tmp_path, "GPU-a").release()  # a child that was not handed it does not keep it
    finally:
        for process in (supervisor, bystander):
            process.kill()
            process.communicate()


def test_releasing_twice_and_holding_nothing_are_fine(tmp_path):
    lease = take(tmp_path, "GPU-a")
    lease.release()
    lease.release()
    assert lease.fds == ()
    assert take(tmp_path).uuids == ()


def test_every_user_can_use_the_folder_and_the_files(tmp_path):
    before = os.umask(0o077)
    try:
        take(tmp_path, "GPU-a").release()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "leases").stat().st_mode) == 0o1777
    assert stat.S_IMODE((tmp_path / "leases" / lease_name("GPU-a")).stat().st_mode) == 0o666


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can enter; those of pytest are its user's alone."""
    folder = Path(tempfile.mkdtemp(prefix="autotune-leases-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_another_users_lease_is_respected_and_named(open_folder):
    take(open_folder, "GPU-a").release()
    mine, theirs = multiprocessing.get_context("fork").Pipe()

    def hold() -> None:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        with take(open_folder, "GPU-a", "GPU-new"):
            theirs.send("held")
            theirs.recv()

    process = multiprocessing.get_context("fork").Process(target=hold)
    process.start()
    assert mine.poll(20)
    for uuid in ("GPU-a", "GPU-new"):
        with pytest.raises(GpuBusy, match=rf"held by study mine of \S+ \(pid {process.pid}\)"):
            take(open_folder, uuid)
    mine.send("end")
    process.join(20)
    take(open_folder, "GPU-a", "GPU-new").release()


def test_a_link_in_the_folder_is_not_followed_and_its_target_not_touched(tmp_path):
    take(tmp_path, "GPU-x").release()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "leases" / lease_name("GPU-a")).symlink_to(victim)
    with pytest.raises(BadInput, match="is a link"):
        take(tmp_path, "GPU-a")
    os.link(victim, tmp_path / "leases" / lease_name("GPU-b"))
    with pytest.raises(BadInput, match="no plain file with one name"):
        take(tmp_path, "GPU-b")
    assert victim.read_text() == "precious"


def test_a_pipe_in_the_folder_does_not_hang_the_tuner(tmp_path):
    take(tmp_path, "GPU-x").release()
    os.mkfifo(tmp_path / "leases" / lease_name("GPU-a"))
    with pytest.raises(BadInput, match="no plain file"):
        take(tmp_path, "GPU-a")


def test_a_folder_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "leases").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match=f"link or no folder.*{FOLDER_VARIABLE}"):
        take(tmp_path, "GPU-a")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"pid": "x"}',
        b'{"pid": 1e999, "start_time": 0, "user": "", "study": "", "since": ""}',
        b"x" * 9000,
    ],
)
def test_a_lease_file_that_says_nothing_useful_still_holds_the_gpu(tmp_path, content):
    with take(tmp_path, "GPU-a"):
        (tmp_path / "leases" / lease_name("GPU-a")).write_bytes(content)
        with pytest.raises(GpuBusy, match="held by another autotune of this host"):
            take(tmp_path, "GPU-a")
    take(tmp_path, "GPU-a").release()


def test_what_another_user_wrote_cannot_reach_into_the_terminal(tmp_path):
    with take(tmp_path, "GPU-a"):
        path = tmp_path / "leases" / lease_name("GPU-a")
        path.write_text(json.dumps({**json.loads(path.read_text()), "study": "\x1b]0;owned\x07"}))
        with pytest.raises(GpuBusy) as refused:
            take(tmp_path, "GPU-a")
    assert str(refused.value).isprintable()


def test_a_file_that_was_removed_while_it_was_held_lets_the_next_one_in_under_its_own_name(tmp_path):
    """Whoever locks a file that has no name any more tries again: otherwise two later ones could both be in."""
    first = take(tmp_path, "GPU-a")
    (tmp_path / "leases" / lease_name("GPU-a")).unlink()
    second = take(tmp_path, "GPU-a")
    with pytest.raises(GpuBusy):
        take(tmp_path, "GPU-a")
    first.release()
    with pytest.raises(GpuBusy):
        take(tmp_path, "GPU-a")
    second.release()


@pytest.mark.parametrize("uuid", ["../../etc/passwd", "a/b", "", ".", "x" * 300, "GPU-1\n"])
def test_no_name_leaves_the_folder(tmp_path, uuid):
    with take(tmp_path, uuid):
        assert len(list((tmp_path / "leases").iterdir())) == 1


def test_the_folder_can_be_named_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "shared"))
    with GpuLease.acquire(["GPU-a"], Holder.of_this_process("mine")):
        assert [path.name for path in (tmp_path / "shared").iterdir()] == ["GPU-a.lock"]
