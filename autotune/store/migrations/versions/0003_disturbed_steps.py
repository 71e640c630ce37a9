"""What disturbed a step."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    with op.batch_alter_table("autotune_step") as table:
        table.add_column(sa.Column("invalid", sa.Text))


def downgrade() -> None:
    with op.batch_alter_table("autotune_step") as table:
        table.drop_column("invalid")
