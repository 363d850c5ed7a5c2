"""A gate before the emulator through which S3 alone can be made to fail, as SQS goes on."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Self
from urllib.parse import urlsplit

from tests.services import free_port

_UNAVAILABLE = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/xml\r\nContent-Length: 76\r\n"
    b"Connection: close\r\n\r\n"
    b"<Error><Code>ServiceUnavailable</Code><Message>an outage</Message></Error>\r\n"
)
_HEAD_BYTES = 65536


class Gate:
    """Passes connections on to `upstream`. S3's are told by their first request: its path names a bucket."""

    def __init__(self, upstream: str) -> None:
        self.port = free_port()
        self._upstream = urlsplit(upstream)
        self._loop = asyncio.new_event_loop()
        self._s3_fails = False
        self._server: asyncio.Server | None = None
        self._s3: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        start = asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=_HEAD_BYTES)
        self._server = asyncio.run_coroutine_threadsafe(start, self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def fail_s3(self, fails: bool) -> None:
        """From now on S3 answers 503, and what is under way breaks off; or all is well again."""
        self._s3_fails = fails
        if fails:
            self._loop.call_soon_threadsafe(self._break_off)

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0.1)  # for the transports to let go of their sockets

    def _break_off(self) -> None:
        for writer in list(self._s3):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                first = await reader.readuntil(b"\r\n")
                is_s3 = first.split(b" ")[1] != b"/"
                if is_s3 and self._s3_fails:
                    writer.write(_UNAVAILABLE)
                    await writer.drain()
                else:
                    await self._pass(first, reader, writer, is_s3=is_s3)
        finally:
            writer.close()

    async def _pass(
        self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_s3: bool
    ) -> None:
        theirs, ours = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
        if is_s3:
            self._s3 |= {writer, ours}
        try:
            ours.write(first)
            await asyncio.gather(_pump(reader, ours), _pump(theirs, writer))
        finally:
            self._s3 -= {writer, ours}
            ours.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 18):
                writer.write(data)
                await writer.drain()
    finally:
        writer.close()
