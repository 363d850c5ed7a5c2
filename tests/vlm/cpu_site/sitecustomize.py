"""Lets a torchvision built for CUDA be imported beside a torch built for the CPU; on PYTHONPATH of the test's vLLM.

The package index carries no torchvision for the CPU. Its compiled operators cannot load then, and its Python part, all
that image preprocessing needs, stops at the two that it wants to describe. So these are declared beforehand.
"""

import contextlib
import sys
from importlib.machinery import ModuleSpec
from typing import Any


class _BeforeTorchvision:
    """Declares both operators when torchvision is about to be imported."""

    kept: Any = None

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == "torchvision" and self.kept is None:
            import torch

            with contextlib.suppress(RuntimeError):  # a torchvision that fits has declared it itself
                self.kept = torch.library.Library("torchvision", "DEF")
                for name_ in ("nms", "qnms"):
                    self.kept.define(f"{name_}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return None


sys.meta_path.insert(0, _BeforeTorchvision())
