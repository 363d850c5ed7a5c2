"""Result documents as the real cascade makes them, about synthetic pictures: a street, faces, a doubtful scene.

`python -m tests.report.samples PATH` writes the page to PATH, to look at.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np

import pipeline
from pipeline.analyze import Analysis
from pipeline.cascade.cascade import run_cascade
from pipeline.cascade.cost import bill
from pipeline.cascade.policy import Policy
from pipeline.cascade.policy_file import parse_policy
from pipeline.detections import Box, Detection, Findings, Scored
from pipeline.document import Document, analysis_document, keyframes_document, rejected_document
from pipeline.errors import PermanentError, Reason
from pipeline.jpeg import encode_jpeg
from pipeline.media import BgrImage, Extraction, ExtractionCost, Keyframe, KeyframeReason, VideoInfo
from pipeline.report import render_report

HOSTILE_NAME = "uploads/</title><script>alert('x')</script>\"onload=alert(1) x='\u202egpj.exe\x00\udcff&amp;.mp4"
FACE, EXPOSED = "FACE_FEMALE", "FEMALE_BREAST_EXPOSED"
_REASONS = (KeyframeReason.START, KeyframeReason.SCENE_CUT, KeyframeReason.MOTION, KeyframeReason.COVERAGE)


def moderation() -> Policy:
    path = Path(pipeline.__file__).parent / "policies" / "moderation.yaml"
    return parse_policy(path.read_text(encoding="utf-8"), origin=path.name)


@dataclass
class ScriptedModels:
    """Plays every model: `faces[i]`, `exposed[i]` and `nsfw[i]` are the scores of the i-th keyframe."""

    policy: Policy
    faces: Sequence[float]
    exposed: Sequence[float]
    nsfw: Sequence[float]
    images: Sequence[BgrImage] = ()
    batch_size: int = 4
    labels: tuple[str, ...] = ()
    weights_sha256: str = ""
    reading_sha256: str = ""
    _name: str = field(default="")

    def scorer(self, name: str, input_px: int | None = None) -> ScriptedModels:
        asked = {q: r for stage in self.policy.decision.stages if stage.model == name for q, r in stage.answers.items()}
        self.labels = tuple(label for rule in asked.values() for label in rule.labels)
        self.weights_sha256 = self.policy.decision.models[name].weights
        self.reading_sha256 = self.policy.decision.models[name].reading or ""
        self._name = name
        return self

    def score(self, images: Sequence[BgrImage]) -> Scored:
        indices = [next(i for i, known in enumerate(self.images) if known is image) for image in images]
        return Scored(tuple(self._findings(i) for i in indices), cpu_s=0.034 * len(images))

    def _findings(self, i: int) -> Findings:
        if self._name == "open-nsfw":
            return Findings((Detection("nsfw", self.nsfw[i]), Detection("sfw", 1 - self.nsfw[i])))
        height, width = self.images[i].shape[:2]
        left, top = width * (0.15 + 0.08 * (i % 5)), height * 0.18
        seen = [
            Detection(FACE, self.faces[i], Box(left, top, left + width * 0.16, top + height * 0.34)),
            Detection(EXPOSED, self.exposed[i], Box(left - 20, height * 0.56, left + width * 0.25, height * 0.86)),
            Detection("ARMPITS_COVERED", 0.12, Box(3, 3, 30, 30)),
        ]
        return Findings(tuple(sorted((d for d in seen if d.score > 0), key=lambda d: -d.score)))


def picture(i: int, width_px: int = 1280, height_px: int = 720, seed: int = 0) -> BgrImage:
    """(height_px, width_px, 3) BGR: sky, ground and somebody who moves to the right with `i`."""
    hue = (seed * 37) % 180
    sky = np.linspace(230, 150, height_px, dtype=np.uint8)[:, None].repeat(width_px, 1)
    hsv = np.dstack([np.full_like(sky, hue), np.full_like(sky, 70), sky])
    image: BgrImage = cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR).astype(np.uint8)
    cv2.rectangle(image, (0, int(height_px * 0.75)), (width_px, height_px), (70, 90, 80), -1)
    x, y = int(width_px * (0.23 + 0.08 * (i % 5))), int(height_px * 0.35)
    cv2.ellipse(
        image, (x, int(height_px * 0.85)), (int(width_px * 0.12), int(height_px * 0.33)), 0, 0, 360, (90, 60, 120), -1
    )
    cv2.ellipse(image, (x, y), (int(width_px * 0.06), int(height_px * 0.15)), 0, 0, 360, (150, 180, 225), -1)
    for side in (-1, 1):
        cv2.circle(
            image, (x + side * int(width_px * 0.022), y - height_px // 40), max(2, width_px // 160), (40, 40, 40), -1
        )
    noise = np.random.default_rng(seed * 1000 + i).integers(0, 9, image.shape, dtype=np.uint8)
    return image + noise


@dataclass
class Shelf:
    """Pictures by name, as a folder or bucket would hold them."""

    stored: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def read(self, name: str) -> bytes | None:
        self.asked.append(name)
        return self.stored.get(name)


def extraction(
    images: Sequence[BgrImage], *, duration_s: float = 62.4, warnings: tuple[str, ...] = (), coverage: float = 1.0
) -> Extraction:
    step_s = duration_s / max(1, len(images))
    keyframes = tuple(
        Keyframe(
            t_s=i * step_s + (i % 3) * 0.4,
            pts=int(i * step_s * 12800),
            reason=_REASONS[1 + i % 3 if i else 0],
            score=0.97 - 0.06 * (i % 9),
        )
        for i in range(len(images))
    )
    height_px, width_px = images[0].shape[:2] if images else (720, 1280)
    return Extraction(
        video=VideoInfo(
            duration_s, width_px, height_px, 0, "h264", "mov,mp4,m4a", int(duration_s * 30), Fraction(1, 12800)
        ),
        cuts_s=tuple(k.t_s for k in keyframes if k.reason is KeyframeReason.SCENE_CUT),
        motion_s=tuple((k.t_s - 0.5, k.t_s + 4.25) for k in keyframes if k.reason is KeyframeReason.MOTION),
        keyframes=keyframes,
        images=tuple(images),
        warnings=warnings,
        coverage=coverage,
        cost=ExtractionCost(
            cpu_s=0.0137 * duration_s,
            bytes_read=int(61_000 * duration_s),
            file_bytes=int(310_000 * duration_s),
            ranges=7,
            frames_decoded=int(duration_s * 0.8),
        ),
    )


def analysed(
    path: str,
    *,
    faces: Sequence[float],
    exposed: Sequence[float],
    nsfw: Sequence[float] = (),
    images: Sequence[BgrImage] | None = None,
    names: Sequence[str | None] | None = None,
    taken: Extraction | None = None,
) -> Document:
    """An analysis document; `names` are the stored pictures' names."""
    policy = moderation()
    shown = images if images is not None else [picture(i) for i in range(len(faces))]
    taken = taken or extraction(shown)
    models = ScriptedModels(policy, faces, exposed, nsfw or [0.05] * len(faces), taken.images)
    outcome = run_cascade(policy, taken.images, models, coverage=taken.coverage)
    analysis = Analysis(taken, outcome, bill(policy, taken, outcome))
    return analysis_document(path, policy, analysis, names or [None] * len(taken.images))


