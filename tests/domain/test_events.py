from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import PermanentError, Reason
from pipeline.events import MAX_MESSAGE_CHARS, ParsedMessage, VideoMessage, parse_message
from pipeline.media import ObjectRef

TEST_EVENT = {"Service": "Amazon S3", "Event": "s3:TestEvent", "Time": "2026-01-01T00:00:00.000Z", "Bucket": "b"}
KEYS = [
    "a.mp4",
    "two words.mp4",
    "a+b.mp4",
    "100%.mp4",
    "%2B.mp4",
    "clips/ünï/映像.mp4",
    "🎬=&?#.mp4",
    " ",
    "a/../b//c",
]


def s3_record(key: str = "a.mp4", **stored: Any) -> dict[str, Any]:
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventTime": "2026-11-30T10:00:00.123Z",
        "eventName": "ObjectCreated:Put",
        "s3": {
            "bucket": {"name": "uploads", "arn": "arn:aws:s3:::uploads"},
            "object": {"key": key, "size": 5, "eTag": "d41d8", "sequencer": "1"} | stored,
        },
    }


def s3_event(*records: dict[str, Any]) -> dict[str, Any]:
    return {"Records": list(records)}


def eventbridge(**stored: Any) -> dict[str, Any]:
    return {
        "version": "0",
        "source": "aws.s3",
        "detail-type": "Object Created",
        "time": "2026-11-30T10:00:00Z",
        "detail": {"bucket": {"name": "uploads"}, "object": {"key": "a.mp4", "size": 5, "etag": "d41d8"} | stored},
    }


def sns(inner: object) -> dict[str, Any]:
    body = inner if isinstance(inner, str) else json.dumps(inner)
    return {"Type": "Notification", "MessageId": "1", "TopicArn": "arn:aws:sns:x:1:t", "Message": body}


def own(**fields: Any) -> dict[str, Any]:
    return {"schema_version": 1, "type": "videosieve.video", "bucket": "b", "key": "k"} | fields


def parse(message: object) -> ParsedMessage:
    return parse_message(json.dumps(message))


def refused(body: str) -> PermanentError:
    with pytest.raises(PermanentError) as caught:
        parse_message(body)
    assert caught.value.reason is Reason.UNKNOWN_MESSAGE
    return caught.value


def test_an_s3_event_names_its_object_with_version_etag_size_and_time() -> None:
    parsed = parse(s3_event(s3_record(versionId="v1")))
    assert parsed.kind == "s3"
    (event,) = parsed.events
    assert event.ref == ObjectRef("uploads", "a.mp4", "v1", "d41d8", 5)
    assert event.event_at == datetime(2026, 11, 30, 10, 0, 0, 123_000, UTC)
    assert (event.decision_hash, event.trace_id) == (None, None)


@pytest.mark.parametrize("key", KEYS)
def test_s3_keys_are_form_decoded(key: str) -> None:
    (event,) = parse(s3_event(s3_record(quote_plus(key, safe="/")))).events
    assert event.ref.key == key


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=300))
def test_every_key_survives_the_way_through_s3s_encoding(key: str) -> None:
    (event,) = parse(s3_event(s3_record(quote_plus(key)))).events
    assert event.ref.key == key


@pytest.mark.parametrize("key", [*KEYS, "a%20b.mp4", "a%00b"])
def test_eventbridge_keys_are_taken_as_they_are(key: str) -> None:
    parsed = parse(eventbridge(key=key))
    assert (parsed.kind, parsed.events[0].ref.key) == ("eventbridge", key)
    assert parsed.events[0].event_at == datetime(2026, 11, 30, 10, tzinfo=UTC)


def test_several_records_become_several_events_in_order() -> None:
    parsed = parse(s3_event(*(s3_record(f"{n}.mp4") for n in range(3))))
    assert [event.ref.key for event in parsed.events] == ["0.mp4", "1.mp4", "2.mp4"]


def test_a_multipart_upload_is_a_creation_and_a_time_may_be_missing() -> None:
    record = s3_record() | {"eventName": "ObjectCreated:CompleteMultipartUpload", "eventTime": None}
    (event,) = parse(s3_event(record)).events
    assert event.event_at is None


@pytest.mark.parametrize("version", ["null", "", None])
def test_an_object_without_a_real_version_id_goes_by_its_etag(version: str | None) -> None:
    for message in (
        s3_event(s3_record(versionId=version)),
        eventbridge(**{"version-id": version}),
        own(version_id=version, etag="d41d8"),
    ):
        (event,) = parse(message).events
        assert event.ref.version == "e:d41d8"


@pytest.mark.parametrize(
    ("given_etag", "kept"), [('"d41d8-2"', "d41d8-2"), ("d41d8", "d41d8"), ('""', None), ("", None)]
)
def test_quotes_around_an_etag_do_not_make_another_version(given_etag: str, kept: str | None) -> None:
    for message in (s3_event(s3_record(eTag=given_etag)), eventbridge(etag=given_etag), own(etag=given_etag)):
        assert parse(message).events[0].ref.etag == kept


def test_sns_wraps_s3_and_eventbridge_events() -> None:
    for inner in (s3_event(s3_record("a+b.mp4")), eventbridge(key="a b.mp4")):
        parsed = parse(sns(inner))
        assert (parsed.kind, parsed.events[0].ref.key) == ("sns", "a b.mp4")


def test_sns_in_sns_is_refused() -> None:
    refused(json.dumps(sns(sns(s3_event(s3_record())))))


def test_a_test_event_holds_no_videos_also_inside_sns() -> None:
    assert parse(TEST_EVENT) == parse(sns(TEST_EVENT)) == ParsedMessage("test", ())


