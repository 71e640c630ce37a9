"""Alembic's environment: runs on the connection that `Store.open` hands over, with a version table of our own."""

from alembic import context

from autotune.store.tables import SCHEMA

VERSION_TABLE = "autotune_alembic_version"

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SCHEMA,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
