"""Schedules, and the nights in which they ran."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "autotune_schedule",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("cron", sa.String(200), nullable=False),
        sa.Column("tz", sa.String(100), nullable=False),
        sa.Column("window", sa.String(20), nullable=False),
        sa.Column("pairs", sa.Integer, nullable=False),
        sa.Column("script_path", sa.Text, nullable=False),
        sa.Column("script_hash", sa.String(64), nullable=False),
        sa.Column("request", sa.JSON, nullable=False),
        sa.Column("reference", sa.JSON),
        sa.UniqueConstraint("name", name="uq_autotune_schedule_name"),
    )
    op.create_table(
        "autotune_night",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column(
            "schedule_id",
            sa.Integer,
            sa.ForeignKey(
                "autotune_schedule.id", ondelete="CASCADE", name="fk_autotune_night_schedule_id_autotune_schedule"
            ),
            nullable=False,
        ),
        sa.Column("slot", sa.String(60), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("planned_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("lease", sa.JSON),
        sa.Column(
            "study_id",
            sa.Integer,
            sa.ForeignKey("autotune_study.id", ondelete="SET NULL", name="fk_autotune_night_study_id_autotune_study"),
        ),
        sa.Column("script_hash", sa.String(64)),
        sa.Column("simulated", sa.Boolean, nullable=False),
        sa.Column("environment", sa.JSON, nullable=False),
        sa.Column("canary", sa.JSON),
        sa.Column("verdict", sa.JSON),
        sa.UniqueConstraint("schedule_id", "slot", name="uq_autotune_night_schedule_id_slot"),
    )
    op.create_index("ix_autotune_night_schedule_id_planned_at", "autotune_night", ["schedule_id", "planned_at"])
    op.create_index("ix_autotune_night_state", "autotune_night", ["state"])
    op.create_index("ix_autotune_night_study_id", "autotune_night", ["study_id"])


def downgrade() -> None:
    op.drop_table("autotune_night")
    op.drop_table("autotune_schedule")
