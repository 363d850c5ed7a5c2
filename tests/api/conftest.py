"""An API over stores in memory, reached over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from tests.api.fakes import FakeLedger, FakeObjects, FakeServices, client, served
from workers.api.app import create_app
from workers.metrics import Metrics
from workers.settings import Settings


class Doorway:
    """One server for all tests, which leads to the app of the test that runs: starting one takes a while."""

    app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.app is not None
        await self.app(scope, receive, send)


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[Any]]:
    """What is logged, with what is bound. A line of the test before may come late."""
    with capture_logs(processors=[merge_contextvars]) as lines:
        yield lines


@pytest.fixture
def stores() -> FakeServices:
    return FakeServices(FakeLedger(), FakeObjects())


@pytest.fixture
def settings() -> Settings:
    return Settings.model_validate({"api": {"max_upload_bytes": 1_000_000}})


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(CollectorRegistry())


@pytest.fixture(scope="session")
def doorway() -> Iterator[tuple[Doorway, str]]:
    app = Doorway()
    with served(app) as url:
        yield app, url


@pytest.fixture
def base_url(doorway: tuple[Doorway, str], stores: FakeServices, settings: Settings, metrics: Metrics) -> Iterator[str]:
    entrance, url = doorway
    entrance.app = create_app(stores, settings, metrics)
    yield url
    entrance.app = None


@pytest.fixture
def alice(base_url: str) -> Iterator[httpx.Client]:
    with client(base_url) as opened:
        yield opened


@pytest.fixture
def bob(base_url: str) -> Iterator[httpx.Client]:
    with client(base_url, "vs_bob_secret-2") as opened:
        yield opened


@pytest.fixture
def nobody(base_url: str) -> Iterator[httpx.Client]:
    with client(base_url, None) as opened:
        yield opened
