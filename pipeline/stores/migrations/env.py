"""Alembic's environment: the connection is handed in by `pipeline.stores.migrate`; logging is left alone."""

from __future__ import annotations

from alembic import context

from pipeline.stores.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
