"""Tenants, their API keys and their uploads."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from datetime import datetime
from uuid import UUID, uuid4

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from pipeline.errors import Reason, UserError
from pipeline.runs import Tenant, UploadStatus
from pipeline.stores.database import Database
from pipeline.stores.schema import api_keys, audit, runs, tenants, uploads, videos

AWAITING_UPLOAD = "awaiting_upload"

MAX_NAME_CHARS = 100


class Tenancy:
    """The part of the ledger that the upload API uses."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def add_tenant(self, name: str) -> tuple[Tenant, str]:
        """A new tenant, and its first API key, which can never be read again."""
        if not (0 < len(name) <= MAX_NAME_CHARS and name.isprintable() and name.strip() == name):
            raise UserError(
                Reason.BAD_INPUT, f"a tenant's name is 1 to {MAX_NAME_CHARS} printable characters on one line"
            )
        tenant = Tenant(uuid4(), name)
        with self.database.begin() as connection:
            new = insert(tenants).values(id=tenant.id, name=name).on_conflict_do_nothing()
            if connection.execute(new.returning(tenants.c.id)).one_or_none() is None:
                raise UserError(Reason.BAD_INPUT, f"there is a tenant {name!r} already")
            return tenant, _add_key(connection, tenant.id)

    def add_key(self, name: str) -> str:
        """Another API key for a tenant, so that keys can be exchanged without a gap."""
        with self.database.begin() as connection:
            tenant_id = connection.scalar(sa.select(tenants.c.id).where(tenants.c.name == name))
            if tenant_id is None:
                raise UserError(Reason.BAD_INPUT, f"there is no tenant {name!r}")
            return _add_key(connection, tenant_id)

    def revoke_key(self, public_id: str) -> None:
        """End a key, by the part of it between the underscores."""
        with self.database.begin() as connection:
            revoked = connection.execute(
                sa.update(api_keys)
                .where(api_keys.c.public_id == public_id, api_keys.c.revoked_at.is_(None))
                .values(revoked_at=sa.func.now())
            )
            if revoked.rowcount != 1:
                raise UserError(Reason.BAD_INPUT, f"there is no valid key {public_id!r}")
            _note(connection, "revoke_key", f"key:{public_id}")

    def authenticate(self, api_key: str) -> Tenant | None:
        """Whose key this is. Its secret is compared by hash, in a time that does not depend on it."""
        prefix, _, rest = api_key.partition("_")
        public_id, _, secret = rest.partition("_")
        if prefix != "vs" or not secret or not api_key.isascii() or "\0" in public_id:
            return None
        with self.database.begin() as connection:
            row = connection.execute(
                sa.select(tenants.c.id, tenants.c.name, api_keys.c.secret_sha256)
                .select_from(api_keys.join(tenants))
                .where(api_keys.c.public_id == public_id, api_keys.c.revoked_at.is_(None))
            ).one_or_none()
        expected = bytes(row.secret_sha256) if row is not None else bytes(32)
        matches = hmac.compare_digest(_digest(secret), expected)
        return Tenant(row.id, row.name) if matches and row is not None else None

    def tenants(self) -> list[Tenant]:
        with self.database.begin() as connection:
            rows = connection.execute(sa.select(tenants.c.id, tenants.c.name).order_by(tenants.c.name)).all()
        return [Tenant(row.id, row.name) for row in rows]

    def create_upload(
        self,
        tenant_id: UUID,
        *,
        bucket: str,
        key: str,
        filename: str,
        content_type: str | None,
        max_bytes: int,
        expires_at: datetime,
        trace_id: str,
        upload_id: UUID | None = None,
    ) -> UUID:
        """Remember an upload before it happens; `upload_id` may be given, as the key can contain it."""
        upload_id = upload_id or uuid4()
        with self.database.begin() as connection:
            connection.execute(
                sa.insert(uploads).values(
                    id=upload_id,
                    tenant_id=tenant_id,
                    bucket=bucket,
                    key=key,
                    filename=filename,
                    content_type=content_type,
                    max_bytes=max_bytes,
                    expires_at=expires_at,
                    trace_id=trace_id,
                )
            )
        return upload_id

    def upload(self, tenant_id: UUID, upload_id: UUID) -> UploadStatus | None:
        """How far an upload of this tenant's got; where it has several runs, what the newest says."""
        with self.database.begin() as connection:
            row = connection.execute(
                sa.select(*uploads.c, runs.c.id.label("run_id"), runs.c.state, runs.c.reason, runs.c.detail)
                .select_from(uploads.outerjoin(videos).outerjoin(runs))
                .where(uploads.c.id == upload_id, uploads.c.tenant_id == tenant_id)
                .order_by(videos.c.created_at.desc().nulls_last(), runs.c.created_at.desc().nulls_last())
                .limit(1)
            ).one_or_none()
        if row is None:
            return None
        return UploadStatus(
            upload_id=row.id,
            filename=row.filename,
            state=row.state or AWAITING_UPLOAD,
            created_at=row.created_at,
            expires_at=row.expires_at,
            bucket=row.bucket,
            key=row.key,
            trace_id=row.trace_id,
            run_id=row.run_id,
            reason=row.reason,
            detail=row.detail,
        )


def _add_key(connection: sa.Connection, tenant_id: UUID) -> str:
    public_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    connection.execute(
        sa.insert(api_keys).values(public_id=public_id, tenant_id=tenant_id, secret_sha256=_digest(secret))
    )
    _note(connection, "add_key", f"key:{public_id}")
    return f"vs_{public_id}_{secret}"


def _note(connection: sa.Connection, action: str, subject: str) -> None:
    connection.execute(sa.insert(audit).values(actor="operator", action=action, subject=subject, detail={}))


def _digest(secret: str) -> bytes:
    """SHA-256 is enough: the secret has 256 random bits, so there is nothing to guess quickly."""
    return hashlib.sha256(secret.encode()).digest()
