from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
import pytest
from onnx import TensorProto, helper

from pipeline.errors import FatalError, Reason, TransientError
from pipeline.models.onnx import Device, Session, cpu_clock, prepare_cuda, providers_for
from tests.models import tiny

HAS_CUDA = "CUDAExecutionProvider" in onnxruntime.get_available_providers()


def test_a_session_runs_and_tells_its_shape_device_and_metadata() -> None:
    weights = tiny.says(tiny.yolo_output((1, 2, 3, 4, (0.5,))), width=64, metadata={"names": "['a']"})
    session = Session(weights, name="tiny", device="cpu")
    assert session.device == "cpu"
    assert session.input_shape == (None, 3, None, 64)
    assert session.metadata == {"names": "['a']"}
    output = session.run(np.zeros((2, 3, 32, 64), dtype=np.float32))
    assert output.shape == (2, 5, 8)
    assert output.dtype == np.float32
    assert output[:, :, 0].tolist() == [[1, 2, 3, 4, 0.5]] * 2


def test_threads_share_a_session() -> None:
    session = Session(tiny.channel_means(), name="tiny", device="cpu")
    batches = [np.full((1, 32, 32, 3), value, dtype=np.float32) for value in range(40)]
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(session.run, batches))
    assert [round(float(output[0, 0])) for output in outputs] == list(range(40))


@pytest.mark.skipif(HAS_CUDA, reason="this ONNX Runtime offers CUDA")
def test_demanding_cuda_without_it_fails_and_says_what_to_do() -> None:
    with pytest.raises(FatalError, match="onnxruntime-gpu") as caught:
        Session(tiny.channel_means(), name="tiny", device="cuda")
    assert caught.value.reason is Reason.DEVICE_UNAVAILABLE


def test_cuda_that_quietly_became_a_cpu_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU build without its CUDA libraries does: it offers CUDA and gives a session without it."""
    real = onnxruntime.InferenceSession

    def quietly(weights: bytes, options: object, **_: object) -> object:
        return real(weights, options, providers=["CPUExecutionProvider"])

    monkeypatch.setattr(onnxruntime, "InferenceSession", quietly)
    monkeypatch.setattr(
        onnxruntime,
        "get_available_providers",
        lambda: ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"],
    )
    devices: tuple[Device, ...] = ("cuda", "tensorrt")
    for device in devices:
        with pytest.raises(FatalError, match="libraries could not be loaded, and the model would run on cpu") as caught:
            Session(tiny.channel_means(), name="tiny", device=device)
        assert caught.value.reason is Reason.DEVICE_UNAVAILABLE
    assert Session(tiny.channel_means(), name="tiny", device="auto").device == "cpu"


CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"


@pytest.mark.parametrize(
    ("device", "offered", "tried"),
    [
        ("auto", [CPU], [CPU]),
        ("auto", [TENSORRT, CUDA, CPU], [CUDA, CPU]),
        ("cpu", [TENSORRT, CUDA, CPU], [CPU]),
        ("cuda", [TENSORRT, CUDA, CPU], [CUDA, CPU]),
        ("tensorrt", [TENSORRT, CUDA, CPU], [TENSORRT, CUDA, CPU]),
    ],
)
def test_a_device_is_tried_in_this_order(device: Device, offered: list[str], tried: list[str], tmp_path: Path) -> None:
    providers = providers_for(device, offered, tmp_path)
    assert [one if isinstance(one, str) else one[0] for one in providers] == tried
    if device == "tensorrt":
        assert providers[0][1] == {"trt_engine_cache_enable": "1", "trt_engine_cache_path": str(tmp_path)}


@pytest.mark.parametrize(("device", "offered"), [("cuda", [CPU]), ("tensorrt", [CUDA, CPU])])
def test_a_demanded_device_that_is_not_offered_is_refused(device: Device, offered: list[str]) -> None:
    with pytest.raises(FatalError, match=f"'{device}' is not available: .* onnxruntime-gpu") as caught:
        providers_for(device, offered)
    assert caught.value.reason is Reason.DEVICE_UNAVAILABLE


def test_looking_for_cuda_libraries_prints_nothing_to_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: print("Failed to load"), raising=False)  # noqa: T201
    prepare_cuda("cpu")
    assert capsys.readouterr() == ("", "")
    prepare_cuda("auto")
    assert capsys.readouterr() == ("", "Failed to load\n")


@pytest.mark.parametrize("weights", [b"", b"not a model", tiny.channel_means()[:-40]])
def test_weights_that_cannot_be_loaded_mean_a_bad_model(weights: bytes) -> None:
    with pytest.raises(FatalError, match="'tiny': it cannot be loaded") as caught:
        Session(weights, name="tiny", device="cpu")
    assert caught.value.reason is Reason.BAD_MODEL


def test_an_input_of_another_type_means_a_bad_model() -> None:
    node = helper.make_node("Cast", ["in"], ["out"], to=TensorProto.FLOAT)
    weights = tiny.model([node], {}, inputs=[1], outputs=[1], input_type=TensorProto.UINT8)
    with pytest.raises(FatalError, match="export it in float32") as caught:
        Session(weights, name="tiny", device="cpu")
    assert caught.value.reason is Reason.BAD_MODEL


def test_a_run_that_fails_is_transient() -> None:
    session = Session(tiny.channel_means(), name="tiny", device="cpu")
    with pytest.raises(TransientError, match="'tiny' failed on cpu") as caught:
        session.run(np.zeros((1, 16, 16, 3), dtype=np.float32))
    assert caught.value.reason is Reason.MODEL_UNAVAILABLE


def test_cpu_time_is_the_threads_own_with_one_thread_and_the_processs_with_more() -> None:
    assert cpu_clock(1) is time.thread_time
    assert cpu_clock(2) is time.process_time
