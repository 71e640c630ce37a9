"""Who runs a study, so that it can be taken over when that tuner is gone."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("autotune_study", sa.Column("lease", sa.JSON))
    op.add_column("autotune_study", sa.Column("lease_at", sa.DateTime(timezone=True)))
