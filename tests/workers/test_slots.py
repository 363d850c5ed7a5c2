from __future__ import annotations

import threading
from collections.abc import Sequence

import cv2
import numpy as np
import pytest

from pipeline.detections import Scored
from pipeline.media import BgrImage
from workers.slots import SlottedModels, one_thread_each


class Slow:
    """A model that counts how many ask it at once, and waits until it is told to go on."""

    weights_sha256 = "w"
    reading_sha256 = "r"
    labels: Sequence[str] = ("a",)
    batch_size = 3

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.at_once = self.most = 0
        self._lock = threading.Lock()

    def scorer(self, name: str, input_px: int | None = None) -> Slow:
        assert (name, input_px) == ("slow", 64)
        return self

    def score(self, images: Sequence[BgrImage]) -> Scored:
        with self._lock:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        assert self.go_on.wait(5)
        with self._lock:
            self.at_once -= 1
        if len(images) == 2:
            raise ZeroDivisionError
        return Scored((), 0.0)


def test_no_more_inferences_run_at_once_than_there_are_slots() -> None:
    slow = Slow()
    models = SlottedModels(slow, threading.BoundedSemaphore(2))
    image = np.zeros((4, 4, 3), np.uint8)
    threads = [threading.Thread(target=models.scorer("slow", 64).score, args=[[image]]) for _ in range(6)]
    for thread in threads:
        thread.start()
    threading.Event().wait(0.05)
    slow.go_on.set()
    for thread in threads:
        thread.join(5)
    assert slow.most == 2


def test_a_slot_is_free_again_after_a_failure_and_what_the_model_says_of_itself_passes_through() -> None:
    slow = Slow()
    slow.go_on.set()
    scorer = SlottedModels(slow, threading.BoundedSemaphore(1)).scorer("slow", 64)
    image = np.zeros((4, 4, 3), np.uint8)
    with pytest.raises(ZeroDivisionError):
        scorer.score([image, image])
    assert scorer.score([image]) == Scored((), 0.0)
    assert (scorer.weights_sha256, scorer.reading_sha256, scorer.labels, scorer.batch_size) == ("w", "r", ("a",), 3)


def test_opencv_keeps_to_the_calling_thread() -> None:
    before = cv2.getNumThreads()
    try:
        one_thread_each()
        assert cv2.getNumThreads() == 1
    finally:
        cv2.setNumThreads(before)
