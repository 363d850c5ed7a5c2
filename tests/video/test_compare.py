from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.video.compare import median_level


@given(st.lists(st.integers(0, 255), min_size=1, max_size=60))
def test_the_median_by_counting_is_the_median(values: list[int]) -> None:
    levels = np.array(values, np.uint8)
    assert median_level(levels) == float(np.median(levels))
