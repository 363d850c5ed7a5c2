"""The whole algorithm on one page: a video goes in, a decision per question comes out.

    source ──▶ keyframes (in a child process) ──▶ cascade of models ──▶ verdicts ──▶ bill

Everything here goes through ports, so that the same page serves a file on a laptop and an object in S3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pipeline.cascade.cascade import run_cascade
from pipeline.cascade.cost import Bill, bill
from pipeline.cascade.policy import Policy
from pipeline.cascade.ports import Models
from pipeline.media import Extraction, KeyframeSettings
from pipeline.verdict import CascadeOutcome
from pipeline.video.source import Source


class Extractor(Protocol):
    """Takes keyframes from untrusted bytes; `pipeline.video.sandbox.DecoderPool` does it in child processes."""

    def extract(self, source: Source, settings: KeyframeSettings) -> Extraction: ...


@dataclass(frozen=True, slots=True)
class Analysis:
    """Everything that is known about one video after it was analysed."""

    extraction: Extraction
    outcome: CascadeOutcome
    bill: Bill


def analyze(source: Source, policy: Policy, extractor: Extractor, models: Models, *, has_vlm: bool = False) -> Analysis:
    """Decide `policy`'s questions about the video in `source`.

    With `has_vlm`, what the policy's VLM is to judge is left in doubt for it; else a person is asked.
    Raises PermanentError when the video is at fault, SupersededError when it was replaced meanwhile,
    TransientError when trying again may help, FatalError when policy and models do not fit.
    """
    extraction = extractor.extract(source, policy.decision.keyframes.settings())
    outcome = run_cascade(policy, extraction.images, models, coverage=extraction.coverage)
    if not has_vlm:
        outcome = outcome.without_doubts()
    return Analysis(extraction, outcome, bill(policy, extraction, outcome))
