"""Opening, writing and reading the database."""

from __future__ import annotations

import difflib
import json
import logging
import math
import os
import re
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import optuna
from alembic import command as alembic
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import (
    Connection,
    Engine,
    and_,
    case,
    create_engine,
    delete,
    event,
    func,
    inspect,
    select,
    text,
    type_coerce,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, IntegrityError, NoSuchModuleError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from autotune.store.file_checks import CHECKED_BYTES, back_up, damage
from autotune.store.records import TRANSITIONS, Lease, LeaseTaken, StudyRecord, TrialRecord, WrongTransition
from autotune.store.tables import MemoryCheckRow, StepRow, StudyRow, TrialRow
from autotune.store.trouble import tell_troubles, trouble
from autotune.values import (
    BadInput,
    Failure,
    KnobValue,
    Measurement,
    MemoryCheck,
    Point,
    StepRecord,
    TrialKind,
    TrialState,
)

_LOG = logging.getLogger(__name__)
VERSION_TABLE = "autotune_alembic_version"
BUSY_SECONDS = 60.0
NAME_LENGTH = 200
_WRITES = {"autotune_writes": True}
DATABASE_NOW = type_coerce(func.current_timestamp(), StudyRow.lease_at.type)
"""The time by the clock of the database, which hosts that share it have in common."""
_MIGRATION_LOCK = 0x6175746F74756E65
"""Key of the advisory lock that one migration at a time holds in PostgreSQL: "autotune" in ASCII."""
_MIGRATIONS = Path(__file__).resolve().parent / "migrations"
_NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "afs", "wekafs", "panfs", "9p.nfs"}
    | {"ocfs2", "gfs2", "orangefs", "glusterfs"}
    | {f"fuse.{name}" for name in ("sshfs", "glusterfs", "ceph-fuse", "juicefs", "s3fs", "gcsfuse", "beegfs", "rclone")}
)