def rejected(path: str, reason: Reason, detail: str) -> Document:
    return rejected_document(path, PermanentError(reason, detail))


def gallery() -> tuple[list[Document], Shelf]:
    """One video of every kind, with pictures."""
    shelf = Shelf()

    def stored(video: int, count: int, width_px: int = 1280, height_px: int = 720) -> tuple[list[BgrImage], list[str]]:
        images = [picture(i, width_px, height_px, seed=video) for i in range(count)]
        names = [f"keyframes/{video}/{i}.jpg" for i in range(count)]
        shelf.stored.update({name: encode_jpeg(image) for name, image in zip(names, images, strict=True)})
        return images, names

    street, street_names = stored(1, 5)
    doubt, doubt_names = stored(2, 6)
    tall, tall_names = stored(3, 4, 720, 1280)
    cut_short, cut_short_names = stored(4, 3)
    plain, plain_names = stored(5, 4)
    documents = [
        analysed(
            "claims/2026/front-camera 0412.mp4",
            faces=[0.91, 0.3, 0.72, 0, 0.1],
            exposed=[0.04] * 5,
            images=street,
            names=street_names,
        ),
        analysed(
            "uploads/beach volleyball.mov",
            faces=[0.2, 0.21, 0.1, 0, 0.05, 0.2],
            exposed=[0.1, 0.62, 0.05, 0.41, 0.2, 0.33],
            nsfw=[0, 0.55, 0, 0.12, 0, 0.31],
            images=doubt,
            names=doubt_names,
        ),
        analysed(
            "uploads/portrait.mp4",
            faces=[0.88, 0.9, 0.7, 0.8],
            exposed=[0.03, 0.93, 0.4, 0.1],
            images=tall,
            names=tall_names,
            taken=extraction(tall, duration_s=23.7),
        ),
        analysed(
            "field/drone-7/cut short.mp4",
            faces=[0.1, 0.2, 0.05],
            exposed=[0.02, 0.1, 0.03],
            images=cut_short,
            names=cut_short_names,
            taken=extraction(
                cut_short,
                duration_s=187.2,
                warnings=(
                    "truncated: the pictures end 131.0 s before the declared end",
                    "damaged: reading stopped after 1689 samples: InvalidDataError",
                ),
                coverage=0.31,
            ),
        ),
        analysed(
            HOSTILE_NAME,
            faces=[0.0, 0.1, 0.2, 0.1],
            exposed=[0.0, 0.3, 0.1, 0.0],
            nsfw=[0.1] * 4,
            images=plain,
            names=plain_names,
        ),
        keyframes_document("uploads/keyframes only.mkv", extraction(plain, duration_s=3754.0), plain_names),
        rejected("uploads/invoice.pdf.mp4", Reason.NOT_A_VIDEO, "starts with %PDF: no container that is known"),
        rejected(
            "uploads/</code><img src=x onerror=alert(1)>.mp4", Reason.EMPTY_FILE, "0 bytes <script>alert(2)</script>"
        ),
        rejected("uploads/podcast.m4a", Reason.NO_VIDEO_STREAM, "holds 1 audio stream"),
    ]
    return documents, shelf


