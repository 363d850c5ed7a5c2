"""The HTTP API put together: routes, faults and middleware around the services it is given."""

from __future__ import annotations

from fastapi import FastAPI

from workers.api import health, reviews, uploads
from workers.api.faults import install_fault_handlers
from workers.api.middleware import AccessLog, BodyLimit
from workers.api.ports import Context, ServicesPort
from workers.metrics import Metrics
from workers.settings import Settings

_DESCRIPTION = """\
Upload videos, read the decisions about them with their evidence, and answer what the machine left in doubt.

1. `POST /v1/uploads` says where to send the file: one multipart POST straight to storage.
2. `GET /v1/uploads/{upload_id}` says how far it got, `GET /v1/uploads/{upload_id}/result` what came out.
3. `GET /v1/reviews` lists the questions that wait for a person.

Every refusal is `{"error": {"reason", "detail"}}`; every answer carries an `X-Request-Id`.
"""


def create_app(services: ServicesPort, settings: Settings, metrics: Metrics) -> FastAPI:
    """The ASGI application. It opens and closes nothing: `services` stay their owner's."""
    app = FastAPI(
        title="videosieve",
        version="1",
        description=_DESCRIPTION,
        docs_url=None,  # Swagger UI and ReDoc would be loaded from a CDN
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.context = Context(services.ledger, services.objects, settings, metrics)
    install_fault_handlers(app)
    app.add_middleware(BodyLimit)
    app.add_middleware(AccessLog, metrics=metrics)  # added last, so outermost
    for router in (uploads.router, reviews.router, health.router):
        app.include_router(router)
    return app
