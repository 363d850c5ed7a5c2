"""From an object in S3 to a committed decision, with a worker in this process."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

import pytest

from pipeline.costs import CostsBy
from pipeline.verdict import Answer, RunState
from tests.clips import write_audio_only
from tests.road.conftest import BLUE, PURPLE, RED, Fleet, colour_clip


def _value(fleet: Fleet, name: str, **labels: str) -> float:
    return fleet.metrics.registry.get_sample_value(name, labels or None) or 0.0


def test_an_upload_is_decided_with_evidence_artifacts_and_cost(fleet: Fleet, tmp_path: Path) -> None:
    key = fleet.upload(colour_clip(tmp_path / "red.mp4", RED))
    with fleet.worker():
        (run,) = fleet.wait_until_settled(1)
        fleet.wait_until_empty()
    assert (run.state, run.key, run.attempts, run.fence) == (RunState.DECIDED, key, 1, 1)
    answers = {verdict.question: verdict.answer for verdict in run.verdicts}
    assert answers == {"red": Answer.POSITIVE, "blue": Answer.NEGATIVE}
    assert run.money_nano > 0
    assert sum(one.total.money_nano for one in fleet.services.ledger.costs(CostsBy.STAGE)) == run.money_nano
    assert _value(fleet, "videosieve_money_nano_total", currency="USD", stage="detector") > 0
    assert _value(fleet, "videosieve_stage_questions_total", stage="detector", result="settled") == 2
    assert _value(fleet, "videosieve_stage_images_total", stage="detector") > 0
    assert _value(fleet, "videosieve_yardstick_nano_total", currency="USD", on="every_frame") > 0
    assert run.result_key is not None
    result = json.loads(fleet.services.objects.get(fleet.stack.artifacts, run.result_key))
    picture = fleet.services.objects.get(fleet.stack.artifacts, result["keyframes"][0]["image"])
    assert picture[:2] == b"\xff\xd8"
    assert result["trace_id"] == run.trace_id
    assert {verdict["owner"] for verdict in result["verdicts"]} == {"colour-team"}
    assert _value(fleet, "videosieve_upload_to_decision_seconds_count") == 1
    assert _value(fleet, "videosieve_runs_total", state="decided", reason="") == 1


def test_what_stays_doubtful_waits_for_a_person_and_is_decided_by_the_answer(fleet: Fleet, tmp_path: Path) -> None:
    fleet.upload(colour_clip(tmp_path / "purple.mp4", PURPLE))
    with fleet.worker():
        (run,) = fleet.wait_until_settled(1)
    assert run.state is RunState.IN_REVIEW
    assert {item.question for item in fleet.services.ledger.reviews()} == {"red", "blue"}
    for question in ("red", "blue"):
        fleet.services.ledger.answer(
            run.run_id, question, answer=Answer.NEGATIVE, who="tester", why="purple is neither"
        )
    (run,) = fleet.runs()
    assert run.state is RunState.DECIDED


def test_videos_at_fault_are_rejected_with_their_reason(fleet: Fleet, tmp_path: Path) -> None:
    whole = colour_clip(tmp_path / "whole.mp4", BLUE).read_bytes()
    files = {
        "empty_file": b"",
        "not_a_video": b"this is a letter, not a video\n" * 40,
        "truncated": whole[: len(whole) // 3],
        "no_video_stream": write_audio_only(tmp_path / "tone.m4a").read_bytes(),
    }
    for name, data in files.items():
        path = tmp_path / f"{name}.mp4"
        path.write_bytes(data)
        fleet.upload(path)
    with fleet.worker():
        runs = fleet.wait_until_settled(len(files))
        fleet.wait_until_empty()
    assert {(Path(run.key).stem, run.reason) for run in runs} == {(name, name) for name in files}
    assert {run.state for run in runs} == {RunState.REJECTED}
    assert fleet.dead_letters() == []


@pytest.mark.parametrize("key", ["a b/c d.mp4", "a+b/100%.mp4", "ä/été/影片 🎬.mp4", "x%20y+z&=;,?.mp4"])
def test_any_key_makes_its_way_through_the_event(fleet: Fleet, tmp_path: Path, key: str) -> None:
    fleet.upload(colour_clip(tmp_path / "blue.mp4", BLUE), key)
    with fleet.worker():
        (run,) = fleet.wait_until_settled(1)
    assert (run.key, run.state) == (key, RunState.DECIDED)


def test_the_same_message_three_times_is_one_run(fleet: Fleet, tmp_path: Path) -> None:
    key = fleet.upload(colour_clip(tmp_path / "red.mp4", RED))
    (message,) = fleet.services.queues.uploads.receive(wait_s=5, visibility_s=0)[-1:]
    for _ in range(2):
        fleet.services.queues.uploads.send(message.body)
    with fleet.worker(lease_s=5):
        runs = fleet.wait_until_settled(1)
        fleet.wait_until_empty()
    assert [(run.key, run.fence) for run in runs if run.key == key] == [(key, 1)]
    assert _value(fleet, "videosieve_claims_total", result="claimed") == 1
    assert _value(fleet, "videosieve_claims_total", result="settled") + _value(
        fleet, "videosieve_claims_total", result="busy"
    ) >= 2  # fmt: skip


def test_every_kind_of_event_leads_to_a_decision(fleet: Fleet, tmp_path: Path) -> None:
    """SNS-wrapped, EventBridge and an S3 event with several records, for objects whose own event was thrown away."""
    keys = [f"folder/{name} clip.mp4" for name in ("sns", "eventbridge", "one", "two")]
    for key in keys:
        fleet.upload(colour_clip(tmp_path / "clip.mp4", BLUE), key)
    drain(fleet, len(keys))
    bucket = fleet.stack.originals
    sns, bridge, one, two = (fleet.services.objects.resolve(ref) for ref in fleet.services.objects.list(bucket))
    assert [sns.key, bridge.key] != keys[:2]  # listed by key: eventbridge, one, sns, two

    def record(key: str) -> dict[str, object]:
        s3 = {"bucket": {"name": bucket}, "object": {"key": key.replace(" ", "+").replace("/", "%2F")}}
        return {"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "s3": s3}

    queue = fleet.services.queues.uploads
    queue.send(
        json.dumps({"Type": "Notification", "TopicArn": "arn:x", "Message": json.dumps({"Records": [record(keys[0])]})})
    )
    detail = {"bucket": {"name": bucket}, "object": {"key": keys[1]}}
    queue.send(json.dumps({"source": "aws.s3", "detail-type": "Object Created", "detail": detail}))
    queue.send(json.dumps({"Records": [record(keys[2]), record(keys[3])]}))
    with fleet.worker():
        runs = fleet.wait_until_settled(len(keys))
        fleet.wait_until_empty()
    assert sorted(run.key for run in runs) == sorted(keys)
    assert {one.key, two.key} <= set(keys)


def test_test_events_are_counted_and_anything_else_is_set_aside_with_a_reason(fleet: Fleet) -> None:
    drain(fleet, 0)
    queue = fleet.services.queues.uploads
    queue.send(json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "b"}))
    access_point = "arn:aws:s3:us-east-1:123456789012:accesspoint/x"
    odd_etag = {"bucket": {"name": "b"}, "object": {"key": "k", "eTag": "x\ny", "size": 1}}
    odd_bucket = {"bucket": {"name": access_point}, "object": {"key": "k", "eTag": "e", "size": 1}}
    records = [{"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "s3": s3} for s3 in (odd_etag, odd_bucket)]
    strange = [json.dumps({"Records": [record]}) for record in records]
    strange += ["hello", "[]", "{}", json.dumps({"Records": []}), json.dumps({"Records": [{"s3": None}]})]
    for body in strange:
        queue.send(body)
    missing_bucket = {"type": "videosieve.video", "bucket": f"none-{uuid4().hex}", "key": "k"}
    queue.send(json.dumps(missing_bucket))
    unknown_policy = {
        "type": "videosieve.video",
        "bucket": fleet.stack.originals,
        "key": "k",
        "decision_hash": "0" * 64,
    }
    queue.send(json.dumps(unknown_policy | {"etag": "e", "size_bytes": 1}))
    with fleet.worker() as consumer:
        fleet.wait_until_empty()
        assert consumer.set_up_fault is None
    letters = fleet.dead_letters()
    reasons = sorted(letter["reason"] for letter in letters)
    assert reasons == ["unknown_message"] * len(strange) + ["unknown_policy"]
    assert all(letter["detail"] for letter in letters)
    assert _value(fleet, "videosieve_messages_total", lane="uploads", kind="test") >= 1
    assert _value(fleet, "videosieve_runs_total", state="rejected", reason="not_found") == 1


def test_an_overwritten_object_ends_as_superseded_and_the_new_version_is_decided(fleet: Fleet, tmp_path: Path) -> None:
    fleet.upload(colour_clip(tmp_path / "old.mp4", RED), "same.mp4")
    fleet.upload(colour_clip(tmp_path / "new.mp4", BLUE), "same.mp4")
    with fleet.worker():
        runs = fleet.wait_until_settled(2)
        fleet.wait_until_empty()
    assert sorted(run.state.value for run in runs) == ["decided", "superseded"]


def drain(fleet: Fleet, count: int) -> None:
    """Throw away the events that S3 sent for `count` objects, and its test event."""
    seen = 0
    queue = fleet.services.queues.uploads
    while messages := queue.receive(wait_s=2 if seen < count else 0, visibility_s=30):
        for message in messages:
            seen += "ObjectCreated" in message.body
            queue.delete(message)
    assert seen == count
