"""The API's process: services opened, the socket bound, requests answered until it is told to stop."""

from __future__ import annotations

import signal
from types import FrameType

from prometheus_client import CollectorRegistry

from workers.api.app import create_app
from workers.api.listening import build_server, listen
from workers.bootstrap import open_services
from workers.logs import get_logger
from workers.metrics import Metrics
from workers.settings import Settings


def serve(settings: Settings) -> None:
    """Serve the API until SIGTERM or Ctrl-C; requests under way are answered first.

    Raises UserError(BAD_SETTING) where the address cannot be listened on, and what `open_services` raises.
    Belongs in the main thread of its process: it handles the process's signals.
    """
    previous = signal.signal(signal.SIGTERM, _leave)
    try:
        with (
            listen(settings.api) as listener,
            open_services(settings, database_wait_s=settings.database.wait_s) as services,
        ):
            app = create_app(services, settings, Metrics(CollectorRegistry()))
            host, port = listener.getsockname()[:2]
            get_logger().info("api_listening", host=host, port=port)
            build_server(app).run(sockets=[listener])
    except KeyboardInterrupt:
        pass  # uvicorn has drained and raises the signal again; before it ran, there was nothing to drain
    finally:
        signal.signal(signal.SIGTERM, previous)
    get_logger().info("api_stopped")


def _leave(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM as an ordinary end, so that what was opened is closed. uvicorn raises it again after draining."""
    raise KeyboardInterrupt
