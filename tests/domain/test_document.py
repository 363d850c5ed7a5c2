from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import pytest

from pipeline.analyze import Analysis, analyze
from pipeline.cascade.cascade import run_cascade
from pipeline.cascade.cost import bill, stage_costs
from pipeline.detections import Box, Detection, Findings, Scored
from pipeline.document import analysis_document, keyframes_document, rejected_document
from pipeline.errors import PermanentError, Reason
from pipeline.jpeg import encode_jpeg
from pipeline.media import BgrImage, Extraction, KeyframeSettings
from pipeline.verdict import RunState
from pipeline.video.source import ByteRange, Source
from tests.cascade.fakes import FakeModels, FakeScorer, policy, rule, scripted, sha, vlm
from tests.domain.samples import extraction

POLICY = policy(
    {"cheap": {"p": rule("a"), "q": rule("b")}},
    questions={"p": {"text": "Is there p?", "sensitive": True}, "q": {"text": "Is there q?"}},
)


def analysis(found: Extraction | None = None, scorer: FakeScorer | None = None) -> Analysis:
    found = found or extraction()
    models = FakeModels(cheap=scorer or scripted("cheap", {"a": 0.123456789}, {"b": 0.5}))
    outcome = run_cascade(POLICY, found.images, models, coverage=found.coverage)
    return Analysis(found, outcome, bill(POLICY, found, outcome))


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        assert all(type(key) is str for key in value)
        for inner in value.values():
            yield from leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value


def assert_plain(document: dict[str, Any]) -> None:
    """Plain JSON values only, so that it reads back as it was written."""
    assert {type(leaf) for leaf in leaves(document)} <= {str, int, float, bool, type(None)}
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_a_keyframes_document_has_the_fields_of_the_contract() -> None:
    document = keyframes_document("clips/ü.mp4", extraction(), ["keyframes/000.jpg", None])
    assert document == {
        "schema_version": 1,
        "path": "clips/ü.mp4",
        "video": {
            "duration_s": 10.0,
            "width_px": 32,
            "height_px": 16,
            "rotation_deg": 90,
            "codec": "h264",
            "container": "mp4",
            "frames": 300,
            "time_base": "1/12800",
        },
        "cuts_s": [1.235],
        "motion_s": [[0.5, 2.0]],
        "keyframes": [
            {
                "t_s": 0.0,
                "pts": 0,
                "reason": "motion",
                "score": 0.1235,
                "image": "keyframes/000.jpg",
                "size_px": [32, 16],
            },
            {"t_s": 1.0, "pts": 512, "reason": "motion", "score": 0.1235, "image": None, "size_px": [32, 16]},
        ],
        "warnings": ["truncated"],
        "coverage": 0.9877,
        "cost": {"cpu_s": 0.3, "bytes_read": 1000, "file_bytes": 5000, "ranges": 3, "frames_decoded": 42},
    }
    assert_plain(document)


def test_a_video_without_keyframes_has_a_document_too() -> None:
    document = keyframes_document("x", extraction(keyframes=0, cuts_s=(), motion_s=(), warnings=()), [])
    assert (document["keyframes"], document["cuts_s"], document["motion_s"], document["warnings"]) == ([], [], [], [])


def test_pictures_that_do_not_match_the_keyframes_are_a_fault_of_ours() -> None:
    with pytest.raises(ValueError, match="zip"):
        keyframes_document("x", extraction(), [None])


def test_an_analysis_document_adds_verdicts_stages_and_money() -> None:
    plain = keyframes_document("x", extraction(), [None, None])
    document = analysis_document("x", POLICY, analysis(), [None, None])
    assert {name: document[name] for name in plain} == plain
    common = {
        "model": "cheap",
        "weights_sha256": sha("cheap"),
        "policy": "test",
        "decision_hash": POLICY.decision_hash,
        "owner": "team",
    }
    assert document["verdicts"] == [
        {"question": "p", "answer": "negative", "score": 0.1235, "stage": "cheap", "evidence": [0, 1], "reason": None}
        | common,
        {"question": "q", "answer": "review", "score": 0.5, "stage": "review", "evidence": [1], "reason": "undecided"}
        | common,
    ]
    assert document["state"] == "in_review"
    assert document["policy"] == {
        "name": "test",
        "decision_hash": POLICY.decision_hash,
        "owner": "team",
        "questions": {
            "p": {"text": "Is there p?", "sensitive": True},
            "q": {"text": "Is there q?", "sensitive": False},
        },
    }
    (stage,) = document["stages"]
    assert (stage["stage"], stage["model"], stage["asked"], stage["settled"]) == ("cheap", "cheap", ["p", "q"], ["p"])
    assert stage["findings"] == [
        {"keyframe": 0, "detections": [{"label": "a", "score": 0.1235, "box_px": None}]},
        {"keyframe": 1, "detections": [{"label": "b", "score": 0.5, "box_px": None}]},
    ]
    assert (document["money"]["currency"], document["money"]["total_nano"]) == ("EUR", 500_800_000)
    assert_plain(document)


