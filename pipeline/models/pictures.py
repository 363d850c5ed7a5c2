"""Pictures in a folder, for checks of models. They are the user's own: uploads are decoded in children."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from pipeline.errors import Reason, UserError
from pipeline.media import BgrImage

_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp"}


def pictures_in(folder: Path) -> list[BgrImage]:
    """All of them, by name. Raises UserError(BAD_INPUT) for one that cannot be read, or where there is none."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in _SUFFIXES:
            image = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_COLOR)
            if image is None:
                raise UserError(Reason.BAD_INPUT, f"{path} is no picture that can be read")
            found.append(image.astype(np.uint8, copy=False))
    if not found:
        raise UserError(Reason.BAD_INPUT, f"there is no picture in {folder}")
    return found
