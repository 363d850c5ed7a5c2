"""The saboteur's nursery on a kernel that offers seccomp, but not the other fence."""

from __future__ import annotations

import sys

from pipeline.video import child, confine, nursery
from tests.hostile.saboteur import Saboteur

if __name__ == "__main__":
    setattr(child, "Extractor", Saboteur)  # noqa: B010 - a plain assignment would need three excuses to mypy
    setattr(confine, "_landlock", lambda: False)  # noqa: B010 - likewise
    nursery.main(sys.argv[1:])
