from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import clips
from workers.cli.root import main


def test_a_healthy_file_is_shown_with_how_much_of_each_limit_it_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = clips.write_cuts(tmp_path / "a.mp4")
    assert main(["probe", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["video"]["codec"] == "h264"
    assert (document["video"]["width_px"], document["video"]["height_px"]) == (320, 180)
    assert document["streams"] == ["vide avc1"]
    assert document["index"] == "table"
    assert document["warnings"] == []
    assert document["limits"]["file_bytes"]["is"] == path.stat().st_size
    assert all(limit["is"] <= limit["max"] for limit in document["limits"].values())


def test_a_file_that_is_turned_away_is_a_result_with_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.mp4"
    path.write_text("<!doctype html><html></html>")
    assert main(["probe", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "not_a_video" in shown
    assert "upload the video itself" in shown


def test_what_is_odd_is_shown_as_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.avi"
    path.write_bytes(clips.write_cuts(tmp_path / "a.mp4").read_bytes())
    assert main(["probe", str(path)]) == 0
    assert "declared type: the file is named .avi" in capsys.readouterr().out


def test_a_path_that_is_not_there_is_the_callers_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", str(tmp_path / "none.mp4")]) == 2
    assert "no such file" in capsys.readouterr().err
