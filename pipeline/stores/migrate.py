"""Bringing the database's schema up to date, and telling whether it is."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from pipeline.stores.database import Database, create_engine, outdated, translated

_UPGRADE_LOCK = 0x76736C6564676572  # "vsledger": the advisory lock that serialises upgrades
_SESSION_SETTINGS = {"timezone": "UTC", "lock_timeout": "60s"}  # a migration may take long, but not wait long


def upgrade(url: str) -> None:
    """Apply the migrations that are missing. Safe to run twice, and from many processes at once."""
    engine = create_engine(url, _SESSION_SETTINGS, pool_size=1)
    try:
        with translated(), engine.connect() as connection:
            # The lock belongs to the session: it goes with the connection, whatever happens.
            connection.execute(sa.select(sa.func.pg_advisory_lock(_UPGRADE_LOCK)))
            connection.commit()
            config = _config()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            connection.commit()
            connection.execute(sa.select(sa.func.pg_advisory_unlock(_UPGRADE_LOCK)))
            connection.commit()
    finally:
        engine.dispose()


def check(database: Database) -> None:
    """Raise SCHEMA_OUTDATED unless the schema is of this program's revision, or of a newer one.

    A newer one is right while a fleet is being replaced: migrations only ever add before they take away.
    """
    with database.begin() as connection:
        current = MigrationContext.configure(connection).get_current_revision()
    script = ScriptDirectory.from_config(_config())
    known = {revision.revision for revision in script.walk_revisions()}
    if current is None or (current in known and current != script.get_current_head()):
        raise outdated()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
