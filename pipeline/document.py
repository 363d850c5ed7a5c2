"""Results as plain JSON values: the one place that knows the shape of what machines read. Pure.

One document per video. `keyframes_document` is what `videosieve keyframes` prints; `analysis_document` adds the
decision; `rejected_document` stands in for either when the video itself is at fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pipeline.advice import advice
from pipeline.analyze import Analysis
from pipeline.cascade.cost import Bill
from pipeline.cascade.policy import Policy
from pipeline.detections import Detection
from pipeline.errors import VideosieveError
from pipeline.media import Extraction
from pipeline.verdict import StageRecord, Verdict

SCHEMA_VERSION = 1

Document = dict[str, Any]


def keyframes_document(path: str, extraction: Extraction, images: Sequence[str | None]) -> Document:
    """What is in a video; `images[i]` is where the i-th keyframe's picture was written, None where it was not."""
    video, cost = extraction.video, extraction.cost
    return {
        "schema_version": SCHEMA_VERSION,
        "path": path,
        "video": {
            "duration_s": _rounded(video.duration_s, 3),
            "width_px": video.width_px,
            "height_px": video.height_px,
            "rotation_deg": video.rotation_deg,
            "codec": video.codec,
            "container": video.container,
            "frames": video.frames,
            "time_base": f"{video.time_base.numerator}/{video.time_base.denominator}",
        },
        "cuts_s": [_rounded(t_s, 3) for t_s in extraction.cuts_s],
        "motion_s": [[_rounded(start_s, 3), _rounded(end_s, 3)] for start_s, end_s in extraction.motion_s],
        "keyframes": [
            {
                "t_s": _rounded(keyframe.t_s, 3),
                "pts": keyframe.pts,
                "reason": keyframe.reason.value,
                "score": _rounded(keyframe.score, 4),
                "image": image,
                "size_px": [pixels.shape[1], pixels.shape[0]],
            }
            for keyframe, pixels, image in zip(extraction.keyframes, extraction.images, images, strict=True)
        ],
        "warnings": list(extraction.warnings),
        "coverage": _rounded(extraction.coverage, 4),
        "cost": {
            "cpu_s": _rounded(cost.cpu_s, 4),
            "bytes_read": cost.bytes_read,
            "file_bytes": cost.file_bytes,
            "ranges": cost.ranges,
            "frames_decoded": cost.frames_decoded,
        },
    }


def analysis_document(path: str, policy: Policy, analysis: Analysis, images: Sequence[str | None]) -> Document:
    """A keyframes document with the verdicts, the way through the cascade and the money."""
    return {
        **keyframes_document(path, analysis.extraction, images),
        "policy": {
            "name": policy.name,
            "decision_hash": policy.decision_hash,
            "owner": policy.commercial.owner,
            "questions": {
                name: {"text": question.text, "sensitive": question.sensitive}
                for name, question in policy.decision.questions.items()
            },
        },
        "state": analysis.outcome.state.value,
        "doubts": [
            {"question": doubt.question, "keyframes": list(doubt.keyframes)} for doubt in analysis.outcome.doubts
        ],
        "verdicts": [_verdict(verdict) for verdict in analysis.outcome.verdicts],
        "stages": [_stage(stage) for stage in analysis.outcome.stages],
        "money": _money(analysis.bill),
    }


def rejected_document(path: str, error: VideosieveError) -> Document:
    """Why a video got no result."""
    return {
        "schema_version": SCHEMA_VERSION,
        "path": path,
        "rejected": {"reason": error.reason.value, "detail": error.detail, "advice": advice(error.reason)},
    }


def _rounded(value: float, digits: int) -> float:
    """A plain float, also where numpy's was given: JSON knows no float32."""
    return round(float(value), digits)


def _verdict(verdict: Verdict) -> Document:
    return {
        "question": verdict.question,
        "answer": verdict.answer.value,
        "score": _rounded(verdict.score, 4),
        "stage": verdict.stage,
        "model": verdict.model,
        "weights_sha256": verdict.weights_sha256,
        "policy": verdict.policy,
        "decision_hash": verdict.decision_hash,
        "owner": verdict.owner,
        "evidence": list(verdict.evidence),
        "reason": verdict.reason.value if verdict.reason else None,
    }


def _stage(stage: StageRecord) -> Document:
    return {
        "stage": stage.stage,
        "model": stage.model,
        "weights_sha256": stage.weights_sha256,
        "asked": list(stage.asked),
        "settled": list(stage.settled),
        "cpu_s": _rounded(stage.cpu_s, 4),
        "device_s": _rounded(stage.device_s, 4),
        "images": stage.images,
        "usage": asdict(stage.usage),
        "money_nano": stage.money_nano,
        "scores": {
            question: [{"keyframe": index, "score": _rounded(score, 4)} for index, score in sorted(scores.items())]
            for question, scores in stage.scores.items()
        },
        "findings": [
            {"keyframe": index, "detections": [_detection(found) for found in findings.detections]}
            | ({} if findings.is_readable else {"readable": False})
            for index, findings in sorted(stage.findings.items())
        ],
    }


def _detection(detection: Detection) -> Document:
    box = detection.box
    return {
        "label": detection.label,
        "score": _rounded(detection.score, 4),
        "box_px": [_rounded(v, 1) for v in (box.left_px, box.top_px, box.right_px, box.bottom_px)] if box else None,
    }


def _money(bill: Bill) -> Document:
    return {
        "currency": bill.currency,
        "total_nano": bill.total_nano,
        "keyframes_nano": bill.keyframes_nano,
        "stages_nano": bill.stages_nano,
        "review_nano": bill.review_nano,
        "vlm_every_frame_nano": bill.vlm_every_frame_nano,
        "vlm_every_keyframe_nano": bill.vlm_every_keyframe_nano,
    }
