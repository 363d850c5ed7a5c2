"""Ledger and objects in memory, as far as the API uses them, and a real HTTP server around an app."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

import httpx
from starlette.types import ASGIApp

from pipeline.errors import FatalError, PermanentError, Reason, TransientError
from pipeline.runs import Lane, ReviewAnswer, ReviewDetail, ReviewItem, RunView, Tenant, UploadStatus, VerdictView
from pipeline.verdict import Answer, RunState
from workers.api.listening import build_server, listen
from workers.settings import ApiSettings

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
ALICE, BOB = Tenant(UUID(int=1), "alice"), Tenant(UUID(int=2), "bob")
KEYS = {"vs_alice_secret-1": ALICE, "vs_bob_secret-2": BOB}
HASH = "d" * 64


@dataclass
class FakeLedger:
    """Keeps everything in dictionaries; `failure` is raised by every method while it is set."""

    failure: Exception | None = None
    uploads: dict[UUID, tuple[UUID, UploadStatus]] = field(default_factory=dict)
    runs: dict[UUID, tuple[UUID, RunView]] = field(default_factory=dict)
    details: dict[tuple[UUID, str], tuple[UUID, ReviewDetail]] = field(default_factory=dict)
    authenticated: list[str] = field(default_factory=list)

    def _reach(self) -> None:
        if self.failure is not None:
            raise self.failure

    def check(self) -> None:
        self._reach()

    def authenticate(self, api_key: str) -> Tenant | None:
        self.authenticated.append(api_key)
        self._reach()
        return KEYS.get(api_key)

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
    ) -> UUID:
        status = UploadStatus(
            upload_id, filename, "awaiting_upload", datetime.now(UTC), expires_at, bucket, key, trace_id
        )
        self.uploads[upload_id] = (tenant_id, status)
        return upload_id

    def upload(self, tenant_id: UUID, upload_id: UUID) -> UploadStatus | None:
        owner, status = self.uploads.get(upload_id, (None, None))
        return status if owner == tenant_id else None

    def run(self, run_id: UUID, tenant_id: UUID | None = None) -> RunView | None:
        owner, run = self.runs.get(run_id, (None, None))
        return run if tenant_id in {None, owner} else None

    def reviews(self, tenant_id: UUID | None = None, *, limit: int = 100, offset: int = 0) -> list[ReviewItem]:
        waiting = [d.item for owner, d in self.details.values() if owner == tenant_id and not d.history]
        return waiting[offset : offset + limit]

    def review(self, run_id: UUID, question: str, tenant_id: UUID | None = None) -> ReviewDetail | None:
        owner, detail = self.details.get((run_id, question), (None, None))
        return detail if owner == tenant_id else None

    def answer(
        self, run_id: UUID, question: str, *, answer: Answer, who: str, why: str, tenant_id: UUID | None = None
    ) -> ReviewDetail:
        owner, detail = self.details[run_id, question]
        history = (*detail.history, ReviewAnswer(answer, who, why, NOW))
        detail = replace(detail, history=history, answer=answer)
        self.details[run_id, question] = (owner, detail)
        return detail

    def add_run(self, upload_id: UUID, **changes: object) -> RunView:
        """The upload's run, as a worker would leave it."""
        owner, status = self.uploads[upload_id]
        view = RunView(
            run_id=uuid4(),
            bucket=status.bucket,
            key=status.key,
            version="e:1",
            tenant="alice",
            policy="moderation",
            decision_hash=HASH,
            state=RunState.PROCESSING,
            lane=Lane.UPLOADS,
            attempts=1,
            faults=0,
            fence=1,
            trace_id=status.trace_id,
            created_at=NOW,
            updated_at=NOW,
            decided_at=None,
            lease_until=None,
            reason=None,
            detail=None,
            result_key=None,
            money_nano=0,
            currency="USD",
        )
        run = replace(view, **changes)  # type: ignore[arg-type]
        self.runs[run.run_id] = (owner, run)
        self.uploads[upload_id] = (
            owner,
            replace(status, run_id=run.run_id, state=run.state.value, reason=run.reason, detail=run.detail),
        )
        return run

    def add_review(self, owner: Tenant, **changes: object) -> ReviewDetail:
        item = ReviewItem(
            uuid4(), "face", "s3://originals/clip.mp4", owner.name, "moderation", 0.5, "undecided", NOW, (1,)
        )
        detail = ReviewDetail(item, Answer.REVIEW, Answer.REVIEW, (), None)
        detail = replace(detail, **changes)  # type: ignore[arg-type]
        self.details[item.run_id, item.question] = (owner.id, detail)
        return detail


@dataclass
class FakeObjects:
    """Keeps objects in a dictionary; signs nothing, but says what it was asked to sign."""

    failure: Exception | None = None
    missing_buckets: set[str] = field(default_factory=set)
    objects: dict[tuple[str, str], bytes] = field(default_factory=dict)

    def get(self, bucket: str, key: str) -> bytes:
        self._reach(bucket)
        try:
            return self.objects[bucket, key]
        except KeyError:
            raise PermanentError(Reason.NOT_FOUND, f"s3://{bucket}/{key} does not exist") from None

    def check_bucket(self, name: str) -> None:
        self._reach(name)

    def presigned_post(
        self,
        bucket: str,
        key: str,
        *,
        max_bytes: int,
        expires_s: int,
        content_type: str | None = None,
        min_bytes: int = 1,
    ) -> tuple[str, dict[str, str]]:
        self._reach(bucket)
        fields = {"key": key, "Content-Type": content_type or "", "policy": f"{min_bytes}..{max_bytes} for {expires_s}"}
        return f"https://storage.test/{bucket}", fields

    def presigned_get(self, bucket: str, key: str, expires_s: int) -> str:
        return f"https://storage.test/{bucket}/{key}?expires={expires_s}"

    def _reach(self, bucket: str) -> None:
        if self.failure is not None:
            raise self.failure
        if bucket in self.missing_buckets:
            raise FatalError(Reason.BAD_SETTING, f"bucket {bucket} does not exist")


@dataclass(frozen=True)
class FakeServices:
    ledger: FakeLedger
    objects: FakeObjects


def database_down() -> TransientError:
    return TransientError(Reason.DATABASE_UNAVAILABLE, "connection to 10.0.0.7 refused", retry_after_s=2.5)


def verdict_view(answer: Answer, *, machine_answer: Answer, answered_by: str | None = None) -> VerdictView:
    return VerdictView("face", machine_answer, answer, 0.5, "review", None, None, "ops", (1,), None, answered_by)


@contextmanager
def served(app: ASGIApp) -> Iterator[str]:
    """The base URL of a real server around `app`."""
    listener = listen(ApiSettings(port=0))
    server = build_server(app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_until(lambda: server.started, "the server starts")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def wait_until(holds: Callable[[], bool], what: str, deadline_s: float = 20.0) -> None:
    deadline = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {deadline_s:g} s: {what}"
        time.sleep(0.01)


def client(base_url: str, api_key: str | None = "vs_alice_secret-1") -> httpx.Client:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return httpx.Client(base_url=base_url, headers=headers, timeout=30, trust_env=False)
