"""Credentials that end: what botocore's chain gives anew is used by the next request, reads by signed URL included."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pipeline.errors import Reason, TransientError
from pipeline.media import ObjectRef
from pipeline.stores.aws import connect
from pipeline.stores.objects import ObjectStore
from pipeline.video.source import ByteRange
from workers.local.aws import AWS_KEY, AWS_SECRET, EmbeddedAws

PROGRAM = """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
with (folder / "asked").open("a") as asked:
    asked.write("x")
found = folder / "credentials.json"
print(found.read_text()) if found.exists() else sys.exit("nobody answers")
"""


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose `credentials.json` is what the AWS chain finds, by a `credential_process`."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    config = tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = {sys.executable} {program} {tmp_path}\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    return tmp_path


def hand_out(folder: Path, key: str, *, good_for: timedelta) -> None:
    document = {
        "Version": 1,
        "AccessKeyId": key,
        "SecretAccessKey": AWS_SECRET,
        "Expiration": (datetime.now(UTC) + good_for).isoformat(),
    }
    (folder / "credentials.json").write_text(json.dumps(document))


def test_credentials_about_to_end_are_renewed_before_the_next_request(
    aws: EmbeddedAws, bucket: str, objects: ObjectStore, chain: Path
) -> None:
    objects.put(bucket, "a", b"0123456789", "text/plain")
    hand_out(chain, AWS_KEY, good_for=timedelta(minutes=5))  # within what botocore takes for about to end
    clients = connect(endpoint_url=aws.endpoint_url)
    store = ObjectStore(clients.s3)
    source = store.source(store.resolve(ObjectRef(bucket, "a")))
    assert source.read_ranges([ByteRange(0, 4)]) == [b"0123"]
    asked = len((chain / "asked").read_text())
    hand_out(chain, "AKIAREVOKED", good_for=timedelta(minutes=5))
    with pytest.raises(TransientError) as refused:
        store.resolve(ObjectRef(bucket, "a"))
    assert refused.value.reason is Reason.FORBIDDEN, "the worker's set-up may be mended: no video is rejected for it"
    assert len((chain / "asked").read_text()) > asked
    hand_out(chain, AWS_KEY, good_for=timedelta(hours=1))
    assert store.source(store.resolve(ObjectRef(bucket, "a"))).read_ranges([ByteRange(4, 4)]) == [b"4567"]
    store.close()
    clients.close()


def test_a_chain_that_fails_for_a_moment_is_an_outage_and_not_the_end(
    aws: EmbeddedAws, bucket: str, objects: ObjectStore, chain: Path
) -> None:
    objects.put(bucket, "a", b"0123456789", "text/plain")
    hand_out(chain, AWS_KEY, good_for=timedelta(minutes=5))
    clients = connect(endpoint_url=aws.endpoint_url)
    store = ObjectStore(clients.s3)
    ref = store.resolve(ObjectRef(bucket, "a"))
    (chain / "credentials.json").unlink()
    with pytest.raises(TransientError):
        store.resolve(ObjectRef(bucket, "a"))
    hand_out(chain, AWS_KEY, good_for=timedelta(hours=1))
    assert store.resolve(ObjectRef(bucket, "a")) == ref
    store.close()
    clients.close()
