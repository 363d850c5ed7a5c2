"""What the API needs of the stores, and what its endpoints are given to work with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Protocol
from uuid import UUID

from fastapi import Depends, Request

from pipeline.runs import ReviewDetail, ReviewItem, RunView, Tenant, UploadStatus
from pipeline.verdict import Answer
from workers.metrics import Metrics
from workers.settings import Settings


class LedgerPort(Protocol):
    """The part of `pipeline.stores.ledger.Ledger` that the API uses."""

    def check(self) -> None: ...

    def authenticate(self, api_key: str) -> Tenant | None: ...

    def create_upload(
        self,
        tenant_id: UUID,
        *,
        bucket: str,
        key: str,
        filename: str,
        content_type: str,
        max_bytes: int,
        expires_at: datetime,
        trace_id: str,
        upload_id: UUID,
    ) -> UUID: ...

    def upload(self, tenant_id: UUID, upload_id: UUID) -> UploadStatus | None: ...

    def run(self, run_id: UUID, tenant_id: UUID | None = None) -> RunView | None: ...

    def reviews(self, tenant_id: UUID | None = None, *, limit: int, offset: int) -> Sequence[ReviewItem]: ...

    def review(self, run_id: UUID, question: str, tenant_id: UUID | None = None) -> ReviewDetail | None: ...

    def answer(
        self, run_id: UUID, question: str, *, answer: Answer, who: str, why: str, tenant_id: UUID | None = None
    ) -> ReviewDetail: ...


class ObjectsPort(Protocol):
    """The part of `pipeline.stores.objects.ObjectStore` that the API uses."""

    def get(self, bucket: str, key: str) -> bytes: ...

    def check_bucket(self, name: str) -> None: ...

    def presigned_post(
        self,
        bucket: str,
        key: str,
        *,
        max_bytes: int,
        expires_s: int,
        content_type: str | None = None,
        min_bytes: int = 1,
    ) -> tuple[str, dict[str, str]]: ...

    def presigned_get(self, bucket: str, key: str, expires_s: int) -> str: ...


class ServicesPort(Protocol):
    """The part of `workers.bootstrap.Services` that the API uses."""

    @property
    def ledger(self) -> LedgerPort: ...

    @property
    def objects(self) -> ObjectsPort: ...


@dataclass(frozen=True, slots=True)
class Context:
    """What an endpoint works with."""

    ledger: LedgerPort
    objects: ObjectsPort
    settings: Settings
    metrics: Metrics


def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


ApiContext = Annotated[Context, Depends(_context)]
