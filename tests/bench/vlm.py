"""What asking a VLM costs on our side: processor time of one request, pictures included, at a given concurrency.

    python -m tests.bench.vlm [--requests N] [--concurrency N] [--out FILE]

The engine is a scripted server in a process of its own that answers at once, so that only the client's work is
measured. The baseline, in the same run, sends the very same bodies with `http.client`: what remains when nothing is
streamed, checked, bounded or scaled.
"""

from __future__ import annotations

import http.client
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import cv2
import numpy as np

from pipeline.cascade.policy import Policy
from pipeline.jpeg import encode_jpeg
from pipeline.models.chat_client import ChatClient, Deadlines
from pipeline.models.chat_wire import payload
from pipeline.vlm.case import Case, case_of
from pipeline.vlm.judge import judge, prepare
from tests.vlm.cases import judged_policy, picture, screened

KEYFRAMES = 6
SIZES = {"720p": (1280, 720), "1080p": (1920, 1080)}
_SERVER = """
import json, sys, threading
from tests.vlm.server import ScriptedServer, Call, statement
def behave(call: Call) -> None:
    found = {q: statement("yes", 95, [0]) for q in call.questions}
    text = json.dumps({"seen": "two people at a table in a room with a lamp", "answers": found})
    call.head()
    for start in range(0, len(text), 4):  # a token each
        call.piece(text[start:start + 4], {"content": [{"token": text[start:start + 4], "logprob": -0.05,
            "top_logprobs": [{"token": t, "logprob": -3.0} for t in ("yes", "no", "a", "b", "c")]}]})
    call.end()
server = ScriptedServer(default=behave, keep=False)
print(server.url, flush=True)
sys.stdin.read()
server.close()
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """Processor milliseconds and wall-clock milliseconds of one request."""

    cpu_ms: float
    wall_ms: float


def main_pictures(width_px: int, height_px: int) -> dict[int, bytes]:
    """Keyframes as screening keeps them: scenes with some grain, as JPEG."""
    generator = np.random.default_rng(0)
    found = {}
    for index in range(KEYFRAMES):
        image = cv2.resize(picture(index), (width_px, height_px), interpolation=cv2.INTER_CUBIC).astype(np.int16)
        grain = generator.integers(-6, 7, image.shape, np.int16)
        found[index] = encode_jpeg(np.clip(image + grain, 0, 255).astype(np.uint8))
    return found


def case(policy: Policy, width_px: int, height_px: int) -> Case:
    document = screened(policy, {"face": [0.5] * KEYFRAMES, "weapon": [0.4] * KEYFRAMES})
    for keyframe in document["keyframes"]:
        keyframe["size_px"] = [width_px, height_px]
    return case_of(policy, document)


def measure(work: Callable[[], object], requests: int, concurrency: int) -> Measured:
    """The mean processor time of this process, and the median time of one call."""
    walls: list[float] = []

    def once(_: int) -> None:
        started_s = time.perf_counter()
        work()
        walls.append(time.perf_counter() - started_s)

    with ThreadPoolExecutor(concurrency) as threads:
        list(threads.map(once, range(concurrency)))  # connections are made, code is warm
        walls.clear()
        cpu_started_s = time.process_time()
        list(threads.map(once, range(requests)))
        cpu_s = time.process_time() - cpu_started_s
    return Measured(cpu_s / requests * 1000, statistics.median(walls) * 1000)


def bench(url: str, requests: int, concurrency: int) -> dict[str, Any]:
    policy = judged_policy("face", "weapon")
    rows: dict[str, Any] = {}
    with ChatClient(url, api_key="k", deadlines=Deadlines(), max_connections=concurrency) as client:
        for name, (width_px, height_px) in SIZES.items():
            about, jpegs = case(policy, width_px, height_px), main_pictures(width_px, height_px)
            asked = prepare(policy, about, jpegs, logprobs=True)
            body = payload(asked.request)

            def whole(about: Case = about, jpegs: dict[int, bytes] = jpegs) -> object:
                return judge(policy, about, prepare(policy, about, jpegs, logprobs=True), client)

            def raw(body: bytes = body) -> object:
                return post(url, body)

            def pictures(about: Case = about, jpegs: dict[int, bytes] = jpegs) -> object:
                return prepare(policy, about, jpegs, logprobs=True)

            rows[name] = {
                "images": len(asked.shown.indices),
                "image_tokens": asked.shown.tokens,
                "body_bytes": len(body),
                "judge": measure(whole, requests, concurrency),
                "of it choosing and scaling pictures": measure(pictures, requests, concurrency),
                "baseline: the same body by http.client": measure(raw, requests, concurrency),
            }  # fmt: skip
    return rows


def post(url: str, body: bytes) -> bytes:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    try:
        connection.request("POST", f"{parts.path}/chat/completions", body, {"Content-Type": "application/json"})
        return connection.getresponse().read()
    finally:
        connection.close()


def shown(rows: dict[str, Any], requests: int, concurrency: int) -> str:
    lines = [
        f"{requests} requests, {concurrency} at once, {KEYFRAMES} keyframes",
        f"{platform.machine()}, Python {platform.python_version()}, httpx {version('httpx')}, OpenCV {cv2.__version__}",
    ]
    for size, row in rows.items():
        lines.append(f"{size}: {row['images']} pictures, {row['image_tokens']} tokens, {row['body_bytes']} bytes sent")
        base = row["baseline: the same body by http.client"]
        for name, found in row.items():
            if isinstance(found, Measured):
                ratio = f"  {found.cpu_ms / base.cpu_ms:5.1f} x the baseline" if found is not base else ""
                lines.append(f"  {found.cpu_ms:7.2f} ms CPU  {found.wall_ms:7.1f} ms wall  {name}{ratio}")
    return "\n".join(lines)


@click.command()
@click.option("--requests", default=400, show_default=True)
@click.option("--concurrency", default=8, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Write the figures as JSON.")
def main(requests: int, concurrency: int, out: Path | None) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        try:
            rows = bench(server.stdout.readline().strip(), requests, concurrency)
        finally:
            server.stdin.close()
    click.echo(shown(rows, requests, concurrency))
    if out is not None:
        plain = {
            size: {
                k: {"cpu_ms": v.cpu_ms, "wall_ms": v.wall_ms} if isinstance(v, Measured) else v for k, v in row.items()
            }
            for size, row in rows.items()
        }
        out.write_text(json.dumps({"requests": requests, "concurrency": concurrency, "rows": plain}, indent=1) + "\n")


if __name__ == "__main__":
    main()
