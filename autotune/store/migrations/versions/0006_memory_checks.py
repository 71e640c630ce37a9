"""Points that were trained with every trajectory as long as the job allows."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "autotune_memory_check",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column(
            "study_id",
            sa.Integer,
            sa.ForeignKey(
                "autotune_study.id", ondelete="CASCADE", name="fk_autotune_memory_check_study_id_autotune_study"
            ),
            nullable=False,
        ),
        sa.Column("point", sa.JSON, nullable=False),
        sa.Column("session", sa.String(80), nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.Column("peak", sa.BigInteger),
        sa.Column("outside", sa.BigInteger, nullable=False),
        sa.Column("device", sa.BigInteger, nullable=False),
        sa.Column("failure", sa.JSON),
    )
    op.create_index("ix_autotune_memory_check_study_id", "autotune_memory_check", ["study_id"])


def downgrade() -> None:
    op.drop_table("autotune_memory_check")
