"""Policies, result documents and pictures for tests of judging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np

from pipeline.cascade.policy import Policy
from pipeline.jpeg import encode_jpeg
from pipeline.media import BgrImage
from pipeline.vlm.case import Case, case_of
from tests.cascade.fakes import document, rule, vlm

WIDTH_PX, HEIGHT_PX = 320, 240


def judged_policy(*questions: str, **fields: Any) -> Policy:
    """A cheap stage, doubtful between 0.2 and 0.8, and a VLM that answers the same questions."""
    questions = questions or ("face",)
    made = document({"cheap": {q: rule("a") for q in questions}}, vlm=vlm(*questions, **fields))
    made["commercial"]["prices"]["vlm"] = {"token_in": "0.000001", "token_cached": "0.0000001", "token_out": "0.00001"}
    return Policy.model_validate(made)


def picture(seed: int, *, text: str = "") -> BgrImage:
    """A coarse scene of its own, with `text` drawn across it in large letters."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    image = np.asarray(cv2.resize(coarse, (WIDTH_PX, HEIGHT_PX), interpolation=cv2.INTER_NEAREST), np.uint8)
    for number, line in enumerate(text.splitlines()):
        where = (6, 40 + 26 * number)
        cv2.putText(image, line, where, cv2.FONT_HERSHEY_SIMPLEX, 0.6, (0, 0, 0), 4)
        cv2.putText(image, line, where, cv2.FONT_HERSHEY_SIMPLEX, 0.6, (255, 255, 255), 1)
    return image


def screened(
    policy: Policy, scores: Mapping[str, Sequence[float]], *, path: str = "s3://b/v.mp4", **more: Any
) -> dict[str, Any]:
    """The result document of a run whose cheap stage gave `scores` (question → one a keyframe), all in doubt."""
    count = len(next(iter(scores.values())))
    return {
        "schema_version": 1,
        "path": path,
        "video": {"duration_s": 10.0, "width_px": WIDTH_PX, "height_px": HEIGHT_PX, "frames": 300},
        "keyframes": [
            {"t_s": float(i), "pts": i, "reason": "coverage", "score": 0.5, "image": f"{i:03d}.jpg"}
            | {"size_px": [WIDTH_PX, HEIGHT_PX]}
            for i in range(count)
        ],
        "warnings": [],
        "coverage": 1.0,
        "cost": {"cpu_s": 0.1, "bytes_read": 1, "file_bytes": 1, "ranges": 1, "frames_decoded": 1},
        "state": "escalated",
        "doubts": [{"question": question, "keyframes": list(range(count))} for question in scores],
        "verdicts": [
            {
                "question": question,
                "answer": "review",
                "score": max(given),
                "stage": "review",
                "model": "cheap",
                "weights_sha256": None,
                "policy": policy.name,
                "decision_hash": policy.decision_hash,
                "owner": "team",
                "evidence": list(range(count)),
                "reason": "no_vlm",
            }
            for question, given in scores.items()
        ],
        "stages": [
            {
                "stage": "cheap",
                "model": "cheap",
                "weights_sha256": "0" * 64,
                "asked": list(scores),
                "settled": [],
                "cpu_s": 0.1,
                "money_nano": 100,
                "scores": {
                    question: [{"keyframe": i, "score": score} for i, score in enumerate(given)]
                    for question, given in scores.items()
                },
                "findings": [
                    {"keyframe": i, "detections": [{"label": "a", "score": given[i], "box_px": None}]}
                    for given in list(scores.values())[:1]
                    for i in range(count)
                ],
            }
        ],
        "money": {"currency": "EUR", "total_nano": 200, "keyframes_nano": 100, "stages_nano": 100, "review_nano": 0},
    } | more


def doubtful(policy: Policy, **scores: Sequence[float]) -> Case:
    return case_of(policy, screened(policy, scores or {"face": [0.5, 0.4]}))


def jpegs(count: int, *, text: str = "") -> dict[int, bytes]:
    return {index: encode_jpeg(picture(index, text=text)) for index in range(count)}