def crowd(videos: int, keyframes: int = 5) -> tuple[list[Document], Shelf]:
    """Many videos that share a handful of pictures."""
    shelf = Shelf({f"{i}.jpg": encode_jpeg(picture(i)) for i in range(keyframes)})
    images = [np.zeros((720, 1280, 3), np.uint8) for _ in range(keyframes)]
    taken = extraction(images)
    names = [f"{i}.jpg" for i in range(keyframes)]
    kinds = [
        analysed(
            "",
            faces=[face] * keyframes,
            exposed=[exposed] * keyframes,
            nsfw=[nsfw] * keyframes,
            images=images,
            names=names,
            taken=taken,
        )
        for face, exposed, nsfw in ((0.9, 0.1, 0.0), (0.1, 0.1, 0.0), (0.8, 0.5, 0.1), (0.4, 0.6, 0.5))
    ]
    return [{**kinds[i % 4], "path": f"uploads/2026/video {i:04d}.mp4"} for i in range(videos)], shelf


if __name__ == "__main__":
    shown, shelf = crowd(int(sys.argv[2])) if len(sys.argv) > 2 else gallery()
    page = render_report(shown, title="Moderation of uploads", read_image=shelf.read)
    Path(sys.argv[1]).write_text(page, encoding="utf-8")