def test_a_box_is_four_rounded_pixels() -> None:
    class Boxed(FakeScorer):
        def score(self, images: object) -> Scored:
            return Scored((Findings((Detection("a", 0.9, Box(1.26, 2, 3.04, 4)),)),), 0.1)

    found = extraction(keyframes=1)
    document = analysis_document("x", POLICY, analysis(found, Boxed([], sha("cheap"), ("a", "b"))), [None])
    assert document["stages"][0]["findings"][0]["detections"][0]["box_px"] == [1.3, 2.0, 3.0, 4.0]
    assert_plain(document)


@pytest.mark.parametrize("number", [np.float32, np.float64])
def test_numpys_numbers_do_not_leak_into_documents(number: type[Any]) -> None:
    found = extraction(
        cuts_s=(number(1.5),), motion_s=((number(0.5), number(2)),), coverage=number(1), cpu_s=number(0.5)
    )
    scorer = scripted("cheap", {"a": number(0.25)}, {"b": number(0.5)})
    assert_plain(analysis_document("x", POLICY, analysis(found, scorer), [None, None]))


def test_a_path_that_is_no_unicode_is_still_json() -> None:
    document = keyframes_document("a\udcff\n.mp4", extraction(), [None, None])
    assert json.loads(json.dumps(document))["path"] == "a\udcff\n.mp4"


def test_what_a_vlm_is_to_judge_stays_in_doubt_only_where_there_is_one() -> None:
    asked = policy({"cheap": {"p": rule("a"), "q": rule("b")}}, vlm=vlm("p", "q"))

    class Extractor:
        def extract(self, source: Source, settings: KeyframeSettings) -> Extraction:
            return extraction()

    for has_vlm, state, review_nano in ((True, RunState.ESCALATED, 0), (False, RunState.IN_REVIEW, 500_000_000)):
        models = FakeModels(cheap=scripted("cheap", {"a": 0.9, "b": 0.1}, {"b": 0.5}))
        result = analyze(Bytes(), asked, Extractor(), models, has_vlm=has_vlm)
        document = analysis_document("x", asked, result, [None, None])
        assert document["state"] == state
        assert document["doubts"] == ([{"question": "q", "keyframes": [1]}] if has_vlm else [])
        assert [(v["answer"], v["reason"]) for v in document["verdicts"]] == [("positive", None), ("review", "no_vlm")]
        assert result.bill.review_nano == review_nano
        costs = stage_costs(asked, result.extraction, result.outcome)
        assert sum(cost.money_nano for cost in costs) == result.bill.total_nano
        assert [cost.stage for cost in costs] == ["keyframes", "cheap", *([] if has_vlm else ["review"])]


def test_a_rejected_document_says_why() -> None:
    document = rejected_document("x.mp4", PermanentError(Reason.TOO_LONG, "longer than 4 h"))
    assert document == {
        "schema_version": 1,
        "path": "x.mp4",
        "rejected": {
            "reason": "too_long",
            "detail": "longer than 4 h",
            "advice": "The video is too long: cut it into shorter parts.",
        },
    }
    assert_plain(document)


class Bytes:
    """A source of nothing."""

    name = "nothing"
    size_bytes = 0

    def read_ranges(self, ranges: object) -> list[bytes]:
        return []


def test_analyze_extracts_by_the_policys_settings_and_judges_what_was_found() -> None:
    asked = list[KeyframeSettings]()

    class Extractor:
        def extract(self, source: Source, settings: KeyframeSettings) -> Extraction:
            asked.append(settings)
            assert source.read_ranges([ByteRange(0, 1)]) == []
            return extraction(coverage=0.1)

    tuned = policy({"cheap": {"p": rule("a")}}, keyframes={"per_minute": 7, "min_gap_s": 2, "max_keyframes": 9})
    result = analyze(Bytes(), tuned, Extractor(), FakeModels(cheap=scripted("cheap", {}, {})))
    assert asked == [KeyframeSettings(7.0, 2.0, 9)]
    assert [verdict.reason for verdict in result.outcome.verdicts] == [Reason.LOW_COVERAGE]
    assert result.bill.review_nano == 500_000_000


def decoded(data: bytes) -> BgrImage:
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    return image.astype(np.uint8)


def test_a_jpeg_keeps_size_and_colour_order() -> None:
    image = np.empty((48, 64, 3), dtype=np.uint8)
    image[:] = (200, 30, 90)
    back = decoded(encode_jpeg(image))
    assert back.shape == image.shape
    assert np.abs(back.astype(int) - image).max() <= 4


@pytest.mark.parametrize(
    ("height_px", "width_px", "shape"),
    [(100, 400, (25, 100)), (400, 100, (100, 25)), (100, 100, (100, 100)), (50, 60, (50, 60)), (1, 4000, (1, 100))],
)
def test_a_jpeg_is_scaled_down_to_its_longest_side_but_never_up(
    height_px: int, width_px: int, shape: tuple[int, int]
) -> None:
    image = np.zeros((height_px, width_px, 3), dtype=np.uint8)
    assert decoded(encode_jpeg(image, max_side_px=100)).shape[:2] == shape


@pytest.mark.parametrize("shape", [(0, 10, 3), (10, 0, 3), (1, 70_000, 3)])
def test_what_cannot_be_a_jpeg_is_a_value_error(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="cannot be a JPEG"):
        encode_jpeg(np.zeros(shape, dtype=np.uint8))
