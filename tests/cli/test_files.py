"""`videosieve keyframes` and `analyze` on local files, as processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.clips import truncated, write_audio_only, write_cuts
from tests.road.conftest import BLUE, PURPLE, RED, colour_clip
from tests.road.conftest import weights as weights  # noqa: PLC0414 - a fixture, used by name
from tests.waiting import wait_for


def _environment(weights: Path) -> dict[str, str]:
    return os.environ | {
        "VIDEOSIEVE_POLICY": str(weights / "colours.yaml"),
        "VIDEOSIEVE_MODELS__DIR": str(weights),
        "VIDEOSIEVE_MODELS__EXTRA_CATALOG": str(weights / "extra.yaml"),
    }


def _run(*arguments: str | Path, weights: Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "workers.cli", *map(str, arguments)],
        env=_environment(weights), cwd=cwd, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def fifty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifty files: 30 valid, and five each of empty, text, truncated and audio only."""
    folder = tmp_path_factory.mktemp("fifty")
    for number in range(30):
        colour_clip(folder / f"valid-{number:02d}.mp4", [RED, BLUE, PURPLE][number % 3], frames=4)
    whole = folder / "valid-00.mp4"
    for number in range(5):
        (folder / f"empty-{number}.mp4").touch()
        (folder / f"text-{number}.mp4").write_text("dear diary,\n" * 50)
        truncated(whole, folder / f"truncated-{number}.mp4", 0.1 + number / 10)
        write_audio_only(folder / f"audio-{number}.m4a", duration_s=0.2)
    return folder


