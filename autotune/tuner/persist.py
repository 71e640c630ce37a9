"""Writing what was measured, also while the database cannot be written for a while, and beside it where it stays so."""

from __future__ import annotations

import errno
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from autotune.measure.outcome_json import finite_json, outcome_from_json, outcome_to_json, seconds_from_json
from autotune.store.records import TrialRecord, WrongTransition
from autotune.store.store import Store
from autotune.store.trouble import StoreTrouble
from autotune.tuner import wording
from autotune.values import (
    BadInput,
    Failure,
    FailureClass,
    Measurement,
    Phase,
    RunFailed,
    StepRecord,
    TrialState,
)

UNSAVED = "unsaved.jsonl"
"""Name of the file that holds what the database did not take."""
PATIENCE = 1800.0
"""Seconds for which a write is tried again; a launch that was paid for is worth the wait until somebody frees the disk."""
TRY_EVERY = 5.0
STEP_PAUSE = 60.0
"""Seconds without live steps after one could not be written: they come with the measurement anyway."""
_VERSION = 1
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Unsaved:
    """A finished trial that the database did not take."""

    study: str
    number: int
    state: TrialState
    outcome: Measurement | Failure
    wall_seconds: float = math.nan
    """What the launch took."""


class Persistence:
    """Writes the trials of a study. What cannot be written is kept in memory and tried again, then put into a file.

    All waiting goes by a clock that only moves forward.
    """

    def __init__(
        self,
        store: Store,
        study_id: int,
        study: str,
        folder: Path,
        say: Callable[[str], None],
        *,
        stopped: Callable[[], bool] = lambda: False,
        patience: float = PATIENCE,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """
        Args:
            folder: the study's --out.
            say: told when writing fails, and when it works again.
            stopped: whether the user has asked to end; waiting then ends, too.
            patience: seconds for which a write is tried again.
        """
        self._store = store
        self._study_id = study_id
        self._study = study
        self._folder = folder
        self._say = say
        self._stopped = stopped
        self._patience = patience
        self._now = now
        self._sleep = sleep
        self._no_steps_until = -math.inf

    def insist(self, what: str, write: Callable[[], _T]) -> _T:
        """Calls until it works or patience ends.

        Args:
            what: what is kept meanwhile, such as `the measurement of t003`.
            write: one transaction; called again after it failed as a whole.

        Raises:
            StoreTrouble: it still fails, it would for ever, or the user ends the study.
        """
        begin = self._now()
        said = False
        while True:
            try:
                result = write()
            except StoreTrouble as trouble:
                if not trouble.may_pass or self._stopped() or self._now() - begin >= self._patience:
                    raise
                if not said:
                    self._say(
                        f"{trouble}. Nothing is lost: {what} is kept, and written again and again for "
                        f"{wording.duration(self._patience)}"
                    )
                    said = True
                self._sleep(TRY_EVERY)
            else:
                if said:
                    self._say("the database can be written again")
                return result

    def add_step(self, number: int, step: StepRecord) -> None:
        """Stores a step for those who look on; one that cannot be stored comes with its measurement later.

        The launch is running, so that nothing is waited for here.
        """
        if self._now() < self._no_steps_until:
            return
        try:
            self._store.add_step(self._study_id, number, step)
        except StoreTrouble as trouble:
            self._no_steps_until = self._now() + STEP_PAUSE
            self._say(f"{trouble}. The launch goes on; its steps are kept until it has ended")

    def finish_trial(
        self, number: int, state: TrialState, outcome: Measurement | Failure, *, wall_seconds: float = math.nan
    ) -> TrialRecord:
        """Stores how a trial ended.

        Args:
            wall_seconds: what the launch took.

        Raises:
            StoreTrouble: the database did not take it; the message names the file that holds it instead.
        """
        tried = False
        pending = Unsaved(self._study, number, state, outcome, wall_seconds)

        def write() -> TrialRecord:
            nonlocal tried
            try:
                return store_outcome(self._store, self._study_id, pending)
            except WrongTransition:
                # A server that went away while it committed may have stored it.
                found = next(trial for trial in self._store.trials(self._study_id) if trial.number == number)
                if not tried or found.state is not state:
                    raise
                return found
            finally:
                tried = True

        try:
            return self.insist(f"what t{number:03d} measured", write)
        except StoreTrouble as trouble:
            try:
                path = write_unsaved(pending, [self._folder, Path(tempfile.gettempdir()), Path("/dev/shm")])
            except OSError as error:
                raise StoreTrouble(
                    trouble.kind,
                    f"{trouble}. What t{number:03d} measured could not be written anywhere ({error}); here it is: "
                    f"{json.dumps(unsaved_json(pending))}",
                ) from trouble
            home = self._folder / UNSAVED
            move = "" if path == home else f" Move it to {home} first."
            raise StoreTrouble(
                trouble.kind,
                f"{trouble}. What t{number:03d} measured is in {path} instead; once the database can be written, "
                f"`autotune resume {self._study}` takes it in.{move}",
            ) from trouble


def store_outcome(store: Store, study_id: int, unsaved: Unsaved) -> TrialRecord:
    """Stores how a trial ended, in one transaction."""
    outcome = unsaved.outcome
    return store.finish_trial(
        study_id,
        unsaved.number,
        unsaved.state,
        measurement=outcome if isinstance(outcome, Measurement) else None,
        failure=outcome if isinstance(outcome, Failure) else None,
        wall_seconds=unsaved.wall_seconds,
    )


def write_unsaved(unsaved: Unsaved, folders: Sequence[Path]) -> Path:
    """Adds a line to the file in the first of these folders that takes it; returns the file.

    In a folder other than the first, which all users share, the file is a new one that nobody else can read.

    Raises:
        OSError: of the last one; none takes it.
    """
    line = json.dumps(unsaved_json(unsaved), allow_nan=False).encode() + b"\n"
    for place, folder in enumerate(folders):
        path = folder / UNSAVED
        try:
            if place == 0:
                descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            else:
                descriptor, name = tempfile.mkstemp(prefix="autotune-", suffix=f"-{UNSAVED}", dir=folder)
                path = Path(name)
        except OSError:
            if place == len(folders) - 1:
                raise
            continue
        size = os.fstat(descriptor).st_size
        try:
            # After half a line that an earlier crash left, a new one begins.
            whole = size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
            _write_all(descriptor, line if whole else b"\n" + line)
            os.fsync(descriptor)
            return path
        except OSError:
            os.ftruncate(descriptor, size)  # half a line is no line
            if place == len(folders) - 1:
                raise
        finally:
            os.close(descriptor)
    raise OSError(errno.ENOSPC, "no folder to write to")


def import_unsaved(store: Store, study_id: int, study: str, folder: Path) -> list[int]:
    """Takes in what the database did not take before; returns the numbers of the trials that it completed.

    A trial that has ended meanwhile stays as it is. The file is removed when all of it is stored; until then, taking it in
    again does no harm.

    Raises:
        BadInput: the file holds something else, such as trials of another study.
        StoreTrouble: the database still cannot be written.
    """
    path = folder / UNSAVED
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    pending = []
    for place, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = unsaved_of(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if place == len(lines) and isinstance(error, json.JSONDecodeError):
                continue  # the process died while it wrote the last one
            raise BadInput(
                f"{path}:{place} is no trial that autotune put there: {error}; look at it, or move it away"
            ) from error
        if entry.study != study:
            raise BadInput(
                f"{path}:{place} belongs to the study {entry.study!r}, not to {study!r}; move it to its --out folder"
            )
        pending.append(entry)
    states = {trial.number: trial.state for trial in store.trials(study_id)}
    taken = []
    for entry in pending:
        if states.get(entry.number) is TrialState.RUNNING:
            store_outcome(store, study_id, entry)
            states[entry.number] = entry.state
            taken.append(entry.number)
    path.unlink()
    return taken


def unsaved_json(unsaved: Unsaved) -> dict[str, Any]:
    """The trial as JSON holds it; what is not finite is null."""
    return {
        "version": _VERSION,
        "study": unsaved.study,
        "number": unsaved.number,
        "state": unsaved.state.value,
        "wall_seconds": finite_json(unsaved.wall_seconds),
        **outcome_to_json(unsaved.outcome),
    }


def unsaved_of(shown: Mapping[str, Any]) -> Unsaved:
    """The trial that `unsaved_json` shows.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it shows none.
    """
    if shown["version"] != _VERSION:
        raise ValueError(f"it was written by another release of autotune (format {shown['version']})")
    return Unsaved(
        str(shown["study"]),
        int(shown["number"]),
        TrialState(shown["state"]),
        outcome_from_json(shown),
        seconds_from_json(shown["wall_seconds"]),
    )


def disk_failure(error: OSError) -> Failure | None:
    """A launch that could not write its own files, as its failure; None: another kind of error."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return None
    where = f" of {error.filename}" if error.filename else ""
    return Failure(
        FailureClass.DISK_FULL,
        Phase.UNKNOWN,
        f"Free some space on the disk{where}, or choose another --out.",
        str(error),
        True,
    )


def told(error: OSError) -> RunFailed | None:
    """An output folder that cannot be written, for people; None: another kind of error."""
    reasons = {
        errno.ENOSPC: "the disk is full; free some space",
        errno.EDQUOT: "your quota of disk space is used up; free some space",
        errno.EROFS: "the disk is mounted read-only; mount it for writing",
        errno.EACCES: "permission is denied; give yourself write permission",
        errno.EIO: "the disk refuses to read or write; see whether it fails",
    }
    if error.errno not in reasons:
        return None
    return RunFailed(
        f"{error.filename or 'a file of this run'} cannot be written: {reasons[error.errno]}. "
        "What was measured is in the database: autotune show"
    )


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
