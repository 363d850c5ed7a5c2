"""SQS as the workers use it, against a real server."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from botocore.exceptions import ClientError

from pipeline.errors import FatalError, Reason, TransientError
from pipeline.stores import aws as aws_clients
from pipeline.stores.aws import Clients, Wiring
from pipeline.stores.objects import ObjectStore
from pipeline.stores.queue import MAX_HIDE_S, Message, Queue, Queues
from tests.services import free_port
from workers.local.aws import EmbeddedAws


def receive_all(queue: Queue, count: int, *, visibility_s: int = 30) -> list[Message]:
    found: list[Message] = []
    deadline = time.monotonic() + 10
    while len(found) < count and time.monotonic() < deadline:
        found += queue.receive(wait_s=1, visibility_s=visibility_s)
    return found


def test_a_message_keeps_its_body_attributes_and_count(queue: Queue) -> None:
    queue.send('{"key": "ü 🎬"}', {"trace_id": "t-1"})
    (message,) = queue.receive(wait_s=2, visibility_s=30)
    assert message.body == '{"key": "ü 🎬"}'
    assert message.attributes == {"trace_id": "t-1"}
    assert message.receive_count == 1
    assert abs(message.sent_at.timestamp() - time.time()) < 60


def test_an_empty_queue_gives_an_empty_list(queue: Queue) -> None:
    assert queue.receive(wait_s=0, visibility_s=30) == []


def test_more_than_ten_messages_are_sent_in_batches_and_all_arrive(queue: Queue) -> None:
    bodies = [f"message {number}" for number in range(23)]
    queue.send_many(bodies)
    assert sorted(message.body for message in receive_all(queue, 23)) == sorted(bodies)


def test_large_messages_are_spread_over_batches(queue: Queue) -> None:
    queue.send_many(["x" * 100_000] * 5)
    assert queue.depth()["visible"] == 5


def test_what_sqs_did_not_take_is_sent_again(clients: Clients, queue: Queue, monkeypatch: Any) -> None:
    real = clients.sqs.send_message_batch
    calls: list[int] = []

    def losing_two(**request: Any) -> Any:
        calls.append(len(request["Entries"]))
        lost = request["Entries"][:2] if len(calls) == 1 else []
        response: dict[str, Any] = dict(real(QueueUrl=request["QueueUrl"], Entries=request["Entries"][len(lost) :]))
        failed = {"SenderFault": False, "Code": "InternalError"}
        return response | {"Failed": [{"Id": entry["Id"], **failed} for entry in lost]}

    monkeypatch.setattr(clients.sqs, "send_message_batch", losing_two)
    bodies = [f"message {number}" for number in range(7)]
    queue.send_many(bodies)
    assert calls == [7, 2]
    assert sorted(message.body for message in receive_all(queue, 7)) == bodies


def test_what_sqs_never_takes_is_a_transient_error(clients: Clients, queue: Queue, monkeypatch: Any) -> None:
    def losing(**request: Any) -> Any:
        return {"Failed": [{"Id": entry["Id"], "SenderFault": False} for entry in request["Entries"]]}

    monkeypatch.setattr(clients.sqs, "send_message_batch", losing)
    monkeypatch.setattr("time.sleep", lambda _: None)
    with pytest.raises(TransientError, match="3 of 3") as caught:
        queue.send_many(["a", "b", "c"])
    assert caught.value.reason is Reason.QUEUE_UNAVAILABLE


def test_a_hidden_message_comes_back_when_its_time_is_over(queue: Queue) -> None:
    queue.send("once more")
    (message,) = queue.receive(wait_s=2, visibility_s=30)
    assert queue.hide(message, 0)
    (again,) = queue.receive(wait_s=2, visibility_s=30)
    assert again.receive_count == 2
    assert queue.hide(again, 30)
    assert queue.receive(wait_s=0, visibility_s=30) == []
    assert queue.depth() == {"visible": 0, "in_flight": 1, "delayed": 0}


def test_a_message_can_be_hidden_for_longer_than_sqs_allows(queue: Queue) -> None:
    queue.send("much later")
    (message,) = queue.receive(wait_s=2, visibility_s=30)
    assert queue.hide(message, 3 * MAX_HIDE_S)


def test_a_receipt_that_is_no_longer_good_is_told_and_is_no_error(queue: Queue) -> None:
    queue.send("one")
    (message,) = queue.receive(wait_s=2, visibility_s=30)
    assert queue.delete(message)
    assert not queue.hide(message, 10)
    made_up = Message(message.message_id, "", "made-up", 1, message.sent_at)
    assert not queue.hide(made_up, 10)
    assert not queue.delete(made_up)


def test_deleting_twice_is_no_error(queue: Queue) -> None:
    queue.send("one")
    (message,) = queue.receive(wait_s=2, visibility_s=30)
    queue.delete(message)
    queue.delete(message)
    assert queue.depth() == {"visible": 0, "in_flight": 0, "delayed": 0}


def test_a_dead_letter_tells_its_reason_and_source(queues: Queues) -> None:
    queues.uploads.send("bad", {"trace_id": "t"})
    (message,) = [m for m in receive_all(queues.uploads, 2) if m.body == "bad"]
    assert queues.uploads.dead_letter(
        message, queues.dead_letter, reason=Reason.UNKNOWN_MESSAGE, detail="not\0JSON " + "x" * 5000
    )
    (dead,) = queues.dead_letter.receive(wait_s=2, visibility_s=30)
    assert dead.body == "bad"
    assert dead.attributes["reason"] == "unknown_message"
    assert dead.attributes["source"] == queues.uploads.name
    assert dead.attributes["detail"].startswith("not\ufffdJSON x")
    assert dead.attributes["trace_id"] == "t"


def test_a_missing_queue_is_a_bad_setting_and_named(clients: Clients) -> None:
    with pytest.raises(FatalError, match="no-such-queue") as caught:
        Queue(clients.sqs, "no-such-queue").receive(wait_s=0, visibility_s=30)
    assert caught.value.reason is Reason.BAD_SETTING


def test_a_queue_deleted_under_way_is_a_bad_setting(clients: Clients, queue: Queue) -> None:
    queue.send("one")
    clients.sqs.delete_queue(QueueUrl=clients.sqs.get_queue_url(QueueName=queue.name)["QueueUrl"])
    with pytest.raises(FatalError) as caught:
        queue.send("two")
    assert caught.value.reason is Reason.BAD_SETTING


def test_an_unreachable_endpoint_is_told_within_seconds() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, but nobody listens
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        connected = aws_clients.connect(endpoint_url=url, access_key_id="a", secret_access_key="b")
        before = time.monotonic()
        with pytest.raises(TransientError) as caught:
            Queue(connected.sqs, "any").receive(wait_s=0, visibility_s=30)
        connected.close()
    assert caught.value.reason is Reason.QUEUE_UNAVAILABLE
    assert time.monotonic() - before < 15


def test_a_refused_call_is_forbidden_and_not_the_messages_fault(queue: Queue, monkeypatch: Any) -> None:
    # The emulator checks no signatures of SQS calls, so the answer is AWS's, put in by hand.
    def refuse(**request: Any) -> Any:
        response: Any = {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
        raise ClientError(response, "ReceiveMessage")

    monkeypatch.setattr(queue._client, "receive_message", refuse)
    with pytest.raises(TransientError) as caught:
        queue.receive(wait_s=0, visibility_s=30)
    assert caught.value.reason is Reason.FORBIDDEN


def test_an_upload_to_a_wired_stack_sends_an_event(
    clients: Clients, stack: Wiring, queues: Queues, objects: ObjectStore
) -> None:
    objects.put(stack.originals, "a b+c.mp4", b"video", "video/mp4")
    bodies = [json.loads(message.body) for message in receive_all(queues.uploads, 2)]
    assert [body["Event"] for body in bodies if "Event" in body] == ["s3:TestEvent"]
    (event,) = [record for body in bodies for record in body.get("Records", [])]
    assert event["s3"]["bucket"]["name"] == stack.originals
    assert event["s3"]["object"]["key"] == "a+b%2Bc.mp4"


def test_wiring_twice_changes_nothing_and_sends_no_second_test_event(
    clients: Clients, stack: Wiring, queues: Queues
) -> None:
    aws_clients.wire(clients, stack)
    assert len(queues.uploads.receive(wait_s=1, visibility_s=30)) == 1
    assert queues.uploads.receive(wait_s=1, visibility_s=30) == []


def test_wiring_adjusts_queues_whose_settings_changed(clients: Clients, stack: Wiring) -> None:
    changed = Wiring(
        stack.originals,
        stack.artifacts,
        stack.uploads,
        stack.backfill,
        stack.escalation,
        stack.dead_letter,
        visibility_s=77,
    )
    aws_clients.wire(clients, changed)
    url = clients.sqs.get_queue_url(QueueName=stack.uploads)["QueueUrl"]
    found = clients.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])
    assert found["Attributes"]["VisibilityTimeout"] == "77"


def test_messages_and_objects_survive_a_restart_and_the_clients_recover(data_dir: Path) -> None:
    with EmbeddedAws(data_dir, free_port()) as server:
        connected = aws_clients.connect(
            endpoint_url=server.endpoint_url, access_key_id="test", secret_access_key="test"
        )
        name = f"queue-{uuid4().hex}"
        connected.sqs.create_queue(QueueName=name)
        queue, store = Queue(connected.sqs, name), ObjectStore(connected.s3)
        store.ensure_bucket("kept")
        store.put("kept", "k", b"kept", "text/plain")
        queue.send("kept")
        server.stop()
        with pytest.raises(TransientError) as queue_error:
            queue.receive(wait_s=0, visibility_s=30)
        with pytest.raises(TransientError) as store_error:
            store.get("kept", "k")
        assert queue_error.value.reason is Reason.QUEUE_UNAVAILABLE
        assert store_error.value.reason is Reason.STORE_UNAVAILABLE
        server.start()
        assert [message.body for message in queue.receive(wait_s=2, visibility_s=30)] == ["kept"]
        server.kill()
        server.start()
        assert store.get("kept", "k") == b"kept"
        store.close()
        connected.close()


def test_a_message_tells_whose_it_is(queue: Queue) -> None:
    queue.send("one", group="tenant-1")
    queue.send_many(["two", "three"], ["tenant-2", "tenant-3"])
    queue.send("four")
    found = {message.body: message.group for message in receive_all(queue, 4)}
    assert found == {"one": "tenant-1", "two": "tenant-2", "three": "tenant-3", "four": None}


def test_groups_stay_with_their_messages_over_batches(queue: Queue) -> None:
    bodies = [str(number) for number in range(25)]
    queue.send_many(bodies, [f"group-{body}" for body in bodies])
    assert all(message.group == f"group-{message.body}" for message in receive_all(queue, 25))


@pytest.mark.parametrize("per_entry", [True, False])
def test_an_sqs_without_fair_queues_gets_the_messages_without_groups(
    clients: Clients, queue: Queue, monkeypatch: pytest.MonkeyPatch, per_entry: bool
) -> None:
    real_one, real_many = clients.sqs.send_message, clients.sqs.send_message_batch
    refused: list[str] = []

    def one(**request: Any) -> Any:
        if "MessageGroupId" in request:
            refused.append(request["MessageBody"])
            raise ClientError({"Error": {"Code": "InvalidParameterValue"}}, "SendMessage")
        return real_one(**request)

    def many(**request: Any) -> Any:
        if any("MessageGroupId" in entry for entry in request["Entries"]):
            refused.extend(entry["MessageBody"] for entry in request["Entries"])
            if not per_entry:
                raise ClientError({"Error": {"Code": "InvalidParameterValue"}}, "SendMessageBatch")
            failed = [{"Id": e["Id"], "SenderFault": True, "Code": "InvalidParameterValue"} for e in request["Entries"]]
            return {"Failed": failed, "Successful": []}
        return real_many(**request)

    monkeypatch.setattr(clients.sqs, "send_message", one)
    monkeypatch.setattr(clients.sqs, "send_message_batch", many)
    queue.send_many(["a", "b"], ["t", "t"])
    queue.send_many(["c"], ["t"])
    queue.send("d", group="t")
    assert sorted(message.body for message in receive_all(queue, 4)) == ["a", "b", "c", "d"]
    assert refused == ["a", "b"]  # asked once, then remembered


def test_a_renewed_message_is_another_with_the_same_words_and_counts_from_none(queue: Queue) -> None:
    queue.send("body", {"trace_id": "t"}, group="tenant")
    (first,) = queue.receive(wait_s=2, visibility_s=30)
    assert queue.renew(first)
    (second,) = queue.receive(wait_s=2, visibility_s=30)
    assert (second.body, second.attributes, second.group, second.receive_count) == (
        "body",
        {"trace_id": "t"},
        "tenant",
        1,
    )
    assert second.message_id != first.message_id
    assert queue.depth() == {"visible": 0, "in_flight": 1, "delayed": 0}


def test_messages_are_hidden_and_deleted_in_batches_and_stale_receipts_are_counted(queue: Queue) -> None:
    queue.send_many([str(number) for number in range(23)])
    messages = receive_all(queue, 23)
    assert queue.hide_many(messages, 0) == messages
    again = receive_all(queue, 23)
    assert queue.delete_many(messages[:5]) == []  # the receipts of the first delivery
    assert queue.delete_many(again) == again
    assert queue.delete_many(again) == []
    assert queue.depth() == {"visible": 0, "in_flight": 0, "delayed": 0}


def test_a_batch_that_fails_does_not_keep_the_others_from_being_deleted(
    clients: Clients, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.send_many([str(number) for number in range(20)])
    messages = receive_all(queue, 20)
    real = clients.sqs.delete_message_batch
    calls: list[int] = []

    def failing_first(**request: Any) -> Any:
        calls.append(len(request["Entries"]))
        if len(calls) == 1:
            raise ClientError({"Error": {"Code": "InternalError"}}, "DeleteMessageBatch")
        return real(**request)

    monkeypatch.setattr(clients.sqs, "delete_message_batch", failing_first)
    with pytest.raises(TransientError):
        queue.delete_many(messages)
    assert calls == [10, 10]
    assert queue.depth()["in_flight"] == 10
