"""A database that cannot be written for a while costs nothing; one that stays so leaves a file that is taken in later."""

from __future__ import annotations

import errno
import json
import resource
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.cold import ColdRunner, disturbed
from autotune.store.store import Store
from autotune.store.trouble import StoreTrouble, TroubleKind
from autotune.tuner.persist import (
    STEP_PAUSE,
    TRY_EVERY,
    UNSAVED,
    Persistence,
    Unsaved,
    disk_failure,
    import_unsaved,
    told,
    unsaved_json,
    unsaved_of,
    write_unsaved,
)
from autotune.values import (
    BadInput,
    FailureClass,
    GpuUsage,
    KnobValue,
    Measurement,
    StepRecord,
    TrialState,
)
from tests.cli.test_run import autotune
from tests.fakes.launches import write_script
from tests.studies import add_study, add_trial, failure, measurement, step

FULL = StoreTrouble(TroubleKind.FULL, "the disk of sqlite:///trials.db is full; free some space")


class Troubled:
    """A store whose writes fail as often as it is told."""

    def __init__(self, store: Store, fails: int, trouble: StoreTrouble = FULL) -> None:
        self.store, self.fails, self.trouble, self.asked = store, fails, trouble, 0

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            if name in ("finish_trial", "add_step"):
                self.asked += 1
                if self.asked <= self.fails:
                    raise self.trouble
            return getattr(self.store, name)(*arguments, **named)

        return call


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(f"sqlite:///{tmp_path}/trials.db")
    yield opened
    opened.close()


def persistence(store: object, tmp_path: Path, said: list[str], clock: Clock, **how: object) -> Persistence:
    return Persistence(store, 1, "night", tmp_path, said.append, now=clock, sleep=clock.sleep, **how)


def test_a_disk_that_is_freed_in_time_costs_nothing_and_is_said_once(store, tmp_path):
    study, said, clock = add_study(store), [], Clock()
    number = add_trial(store, study)
    troubled = Troubled(store, fails=7)
    record = persistence(troubled, tmp_path, said, clock).finish_trial(number, TrialState.MEASURED, measurement(2.0))
    assert record.state is TrialState.MEASURED
    assert clock.at == 7 * TRY_EVERY
    assert len(said) == 2
    assert "is full; free some space. Nothing is lost: what t000 measured is kept" in said[0]
    assert said[1] == "the database can be written again"
    assert not (tmp_path / UNSAVED).exists()


def test_what_the_database_never_took_is_taken_in_later(store, tmp_path):
    study, clock = add_study(store), Clock()
    number = add_trial(store, study)
    keep = persistence(Troubled(store, fails=10**9), tmp_path, [], clock, patience=60.0)
    with pytest.raises(StoreTrouble, match=rf"is in {tmp_path}/{UNSAVED} instead.*autotune resume night") as met:
        keep.finish_trial(number, TrialState.MEASURED, measurement(2.0))
    assert met.value.kind is TroubleKind.FULL
    assert 60.0 <= clock.at <= 60.0 + TRY_EVERY
    assert (tmp_path / UNSAVED).stat().st_mode & 0o777 == 0o600
    assert import_unsaved(store, study, "night", tmp_path) == [number]
    (trial,) = store.trials(study)
    assert trial.state is TrialState.MEASURED
    assert trial.throughput == measurement(2.0).throughput
    assert [s.seconds for s in store.steps(study, number)] == [4.0, 2.0, 2.0]
    assert not (tmp_path / UNSAVED).exists()
    assert import_unsaved(store, study, "night", tmp_path) == []


def test_a_user_who_ends_the_study_does_not_wait_for_the_disk(store, tmp_path):
    number, clock = add_trial(store, add_study(store)), Clock()
    keep = persistence(Troubled(store, fails=10**9), tmp_path, [], clock, stopped=lambda: True)
    with pytest.raises(StoreTrouble):
        keep.finish_trial(number, TrialState.INFEASIBLE, failure())
    assert clock.at == 0.0
    assert (tmp_path / UNSAVED).exists()


def test_a_damaged_database_is_not_tried_again(store, tmp_path):
    number, clock = add_trial(store, add_study(store)), Clock()
    troubled = Troubled(store, 10**9, StoreTrouble(TroubleKind.DAMAGED, "damaged"))
    with pytest.raises(StoreTrouble, match="damaged"):
        persistence(troubled, tmp_path, [], clock).finish_trial(number, TrialState.MEASURED, measurement(2.0))
    assert troubled.asked == 1
    assert (tmp_path / UNSAVED).exists()


