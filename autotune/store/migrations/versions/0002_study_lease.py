"""Who runs a study, so that it can be taken over when that tuner is gone."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    with op.batch_alter_table("autotune_study") as table:
        table.add_column(sa.Column("lease", sa.JSON))
        table.add_column(sa.Column("lease_at", sa.DateTime(timezone=True)))


def downgrade() -> None:
    with op.batch_alter_table("autotune_study") as table:
        table.drop_column("lease_at")
        table.drop_column("lease")
