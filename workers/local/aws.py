"""An emulator of S3 and SQS (ministack) from a wheel."""

from __future__ import annotations

import http.client
import importlib.util
import os
import signal
import sys
from pathlib import Path

from workers.local.ports import require_free
from workers.local.server import EmbeddedServer, extra_missing
from workers.local.watched import WatchedProcess

AWS_KEY = "test"
AWS_SECRET = "test"  # noqa: S105 - the emulator's built-in key


class EmbeddedAws(EmbeddedServer):
    """S3 and SQS on 127.0.0.1:`port`, kept in `data_dir`/aws; the key is `AWS_KEY` with `AWS_SECRET`.

    A normal stop keeps objects, messages and settings. After `kill` objects remain, recent messages may be lost.
    """

    def __init__(self, data_dir: Path, port: int) -> None:
        super().__init__(data_dir, "aws", called="the S3 and SQS emulator")
        self.port = port
        self._home = self.data_dir / "aws"

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _address(self) -> str:
        return self.endpoint_url

    def _prepare(self) -> None:
        if importlib.util.find_spec("ministack") is None:
            raise extra_missing("ministack")
        for folder in ("state", "s3", "tmp"):
            (self._home / folder).mkdir(parents=True, exist_ok=True)

    def _launch(self) -> WatchedProcess:
        require_free(self.port, "VIDEOSIEVE_LOCAL__AWS_PORT")
        return WatchedProcess(
            [sys.executable, "-P", "-m", "ministack"],
            stop_signal=signal.SIGTERM,
            log=self.log,
            env=self._environment(self._home),
        )

    def _environment(self, home: Path) -> dict[str, str]:
        theirs = ("AWS_", "MINISTACK_", "LOCALSTACK_", "S3_", "SFTP_", "IOT_", "USE_SSL", "SERVICES")
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(theirs)},
            "AUTH": "true",
            "AWS_ACCESS_KEY_ID": AWS_KEY,
            "AWS_SECRET_ACCESS_KEY": AWS_SECRET,
            "BIND_HOST": "127.0.0.1",
            "DOCKER_HOST": f"unix://{home}/no-docker.sock",  # else it removes "its" containers at every start
            "GATEWAY_PORT": str(self.port),
            "IOT_MTLS_ENABLED": "0",  # another listener, on all interfaces
            "LOG_LEVEL": "WARNING",
            "MINISTACK_HOST": "127.0.0.1",
            "PERSIST_STATE": "1",
            "S3_DATA_DIR": str(home / "s3"),
            "S3_PERSIST": "1",
            "SFTP_ENABLED": "0",
            "STATE_DIR": str(home / "state"),
            "TMPDIR": str(home / "tmp"),
        }

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/_ministack/ready")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
