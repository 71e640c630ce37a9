"""Studies, trials and steps."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "autotune_study",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("workload", sa.Text, nullable=False),
        sa.Column("workload_fingerprint", sa.String(64), nullable=False),
        sa.Column("script_path", sa.Text, nullable=False),
        sa.Column("script_text", sa.Text, nullable=False),
        sa.Column("n_gpus", sa.Integer, nullable=False),
        sa.Column("simulated", sa.Boolean, nullable=False),
        sa.Column("launch", sa.JSON, nullable=False),
        sa.Column("config", sa.JSON, nullable=False),
        sa.Column("space", sa.JSON, nullable=False),
        sa.Column("settings", sa.JSON, nullable=False),
        sa.Column("environment", sa.JSON, nullable=False),
        sa.Column("verdict", sa.JSON),
        sa.UniqueConstraint("name", name="uq_autotune_study_name"),
    )
    op.create_index(
        "ix_autotune_study_workload_fingerprint_created_at", "autotune_study", ["workload_fingerprint", "created_at"]
    )
    op.create_table(
        "autotune_trial",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column(
            "study_id",
            sa.Integer,
            sa.ForeignKey("autotune_study.id", ondelete="CASCADE", name="fk_autotune_trial_study_id"),
            nullable=False,
        ),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("optuna_number", sa.Integer),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("point", sa.JSON, nullable=False),
        sa.Column("overrides", sa.JSON, nullable=False),
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("source", sa.String(20)),
        sa.Column("work", sa.String(80)),
        sa.Column("engine", sa.String(20)),
        sa.Column("session", sa.String(80)),
        sa.Column("simulated", sa.Boolean, nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.Column("startup_seconds", sa.Float),
        sa.Column("wall_seconds", sa.Float),
        sa.Column("world_size", sa.Integer),
        sa.Column("throughput", sa.Float),
        sa.Column("mfu", sa.Float),
        sa.Column("step_seconds", sa.Float),
        sa.Column("memory_gb", sa.Float),
        sa.Column("phases", sa.JSON, nullable=False),
        sa.Column("echo", sa.JSON, nullable=False),
        sa.Column("gpus", sa.JSON, nullable=False),
        sa.Column("failure", sa.JSON),
        sa.Column("run_dir", sa.Text),
        sa.UniqueConstraint("study_id", "number", name="uq_autotune_trial_study_id_number"),
    )
    op.create_table(
        "autotune_step",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column(
            "trial_id",
            sa.Integer,
            sa.ForeignKey("autotune_trial.id", ondelete="CASCADE", name="fk_autotune_step_trial_id"),
            nullable=False,
        ),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("settling", sa.Boolean, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("tokens", sa.BigInteger),
        sa.Column("mfu", sa.Float),
        sa.Column("memory_gb", sa.Float),
        sa.Column("phases", sa.JSON, nullable=False),
        sa.Column("metrics", sa.JSON, nullable=False),
        sa.UniqueConstraint("trial_id", "step", name="uq_autotune_step_trial_id_step"),
    )


def downgrade() -> None:
    for table in ("autotune_step", "autotune_trial", "autotune_study"):
        op.drop_table(table)
