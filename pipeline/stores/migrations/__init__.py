"""Alembic migrations of the ledger, carried out by `pipeline.stores.migrate`."""
