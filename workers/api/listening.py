"""The socket that the API listens on, and the server that answers there."""

from __future__ import annotations

import socket

import uvicorn
from starlette.types import ASGIApp

from pipeline.errors import Reason, UserError
from workers.settings import ApiSettings

DRAIN_S = 20
"""Requests under way may take this long to end after a stop; Kubernetes kills after 30 s."""


def listen(settings: ApiSettings) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises UserError(BAD_SETTING)."""
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        raise UserError(
            Reason.BAD_SETTING,
            f"the API cannot listen on {settings.host}:{settings.port}: {error.strerror or error}; "
            "set VIDEOSIEVE_API__HOST and VIDEOSIEVE_API__PORT",
        ) from None
    # Connections inherit it. asyncio would only set it on sockets that were made with IPPROTO_TCP, which these are
    # not; without it every answer on a kept connection waits 40 ms for the client's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def build_server(app: ASGIApp) -> uvicorn.Server:
    """uvicorn without logs of its own. In a thread, set `should_exit` to stop it; it leaves signals alone there."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=DRAIN_S,
        )
    )
