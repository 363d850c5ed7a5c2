"""Asks a VLM about one video, and makes verdicts of what it says, believing nothing. Pure but for the engine's port.

    case ──▶ pictures within budget ──▶ one request ──▶ checked ──▶ scored ──▶ held against the cheap stages ──▶ verdict
                                            ▲  once more with what was wrong, where that can help
                                            └──────────────┘

Whatever the answer is, only an open question gets a verdict, only with an answer of the schema, and a doubt about the
answer itself sends the question to a person.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pipeline.cascade.policy import Policy
from pipeline.cascade.vlm_part import SamplingPart, VlmAnswer, VlmPart
from pipeline.chat import AnswerError, BrokenOffError, ChatReply, ChatRequest, Engine, Sampling, Timing
from pipeline.errors import Reason, TransientError
from pipeline.verdict import Answer, Verdict, VlmUsage
from pipeline.vlm.answers import Said, Statement, Statements, checked, schema_of
from pipeline.vlm.case import Case, OpenQuestion
from pipeline.vlm.pictures import Picture, Shown, choose
from pipeline.vlm.prompt import system_text, video_text
from pipeline.vlm.scores import ScoreSource, score_of

MOST_REQUESTS = 2
"""One, and one repair."""
STRONG = 0.75
"""A cheap stage that is three quarters of the way to an answer has a strong finding: a VLM that says the opposite is
not believed alone. What lies in the middle half is the VLM's to decide."""
_REPAIR_ANSWER_CHARS, _REPAIR_PROBLEM_CHARS = 1_000, 500
"""How much of a bad answer, and of what was wrong with it, is sent back."""
_CHAT_TOKENS = 512
"""What a chat template may add."""


class UnjudgedError(TransientError):
    """The engine failed before there was an answer to decide by. `usage` is what it may bill all the same."""

    def __init__(self, cause: TransientError, usage: VlmUsage) -> None:
        super().__init__(cause.reason, cause.detail, retry_after_s=cause.retry_after_s)
        self.usage = usage


@dataclass(frozen=True, slots=True)
class Asked:
    """A request ready to be sent, with the pictures that it shows."""

    request: ChatRequest
    shown: Shown

    @property
    def text_bytes(self) -> int:
        """UTF-8 length of all text at its longest, with a repair and what a chat template adds: what a worst case of
        tokens is counted from."""
        repair_bytes = 4 * (_REPAIR_ANSWER_CHARS + _REPAIR_PROBLEM_CHARS)
        return len((self.request.system + self.request.text).encode()) + repair_bytes + _CHAT_TOKENS


@dataclass(frozen=True, slots=True)
class Judgement:
    """What came of it: a verdict for every open question, in the policy's order, and all that it took.

    `scores` maps question → keyframe → probability of "yes". `problem` says why questions went to a person, where the
    answer itself was at fault. `timing` is that of the last answer, None where there was none. `estimated` tells that
    the engine's usage could not be believed, so that the worst case is charged.
    """

    verdicts: tuple[Verdict, ...]
    scores: dict[str, dict[int, float]]
    usage: VlmUsage
    estimated: bool
    seen: str
    source: ScoreSource | None
    timing: Timing | None
    shown: Shown
    problem: AnswerError | None = None

    @property
    def settled(self) -> tuple[str, ...]:
        return tuple(verdict.question for verdict in self.verdicts if verdict.answer is not Answer.REVIEW)


def prepare(policy: Policy, case: Case, jpegs: Mapping[int, bytes], *, logprobs: bool) -> Asked:
    """The request about `case`; `jpegs` holds its keyframes' JPEG files."""
    stage = _stage(policy)
    pictures = [
        Picture(index, jpegs[index], frame.width_px, frame.height_px, frame.interest)
        for index, frame in case.frames.items()
    ]
    shown = choose(pictures, stage.images)
    request = ChatRequest(
        model=stage.model,
        system=system_text(stage),
        text=video_text(case, shown.indices),
        images=shown.jpegs,
        schema=schema_of(case.questions, len(shown.indices)),
        sampling=sampling_of(stage.sampling),
        logprobs=logprobs,
    )
    return Asked(request, shown)


def judge(policy: Policy, case: Case, asked: Asked, engine: Engine) -> Judgement:
    """Ask, once more where that can help, and decide. Raises UnjudgedError when the engine is at fault."""
    usage, estimated = VlmUsage(), False
    reply: ChatReply | None = None
    problem: AnswerError | None = None
    statements: Statements | None = None
    request = asked.request
    for _ in range(MOST_REQUESTS):
        problem = reply = None
        try:
            reply = engine.complete(request)
            spent, is_estimate = _usage(asked, request, reply)
            usage, estimated = usage + spent, estimated or is_estimate
            statements = checked(reply, case.questions, len(asked.shown.indices))
            break
        except AnswerError as error:
            problem = error
            if reply is None and error.reason is not Reason.VLM_REQUEST_REFUSED:  # broken off: who knows what it took
                usage, estimated = usage + _worst(asked, request), True
            if not error.can_repair:
                break
            request = replace(asked.request, repair=_repair(error))
        except TransientError as error:
            if isinstance(error, BrokenOffError):
                usage += _worst(asked, request)
            raise UnjudgedError(error, usage) from error
    scores, source = _scores(statements, reply)
    return Judgement(
        verdicts=tuple(_verdict(policy, case, doubt, asked.shown, statements, scores, problem) for doubt in case.open),
        scores={
            question: {asked.shown.indices[number]: score for number in statements.of[question].images}
            for question, score in scores.items()
            if statements is not None
        },
        usage=usage,
        estimated=estimated,
        seen=statements.seen if statements else "",
        source=source,
        timing=reply.timing if reply else None,
        shown=asked.shown,
        problem=problem,
    )


