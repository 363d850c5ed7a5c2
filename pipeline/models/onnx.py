"""ONNX Runtime sessions that run where they were told to, or say why not."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped]
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state  # type: ignore[import-untyped]

from pipeline.errors import FatalError, Reason, TransientError

Device = Literal["auto", "cpu", "cuda", "tensorrt"]
Where = Literal["cpu", "cuda", "tensorrt"]
"""Where a session really runs."""

_TENSORRT = "TensorrtExecutionProvider"
_CUDA = "CUDAExecutionProvider"
_CPU = "CPUExecutionProvider"
_CUDA_OPTIONS = {"cudnn_conv_algo_search": "HEURISTIC"}  # the default search runs anew for each batch size
_REMEDIES = {
    "cuda": "install onnxruntime-gpu with its CUDA and cuDNN libraries and check `nvidia-smi`, "
    "or set the device to 'auto' or 'cpu'",
    "tensorrt": "install onnxruntime-gpu with the CUDA, cuDNN and TensorRT libraries of its release, "
    "or set the device to 'cuda', 'auto' or 'cpu'",
}

# ONNX Runtime's own exceptions share no base but Exception.
RUNTIME_ERRORS: tuple[type[Exception], ...] = (
    ort_state.Fail,
    ort_state.EPFail,
    ort_state.EngineError,
    ort_state.InvalidArgument,
    ort_state.InvalidGraph,
    ort_state.InvalidProtobuf,
    ort_state.NoModel,
    ort_state.NoSuchFile,
    ort_state.NotImplemented,
    ort_state.RuntimeException,
    RuntimeError,
    ValueError,
)


class Session:
    """One model, loaded, with one float32 input and one output. Threads may share it.

    With one intra-op thread a run stays on the caller's thread. With more, ONNX Runtime's pool helps; its
    threads sleep rather than spin between runs, since they share the cores with the decoders.
    """

    def __init__(
        self,
        weights: bytes,
        *,
        name: str,
        device: Device = "auto",
        threads: int = 1,
        engines_dir: Path | None = None,
    ) -> None:
        """`engines_dir` keeps what TensorRT builds, which takes minutes, for the next start.

        Raises FatalError: DEVICE_UNAVAILABLE when `cuda` or `tensorrt` is demanded and cannot be had, BAD_MODEL when
        the weights cannot be loaded or have another number or type of inputs and outputs.
        """
        self._name = name
        self._session = _load(weights, name, device, threads, engines_dir)
        self.device: Where = _where(self._session.get_providers())
        if device not in {"auto", self.device}:
            raise _unavailable(device, f"its libraries could not be loaded, and the model would run on {self.device}")
        self.cpu_clock = cpu_clock(threads)
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        if len(inputs) != 1 or len(outputs) != 1:
            raise _bad(name, f"it has {len(inputs)} inputs and {len(outputs)} outputs, expected one of each")
        if inputs[0].type != "tensor(float)":
            raise _bad(name, f"its input is {inputs[0].type}, expected tensor(float): export it in float32")
        self._input_name: str = inputs[0].name
        self.input_shape = tuple(size if isinstance(size, int) else None for size in inputs[0].shape)
        """None stands for a size that is free."""
        self.metadata: dict[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)

    def run(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        """The output for one batch. Raises TransientError(MODEL_UNAVAILABLE) when the device fails."""
        try:
            (output,) = self._session.run(None, {self._input_name: batch})
        except RUNTIME_ERRORS as error:
            raise TransientError(
                Reason.MODEL_UNAVAILABLE, f"model '{self._name}' failed on {self.device}: {_first_line(error)}"
            ) from error
        return np.asarray(output, dtype=np.float32)


def runtime_description() -> str:
    """Version and execution providers of the installed ONNX Runtime, for people."""
    return f"{ort.__version__}: {', '.join(ort.get_available_providers())}"


def cpu_clock(threads: int) -> Callable[[], float]:
    """A clock of the CPU seconds that inference takes.

    With one thread, the calling thread's own time: exact, whatever else the process does. With more, the
    whole process's time, the only one that sees ONNX Runtime's pool: an upper bound where other work runs
    beside it. Neither counts a GPU's time.
    """
    return time.thread_time if threads == 1 else time.process_time


def providers_for(
    device: Device, offered: Sequence[str], engines_dir: Path | None = None
) -> list[str | tuple[str, dict[str, str]]]:
    """What a session is to try, in order. Raises FatalError(DEVICE_UNAVAILABLE) where the demanded is not offered.

    `auto` takes CUDA where it is, never TensorRT: to build engines for minutes at a start is for who asked for it.
    """
    demanded = {"cuda": _CUDA, "tensorrt": _TENSORRT}.get(device)
    if demanded is not None and demanded not in offered:
        raise _unavailable(device, f"this ONNX Runtime offers only {', '.join(offered)}")
    providers: list[str | tuple[str, dict[str, str]]] = []
    if device == "tensorrt":
        kept = {"trt_engine_cache_enable": "1", "trt_engine_cache_path": str(engines_dir)} if engines_dir else {}
        providers.append((_TENSORRT, kept))
    if device != "cpu" and _CUDA in offered:
        providers.append((_CUDA, _CUDA_OPTIONS))  # takes what TensorRT cannot
    return [*providers, _CPU]


def prepare_cuda(device: Device) -> None:
    """Find CUDA libraries that pip installed. Call once, before any session, while nothing prints results."""
    if device != "cpu" and _CUDA in ort.get_available_providers() and hasattr(ort, "preload_dlls"):
        with contextlib.redirect_stdout(sys.stderr):  # it prints what it cannot find; stdout is for results
            ort.preload_dlls()


def _load(weights: bytes, name: str, device: Device, threads: int, engines_dir: Path | None) -> Any:
    providers = providers_for(device, ort.get_available_providers(), engines_dir)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        # Without enable_fallback=0 a failing GPU silently becomes a CPU, at loading or in the middle of a run.
        return ort.InferenceSession(weights, options, providers=providers, enable_fallback=0)
    except ort_state.EPFail as error:
        raise _unavailable(device, _first_line(error)) from error
    except RUNTIME_ERRORS as error:
        raise _bad(name, f"it cannot be loaded: {_first_line(error)}") from error


def _where(providers: Sequence[str]) -> Where:
    return "tensorrt" if _TENSORRT in providers else "cuda" if _CUDA in providers else "cpu"


def _unavailable(device: Device, why: str) -> FatalError:
    remedy = _REMEDIES.get(device, _REMEDIES["cuda"])
    return FatalError(Reason.DEVICE_UNAVAILABLE, f"device '{device}' is not available: {why}; {remedy}")


def _bad(name: str, what: str) -> FatalError:
    return FatalError(Reason.BAD_MODEL, f"model '{name}': {what}")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