class Store:
    """One database with our tables and Optuna's. Every call is one short transaction; reading never blocks the writer."""

    def __init__(self, url: str, shown: str, engine: Engine) -> None:
        self.url = shown
        """Where it is, for people: without the password."""
        self._url = url
        self._engine = engine
        self._writing = engine.execution_options(**_WRITES)

    @classmethod
    def open(cls, url: str, *, check: bool = False) -> Store:
        """Opens a database, making it and its tables where they are missing.

        A SQLite database whose tables are of an earlier autotune is copied to `….bak-REVISION` before they change.

        Args:
            url: `sqlite:///path` or `postgresql+psycopg://user@host/database`.
            check: look for damage first (SQLite), as whoever is going to write for hours should.

        Raises:
            BadInput: not a URL, not writable, no database, damaged, on a network disk (SQLite), or of a later autotune.
        """
        parsed = usable_url(url)
        shown = parsed.render_as_string(hide_password=True)
        file = Path(parsed.database or "") if parsed.get_backend_name() == "sqlite" else None
        try:
            if check and file is not None and file.exists():
                _check_whole(file, shown)
            engine = _engine(parsed)
            _migrate(engine, shown, file)
            if parsed.get_backend_name() == "sqlite":
                _write_ahead(engine)
        except NoSuchModuleError as error:
            raise BadInput(
                f"--storage {shown}: there is no driver {parsed.drivername}; try sqlite or postgresql+psycopg"
            ) from error
        except ModuleNotFoundError as error:
            raise BadInput(
                f"--storage {shown}: the driver {error.name} is not installed; pip install 'verl-autotune[postgres]'"
            ) from error
        except (DatabaseError, sqlite3.DatabaseError) as error:
            known = trouble(error, where=shown, file=str(file), busy=BUSY_SECONDS) if file is not None else None
            if known is not None:
                raise BadInput(f"--storage: {known}") from error
            reason = str(getattr(error, "orig", error)).strip().splitlines()[0]
            raise BadInput(
                f"--storage {shown} cannot be opened: {reason}; name another database with --storage"
            ) from error
        tell_troubles(engine, where=shown, file=str(file), busy=BUSY_SECONDS)
        return cls(parsed.render_as_string(hide_password=False), shown, engine)

    @staticmethod
    def missing_file(url: str) -> Path | None:
        """The file of a SQLite URL if it does not exist, which `open` would make; None for every other URL."""
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError):
            return None
        path = Path(parsed.database) if parsed.get_backend_name() == "sqlite" and parsed.database else None
        return path if path is not None and not os.path.exists(path) else None

    def close(self) -> None:
        """Gives back the connections."""
        self._engine.dispose()

    def reading(self) -> Session:
        """A session for queries that only read; it neither waits for the writer nor holds it up."""
        return Session(self._engine)

    def writing(self) -> Session:
        """A session for one short transaction that writes: begin it, and it holds the writer's place from its first statement."""
        return Session(self._writing)

    def optuna_storage(self) -> optuna.storages.RDBStorage:
        """Optuna's storage in the same database.

        Raises:
            BadInput: its tables were made by another release of Optuna.
        """
        arguments: dict[str, Any] = {"poolclass": NullPool}
        if self._url.startswith("sqlite"):
            arguments["connect_args"] = {"timeout": BUSY_SECONDS}
        try:
            storage = optuna.storages.RDBStorage(self._url, engine_kwargs=arguments)
            tell_troubles(storage.engine, where=self.url, file=str(storage.engine.url.database), busy=BUSY_SECONDS)
            return storage
        except RuntimeError as error:
            raise BadInput(f"--storage {self.url}: {error} Or name another database with --storage") from error

    def create_study(
        self,
        *,
        name: str,
        workload: str,
        workload_fingerprint: str,
        script_path: str,
        script_text: str,
        launch: Mapping[str, Any],
        config: Mapping[str, Any],
        space: Mapping[str, Any],
        settings: Mapping[str, Any],
        environment: Mapping[str, Any],
        n_gpus: int,
        simulated: bool,
        lease: Lease | None = None,
    ) -> int:
        """Stores a new, running study; returns its id.

        Args:
            lease: who runs it.

        Raises:
            BadInput: there is a study of that name, or the name is empty or too long.
        """
        if not 0 < len(name) <= NAME_LENGTH or name != _text(name):
            raise BadInput(f"--study {name[:40]!r}: a name has 1 to {NAME_LENGTH} characters, none of them NUL")
        taken = BadInput(f"there is a study named {name!r} in {self.url} already; choose another name with --study")
        now = _now()
        with Session(self._writing) as session, session.begin():
            if session.scalar(select(StudyRow.id).where(StudyRow.name == name)) is not None:
                raise taken
            row = StudyRow(
                name=name,
                created_at=now,
                updated_at=now,
                state="running",
                workload=_text(workload),
                workload_fingerprint=workload_fingerprint,
                script_path=_text(script_path),
                script_text=_text(script_text),
                n_gpus=n_gpus,
                simulated=simulated,
                launch=_json(launch),
                config=_json(config),
                space=_json(space),
                settings=_json(settings),
                environment=_json(environment),
                verdict=None,
                lease=None if lease is None else asdict(lease),
                lease_at=None if lease is None else func.current_timestamp(),
            )
            session.add(row)
            try:
                session.flush()
            except IntegrityError as error:
                raise taken from error
            return row.id

    def studies(self) -> list[StudyRecord]:
        """All studies, oldest first."""
        count = select(func.count()).where(TrialRow.study_id == StudyRow.id).correlate(StudyRow).scalar_subquery()
        with Session(self._engine) as session:
            rows = session.execute(select(StudyRow, count, DATABASE_NOW).order_by(StudyRow.id)).all()
            return [study_record(row, trials, now) for row, trials, now in rows]

    def study(self, name: str) -> StudyRecord:
        """The study of that name.

        Raises:
            BadInput: there is none; the message names near ones.
        """
        studies = self.studies()
        for study in studies:
            if study.name == name:
                return study
        near = difflib.get_close_matches(name, [study.name for study in studies], n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else "autotune studies lists them"
        raise BadInput(f"no study named {name!r} in {self.url}; {hint}")

    def latest_study(self) -> StudyRecord | None:
        """The newest study, or None."""
        studies = self.studies()
        return studies[-1] if studies else None

    def take_study(self, study_id: int, lease: Lease, *, instead_of: Lease | None) -> None:
        """The study runs again, under another lease; its verdict is open until it ends.

        Args:
            instead_of: the lease that the caller found dead, or None where it found none.

        Raises:
            LeaseTaken: somebody else was faster.
        """
        with Session(self._writing) as session, session.begin():
            row = session.scalars(select(StudyRow).where(StudyRow.id == study_id).with_for_update()).one()
            if (row.lease or {}).get("token") != (instead_of.token if instead_of else None):
                raise LeaseTaken(f"another tuner has just taken the study {row.name!r}")
            row.lease = asdict(lease)
            row.lease_at = func.current_timestamp()
            row.state = "running"
            row.verdict = None
            row.updated_at = _now()

    def renew(self, study_id: int, lease: Lease) -> bool:
        """Says that the holder of the lease is alive; False: somebody else holds the study now."""
        return self._holds(study_id, lease, {"lease_at": func.current_timestamp()})

    def release(self, study_id: int, lease: Lease) -> None:
        """Gives the lease back; that of somebody else stays."""
        self._holds(study_id, lease, {"lease": None, "lease_at": None})

    def _holds(self, study_id: int, lease: Lease, values: Mapping[str, Any]) -> bool:
        with Session(self._writing) as session, session.begin():
            row = session.scalars(select(StudyRow).where(StudyRow.id == study_id).with_for_update()).one()
            if (row.lease or {}).get("token") != lease.token:
                return False
            for name, value in values.items():
                setattr(row, name, value)
            return True

    def abandon(self, study_id: int, failure: Failure) -> int:
        """Ends the trials that a tuner left queued or running; returns how many there were."""
        with Session(self._writing) as session, session.begin():
            rows = session.scalars(
                select(TrialRow)
                .where(
                    TrialRow.study_id == study_id,
                    TrialRow.state.in_([TrialState.QUEUED.value, TrialState.RUNNING.value]),
                )
                .with_for_update()
            ).all()
            for row in rows:
                _move(row, TrialState.FAILED)
                row.ended_at = _now()
                row.failure = failure.to_json()
            return len(rows)

    def set_study_state(self, study_id: int, state: str) -> None:
        """`running`, `finished`, `stopped` or `failed`."""
        self._update_study(study_id, state=state)

    def set_verdict(self, study_id: int, verdict: Mapping[str, Any]) -> None:
        """What the study says."""
        self._update_study(study_id, verdict=_json(verdict))

    def add_trial(
        self,
        study_id: int,
        *,
        kind: TrialKind,
        point: Point,
        overrides: Sequence[str],
        origin: str,
        optuna_number: int | None,
        simulated: bool,
    ) -> int:
        """Stores a queued trial; returns its number in the study, from 0.

        Raises:
            StatementError: a knob is NaN or infinite; as null it would be another Point.
        """
        with Session(self._writing) as session, session.begin():
            # The study's row is locked so that two writers never take the same number (SQLite has one writer anyway).
            session.execute(select(StudyRow.id).where(StudyRow.id == study_id).with_for_update()).one()
            last = session.scalar(select(func.max(TrialRow.number)).where(TrialRow.study_id == study_id))
            number = 0 if last is None else last + 1
            session.add(
                TrialRow(
                    study_id=study_id,
                    number=number,
                    optuna_number=optuna_number,
                    kind=kind.value,
                    state=TrialState.QUEUED.value,
                    point=point.as_dict(),
                    overrides=list(overrides),
                    origin=_text(origin),
                    simulated=simulated,
                    phases={},
                    echo={},
                    gpus=[],
                )
            )
            return number

    def start_trial(self, study_id: int, number: int, *, run_dir: str) -> None:
        """The launch begins."""
        with Session(self._writing) as session, session.begin():
            row = _trial_row(session, study_id, number, locked=True)
            _move(row, TrialState.RUNNING)
            row.started_at = _now()
            row.run_dir = _text(run_dir)

    def add_step(self, study_id: int, number: int, step: StepRecord) -> None:
        """A step of a running trial was finished; one without a finite duration is left out, with a warning.

        Raises:
            WrongTransition: the trial does not run; somebody else has taken the study over.
        """
        if not _timed(number, step):
            return
        with Session(self._writing) as session, session.begin():
            row = _trial_row(session, study_id, number, locked=True)
            if row.state != TrialState.RUNNING.value:
                raise WrongTransition(f"trial {number} is {row.state} and has no further steps")
            session.execute(delete(StepRow).where(StepRow.trial_id == row.id, StepRow.step == step.step))
            session.add(_step_row(row.id, step))

    def finish_trial(
        self,
        study_id: int,
        number: int,
        state: TrialState,
        *,
        measurement: Measurement | None,
        failure: Failure | None,
        wall_seconds: float | None = None,
    ) -> TrialRecord:
        """The launch ended; a measurement's own steps take the place of those seen live.

        A step without a finite duration is left out, with a warning.

        Args:
            wall_seconds: what the launch took, where there is no measurement that says so.

        Raises:
            WrongTransition: the trial has ended before, or was never started.
            ValueError: `measured` without a measurement; such a trial would rank without figures.
        """
        if state is TrialState.MEASURED and measurement is None:
            raise ValueError(f"trial {number} cannot be measured without a measurement")
        with Session(self._writing) as session, session.begin():
            row = _trial_row(session, study_id, number, locked=True)
            _move(row, state)
            row.ended_at = _now()
            row.failure = failure.to_json() if failure is not None else None
            row.wall_seconds = _finite(wall_seconds)
            if measurement is not None:
                row.source = measurement.source.value
                row.work = measurement.work
                row.engine = measurement.engine
                row.session = measurement.session
                row.simulated = row.simulated or measurement.simulated
                row.startup_seconds = _finite(measurement.startup_seconds)
                if math.isfinite(measurement.wall_seconds):
                    row.wall_seconds = measurement.wall_seconds
                row.world_size = measurement.world_size
                row.throughput = _finite(measurement.throughput)
                row.mfu = _finite(measurement.mfu)
                row.step_seconds = _finite(measurement.step_seconds)
                row.memory_gb = _finite(measurement.memory_gb)
                row.phases = _json(measurement.phase_seconds)
                row.echo = _json(measurement.echo)
                row.gpus = [_json(asdict(gpu)) for gpu in measurement.gpus]
                session.execute(delete(StepRow).where(StepRow.trial_id == row.id))
                session.add_all([_step_row(row.id, step) for step in measurement.steps if _timed(number, step)])
            session.flush()
            return self._records(session, study_id, number)[0]

    def add_memory_check(self, study_id: int, check: MemoryCheck) -> None:
        """Stores what a Point took with every trajectory as long as the job allows."""
        with Session(self._writing) as session, session.begin():
            session.add(
                MemoryCheckRow(
                    study_id=study_id,
                    point=check.point.as_dict(),
                    session=check.session,
                    tokens=check.tokens,
                    peak=check.peak,
                    outside=check.outside,
                    device=check.device,
                    failure=None if check.failure is None else _json(check.failure.to_json()),
                )
            )

    def memory_checks(self, study_id: int) -> list[MemoryCheck]:
        """What `add_memory_check` stored, in order."""
        query = select(MemoryCheckRow).where(MemoryCheckRow.study_id == study_id).order_by(MemoryCheckRow.id)
        with Session(self._engine) as session:
            return [
                MemoryCheck(
                    Point.of(_knob_values(row.point)),
                    row.session,
                    row.tokens,
                    row.peak,
                    row.outside,
                    row.device,
                    None if row.failure is None else Failure.from_json(row.failure),
                )
                for row in session.scalars(query)
            ]

    def trials(self, study_id: int) -> list[TrialRecord]:
        """The trials of a study by number."""
        with Session(self._engine) as session:
            return self._records(session, study_id)

    def steps(self, study_id: int, number: int) -> list[StepRecord]:
        """The steps of a trial in order."""
        with Session(self._engine) as session:
            row = _trial_row(session, study_id, number)
            steps = session.scalars(select(StepRow).where(StepRow.trial_id == row.id).order_by(StepRow.step))
            return [
                StepRecord(
                    s.step,
                    s.seconds,
                    s.tokens,
                    dict(s.phases),
                    s.mfu,
                    s.memory_gb,
                    s.settling,
                    dict(s.metrics),
                    s.invalid,
                )
                for s in steps
            ]

    def _update_study(self, study_id: int, **values: Any) -> None:
        with Session(self._writing) as session, session.begin():
            row = session.get_one(StudyRow, study_id)
            for name, value in values.items():
                setattr(row, name, value)
            row.updated_at = _now()

    @staticmethod
    def _records(session: Session, study_id: int, number: int | None = None) -> list[TrialRecord]:
        settling = func.coalesce(func.sum(case((StepRow.settling, 1), else_=0)), 0)
        disturbed = and_(StepRow.invalid.is_not(None), StepRow.settling.is_(False))
        invalid = func.coalesce(func.sum(case((disturbed, 1), else_=0)), 0)
        query = (
            select(TrialRow, settling, invalid, func.count(StepRow.id))
            .outerjoin(StepRow, StepRow.trial_id == TrialRow.id)
            .where(TrialRow.study_id == study_id)
            .group_by(TrialRow.id)
            .order_by(TrialRow.number)
        )
        if number is not None:
            query = query.where(TrialRow.number == number)
        return [_trial_record(row, *map(int, steps)) for row, *steps in session.execute(query)]


def _without_login(url: str) -> str:
    """The URL with everything up to its last `@` masked, since where a login ends in a broken one nobody knows."""
    return f"***{url[url.rindex('@') :]}" if "@" in url else url


def _engine(url: URL) -> Engine:
    if url.get_backend_name() != "sqlite":
        return create_engine(url, poolclass=NullPool, json_serializer=_dumps)
    engine = create_engine(url, poolclass=NullPool, json_serializer=_dumps, connect_args={"timeout": BUSY_SECONDS})

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = (
            None  # the driver begins no transaction before DDL, so `begin` below does it always
        )
        connection.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A writer takes its lock at once: one that reads first would fail, not wait, when another wrote in between.
        writes = _WRITES.keys() <= connection.get_execution_options().keys()
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _check_whole(file: Path, shown: str) -> None:
    broken = damage(file, busy=BUSY_SECONDS) if file.stat().st_size else None
    if broken is not None:
        raise BadInput(
            f"--storage {shown} is damaged ({broken}); nothing was changed. Save a copy of it, then put a backup in its "
            f"place ({file.name}.bak-… beside it, if there is one), save what is left (sqlite3 {file} .recover | sqlite3 "
            "recovered.db), or name another database with --storage"
        )
    if file.stat().st_size > CHECKED_BYTES:
        _LOG.warning("%s is larger than %d MiB and was not checked for damage", file, CHECKED_BYTES >> 20)


def _back_up(file: Path, revision: str, shown: str) -> None:
    try:
        copy = back_up(file, revision, busy=BUSY_SECONDS)
    except OSError as error:
        raise BadInput(
            f"--storage {shown} needs newer tables, and no copy of it could be made before they change: {error.strerror}; "
            "free some space beside it, or name another database"
        ) from error
    _LOG.warning("the tables of %s are brought up to date; a copy of it as it was is in %s", file, copy)


def _migrate(engine: Engine, shown: str, file: Path | None) -> None:
    """Brings the tables up to date in one transaction that only one process at a time can be in.

    A database that is up to date is only read, so that opening one does not wait for its writer.

    Args:
        file: of a SQLite database, which is copied first; None: another kind, which has backups of its own.
    """
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    with engine.connect() as connection:
        if _is_current(config, connection, shown):
            return
        stored = _revision(connection)
    if file is not None and stored is not None:
        _back_up(file, stored, shown)
    with engine.execution_options(**_WRITES).begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(select(func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
        if not _is_current(config, connection, shown):
            config.attributes["connection"] = connection
            alembic.upgrade(config, "head")


def _write_ahead(engine: Engine) -> None:
    """Switches SQLite to write-ahead logging, where readers and the writer do not wait for each other.

    The switch needs the file to itself, and SQLite does not wait for that by itself.
    """
    end = time.monotonic() + BUSY_SECONDS
    with closing(engine.raw_connection()) as connection:
        cursor = connection.cursor()
        while cursor.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            try:
                cursor.execute("PRAGMA journal_mode=WAL")
            except sqlite3.OperationalError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)


def usable_url(url: str) -> URL:
    """A storage URL that looks usable, found out without writing anything.

    Raises:
        BadInput: not a URL, another kind of database, or a SQLite file that cannot be made, written or locked.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # Without its cause: that, and a text which is no URL, may show a password.
        raise BadInput(f"--storage {_without_login(url)!r} is no database URL; try sqlite:///trials.db") from None
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    shown = parsed.render_as_string(hide_password=True)
    if parsed.get_backend_name() == "sqlite":
        _check_file(parsed.database, shown)
    elif parsed.get_backend_name() != "postgresql":
        raise BadInput(f"--storage {shown}: autotune stores in SQLite or PostgreSQL")
    return parsed


def _check_file(database: str | None, shown: str) -> None:
    if not database or database == ":memory:":
        raise BadInput(f"--storage {shown}: a study needs a file, such as sqlite:///trials.db")
    if database.startswith("file:"):
        raise BadInput(f"--storage {shown}: write the path alone, such as sqlite:///trials.db")
    path = Path(database)
    folder = path.resolve().parent
    # os.path, since Path raises PermissionError for what lies in a folder that may not be entered.
    if not os.path.isdir(folder):
        raise BadInput(f"--storage {shown}: the folder {folder} does not exist, or may not be entered")
    if os.path.isdir(path):
        raise BadInput(f"--storage {shown}: {path} is a folder")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK) or not os.access(folder, os.W_OK):
        raise BadInput(f"--storage {shown}: {path} cannot be written; name another database with --storage")
    for beside in (folder / f"{path.resolve().name}{ending}" for ending in ("-wal", "-shm")):
        if os.path.exists(beside) and not os.access(beside, os.W_OK):
            raise BadInput(
                f"--storage {shown}: {beside} cannot be written; it belongs to the database and was left by another user "
                "(root, perhaps). Have its owner open the database once, or give yourself write permission to it; "
                "never delete it: it holds what was stored last"
            )
    kind = filesystem_of(folder, _mounts())
    if kind in _NETWORK_FILESYSTEMS:
        raise BadInput(
            f"--storage {shown}: {folder} is on {kind}, where SQLite's locks do not hold and databases break; "
            "use a local disk or PostgreSQL (--storage postgresql+psycopg://…)"
        )
    if path.exists() and path.stat().st_size > 0:
        with path.open("rb") as source:
            if source.read(16) != b"SQLite format 3\x00":
                raise BadInput(f"--storage {shown}: {path} is no SQLite database")


def _mounts() -> str:
    try:
        return Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def filesystem_of(folder: Path, mounts: str) -> str:
    """Type of the filesystem that holds a folder; empty where that is not known.

    Args:
        folder: an absolute path.
        mounts: the text of /proc/mounts.
    """
    best = ("", "")
    for line in mounts.splitlines():
        parts = line.split()
        if len(parts) > 2:
            place = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), parts[1])
            if (folder == Path(place) or Path(place) in folder.parents) and len(place) >= len(best[0]):
                best = (place, parts[2])
    return best[1]


def _is_current(config: Config, connection: Connection, shown: str) -> bool:
    """Whether the database has the tables of this autotune; those of a later one are refused."""
    stored = _revision(connection)
    known = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    if stored is not None and stored not in known:
        raise BadInput(
            f"--storage {shown} was written by a later autotune (schema {stored}); "
            "upgrade autotune, or name another database"
        )
    return stored == known[0]


def _revision(connection: Connection) -> str | None:
    """The revision of our tables; None where there are none."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return None if found is None else str(found)


def _trial_row(session: Session, study_id: int, number: int, *, locked: bool = False) -> TrialRow:
    query = select(TrialRow).where(TrialRow.study_id == study_id, TrialRow.number == number)
    return session.scalars(query.with_for_update() if locked else query).one()


def _move(row: TrialRow, state: TrialState) -> None:
    now = TrialState(row.state)
    if state not in TRANSITIONS[now]:
        raise WrongTransition(f"trial {row.number} is {now.value} and cannot become {state.value}")
    row.state = state.value


def _timed(number: int, step: StepRecord) -> bool:
    """Whether a step can be stored. A duration of NaN is no measurement, and SQLite would take it for a missing value."""
    if math.isfinite(step.seconds):
        return True
    _LOG.warning("trial %d: step %d took %s seconds and is left out", number, step.step, step.seconds)
    return False


def _step_row(trial_id: int, step: StepRecord) -> StepRow:
    return StepRow(
        trial_id=trial_id,
        step=step.step,
        settling=step.settling,
        seconds=step.seconds,
        tokens=step.tokens,
        mfu=_finite(step.mfu),
        memory_gb=_finite(step.memory_gb),
        phases=_json(step.phases),
        metrics=_json(step.metrics),
        invalid=None if step.invalid is None else _text(step.invalid),
    )


def study_record(row: StudyRow, trials: int, now: datetime) -> StudyRecord:
    """A study as it is given back; `now` is the database's clock (`DATABASE_NOW`), by which leases are renewed."""
    age = None if row.lease_at is None else (_utc(now) - _utc(row.lease_at)).total_seconds()
    return StudyRecord(
        lease=None if row.lease is None else Lease(**row.lease),
        lease_age=age,
        id=row.id,
        name=row.name,
        created_at=_utc(row.created_at),
        updated_at=_utc(row.updated_at),
        state=row.state,
        workload=row.workload,
        workload_fingerprint=row.workload_fingerprint,
        script_path=row.script_path,
        script_text=row.script_text,
        n_gpus=row.n_gpus,
        simulated=row.simulated,
        launch=row.launch,
        config=row.config,
        space=row.space,
        settings=row.settings,
        environment=row.environment,
        verdict=row.verdict,
        trials=trials,
    )


def trial_facts(row: Any) -> dict[str, Any]:
    """What a list, a picture and the whole record tell of a trial, by their fields; `row` has at least these columns."""
    return {
        "number": row.number,
        "kind": TrialKind(row.kind),
        "state": TrialState(row.state),
        "point": Point.of(_knob_values(row.point)),
        "origin": row.origin,
        "source": row.source,
        "work": row.work,
        "engine": row.engine,
        "session": row.session,
        "simulated": row.simulated,
        "started_at": _utc(row.started_at) if row.started_at else None,
        "ended_at": _utc(row.ended_at) if row.ended_at else None,
        "startup_seconds": row.startup_seconds,
        "wall_seconds": row.wall_seconds,
        "throughput": row.throughput,
        "mfu": row.mfu,
        "step_seconds": row.step_seconds,
        "memory_gb": row.memory_gb,
        "phases": row.phases,
        "failure": row.failure,
    }


def _trial_record(row: TrialRow, settling: int, invalid: int, steps: int) -> TrialRecord:
    return TrialRecord(
        **trial_facts(row),
        optuna_number=row.optuna_number,
        overrides=tuple(row.overrides),
        world_size=row.world_size,
        echo=row.echo,
        gpus=tuple(row.gpus),
        run_dir=row.run_dir,
        settling_steps=settling,
        counted_steps=steps - settling - invalid,
        invalid_steps=invalid,
    )


def _knob_values(values: Mapping[str, Any]) -> dict[str, KnobValue]:
    return dict(values)


def _json(value: Any) -> Any:
    """The value with every NaN and infinity as null: JSON has none, and PostgreSQL refuses them."""
    if isinstance(value, float):
        return _finite(value)
    if isinstance(value, Mapping):
        return {str(key): _json(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json(inner) for inner in value]
    return value


def _dumps(value: Any) -> str:
    # A NaN that slipped through would be stored as a word that is no JSON, and PostgreSQL would refuse the whole row.
    return json.dumps(value, allow_nan=False)


def _text(value: str) -> str:
    """The text without NUL and lone surrogates (a script in another encoding has them), which no database takes."""
    return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment.astimezone(timezone.utc)