def _repair(error: AnswerError) -> tuple[str, str]:
    return error.answer[:_REPAIR_ANSWER_CHARS], error.detail[:_REPAIR_PROBLEM_CHARS]


def sampling_of(part: SamplingPart) -> Sampling:
    return Sampling(part.temperature, part.top_p, part.top_k, part.max_tokens, part.seed)


def _scores(statements: Statements | None, reply: ChatReply | None) -> tuple[dict[str, float], ScoreSource | None]:
    """Question → probability of "yes", and the weakest source that any of them came from."""
    if statements is None or reply is None:
        return {}, None
    found = {q: score_of(q, statement, reply.text, reply.tokens) for q, statement in statements.of.items()}
    sources = {source for _, source in found.values()}
    weakest = ScoreSource.STATED if ScoreSource.STATED in sources else ScoreSource.LOGPROBS
    return {question: score for question, (score, _) in found.items()}, weakest


def _verdict(
    policy: Policy,
    case: Case,
    doubt: OpenQuestion,
    shown: Shown,
    statements: Statements | None,
    scores: Mapping[str, float],
    problem: AnswerError | None,
) -> Verdict:
    stage = _stage(policy)
    reason: Reason | None
    if statements is None:
        answer, reason = Answer.REVIEW, problem.reason if problem else Reason.VLM_INVALID_OUTPUT
        score, evidence = doubt.score, doubt.keyframes
    else:
        statement = statements.of[doubt.question]
        rule = stage.answers[doubt.question]
        score = rule.calibrated(scores[doubt.question])
        coverage = case.coverage * shown.share
        answer, reason = _answer(rule, statement, score, doubt, coverage >= policy.decision.min_coverage)
        named = tuple(shown.indices[number] for number in statement.images)
        evidence = (
            named if answer is Answer.POSITIVE else shown.indices if answer is Answer.NEGATIVE else doubt.keyframes
        )
    return Verdict(
        question=doubt.question,
        answer=answer,
        score=score,
        stage="review" if answer is Answer.REVIEW else stage.name,
        model=stage.model,
        weights_sha256=None,
        policy=policy.name,
        decision_hash=policy.decision_hash,
        owner=policy.commercial.owner,
        evidence=evidence,
        reason=reason,
    )


def _answer(
    rule: VlmAnswer, statement: Statement, score: float, doubt: OpenQuestion, is_enough_seen: bool
) -> tuple[Answer, Reason | None]:
    """What a checked statement is worth. Word and score must agree, and not against a strong finding."""
    lean = doubt.lean
    if statement.said is Said.YES and rule.is_yes(score):
        if lean is not None and lean <= 1 - STRONG:
            return Answer.REVIEW, Reason.VLM_DISAGREES
        return Answer.POSITIVE, None
    if statement.said is Said.NO and rule.is_no(score):
        if lean is not None and lean >= STRONG:
            return Answer.REVIEW, Reason.VLM_DISAGREES
        return (Answer.NEGATIVE, None) if is_enough_seen else (Answer.REVIEW, Reason.LOW_COVERAGE)
    return Answer.REVIEW, Reason.UNDECIDED


def _usage(asked: Asked, request: ChatRequest, reply: ChatReply) -> tuple[VlmUsage, bool]:
    """What the request took, by the engine's count where that can be true, else at its worst; whether it is that."""
    worst = _worst(asked, request)
    found = reply.usage
    if found is None or not (
        found.completion_tokens <= request.sampling.max_tokens
        and (found.completion_tokens > 0 or not reply.text)
        and found.prompt_tokens <= 4 * worst.tokens_in
    ):
        return worst, True
    return replace(
        worst,
        tokens_in=found.prompt_tokens,
        tokens_cached=found.cached_tokens,
        tokens_out=found.completion_tokens,
    ), False


def _worst(asked: Asked, request: ChatRequest) -> VlmUsage:
    text = request.system + request.text + "".join(request.repair or ())
    return VlmUsage(
        requests=1,
        tokens_in=len(text.encode()) + asked.shown.tokens + _CHAT_TOKENS,
        tokens_cached=0,
        tokens_out=request.sampling.max_tokens,
        bytes_sent=sum(map(len, request.images)),
    )


def _stage(policy: Policy) -> VlmPart:
    if policy.decision.vlm is None:
        raise ValueError(f"policy '{policy.name}' has no VLM stage")
    return policy.decision.vlm