def test_live_steps_are_left_out_for_a_while_and_nothing_waits_for_them(store, tmp_path):
    study, said, clock = add_study(store), [], Clock()
    number = add_trial(store, study)
    troubled = Troubled(store, fails=1)
    keep = persistence(troubled, tmp_path, said, clock)
    for place in (1, 2, 3):
        keep.add_step(number, step(place, 1.0))
    assert (troubled.asked, clock.at, len(said)) == (1, 0.0, 1)
    clock.at = STEP_PAUSE
    keep.add_step(number, step(4, 1.0))
    assert [s.step for s in store.steps(study, number)] == [4]


def test_a_commit_that_only_seemed_to_fail_is_not_told_twice(store, tmp_path):
    study = add_study(store)
    number = add_trial(store, study)

    class Ambiguous(Troubled):
        def finish_trial(self, *arguments: object, **named: object) -> object:
            result = self.store.finish_trial(*arguments, **named)
            self.asked += 1
            if self.asked == 1:
                raise StoreTrouble(TroubleKind.UNREACHABLE, "gone")
            return result

    keep = persistence(Ambiguous(store, 0), tmp_path, [], Clock())
    assert keep.finish_trial(number, TrialState.MEASURED, measurement(2.0)).number == number
    with pytest.raises(ValueError, match="cannot become"):
        persistence(store, tmp_path, [], Clock()).finish_trial(number, TrialState.MEASURED, measurement(2.0))


def test_a_trial_that_has_ended_meanwhile_stays_as_it_is(store, tmp_path):
    study = add_study(store)
    number = add_trial(store, study, outcome=failure())
    write_unsaved(Unsaved("night", number, TrialState.MEASURED, measurement(2.0)), [tmp_path])
    assert import_unsaved(store, study, "night", tmp_path) == []
    assert store.trials(study)[0].state is TrialState.INFEASIBLE


def test_half_a_line_of_a_killed_process_spoils_nothing(store, tmp_path):
    study = add_study(store)
    numbers = [add_trial(store, study) for _ in range(2)]
    write_unsaved(Unsaved("night", numbers[0], TrialState.MEASURED, measurement(2.0)), [tmp_path])
    with (tmp_path / UNSAVED).open("a") as sink:
        sink.write('{"version": 1, "stu')
    assert import_unsaved(store, study, "night", tmp_path) == [numbers[0]]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("not json\n{}", r"unsaved\.jsonl:1 is no trial"),
        ('{"version": 2}', "another release of autotune"),
        ("[]", "is no trial"),
        (
            json.dumps(unsaved_json(Unsaved("other", 0, TrialState.INFEASIBLE, failure()))),
            "belongs to the study 'other'",
        ),
    ],
)
def test_a_file_of_something_else_is_refused_and_kept(store, tmp_path, line, said):
    study = add_study(store)
    (tmp_path / UNSAVED).write_text(line)
    with pytest.raises(BadInput, match=said):
        import_unsaved(store, study, "night", tmp_path)
    assert (tmp_path / UNSAVED).read_text() == line


def test_the_next_folder_is_taken_where_the_first_cannot_be_written(tmp_path):
    (tmp_path / "here").write_text("a file")
    other = tmp_path / "other"
    other.mkdir()
    path = write_unsaved(Unsaved("night", 3, TrialState.INFEASIBLE, failure()), [tmp_path / "here", other])
    assert path.parent == other
    assert path.stat().st_mode & 0o777 == 0o600
    assert unsaved_of(json.loads(path.read_text())).number == 3
    with pytest.raises(OSError, match="Not a directory"):
        write_unsaved(Unsaved("night", 3, TrialState.INFEASIBLE, failure()), [tmp_path / "here"])


def test_a_line_that_does_not_fit_is_taken_back(tmp_path):
    """A real limit of the kernel: what was there before stays whole."""
    entry = Unsaved("night", 3, TrialState.MEASURED, measurement(2.0))
    path = write_unsaved(entry, [tmp_path])
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            write_unsaved(entry, [tmp_path])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)
    assert path.read_bytes() == before


numbers = st.floats(allow_nan=True, allow_infinity=False, width=32)
steps = st.builds(
    StepRecord,
    step=st.integers(1, 99),
    seconds=numbers,
    tokens=st.none() | st.integers(0, 10**12),
    phases=st.dictionaries(st.text(max_size=5), st.floats(0, 9), max_size=2),
    settling=st.booleans(),
    invalid=st.none() | st.text(max_size=9),
)
knobs: st.SearchStrategy[KnobValue] = st.none() | st.booleans() | st.integers() | st.text(max_size=9)
measurements = st.builds(
    Measurement,
    steps=st.lists(steps, max_size=3).map(tuple),
    world_size=st.integers(1, 64),
    startup_seconds=numbers,
    echo=st.dictionaries(st.text(max_size=9), knobs, max_size=2),
    gpus=st.just((GpuUsage(0, "H200", 0.5, 300.0, 1500.0, 1 << 35, False),)) | st.just(()),
)


