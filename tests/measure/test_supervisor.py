"""A job under its supervisor: whoever is killed, nothing of the job is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.measure.job_record import FOLDER_VARIABLE, JobRecord, await_orphans, orphans, read_record, sweep
from autotune.measure.process import JobProcess, NotStarted, SupervisorLost
from autotune.measure.processes import ProcessId, living, marked, process_id
from autotune.values import AutotuneError

JOB = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("/dev/shm/psm_" + os.environ["AUTOTUNE_JOB"], "w").write("x")
daemon = "import os, signal, time; os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
first = subprocess.Popen([sys.executable, "-c", f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {daemon!r}])"])
first.wait()  # the daemon has lost its parent and its session
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("ready", flush=True)
time.sleep(600)
"""
"""A driver that ignores SIGTERM, with a child, a daemon that left the tree, and a shared memory segment."""

TUNER = """
import os, sys, time
from pathlib import Path
from autotune.measure.process import JobProcess
job = JobProcess(patience=1.0)
job.start([sys.executable, "-c", sys.argv[1]], env=dict(os.environ), cwd="/", log=Path(sys.argv[2]))
print("started", flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "records"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    return folder


@pytest.fixture
def orphaned(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], JobRecord]]:
    """A tuner with a running job, to be killed."""
    log = tmp_path / "log"
    tuner = subprocess.Popen([sys.executable, "-c", TUNER, JOB, str(log)], stdout=subprocess.PIPE)
    assert tuner.stdout is not None
    tuner.stdout.readline()
    eventually(lambda: "ready" in log.read_text() and "up" in log.read_text())
    (path,) = (tmp_path / "records").glob("*.json")
    record = read_record(path)
    assert record is not None
    yield tuner, record
    tuner.kill()
    tuner.wait()
    tuner.stdout.close()
    record.clean_as_written()


def eventually(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.1)


def run(command: str, tmp_path: Path) -> JobProcess:
    return started(tmp_path, "/bin/bash", "-c", command)


def started(tmp_path: Path, *command: str) -> JobProcess:
    job = JobProcess()
    job.start(command, env=dict(os.environ), cwd="/", log=tmp_path / "log")
    return job


def nothing_is_left(record: JobRecord) -> bool:
    return not (
        marked(record.mark)
        or living(record.processes)
        or Path("/dev/shm", f"psm_{record.mark}").exists()
        or record.leftovers.private.exists()
        or record.path.exists()
    )


def test_the_exit_status_and_the_output_of_the_command_arrive(tmp_path):
    job = run("echo said; exit 7", tmp_path)
    assert job.await_end(20.0)
    assert job.exit_code == 7
    job.stop()
    assert (tmp_path / "log").read_text() == "said\n"
    assert list((tmp_path / "records").iterdir()) == []


def test_a_signal_that_ended_the_driver_is_a_negative_status(tmp_path):
    job = run("kill -9 $$", tmp_path)
    assert job.await_end(20.0)
    assert job.exit_code == -signal.SIGKILL
    job.stop()


def test_a_command_that_does_not_exist_says_so_and_leaves_nothing(tmp_path):
    with pytest.raises(NotStarted, match="no-such-program"):
        started(tmp_path, "/no-such-program")
    assert list((tmp_path / "records").iterdir()) == []


def test_a_stop_ends_daemons_that_left_the_tree_and_ignore_sigterm(tmp_path):
    job = started(tmp_path, sys.executable, "-c", JOB)
    eventually(lambda: "ready" in (tmp_path / "log").read_text() and "up" in (tmp_path / "log").read_text())
    (path,) = (tmp_path / "records").glob("*.json")
    record = read_record(path)
    assert record is not None
    assert len(marked(record.mark)) == 3
    job.stop(patience=0.5)
    assert nothing_is_left(record)
    job.stop()


def test_the_job_gets_default_signal_handlers(tmp_path):
    """A driver that ignored SIGINT because its supervisor does could not be stopped by it."""
    job = run("kill -INT $$; echo survived", tmp_path)
    assert job.await_end(20.0)
    job.stop()
    assert job.exit_code == -signal.SIGINT


def test_the_job_ends_when_its_tuner_is_killed(orphaned):
    tuner, record = orphaned
    tuner.kill()
    tuner.wait()
    eventually(lambda: nothing_is_left(record))


def test_a_tuner_whose_end_of_the_pipe_lives_on_in_another_process_is_still_missed(orphaned):
    """A child that the tuner forked may hold the pipe open: the supervisor looks at its parent too."""
    tuner, record = orphaned
    descriptors = [f"/proc/{tuner.pid}/fd/{name}" for name in os.listdir(f"/proc/{tuner.pid}/fd")]
    pipes = [os.open(path, os.O_WRONLY) for path in descriptors if os.readlink(path).startswith("pipe:")]
    try:
        tuner.kill()
        tuner.wait()
        eventually(lambda: nothing_is_left(record))
    finally:
        for pipe in pipes:
            os.close(pipe)


def test_the_next_command_cleans_up_when_the_supervisor_was_killed_too(orphaned):
    tuner, record = orphaned
    assert record.supervisor is not None
    tuner.send_signal(signal.SIGSTOP)  # so that it cannot notice
    record.supervisor.send(signal.SIGKILL)
    tuner.kill()
    tuner.wait()
    eventually(lambda: not living({record.supervisor}))  # a signal takes its time on a busy machine
    assert len(marked(record.mark)) == 3
    assert [found.mark for found in orphans()] == [record.mark]
    assert sweep() == 3
    assert nothing_is_left(record)
    assert sweep() == 0


def test_a_tuner_that_lives_ends_the_job_of_a_killed_supervisor(tmp_path):
    job = started(tmp_path, sys.executable, "-c", JOB)
    eventually(lambda: "ready" in (tmp_path / "log").read_text())
    (path,) = (tmp_path / "records").glob("*.json")
    record = read_record(path)
    assert record is not None
    assert record.supervisor is not None
    record.supervisor.send(signal.SIGKILL)
    with pytest.raises(SupervisorLost, match=str(record.supervisor.pid)):
        eventually(lambda: job.exit_code is not None)
    assert nothing_is_left(record)
    job.stop()


def test_a_tuner_that_is_killed_before_its_job_has_begun_leaves_nothing(tmp_path, records):
    code = "import time; from autotune.measure.process import JobProcess; j = JobProcess(); print('up', flush=True); time.sleep(600)"
    tuner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert tuner.stdout is not None
    tuner.stdout.readline()
    (path,) = records.glob("*.json")
    record = read_record(path)
    assert record is not None
    assert record.leftovers.private.is_dir()
    tuner.kill()
    tuner.wait()
    tuner.stdout.close()
    eventually(lambda: nothing_is_left(record))


def test_a_job_of_a_living_tuner_is_left_alone(tmp_path):
    job = run("sleep 600", tmp_path)
    try:
        assert sweep() == 0
        assert job.exit_code is None
    finally:
        job.stop(patience=1.0)


def test_a_process_that_got_the_pid_of_a_dead_one_is_never_ended(tmp_path):
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        known = process_id(stranger.pid)
        assert known is not None
        record = JobRecord.new()
        record = replace(
            record, tuner=ProcessId(record.tuner.pid, 1), processes=frozenset({ProcessId(known.pid, known.start - 1)})
        )
        record.write()
        assert sweep() == 0
        assert stranger.poll() is None
        assert not record.path.exists()
    finally:
        stranger.kill()
        stranger.wait()


def test_a_record_from_before_a_restart_of_the_host_names_no_process_of_today(tmp_path):
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        known = process_id(stranger.pid)
        assert known is not None
        record = replace(JobRecord.new(), boot="another boot", processes=frozenset({known}))
        record.write()
        record.leftovers.make()
        assert sweep() == 0
        assert stranger.poll() is None
        assert not record.leftovers.private.exists()
    finally:
        stranger.kill()
        stranger.wait()


def test_a_record_of_another_container_is_not_touched():
    record = replace(JobRecord.new(), pid_namespace="pid:[1]")
    record.write()
    assert sweep() == 0
    assert record.path.exists()


def test_waiting_for_orphans_says_so_once_and_ends_when_they_are_gone(orphaned):
    tuner, record = orphaned
    tuner.kill()
    tuner.wait()
    said: list[str] = []
    await_orphans(60.0, say=said.append)
    assert nothing_is_left(record)
    assert len(said) == 1


def test_a_folder_of_records_that_others_can_write_is_refused(records):
    records.chmod(0o777)
    with pytest.raises(AutotuneError, match="nobody else can write"):
        sweep()


def test_a_torn_record_is_named_and_not_guessed_at(records):
    (records / f"{'0' * 32}.json").write_text(json.dumps({"version": 1, "mark": "0"}))
    with pytest.raises(AutotuneError, match=r"0{32}\.json"):
        sweep()