def test_our_own_message_comes_back_as_it_was_sent() -> None:
    for ref in (
        ObjectRef("b", "k +%ü.mp4", "v", "e", 7),
        ObjectRef("b", "k"),
        ObjectRef("b", "k", etag="e", size_bytes=0),
    ):
        body = VideoMessage.of(ref, decision_hash="d" * 64, trace_id="t").model_dump_json(exclude_none=True)
        parsed = parse_message(body)
        assert parsed.kind == "own"
        (event,) = parsed.events
        assert (event.ref, event.decision_hash, event.trace_id, event.event_at) == (ref, "d" * 64, "t", None)


BAD: dict[str, object] = {
    "no records": s3_event(),
    "records that are no list": {"Records": {"0": s3_record()}},
    "a record that is no object": {"Records": [7]},
    "a record that is null": {"Records": [None]},
    "a removed object": s3_event(s3_record() | {"eventName": "ObjectRemoved:Delete"}),
    "one good and one removed": s3_event(s3_record(), s3_record() | {"eventName": "ObjectRemoved:Delete"}),
    "another service": s3_event(s3_record() | {"eventSource": "aws:sqs"}),
    "a size below zero": s3_event(s3_record(size=-1)),
    "a size beyond a BIGINT": s3_event(s3_record(size=2**63)),
    "a size that is no whole number": s3_event(s3_record(size=1.5)),
    "a size of words": s3_event(s3_record(size="big")),
    "a key that is a number": s3_event(s3_record() | {"s3": {"bucket": {"name": "b"}, "object": {"key": 3}}}),
    "an empty key": s3_event(s3_record("")),
    "a key beyond all bounds": s3_event(s3_record("k" * 3073)),
    "an encoded NUL in the key": s3_event(s3_record("a%00b")),
    "a NUL in the key": eventbridge(key="a\0b"),
    "a lone surrogate in the key": eventbridge(key="\ud800"),
    "a NUL in the version": eventbridge(**{"version-id": "a\0b"}),
    "a NUL in the ETag": s3_event(s3_record(eTag="a\0b")),
    "a NUL in the trace id": own(trace_id="\0"),
    "a NUL in the decision hash": own(decision_hash="\0"),
    "an endless trace id": own(trace_id="t" * 5000),
    "a time that is none": s3_event(s3_record() | {"eventTime": "yesterday"}),
    "a time beyond all time": s3_event(s3_record() | {"eventTime": 10**30}),
    "a deletion from EventBridge": eventbridge() | {"detail-type": "Object Deleted"},
    "EventBridge without detail": {"source": "aws.s3", "detail-type": "Object Created"},
    "our own with an unknown field": own(policy="x"),
    "our own of another version": own(schema_version=2),
    "our own without a key": {"type": "videosieve.video", "bucket": "b"},
    "SNS whose message is no JSON": sns("hello"),
    "SNS whose message is an object": sns("") | {"Message": {}},
    "an empty object": {},
    "something else": {"hello": "world", "x" * 100_000: 1},
    "a surrogate for a name": {"\ud800": 1},
    "an array": [s3_event(s3_record())],
    "a string": "s3://b/k",
    "null": None,
    "not a number": float("nan"),
}


@pytest.mark.parametrize("what", BAD)
def test_is_refused(what: str) -> None:
    error = refused(json.dumps(BAD[what]))
    assert "\n" not in error.detail
    assert len(error.detail) < 1000


@pytest.mark.parametrize(
    "body",
    [
        "",
        " ",
        "{",
        "\ufeff{}",
        "\0",
        "[" * 100_000,
        '{"a":' * 100_000,
        "1" * 5000,
        "9" * (MAX_MESSAGE_CHARS + 1),
        "\ud800",
    ],
    ids=["empty", "blank", "torn", "BOM", "NUL", "deep arrays", "deep objects", "long number", "too long", "surrogate"],
)
def test_a_body_that_is_no_json_object_is_refused(body: str) -> None:
    refused(body)


def test_a_refusal_names_the_field() -> None:
    assert "`s3.object.size`" in refused(json.dumps(s3_event(s3_record(size=-1)))).detail
    assert "hello" in refused('{"hello": 1}').detail


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)


def parses_or_is_refused(body: str) -> None:
    """Any other exception fails the test by itself."""
    try:
        parsed = parse_message(body)
    except PermanentError as error:
        reason = error.reason
    else:
        assert bool(parsed.events) == (parsed.kind != "test")
        assert all("\0" not in event.ref.key + event.ref.bucket for event in parsed.events)
        return
    assert reason is Reason.UNKNOWN_MESSAGE


@given(st.text())
def test_no_text_raises_anything_but_a_refusal(body: str) -> None:
    parses_or_is_refused(body)


@given(JSON)
def test_no_json_raises_anything_but_a_refusal(value: object) -> None:
    parses_or_is_refused(json.dumps(value))


@given(st.sampled_from(["s3", "eventbridge", "own", "sns", "test"]), st.integers(0, 30), JSON)
def test_a_good_message_with_one_field_replaced_parses_or_is_refused(kind: str, where: int, value: object) -> None:
    messages = {
        "s3": s3_event(s3_record()),
        "eventbridge": eventbridge(),
        "own": own(etag="e", size_bytes=1, trace_id="t", decision_hash="d", version_id="v"),
        "sns": sns(s3_event(s3_record())),
        "test": dict(TEST_EVENT),
    }
    message = messages[kind]
    places = list(_places(message))
    holder, name = places[where % len(places)]
    holder[name] = value
    parses_or_is_refused(json.dumps(message))


def _places(node: Any) -> Any:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, value in list(items):
        yield node, name
        yield from _places(value)
