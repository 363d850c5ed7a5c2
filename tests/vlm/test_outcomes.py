"""Everything that an engine may do to us, and what comes of it: one table over a scripted server."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from pipeline.cascade.cost import vlm_nano, worst_case_nano
from pipeline.errors import Reason, TransientError
from pipeline.models.chat_client import ChatClient, Deadlines
from pipeline.verdict import Answer
from pipeline.vlm.judge import MOST_REQUESTS, Judgement, UnjudgedError, judge, prepare
from tests.vlm.cases import doubtful, jpegs, judged_policy
from tests.vlm.server import USAGE, Behaviour, Call, answers, says, serving, statement, status

PATIENT = Deadlines(connect_s=5, first_token_s=20, next_token_s=20, total_s=40)
HASTY = Deadlines(connect_s=0.5, first_token_s=0.3, next_token_s=0.3, total_s=0.8)
POLICY = judged_policy("face")
GOOD = json.dumps({"seen": "a face", "answers": {"face": statement("yes", 95, [1])}})
KEY = "sk-very-secret-0123456789"


def ask(*script: Behaviour, deadlines: Deadlines = PATIENT, default: Behaviour | None = None) -> tuple[Judgement, int]:
    """What comes of a case with two doubtful keyframes, and how many requests it took."""
    case = doubtful(POLICY)
    asked = prepare(POLICY, case, jpegs(2), logprobs=False)
    with (
        serving(*script, default=default or script[-1]) as server,
        ChatClient(server.url, api_key=KEY, deadlines=deadlines, max_connections=2) as client,
    ):
        try:
            return judge(POLICY, case, asked, client), len(server.calls)
        finally:
            assert all(call.headers["Authorization"] == f"Bearer {KEY}" for call in server.calls)


# behaviours that need more than a text


def hangs(call: Call) -> None:
    call.hang()


def hangs_after_the_headers(call: Call) -> None:
    call.head()
    call.hang()


def hangs_in_the_middle(call: Call) -> None:
    call.head()
    call.piece(GOOD[:20])
    call.hang()


def keeps_alive_only(call: Call) -> None:
    call.head()
    while not call.stopping.wait(0.05):
        call.raw(b": still here\n\n")


def trickles(call: Call) -> None:
    call.head()
    for char in GOOD * 10:
        call.piece(char)
        if call.stopping.wait(0.1):
            return


def resets_before(call: Call) -> None:
    call.reset()


def resets_in_the_middle(call: Call) -> None:
    call.head()
    call.piece(GOOD[:20])
    call.reset()


def closes_in_the_middle(call: Call) -> None:
    call.head()
    call.piece(GOOD[:20])


def refuses(call: Call) -> None:
    call.head()
    call.event({"choices": [{"index": 0, "delta": {"refusal": "I cannot help with that."}}]})
    call.end()


def sends_ten_megabytes(call: Call) -> None:
    call.head()
    call.piece('{"seen": "')
    for _ in range(10 * 2**20 // 4096):
        call.piece("x" * 4096)
    call.end()


def sends_one_endless_line(call: Call) -> None:
    call.head()
    call.raw(b"data: ")
    for _ in range(10 * 2**20 // 65536):
        call.raw(b"x" * 65536)
    call.raw(b"\n\n")


def sends_empty_pieces_for_ever(call: Call) -> None:
    call.head()
    padding = "y" * 4096
    for _ in range(10 * 2**20 // 4096):
        call.event({"choices": [{"index": 0, "delta": {"role": "assistant"}, "padding": padding}]})
    call.end()


def does_not_stream(call: Call) -> None:
    body = json.dumps({"choices": [{"message": {"content": GOOD}}]}).encode()
    call.head(content_type="application/json", Content_Length=str(len(body)))
    call.raw(body)


def is_a_web_page(call: Call) -> None:
    call.head(content_type="text/html")
    call.raw(b"<html>welcome</html>")


def fails_in_the_stream(call: Call) -> None:
    call.head()
    call.piece(GOOD[:20])
    call.event({"error": {"message": f"engine died, key {KEY}", "code": 500}})


def garbles_an_event(call: Call) -> None:
    call.head()
    call.raw(b'data: {"choices": [{"delta": {"cont\n\n')


def ends_without_farewell(call: Call) -> None:
    call.head()
    call.piece(GOOD)
    call.end()
    call.hang()


def never_says_done(call: Call) -> None:
    call.head()
    call.raw(EVENTS.replace(b"data: [DONE]\n\n", b""))
    call.hang()


def resets_instead_of_done(call: Call) -> None:
    never_says_done(replace(call, stopping=_set()))
    call.reset()


def _set() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


def sends_a_bomb(call: Call) -> None:
    """A few hundred bytes that are 64 MB once they are unpacked twice."""
    call.head(Content_Encoding="gzip, gzip")
    call.raw(gzip.compress(gzip.compress(b"x" * 64 * 2**20, 1), 1))


def compresses(call: Call) -> None:
    call.head(Content_Encoding="gzip")
    call.raw(gzip.compress(EVENTS))


def refuses_in_compressed_words(call: Call) -> None:
    body = gzip.compress(b'{"error": {"message": "too long"}}')
    call.head(400, "application/json", Content_Encoding="gzip", Content_Length=str(len(body)))
    call.raw(body)


def streams(data: bytes, content_type: str = "text/event-stream") -> Behaviour:
    """Sends these bytes as its stream."""

    def behave(call: Call) -> None:
        call.head(content_type=content_type)
        call.raw(data)

    return behave


def one_byte_at_a_time(call: Call) -> None:
    call.head()
    for byte in EVENTS.replace(b"a face", "ein Gesicht, \u00e4\u6f22\U0001f600".encode()):
        call.raw(bytes([byte]))


def event(found: Mapping[str, object]) -> bytes:
    return b"data: " + json.dumps(found).encode() + b"\n\n"


def choice(text: str, index: int = 0, **more: object) -> dict[str, object]:
    return {"index": index, "delta": {"content": text}, **more}


END = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
END += event({"choices": [], "usage": USAGE}) + b"data: [DONE]\n\n"
EVENTS = event({"choices": [choice(GOOD)]}) + END


def in_stream(**error: object) -> Behaviour:
    return streams(event({"error": error}))


@dataclass(frozen=True)
class Row:
    """`reason` None: answered. `after_s`: what `Retry-After` asked for. `billed`: it may be billed all the same."""

    name: str
    behaves: Behaviour
    reason: Reason | None
    requests: int = 1
    deadlines: Deadlines = PATIENT
    after_s: float | None = None
    estimated: bool = False
    billed: bool = False


def edited(change: Callable[[dict[str, object]], object]) -> Behaviour:
    """A valid answer, changed."""
    found = json.loads(GOOD)
    change(found)
    return says(json.dumps(found))


def of_face(**fields: object) -> Behaviour:
    return edited(lambda found: found["answers"]["face"].update(fields))  # type: ignore[index]


DOWN, INVALID = Reason.VLM_UNAVAILABLE, Reason.VLM_INVALID_OUTPUT
ENGINE_AT_FAULT = [
    Row("429 with Retry-After", status(429, Retry_After="7"), Reason.VLM_BUSY, after_s=7),
    Row("429 without", status(429), Reason.VLM_BUSY),
    Row("429 that asks for a day", status(429, Retry_After="86400"), Reason.VLM_BUSY, after_s=900),
    Row("429 with nonsense", status(429, Retry_After="soon"), Reason.VLM_BUSY),
    Row("500", status(500), DOWN),
    Row("503 with Retry-After", status(503, Retry_After="11"), DOWN, after_s=11),
    Row("a wrong key", status(401, json.dumps({"error": {"message": f"bad key {KEY}"}})), DOWN),
    Row("an unknown model", status(404), DOWN),
    Row("a redirect", status(302, Location="http://127.0.0.1:9/v1"), DOWN),
    Row("hang before the headers", hangs, DOWN, deadlines=HASTY, billed=True),
    Row("hang before the first token", hangs_after_the_headers, DOWN, deadlines=HASTY, billed=True),
    Row("hang in the middle", hangs_in_the_middle, DOWN, deadlines=HASTY, billed=True),
    Row("keep-alives and no token", keeps_alive_only, DOWN, deadlines=HASTY, billed=True),
    Row("a slow trickle", trickles, DOWN, deadlines=HASTY, billed=True),
    Row("reset before", resets_before, DOWN, billed=True),
    Row("reset in the middle", resets_in_the_middle, DOWN, billed=True),
    Row("closed in the middle", closes_in_the_middle, DOWN, billed=True),
    Row("no stream", does_not_stream, DOWN, billed=True),
    Row("a web page", is_a_web_page, DOWN, billed=True),
    Row("an error in the stream", fails_in_the_stream, DOWN, billed=True),
    Row("half an event", garbles_an_event, DOWN, billed=True),
    Row("an event nested beyond reading", streams(b"data: " + b"[" * 200_000 + b"\n\n"), DOWN, billed=True),
    Row("an event that is a list", streams(b"data: [1]\n\n"), DOWN, billed=True),
    Row("a number of 5,000 digits", streams(event({"usage": 1}).replace(b"1", b"9" * 5000)), DOWN, billed=True),
    Row("a bomb", sends_a_bomb, DOWN),
    Row("compressed though it was asked not to", compresses, DOWN),
    Row("too many requests, said in the stream", in_stream(message="slow down", code=429), Reason.VLM_BUSY),
    Row("an error without words in the stream", in_stream(code=["?"]), DOWN, billed=True),
    Row("a redirect to another host", status(307, Location="http://192.0.2.1/v1/chat/completions"), DOWN),
    Row("accepted, for later", status(202), DOWN),
    Row("no content", status(204, ""), DOWN),
]
ANSWER_AT_FAULT = [
    Row("truncated JSON", says(GOOD[:40]), INVALID, 2),
    Row("cut at max_tokens", says(GOOD[:40], finish_reason="length"), INVALID, 1),
    Row("whole but cut at max_tokens", says(GOOD, finish_reason="length"), INVALID, 1),
    Row("an empty stop", says(""), INVALID, 2),
    Row("white space", says(" \n\t "), INVALID, 2),
    Row("a refusal", refuses, Reason.VLM_BLOCKED, 1),
    Row("a content filter", says("", finish_reason="content_filter"), Reason.VLM_BLOCKED, 1),
    Row(
        "a blocked request",
        status(400, json.dumps({"error": {"code": "content_filter", "message": "no"}})),
        Reason.VLM_BLOCKED,
        estimated=True,  # some bill for it
    ),
    Row("a refused request", status(400), Reason.VLM_REQUEST_REFUSED),
    Row("refused in the stream", in_stream(message="too long", code=400), Reason.VLM_REQUEST_REFUSED),
    Row("refused in compressed words", refuses_in_compressed_words, Reason.VLM_REQUEST_REFUSED),
    Row("blocked in the stream", in_stream(message="no", code="content_filter"), Reason.VLM_BLOCKED, estimated=True),
    Row("half a character in a bad answer", says('{"seen": "\ud800"}'), INVALID, 2),
    Row("too large a request", status(413), Reason.VLM_REQUEST_REFUSED),
    Row("prose", says("Yes, there is a face."), INVALID, 2),
    Row("fenced JSON", says(f"```json\n{GOOD}\n```"), INVALID, 2),
    Row("two objects", says(GOOD + GOOD), INVALID, 2),
    Row("an array", says(f"[{GOOD}]"), INVALID, 2),
    Row("null", says("null"), INVALID, 2),
    Row("nested a thousand deep", says("[" * 5000), INVALID, 2),
    Row("extra keys", edited(lambda found: found.update(admin=True)), INVALID, 2),
    Row("extra questions", edited(lambda found: found["answers"].update(nudity=statement())), INVALID, 2),  # type: ignore[attr-defined]
    Row("a missing question", edited(lambda found: found.update(answers={})), INVALID, 2),
    Row("extra keys in a statement", of_face(override=True), INVALID, 2),
    Row("a key twice", says(GOOD.replace('"score": 95', '"score": 95, "score": 0')), INVALID, 2),
    Row("a wrong enum", of_face(answer="approved"), INVALID, 2),
    Row("an enum in capitals", of_face(answer="YES"), INVALID, 2),
    Row("an enum that is a list", of_face(answer=["yes"]), INVALID, 2),
    Row("a score of 101", of_face(score=101), INVALID, 2),
    Row("a negative score", of_face(score=-1), INVALID, 2),
    Row("a fractional score", of_face(score=95.5), INVALID, 2),
    Row("a score that is true", of_face(score=True), INVALID, 2),
    Row("a score that is NaN", says(GOOD.replace("95", "NaN")), INVALID, 2),
    Row("a score of 5,000 digits", says(GOOD.replace("95", "9" * 5000)), INVALID, 2),
    Row("an image that was not shown", of_face(images=[2]), INVALID, 2),
    Row("a negative image", of_face(images=[-1]), INVALID, 2),
    Row("an image by name", of_face(images=["1"]), INVALID, 2),
    Row("more images than there are", of_face(images=[0, 1, 1]), INVALID, 2),
    Row("a yes that nothing shows", of_face(images=[]), INVALID, 2),
    Row("too long a description", edited(lambda found: found.update(seen="x" * 161)), INVALID, 2),
    Row("10 MB", sends_ten_megabytes, INVALID, 1, estimated=True),
    Row("10 MB in one line", sends_one_endless_line, INVALID, 1, estimated=True),
    Row("10 MB of nothing", sends_empty_pieces_for_ever, INVALID, 1, estimated=True),
]
USABLE = [
    Row("a good answer", says(GOOD), None),
    Row("one character a piece", says(GOOD, piece_chars=1), None),
    Row("a connection that stays open", ends_without_farewell, None, deadlines=HASTY),
    Row("no farewell at all", never_says_done, None, deadlines=HASTY),
    Row("a reset for a farewell", resets_instead_of_done, None),
    Row("an end without a farewell", streams(EVENTS.replace(b"data: [DONE]\n\n", b"")), None),
    Row("lines that end as on Windows", streams(EVENTS.replace(b"\n", b"\r\n")), None),
    Row("a byte order mark", streams(b"\xef\xbb\xbf" + EVENTS), None),
    Row("comments, names, ids and waits", streams(b": hi\nevent: message\nid: 3\nretry: 10\n" + EVENTS), None),
    Row("characters split anywhere", one_byte_at_a_time, None),
    Row("another content type", streams(EVENTS, "image/png"), None),
    Row("a second choice beside it", streams(event({"choices": [choice("no", 1), choice(GOOD)]}) + END), None),
    Row("a second choice between", streams(event({"choices": [choice("no", 1)]}) + EVENTS), None),
    Row("half a character in the description", says(GOOD.replace("a face", "\\ud800")), None),
    Row("no usage", says(GOOD, usage=None), None, estimated=True),
    Row("negative usage", says(GOOD, usage=USAGE | {"prompt_tokens": -5}), None, estimated=True),
    Row("usage beyond max_tokens", says(GOOD, usage=USAGE | {"completion_tokens": 999_999}), None, estimated=True),
    Row("usage without the answer", says(GOOD, usage=USAGE | {"completion_tokens": 0}), None, estimated=True),
    Row("usage that is text", says(GOOD, usage=USAGE | {"prompt_tokens": "many"}), None, estimated=True),
    Row("usage beyond belief", says(GOOD, usage=USAGE | {"prompt_tokens": 9_000_000}), None, estimated=True),
    Row(
        "more cached than sent",
        says(GOOD, usage=USAGE | {"prompt_tokens_details": {"cached_tokens": 5000}}),
        None,
        estimated=True,
    ),
    Row("usage that is a list", says(GOOD, usage=[1, 2]), None, estimated=True),
]


@pytest.mark.parametrize("row", ENGINE_AT_FAULT, ids=lambda row: row.name)
def test_an_engine_at_fault_is_a_transient_error(row: Row) -> None:
    with pytest.raises(TransientError) as caught:
        ask(row.behaves, deadlines=row.deadlines)
    assert isinstance(caught.value, UnjudgedError)
    assert caught.value.reason is row.reason
    assert caught.value.retry_after_s == row.after_s
    assert caught.value.usage.requests == row.billed
    assert (caught.value.usage.tokens_in > 1000) == row.billed
    assert KEY not in caught.value.detail
    assert len(caught.value.detail) < 600


@pytest.mark.parametrize("row", ANSWER_AT_FAULT, ids=lambda row: row.name)
def test_an_answer_at_fault_sends_the_question_to_a_person(row: Row) -> None:
    judgement, requests = ask(row.behaves)
    (verdict,) = judgement.verdicts
    assert (verdict.answer, verdict.reason, verdict.stage) == (Answer.REVIEW, row.reason, "review")
    assert verdict.score == 0.5  # the cheap stage's: nothing of the bad answer counts
    assert verdict.evidence == (0, 1)
    assert judgement.settled == ()
    assert judgement.seen == ""
    assert requests == row.requests
    assert judgement.estimated == row.estimated
    assert judgement.problem is not None
    assert judgement.problem.reason is row.reason


@pytest.mark.parametrize("row", USABLE, ids=lambda row: row.name)
def test_a_usable_answer_is_used(row: Row) -> None:
    judgement, requests = ask(row.behaves, deadlines=row.deadlines)
    (verdict,) = judgement.verdicts
    assert (verdict.answer, verdict.reason, verdict.stage) == (Answer.POSITIVE, None, "judge")
    assert verdict.evidence == (1,)
    assert requests == 1
    assert judgement.estimated == row.estimated
    if not row.estimated:
        assert (judgement.usage.tokens_in, judgement.usage.tokens_cached, judgement.usage.tokens_out) == (1200, 900, 40)
    else:
        assert judgement.usage.tokens_cached == 0
        assert judgement.usage.tokens_out == POLICY.decision.vlm.sampling.max_tokens  # type: ignore[union-attr]


def test_what_a_bad_answer_cost_is_known_when_its_repair_fails() -> None:
    with pytest.raises(UnjudgedError) as caught:
        ask(says("certainly"), status(500))
    assert (caught.value.usage.requests, caught.value.usage.tokens_in, caught.value.usage.tokens_out) == (1, 1200, 40)
    with pytest.raises(UnjudgedError) as caught:
        ask(says("certainly"), resets_before)
    assert caught.value.usage.requests == 2
    assert caught.value.usage.tokens_in > 1200 + 1000


@pytest.mark.parametrize(
    "budget", [{}, {"max_images": 1, "max_image_tokens": 32}, {"max_images": 3, "max_image_tokens": 100}]
)
@pytest.mark.parametrize("letter", ["x", "\u6f22", "\U0001f600"])
def test_what_is_charged_without_a_usable_count_is_never_more_than_was_reserved(
    budget: dict[str, int], letter: str
) -> None:
    policy = judged_policy("face", images=budget, sampling={"max_tokens": 64})
    case = doubtful(policy)
    asked = prepare(policy, case, jpegs(2), logprobs=False)
    reserved_nano = worst_case_nano(policy, text_bytes=asked.text_bytes, requests=MOST_REQUESTS)
    bad = says(json.dumps({letter * 5000: letter * 20_000}, ensure_ascii=False), usage=None, piece_chars=1000)
    with (
        serving(default=bad) as server,
        ChatClient(server.url, api_key=None, deadlines=PATIENT, max_connections=1) as client,
    ):
        judgement = judge(policy, case, asked, client)
        sent = [len(call.text.encode()) for call in server.calls]
    assert len(sent) == 2
    assert judgement.estimated
    assert judgement.usage.tokens_in >= sum(sent)  # a token a byte, which no tokenizer exceeds
    assert vlm_nano(policy.commercial.prices.vlm, judgement.usage) <= reserved_nano


@pytest.mark.parametrize("logprob", [-(10**400), 10**400, float("-inf"), float("nan"), True, "0"])
def test_a_probability_that_is_none_makes_no_score_certain(logprob: float | str) -> None:
    token = {"token": GOOD, "logprob": logprob}
    found = event({"choices": [choice(GOOD, logprobs={"content": [token]})]})
    (verdict,) = ask(streams(found + END))[0].verdicts
    assert 0 < verdict.score < 1


def test_one_repair_can_help_and_is_told_what_was_wrong() -> None:
    seen: list[str] = []

    def repaired(call: Call) -> None:
        seen.append(call.text)
        says(GOOD)(call)

    judgement, requests = ask(of_face(answer="approved"), repaired)
    assert judgement.verdicts[0].answer is Answer.POSITIVE
    assert requests == 2
    assert judgement.usage.requests == 2
    assert judgement.usage.tokens_in == 2400
    assert "`face.answer` must be one of yes, no, unclear" in seen[0]


def test_nothing_listens() -> None:
    case = doubtful(POLICY)
    asked = prepare(POLICY, case, jpegs(2), logprobs=False)
    with (
        ChatClient("http://127.0.0.1:9/v1", api_key=None, deadlines=HASTY, max_connections=1) as client,
        pytest.raises(TransientError, match="ConnectError") as caught,
    ):
        judge(POLICY, case, asked, client)
    assert caught.value.reason is DOWN


def test_retry_after_may_be_a_date() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    with pytest.raises(TransientError) as caught:
        ask(status(429, Retry_After=later))
    assert caught.value.retry_after_s is not None
    assert 50 < caught.value.retry_after_s <= 60


def test_a_deadline_is_kept_though_the_engine_trickles() -> None:
    started_s = time.monotonic()
    with pytest.raises(TransientError, match="not complete within"):
        ask(trickles, deadlines=HASTY)
    assert time.monotonic() - started_s < 10  # the trickle would take 30 s


def test_the_next_request_is_served_after_every_misbehaviour() -> None:
    case = doubtful(POLICY)
    asked = prepare(POLICY, case, jpegs(2), logprobs=False)
    bad = [hangs_in_the_middle, resets_in_the_middle, trickles, closes_in_the_middle]
    with (
        serving(*bad, default=answers(statement("yes", 95, [0]))) as server,
        ChatClient(server.url, api_key=None, deadlines=HASTY, max_connections=1) as client,
    ):
        for _ in bad:
            with pytest.raises(TransientError):
                judge(POLICY, case, asked, client)
        assert judge(POLICY, case, asked, client).verdicts[0].answer is Answer.POSITIVE
