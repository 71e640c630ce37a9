"""Indexes by which pages find studies and running trials without reading every row."""

from alembic import op

revision = "0004"
down_revision = "0003"

_INDEXES = (
    ("ix_autotune_study_created_at", "autotune_study", ["created_at"]),
    ("ix_autotune_study_state", "autotune_study", ["state"]),
    (
        "ix_autotune_study_workload_fingerprint_simulated_created_at",
        "autotune_study",
        ["workload_fingerprint", "simulated", "created_at"],
    ),
)


def upgrade() -> None:
    for name, table, columns in _INDEXES:
        op.create_index(name, table, columns)


def downgrade() -> None:
    for name, table, _ in reversed(_INDEXES):
        op.drop_index(name, table)