def test_every_one_of_fifty_files_gets_verdicts_or_a_reason(fifty: Path, weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = _run("analyze", fifty, "--out", out, "--json", weights=weights)
    assert done.returncode == 0, done.stderr
    documents = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(documents) == 50
    reasons: dict[str, set[str]] = {}
    for document in documents:
        kind = Path(document["path"]).stem.split("-")[0]
        if kind == "valid":
            assert [verdict["question"] for verdict in document["verdicts"]] == ["red", "blue"]
            assert all((out / keyframe["image"]).is_file() for keyframe in document["keyframes"])
        else:
            reasons.setdefault(kind, set()).add(document["rejected"]["reason"])
    assert reasons == {
        "empty": {"empty_file"},
        "text": {"not_a_video"},
        "truncated": {"truncated"},
        "audio": {"no_video_stream"},
    }
    report = (out / "index.html").read_text()
    assert "valid-00.mp4" in report
    assert "empty_file" in report or "empty" in report


def test_an_interrupted_analysis_does_nothing_twice(fifty: Path, weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    lines = out / "results.jsonl"
    # Behind us, so that we see it half done on a busy machine; a shell's background jobs ignore SIGINT.
    behind_us = ["env", "--default-signal=INT", "nice", "-n", "19"]
    command = [*behind_us, sys.executable, "-m", "workers.cli", "analyze", str(fifty), "--out", str(out), "--jobs", "1"]
    process = subprocess.Popen(command, env=_environment(weights), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    wait_for(lambda: lines.exists() and lines.read_text().count("\n") >= 12, every_s=0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in stderr
    before = lines.read_text().splitlines()
    assert 12 <= len(before) < 50
    done = _run("analyze", fifty, "--out", out, "--json", weights=weights)
    assert done.returncode == 0, done.stderr
    after = lines.read_text().splitlines()
    assert after[: len(before)] == before
    paths = [json.loads(line)["identity"]["path"] for line in after]
    assert len(paths) == len(set(paths)) == 50
    assert len(done.stdout.splitlines()) == 50
    third = _run("analyze", fifty, "--out", out, weights=weights)
    assert third.returncode == 0
    assert lines.read_text().splitlines() == after


def test_keyframes_honours_its_contract(weights: Path, tmp_path: Path) -> None:
    clip = write_cuts(tmp_path / "cuts.mp4")
    done = _run("keyframes", clip, "--json", "--out", tmp_path / "out", weights=weights)
    assert done.returncode == 0, done.stderr
    (document,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert document["schema_version"] == 1
    assert document["path"] == str(clip)
    assert set(document["video"]) >= {
        "duration_s", "width_px", "height_px", "rotation_deg", "codec", "container", "frames"
    }  # fmt: skip
    assert document["cuts_s"] == pytest.approx([2.0, 5.0], abs=0.1)
    assert set(document["cost"]) == {"cpu_s", "bytes_read", "file_bytes", "ranges", "frames_decoded"}
    for keyframe in document["keyframes"]:
        assert set(keyframe) >= {"t_s", "pts", "reason", "score", "image"}
        assert keyframe["reason"] in {"start", "scene_cut", "motion", "coverage"}
        assert (tmp_path / "out" / keyframe["image"]).read_bytes()[:2] == b"\xff\xd8"
    bare = _run("keyframes", clip, "--json", weights=weights)
    assert {keyframe["image"] for keyframe in json.loads(bare.stdout)["keyframes"]} == {None}


def test_a_path_that_does_not_exist_is_the_users_mistake(weights: Path) -> None:
    done = _run("keyframes", "nowhere.mp4", "--json", weights=weights)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip() == "videosieve: bad_input: nowhere.mp4: no such file or folder"


def test_missing_weights_are_said_before_any_work(weights: Path, tmp_path: Path) -> None:
    clip = colour_clip(tmp_path / "red.mp4", RED)
    done = subprocess.run(
        [sys.executable, "-m", "workers.cli", "analyze", str(clip)],
        env=_environment(weights) | {"VIDEOSIEVE_MODELS__DIR": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("videosieve: weights_missing: ")
    assert "videosieve models pull means" in done.stderr


def test_a_policy_that_pins_other_weights_is_refused(weights: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    text = (weights / "colours.yaml").read_text()
    sha256 = text.split("means: ")[1].split("}")[0]
    policy.write_text(text.replace(sha256, "0" * 64))
    clip = colour_clip(tmp_path / "red.mp4", RED)
    done = _run("analyze", clip, "--policy", policy, weights=weights)
    assert done.returncode in (1, 2)
    assert done.stderr.strip().splitlines()[-1].startswith("videosieve: bad_policy: ")


CORPUS = Path(__file__).parents[3] / "shared" / "corpus"


def _found(truth: list[float], times: list[float], tolerance_s: float) -> int:
    return sum(any(abs(time - wanted) <= tolerance_s for time in times) for wanted in truth)


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the development corpus is not beside this checkout")
@pytest.mark.parametrize("name", ["montage_web_h264", "static_motion_web_h264", "mixed_web_h264", "montage_hevc"])
def test_cuts_and_motion_of_the_development_corpus_are_found(name: str, weights: Path) -> None:
    done = _run("keyframes", CORPUS / f"{name}.mp4", "--json", weights=weights)
    document: dict[str, Any] = json.loads(done.stdout)
    truth = json.loads((CORPUS / f"{name}.json").read_text())
    cuts = _found(truth["cuts"], document["cuts_s"], 0.5)
    onsets = _found([start for start, *_ in truth["motion"]], [start for start, _ in document["motion_s"]], 1.0)
    assert cuts >= len(truth["cuts"]) - 1
    assert onsets >= len(truth["motion"]) * 0.6
    assert document["cost"]["frames_decoded"] < 0.05 * document["video"]["frames"]


def test_what_a_folder_holds_beside_files_is_told_on_stderr(weights: Path, tmp_path: Path) -> None:
    colour_clip(tmp_path / "clip.mp4", RED, frames=4)
    os.mkfifo(tmp_path / "pipe.mp4")
    (tmp_path / "loop.mp4").symlink_to("loop.mp4")
    done = _run("keyframes", tmp_path, "--json", weights=weights)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    assert "1 links that lead back to themselves, 1 pipes" in done.stderr
    loop = _run("keyframes", tmp_path / "loop.mp4", "--json", "--out", tmp_path / "out", weights=weights)
    assert loop.returncode == 2
    assert "leads back to itself" in loop.stderr
    assert "Traceback" not in loop.stderr
