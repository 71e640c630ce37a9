"""The tables, beside Optuna's in the same database; the prefix keeps them apart."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

SCHEMA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class Base(DeclarativeBase):
    """Base of all tables of ours."""

    metadata = SCHEMA


class StudyRow(Base):
    """One study: what was asked, and what came out."""

    __tablename__ = "autotune_study"
    __table_args__ = (
        UniqueConstraint("name"),
        Index(None, "workload_fingerprint", "created_at"),
        Index(None, "workload_fingerprint", "simulated", "created_at"),
        Index(None, "created_at"),
        Index(None, "state"),
    )

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    updated_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    state: Mapped[str] = mapped_column(String(20))
    workload: Mapped[str] = mapped_column(Text)
    workload_fingerprint: Mapped[str] = mapped_column(String(64))
    script_path: Mapped[str] = mapped_column(Text)
    script_text: Mapped[str] = mapped_column(Text)
    n_gpus: Mapped[int] = mapped_column(Integer)
    simulated: Mapped[bool] = mapped_column(Boolean)
    launch: Mapped[dict[str, Any]] = mapped_column(JSON)
    config: Mapped[dict[str, Any]] = mapped_column(JSON)
    space: Mapped[dict[str, Any]] = mapped_column(JSON)
    settings: Mapped[dict[str, Any]] = mapped_column(JSON)
    environment: Mapped[dict[str, Any]] = mapped_column(JSON)
    verdict: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    lease: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    lease_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))


class TrialRow(Base):
    """One launch of one Point."""

    __tablename__ = "autotune_trial"
    __table_args__ = (UniqueConstraint("study_id", "number"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("autotune_study.id", ondelete="CASCADE"))
    number: Mapped[int] = mapped_column(Integer)
    optuna_number: Mapped[int | None] = mapped_column(Integer)
    kind: Mapped[str] = mapped_column(String(20))
    state: Mapped[str] = mapped_column(String(20))
    point: Mapped[dict[str, Any]] = mapped_column(JSON)
    overrides: Mapped[list[str]] = mapped_column(JSON)
    origin: Mapped[str] = mapped_column(Text)
    source: Mapped[str | None] = mapped_column(String(20))
    work: Mapped[str | None] = mapped_column(String(80))
    engine: Mapped[str | None] = mapped_column(String(20))
    session: Mapped[str | None] = mapped_column(String(80))
    simulated: Mapped[bool] = mapped_column(Boolean)
    started_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    ended_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    startup_seconds: Mapped[float | None] = mapped_column(Float)
    wall_seconds: Mapped[float | None] = mapped_column(Float)
    world_size: Mapped[int | None] = mapped_column(Integer)
    throughput: Mapped[float | None] = mapped_column(Float)
    mfu: Mapped[float | None] = mapped_column(Float)
    step_seconds: Mapped[float | None] = mapped_column(Float)
    memory_gb: Mapped[float | None] = mapped_column(Float)
    phases: Mapped[dict[str, Any]] = mapped_column(JSON)
    echo: Mapped[dict[str, Any]] = mapped_column(JSON)
    gpus: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    failure: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    run_dir: Mapped[str | None] = mapped_column(Text)


class StepRow(Base):
    """One step of a launch, stored as soon as it was seen."""

    __tablename__ = "autotune_step"
    __table_args__ = (UniqueConstraint("trial_id", "step"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey("autotune_trial.id", ondelete="CASCADE"))
    step: Mapped[int] = mapped_column(Integer)
    settling: Mapped[bool] = mapped_column(Boolean)
    seconds: Mapped[float] = mapped_column(Float)
    tokens: Mapped[int | None] = mapped_column(BigInteger)
    mfu: Mapped[float | None] = mapped_column(Float)
    memory_gb: Mapped[float | None] = mapped_column(Float)
    phases: Mapped[dict[str, Any]] = mapped_column(JSON)
    metrics: Mapped[dict[str, Any]] = mapped_column(JSON)
    invalid: Mapped[str | None] = mapped_column(Text)


class MemoryCheckRow(Base):
    """One Point of a study, trained once with every trajectory as long as the job allows."""

    __tablename__ = "autotune_memory_check"
    __table_args__ = (Index(None, "study_id"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("autotune_study.id", ondelete="CASCADE"))
    point: Mapped[dict[str, Any]] = mapped_column(JSON)
    session: Mapped[str] = mapped_column(String(80))
    tokens: Mapped[int] = mapped_column(BigInteger)
    peak: Mapped[int | None] = mapped_column(BigInteger)
    outside: Mapped[int] = mapped_column(BigInteger)
    device: Mapped[int] = mapped_column(BigInteger)
    failure: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))


class ScheduleRow(Base):
    """A job that is tuned every night: when, which script, and how."""

    __tablename__ = "autotune_schedule"
    __table_args__ = (UniqueConstraint("name"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    updated_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    state: Mapped[str] = mapped_column(String(20))
    host: Mapped[str] = mapped_column(Text)
    cron: Mapped[str] = mapped_column(String(200))
    tz: Mapped[str] = mapped_column(String(100))
    window: Mapped[str] = mapped_column(String(20))
    pairs: Mapped[int] = mapped_column(Integer)
    script_path: Mapped[str] = mapped_column(Text)
    script_hash: Mapped[str] = mapped_column(String(64))
    request: Mapped[dict[str, Any]] = mapped_column(JSON)
    reference: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))


class NightRow(Base):
    """One run of a schedule."""

    __tablename__ = "autotune_night"
    __table_args__ = (
        UniqueConstraint("schedule_id", "slot"),
        Index(None, "schedule_id", "planned_at"),
        Index(None, "state"),
        Index(None, "study_id"),
    )

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    schedule_id: Mapped[int] = mapped_column(ForeignKey("autotune_schedule.id", ondelete="CASCADE"))
    slot: Mapped[str] = mapped_column(String(60))
    state: Mapped[str] = mapped_column(String(20))
    reason: Mapped[str] = mapped_column(Text)
    planned_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    until: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    started_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    ended_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    attempts: Mapped[int] = mapped_column(Integer)
    lease: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    study_id: Mapped[int | None] = mapped_column(ForeignKey("autotune_study.id", ondelete="SET NULL"))
    script_hash: Mapped[str | None] = mapped_column(String(64))
    simulated: Mapped[bool] = mapped_column(Boolean)
    environment: Mapped[dict[str, Any]] = mapped_column(JSON)
    canary: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    verdict: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
