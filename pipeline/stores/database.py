"""The connection to PostgreSQL, and the one place where its errors become ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from psycopg import errors as pg
from sqlalchemy import exc

from pipeline.errors import FatalError, PermanentError, Reason, TransientError, UserError, VideosieveError

CONNECT_TIMEOUT_S = 5
_SESSION_SETTINGS = {
    "timezone": "UTC",
    "statement_timeout": "30s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "5s",
}
_OUTDATED = "the database's schema is missing or older than this program: run `videosieve db upgrade`"


class Database:
    """A small pool of connections. Every use is one transaction; its errors are those of `pipeline.errors`."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine

    @classmethod
    def connect(cls, url: str, *, pool_size: int = 5) -> Database:
        """Prepare the pool; nothing is connected before the first use. A bad URL is a UserError."""
        return cls(create_engine(url, _SESSION_SETTINGS, pool_size=pool_size))

    @contextmanager
    def begin(self) -> Iterator[sa.Connection]:
        """A connection in a transaction, committed at the end of the block, rolled back on any error."""
        with translated(), self.engine.begin() as connection:
            yield connection

    def close(self) -> None:
        self.engine.dispose()


def create_engine(url: str, session_settings: dict[str, str], *, pool_size: int = 5) -> sa.Engine:
    """An engine on psycopg 3 for `postgresql://…`, with timeouts by which a lost host is noticed in seconds."""
    return sa.create_engine(
        _driver_url(url),
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=CONNECT_TIMEOUT_S,
        pool_pre_ping=True,
        pool_recycle=1800,
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "application_name": "videosieve",
            "options": " ".join(f"-c {name}={value}" for name, value in session_settings.items()),
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
            "tcp_user_timeout": 20_000,
        },
    )


def _driver_url(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except (exc.ArgumentError, ValueError) as error:
        raise UserError(
            Reason.BAD_SETTING, "the database URL cannot be read: it looks like postgresql://user@host/name"
        ) from error
    if parsed.drivername not in {"postgresql", "postgres", "postgresql+psycopg"}:
        raise UserError(
            Reason.BAD_SETTING,
            f"the database is {parsed.drivername}, but it must be PostgreSQL: postgresql://USER:PASSWORD@HOST/NAME",
        )
    return parsed.set(drivername="postgresql+psycopg")


@contextmanager
def translated() -> Iterator[None]:
    """Turn what SQLAlchemy and psycopg raise into the errors of `pipeline.errors`."""
    try:
        yield
    except exc.SQLAlchemyError as error:
        raise translate(error) from error
    except UnicodeEncodeError as error:  # half a surrogate pair, which JSON allows
        raise PermanentError(Reason.UNKNOWN_MESSAGE, f"the database cannot hold a value: {error}") from error


def translate(error: exc.SQLAlchemyError) -> VideosieveError:
    cause = error.orig if isinstance(error, exc.DBAPIError) else None
    if isinstance(cause, pg.UndefinedTable | pg.UndefinedColumn | pg.InvalidSchemaName):
        return FatalError(Reason.SCHEMA_OUTDATED, _OUTDATED)
    if isinstance(cause, pg.DataError):
        # A key with a NUL byte, say: the value came in with a message and will never fit.
        return PermanentError(Reason.UNKNOWN_MESSAGE, f"the database cannot hold a value: {_first_line(cause)}")
    if isinstance(error, exc.OperationalError | exc.InterfaceError | exc.InternalError | exc.TimeoutError):
        return TransientError(Reason.DATABASE_UNAVAILABLE, _first_line(cause or error))
    if isinstance(error, exc.DBAPIError) and error.connection_invalidated:
        return TransientError(Reason.DATABASE_UNAVAILABLE, _first_line(cause or error))
    # Nothing we foresaw. It may be about one video only, so the fleet must not stop for it.
    return TransientError(Reason.INTERNAL_ERROR, f"the ledger's own fault: {_first_line(cause or error)}")


def outdated() -> FatalError:
    return FatalError(Reason.SCHEMA_OUTDATED, _OUTDATED)


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]
