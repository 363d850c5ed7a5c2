"""Against a real vLLM that serves a tiny Qwen2.5-VL of random weights: what the protocol does, not what a model knows.

`make test-vllm` installs vLLM for the CPU in an environment of its own and runs this. It skips where
VIDEOSIEVE_TEST_VLLM_PYTHON names no such Python. With VIDEOSIEVE_TEST_VLLM_REPORT=FILE it writes down what it measured.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from pipeline.cascade.vlm_part import ImagesPart
from pipeline.chat import AnswerError, ChatReply, ChatRequest
from pipeline.errors import Reason, TransientError
from pipeline.models.chat_client import ChatClient, Deadlines
from pipeline.verdict import Answer
from pipeline.vlm.judge import Asked, judge, prepare
from pipeline.vlm.scores import ScoreSource, spoken
from tests.vlm.cases import doubtful, jpegs, judged_policy
from workers.asking import LimitedEngine
from workers.limiter import AdaptiveLimiter
from workers.local.ports import free_port
from workers.metrics import Metrics
from workers.vlm_check import Grade, check_engine

PYTHON = os.environ.get("VIDEOSIEVE_TEST_VLLM_PYTHON")
REPORT = os.environ.get("VIDEOSIEVE_TEST_VLLM_REPORT")
HERE = Path(__file__).parent
MODEL = "tiny-qwen"
MOST_IMAGES, MOST_SEQUENCES = 8, 4
START_S = 840.0
PATIENT = Deadlines(connect_s=5, first_token_s=280, next_token_s=120, total_s=290)
"""The first request with token probabilities compiles for two minutes on two cores."""

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(PYTHON is None, reason="no vLLM here: `make test-vllm` installs and runs one"),
]

POLICY = judged_policy("face", "weapon", model=MODEL, sampling={"max_tokens": 2048})


@dataclass
class Vllm:
    """A running server."""

    url: str
    report: dict[str, Any] = field(default_factory=dict)

    def metric(self, name: str) -> float:
        text = httpx.get(self.url.removesuffix("/v1") + "/metrics", timeout=60).text
        found = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})?\s+(\S+)", text, re.MULTILINE)
        assert found, f"the engine has no metric {name}"
        return sum(map(float, found))


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    assert PYTHON is not None
    folder = tmp_path_factory.mktemp("vllm")
    environment = os.environ | {
        "PYTHONPATH": str(HERE / "cpu_site"),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",  # threads that wait for each other by spinning are slow on a busy machine
    }
    subprocess.run(
        [PYTHON, str(HERE / "tiny_qwen.py"), str(folder / "model")], env=environment, check=True, timeout=300
    )
    port = free_port()
    command = [
        PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder / "model"),
        "--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32",
        "--max-model-len", "16384", "--max-num-seqs", str(MOST_SEQUENCES), "--enforce-eager",
        "--limit-mm-per-prompt", json.dumps({"image": MOST_IMAGES, "video": 0}),
        "--enable-prefix-caching", "--enable-prompt-tokens-details",
        "--structured-outputs-config", json.dumps({"backend": "xgrammar", "disable_any_whitespace": True}),
    ]  # fmt: skip
    log = folder / "vllm.log"
    started_s = time.monotonic()
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environment) as server:
        try:
            running = Vllm(f"http://127.0.0.1:{port}/v1")
            _wait(running.url, server, log, started_s + START_S)
            running.report |= {"versions": _versions(environment), "start_s": round(time.monotonic() - started_s)}
            yield running
        finally:
            server.terminate()
    if REPORT:
        Path(REPORT).write_text(json.dumps(running.report, indent=1) + "\n")


def _wait(url: str, server: subprocess.Popen[bytes], log: Path, end_s: float) -> None:
    while True:
        assert server.poll() is None, log.read_text(errors="replace")[-3000:]
        assert time.monotonic() < end_s, log.read_text(errors="replace")[-3000:]
        try:
            if httpx.get(f"{url}/models", timeout=5).is_success:
                return
        except httpx.HTTPError:
            time.sleep(1)


def _versions(environment: dict[str, str]) -> dict[str, str]:
    names = ["vllm-cpu", "torch", "transformers", "xgrammar"]
    script = f"import json, importlib.metadata as m; print(json.dumps({{n: m.version(n) for n in {names}}}))"
    assert PYTHON is not None
    done = subprocess.run([PYTHON, "-c", script], env=environment, check=True, capture_output=True, timeout=120)
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.fixture
def client(vllm: Vllm) -> Iterator[ChatClient]:
    with ChatClient(vllm.url, api_key=None, deadlines=PATIENT, max_connections=16) as opened:
        yield opened


def asked(first: int = 0, count: int = 2, *, logprobs: bool = False) -> Asked:
    """A request about `count` pictures; another `first`, other pictures."""
    pictures = {index: jpegs(first + count)[first + index] for index in range(count)}
    case = doubtful(POLICY, face=[0.5] * count, weapon=[0.4] * count)
    return prepare(POLICY, case, pictures, logprobs=logprobs)


def test_a_random_model_is_held_to_the_schema_and_its_usage_is_believed(vllm: Vllm, client: ChatClient) -> None:
    case = doubtful(POLICY, face=[0.5, 0.5], weapon=[0.4, 0.4])
    judgement = judge(POLICY, case, asked(), client)
    assert judgement.problem is None or "names none that shows it" in judgement.problem.detail, judgement.problem
    assert [verdict.question for verdict in judgement.verdicts] == ["face", "weapon"]
    assert all(verdict.answer in set(Answer) for verdict in judgement.verdicts)
    assert not judgement.estimated
    vllm.report["structured"] = {"tokens_out": judgement.usage.tokens_out, "requests": judgement.usage.requests}


def test_the_answer_is_streamed(vllm: Vllm, client: ChatClient) -> None:
    reply = client.complete(asked(10).request)
    assert reply.usage is not None
    assert reply.finish_reason == "stop"
    assert 0 < reply.timing.ttft_s < reply.timing.total_s
    tpot_s = reply.timing.tpot_s(reply.usage.completion_tokens)
    assert tpot_s is not None
    vllm.report["stream"] = {"ttft_s": round(reply.timing.ttft_s, 3), "tpot_ms": round(tpot_s * 1000, 2)}


def test_a_picture_takes_the_tokens_that_the_policy_expects(vllm: Vllm, client: ChatClient) -> None:
    replies = {count: client.complete(asked(20, count).request) for count in (1, 3)}
    one, three = (replies[count].usage for count in (1, 3))
    assert one is not None
    assert three is not None
    text = len(asked(20, 3).request.text) - len(asked(20, 1).request.text)  # a byte is a token here
    expected = (asked(20, 3).shown.tokens - asked(20, 1).shown.tokens) + text
    assert three.prompt_tokens - one.prompt_tokens == pytest.approx(expected, rel=0.1)
    vllm.report["pictures"] = {"expected_tokens": expected, "tokens": three.prompt_tokens - one.prompt_tokens}


def test_one_picture_too_many_is_a_refused_request(client: ChatClient) -> None:
    many = tuple(jpegs(MOST_IMAGES + 1).values())
    with pytest.raises(AnswerError) as caught:
        client.complete(replace(asked().request, images=many))
    assert caught.value.reason is Reason.VLM_REQUEST_REFUSED


def test_a_model_that_is_not_served_is_the_engines_fault(client: ChatClient) -> None:
    with pytest.raises(TransientError) as caught:
        client.complete(replace(asked().request, model="other"))
    assert caught.value.reason is Reason.VLM_UNAVAILABLE


def test_scores_come_from_token_probabilities(vllm: Vllm, client: ChatClient) -> None:
    case = doubtful(POLICY, face=[0.5, 0.5], weapon=[0.4, 0.4])
    judgement = judge(POLICY, case, asked(30, logprobs=True), client)
    if judgement.problem is None:
        assert judgement.source is ScoreSource.LOGPROBS
        assert all(0 < verdict.score < 1 for verdict in judgement.verdicts)
    reply = client.complete(asked(31, logprobs=True).request)
    assert spoken(reply.tokens, reply.text)
    vllm.report["logprobs"] = {"scores": [round(verdict.score, 3) for verdict in judgement.verdicts]}


def test_the_constant_prompt_is_found_in_the_prefix_cache(vllm: Vllm, client: ChatClient) -> None:
    client.complete(asked(40).request)
    hits, queries = (vllm.metric(f"vllm:prefix_cache_{name}_total") for name in ("hits", "queries"))
    reply = client.complete(asked(41).request)
    hits, queries = (
        vllm.metric("vllm:prefix_cache_hits_total") - hits,
        vllm.metric("vllm:prefix_cache_queries_total") - queries,
    )
    assert reply.usage is not None
    constant = len(asked().request.system)  # a byte is a token here
    assert hits == reply.usage.cached_tokens
    assert hits >= 0.85 * constant  # whole blocks of 128 tokens
    vllm.report["prefix_cache"] = {
        "constant_tokens": constant, "hit_tokens": hits, "prompt_tokens": reply.usage.prompt_tokens,
        "share_of_prompt": round(hits / queries, 3),
    }  # fmt: skip


def test_more_requests_than_the_engine_runs_at_once_lower_the_limit_and_all_are_answered(
    vllm: Vllm, client: ChatClient
) -> None:
    limiter = AdaptiveLimiter(most=16, ttft_goal_s=0.5)
    engine = LimitedEngine(client, limiter, Metrics(CollectorRegistry()))
    waiting: list[float] = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.2):
            waiting.append(vllm.metric("vllm:num_requests_waiting"))

    def ask(request: ChatRequest) -> ChatReply:
        return engine.complete(request)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        with ThreadPoolExecutor(12) as threads:  # a burst that ignores the limiter's advice: the queue is the engine's
            replies = list(threads.map(ask, [asked(50 + number).request for number in range(12)]))
    finally:
        done.set()
        watcher.join()
    assert all(reply.finish_reason == "stop" for reply in replies)
    assert max(waiting) >= 1
    assert limiter.limit < 4
    slowest, quickest = max(r.timing.ttft_s for r in replies), min(r.timing.ttft_s for r in replies)
    assert slowest > quickest
    vllm.report["back_pressure"] = {
        "requests": len(replies), "sequences": MOST_SEQUENCES, "most_waiting": max(waiting),
        "ttft_s": [round(quickest, 2), round(slowest, 2)], "limit_after": round(limiter.limit, 2),
    }  # fmt: skip


def test_the_check_finds_it_usable_but_for_its_knowledge(vllm: Vllm, client: ChatClient) -> None:
    findings = {
        found.name: found for found in check_engine(client, model=MODEL, images=ImagesPart(max_images=MOST_IMAGES))
    }
    for name in ("reachable", "stream", "schema", "pictures", "picture_tokens", "prefix_cache", "logprobs"):
        assert findings[name].grade is Grade.OK, findings[name]
    assert findings["known_answers"].grade is not Grade.OK  # it knows nothing
    vllm.report["check"] = {found.name: found.found for found in findings.values()}