@given(measurements)
def test_a_measurement_comes_back_as_it_was(made):
    line = json.dumps(unsaved_json(Unsaved("night", 1, TrialState.MEASURED, made)), allow_nan=False)
    found = unsaved_of(json.loads(line)).outcome
    assert repr(found) == repr(made)  # unlike ==, it finds NaN equal to NaN


def test_a_failure_comes_back_as_it_was():
    entry = Unsaved("night", 1, TrialState.INFEASIBLE, failure())
    assert unsaved_of(json.loads(json.dumps(unsaved_json(entry)))) == entry


def test_a_full_disk_under_a_launch_is_no_fault_of_the_point():
    found = disk_failure(OSError(errno.ENOSPC, "No space left on device", "/out/runs/t003"))
    assert found is not None
    assert (found.failure_class, found.retryable) == (FailureClass.DISK_FULL, True)
    assert "/out/runs/t003" in found.remedy
    assert disk_failure(OSError(errno.EPERM, "not permitted")) is None


def test_an_output_folder_that_cannot_be_written_is_told():
    known = told(OSError(errno.EROFS, "Read-only file system", "/out/best.sh"))
    assert known is not None
    assert "/out/best.sh cannot be written: the disk is mounted read-only" in str(known)
    assert told(OSError(errno.ECHILD, "no child")) is None


def test_no_transaction_is_open_while_verl_runs(tmp_path, monkeypatch):
    write_script(tmp_path)
    locked = []
    real = ColdRunner.measure

    def measure(runner, order, watch):
        with closing(sqlite3.connect(tmp_path / "trials.db", timeout=0, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
            locked.append(order.label)
        return real(runner, order, watch)

    monkeypatch.setattr(ColdRunner, "measure", measure)
    ran = autotune(tmp_path, "run", "train.sh", "--trials", "2", "--confirmations", "0", "--runner", "cold")
    assert ran.returncode == 0, ran.stderr
    assert locked == ["t000", "t001"]


def test_a_study_whose_database_stays_locked_ends_with_its_measurement_in_a_file(tmp_path, monkeypatch):
    write_script(tmp_path)
    monkeypatch.setitem(Persistence.__init__.__kwdefaults__, "patience", 0.0)
    monkeypatch.setattr("autotune.store.store.BUSY_SECONDS", 0.1)
    real, holding = ColdRunner.measure, []

    def measure(runner, order, watch):
        outcome = real(runner, order, watch)
        other = sqlite3.connect(tmp_path / "trials.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        holding.append(other)
        return outcome

    monkeypatch.setattr(ColdRunner, "measure", measure)
    ran = autotune(tmp_path, "run", "train.sh", "--trials", "2", "--confirmations", "0", "--study", "one", "--out", "o")
    for other in holding:
        other.close()
    assert ran.returncode == 1
    said = " ".join(ran.stderr.split())
    assert "is locked by another process" in said
    assert "autotune resume one" in said
    store = Store.open(f"sqlite:///{tmp_path}/trials.db", check=True)
    study = store.study("one").id
    assert store.trials(study)[0].state is TrialState.RUNNING
    monkeypatch.undo()
    ran = autotune(tmp_path, "resume")
    assert ran.returncode == 0, ran.stderr
    assert "t000 was taken in" in ran.stdout
    first, second = store.trials(study)[:2]
    assert first.state is second.state is TrialState.MEASURED
    assert first.point != second.point
    store.close()


def test_a_disturbed_launch_is_invalid_and_made_again(tmp_path, monkeypatch):
    write_script(tmp_path)
    real, made = ColdRunner.measure, []

    def measure(runner, order, watch):
        outcome = real(runner, order, watch)
        made.append(order.label)
        return disturbed([replace(s, invalid="GPU a throttled") for s in outcome.steps]) if len(made) == 1 else outcome

    monkeypatch.setattr(ColdRunner, "measure", measure)
    ran = autotune(tmp_path, "run", "train.sh", "--trials", "1", "--confirmations", "0", "--json")
    first, second = json.loads(ran.stdout)["trials"]
    assert (first["state"], first["failure"]["class"]) == ("invalid", "interference")
    assert second["state"] == "measured"
    assert second["invalid_steps"] == 0
