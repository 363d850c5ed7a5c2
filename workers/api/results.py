"""Result documents as the API shows them: pictures as signed URLs, people's answers merged in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pipeline.advice import advice
from pipeline.runs import RunView, VerdictView
from pipeline.verdict import RunState
from workers.api.ports import Context

Document = dict[str, Any]

ENDED_WITHOUT_RESULT = frozenset({RunState.REJECTED, RunState.FAILED, RunState.SUPERSEDED})


def read_document(context: Context, result_key: str) -> Document:
    """The stored result document. Raises PermanentError(NOT_FOUND) where it was erased."""
    document: Document = json.loads(context.objects.get(context.settings.storage.artifacts_bucket, result_key))
    return document


def picture_signer(context: Context) -> tuple[Callable[[str], str], datetime]:
    """Turns artifact keys into URLs, and says until when these are valid."""
    bucket, expires_s = context.settings.storage.artifacts_bucket, context.settings.api.result_expires_s
    expires_at = datetime.now(UTC) + timedelta(seconds=expires_s)
    return lambda key: context.objects.presigned_get(bucket, key, expires_s), expires_at


def shown_document(stored: Mapping[str, Any], run: RunView, sign: Callable[[str], str]) -> Document:
    """`stored` with signed pictures, the run's state as it is now, and the answers that hold."""
    return {
        **stored,
        "state": run.state.value,
        "keyframes": [_with_url(keyframe, sign) for keyframe in stored.get("keyframes", [])],
        "verdicts": _merged(stored.get("verdicts", []), {view.question: view for view in run.verdicts}),
    }


def rejection(run: RunView) -> Document:
    why = {"reason": run.reason, "detail": run.detail, "advice": advice(run.reason or "")}
    return {"state": run.state.value, "rejected": why}


def evidence_pictures(stored: Mapping[str, Any], evidence: Sequence[int], sign: Callable[[str], str]) -> list[Document]:
    """The pictures behind a verdict, as far as they are kept."""
    keyframes = stored.get("keyframes", [])
    return [
        {"keyframe": index, "t_s": keyframes[index]["t_s"], "image": sign(keyframes[index]["image"])}
        for index in evidence
        if 0 <= index < len(keyframes) and keyframes[index].get("image")
    ]


def _with_url(keyframe: Mapping[str, Any], sign: Callable[[str], str]) -> Document:
    key = keyframe.get("image")
    return {**keyframe, "image": sign(key) if key else None}


def _merged(verdicts: Sequence[Mapping[str, Any]], views: Mapping[str, VerdictView]) -> list[Document]:
    merged = []
    for verdict in verdicts:
        view = views.get(verdict["question"])
        merged.append(
            {
                **verdict,
                "answer": view.answer.value if view else verdict["answer"],
                "machine_answer": view.machine_answer.value if view else verdict["answer"],
                "answered_by": view.answered_by if view else None,
            }
        )
    return merged
