from __future__ import annotations

import errno
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.document import Document, keyframes_document, rejected_document
from pipeline.errors import FatalError, PermanentError, Reason, TransientError, UserError, VideosieveError
from pipeline.media import BgrImage
from pipeline.video.source import ByteRange, Source
from tests.domain.samples import extraction
from workers.folder import RESULTS_FILE, Output, find_files, run_files

OTHER = "other-settings"


class Work:
    """Stands in for keyframes and models: counts its calls by name; `faults[name]` are raised one by one."""

    def __init__(self, **faults: Sequence[BaseException]) -> None:
        self.calls: list[str] = []
        self.faults = {name: list(errors) for name, errors in faults.items()}

    def __call__(self, source: Source, path: str) -> tuple[Document, Sequence[BgrImage]]:
        name = Path(path).stem
        self.calls.append(name)
        if waiting := self.faults.get(name):
            raise waiting.pop(0)
        found = extraction(keyframes=1)
        document = keyframes_document(path, found, [None])
        document["content"] = source.read_ranges([ByteRange(0, 100)])[0].decode()
        return document, found.images


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    folder = tmp_path / "videos"
    folder.mkdir()
    for name in ("b", "a", "c"):
        (folder / f"{name}.mp4").write_text(name)
    return folder


def ignore(_file: Path, _document: Document) -> None: ...


def run(
    videos: Path,
    work: Work,
    *,
    out: Path | None = None,
    settings: str = "settings",
    jobs: int = 1,
    on_result: Callable[[Path, Document], None] = ignore,
) -> list[Document]:
    files = find_files([videos], leave_out=out)
    if out is None:
        return run_files(files, work, jobs=jobs, output=None, on_result=on_result)
    with Output(out, settings) as output:
        return run_files(files, work, jobs=jobs, output=output, on_result=on_result)


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / RESULTS_FILE).read_text().splitlines()]


def transient(reason: Reason = Reason.DECODER_CRASHED) -> TransientError:
    return TransientError(reason, "died")


def test_files_are_found_below_folders_sorted_once_and_without_hidden_ones(videos: Path) -> None:
    (videos / "sub" / "deep").mkdir(parents=True)
    (videos / "sub" / "deep" / "z.mp4").touch()
    (videos / ".hidden.mp4").touch()
    (videos / ".git").mkdir()
    (videos / ".git" / "x.mp4").touch()
    (videos / "link.mp4").symlink_to(videos / "a.mp4")
    (videos / "broken.mp4").symlink_to(videos / "nowhere")
    os.mkfifo(videos / "pipe.mp4")
    found = find_files([videos, videos / "a.mp4", videos / "sub"])
    assert {file.resolve().name for file in found} == {"a.mp4", "b.mp4", "c.mp4", "z.mp4"}
    assert len(found) == 4
    assert found == sorted(found)


def test_a_hidden_file_that_is_named_is_done(videos: Path) -> None:
    hidden = videos / ".hidden.mp4"
    hidden.touch()
    assert find_files([hidden]) == [hidden]


def test_the_output_folder_inside_the_input_is_left_out(videos: Path) -> None:
    out = videos / "results"
    assert len(run(videos, Work(), out=out)) == 3
    assert len(list(out.rglob("*.jpg"))) == 3
    assert len(run(videos, Work(), out=out)) == 3


@pytest.mark.parametrize("name", ["missing.mp4", "missing/deep", "a" * 5000, "nul\0"])
def test_a_path_that_does_not_exist_is_the_callers_mistake(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError) as caught:
        find_files([tmp_path / name])
    assert (caught.value.reason, caught.value.exit_code) == (Reason.BAD_INPUT, 2)


def test_what_is_no_file_is_counted_by_what_it_is(videos: Path) -> None:
    whole = find_files([videos])
    os.mkfifo(videos / "pipe.mp4")
    (videos / "zero.mp4").symlink_to("/dev/zero")
    (videos / "gone.mp4").symlink_to("nowhere.mp4")
    (videos / "loop.mp4").symlink_to("loop.mp4")
    (videos / "around").symlink_to(videos)
    (videos / ".hidden").symlink_to("nowhere")
    passed_over = Counter[str]()
    assert find_files([videos], passed_over=passed_over) == whole
    assert +passed_over == Counter({
        "pipes": 1, "devices": 1, "links that lead nowhere": 1, "links that lead back to themselves": 1,
        "links to folders": 1,
    })  # fmt: skip


@pytest.mark.parametrize("leaves_out", [False, True])
def test_a_link_to_itself_is_said_to_be_one(tmp_path: Path, leaves_out: bool) -> None:
    loop = tmp_path / "loop.mp4"
    loop.symlink_to("loop.mp4")
    with pytest.raises(UserError, match="leads back to itself"):
        find_files([loop], leave_out=tmp_path / "out" if leaves_out else None)


def test_a_folder_that_may_not_be_looked_into_is_named_and_not_passed_over(
    videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (videos / "private").mkdir()
    real = os.scandir

    def scandir(path: str) -> Any:
        if str(path).endswith("private"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(UserError, match="private: Permission denied"):
        find_files([videos])


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_documents_come_in_the_order_of_the_files(videos: Path, jobs: int) -> None:
    seen = list[str]()
    documents = run(videos, Work(), jobs=jobs, on_result=lambda file, _: seen.append(file.stem))
    assert [document["content"] for document in documents] == ["a", "b", "c"]
    assert sorted(seen) == ["a", "b", "c"]


def test_no_more_files_run_at_once_than_jobs(videos: Path) -> None:
    running, most = 0, 0
    lock = threading.Lock()
    both = threading.Barrier(2, timeout=10)

    class Slow(Work):
        def __call__(self, source: Source, path: str) -> tuple[Document, Sequence[BgrImage]]:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            if Path(path).stem in "ab":
                both.wait()  # two do run side by side
            with lock:
                running -= 1
            return super().__call__(source, path)

    run(videos, Slow(), jobs=2)
    assert most == 2


def test_without_videos_there_is_nothing_to_do(tmp_path: Path) -> None:
    assert run(tmp_path, Work()) == []


def test_pictures_lie_where_the_document_says(videos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for document in run(videos, Work(), out=out):
        (keyframe,) = document["keyframes"]
        assert (out / keyframe["image"]).read_bytes().startswith(b"\xff\xd8")
    assert len({entry["document"]["keyframes"][0]["image"] for entry in lines(out)}) == 3


def test_a_second_call_does_nothing_twice_and_gives_the_same_documents(videos: Path, tmp_path: Path) -> None:
    first, second, seen = Work(), Work(), list[str]()
    before = run(videos, first, out=tmp_path / "out")
    after = run(videos, second, out=tmp_path / "out", on_result=lambda file, _: seen.append(file.stem))
    assert after == before
    assert (first.calls, second.calls, seen) == (["a", "b", "c"], [], ["a", "b", "c"])
    assert len(lines(tmp_path / "out")) == 3


def test_a_changed_file_is_done_again(videos: Path, tmp_path: Path) -> None:
    run(videos, Work(), out=tmp_path / "out")
    (videos / "b.mp4").write_text("B!")
    os.utime(videos / "c.mp4", ns=(1, 1))
    work = Work()
    documents = run(videos, work, out=tmp_path / "out")
    assert work.calls == ["b", "c"]
    assert [document["content"] for document in documents] == ["a", "B!", "c"]


def test_a_file_that_changes_while_it_is_read_is_done_again_at_the_next_call(videos: Path, tmp_path: Path) -> None:
    class Meddling(Work):
        def __call__(self, source: Source, path: str) -> tuple[Document, Sequence[BgrImage]]:
            result = super().__call__(source, path)
            if path.endswith("a.mp4"):
                Path(path).write_text("changed")
            return result

    run(videos, Meddling(), out=tmp_path / "out")
    work = Work()
    assert run(videos, work, out=tmp_path / "out")[0]["content"] == "changed"
    assert work.calls == ["a"]


def test_other_settings_do_everything_again_and_the_old_results_still_hold(videos: Path, tmp_path: Path) -> None:
    run(videos, Work(), out=tmp_path / "out")
    for settings, calls in ((OTHER, ["a", "b", "c"]), (OTHER, []), ("settings", [])):
        work = Work()
        run(videos, work, out=tmp_path / "out", settings=settings)
        assert work.calls == calls


@pytest.mark.parametrize("cut", [1, 2, 50])
def test_a_line_cut_short_is_dropped_and_its_file_done_again(videos: Path, tmp_path: Path, cut: int) -> None:
    out = tmp_path / "out"
    run(videos, Work(), out=out)
    results = out / RESULTS_FILE
    results.write_bytes(results.read_bytes()[:-cut])
    work = Work()
    run(videos, work, out=out)
    assert work.calls == ([] if cut == 1 else ["c"])  # without its line end alone a line is whole
    work = Work()
    run(videos, work, out=out)
    assert work.calls == []


def test_lines_that_are_no_results_are_passed_over(videos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / RESULTS_FILE).write_bytes(
        b'\n{}\n[]\n7\nnull\n"x"\n\xff\xfe\n{"identity": {"path": "x"}}\n{"identity": {"path": [], "size_bytes": 1, '
        b'"mtime_ns": 1, "settings_hash": "s"}, "document": {}}\n{"identity": 3, "document": {}}\n' + b"[" * 100_000
    )
    assert len(run(videos, Work(), out=out)) == 3
    work = Work()
    run(videos, work, out=out)
    assert work.calls == []


def test_a_line_edited_by_hand_counts_for_nothing(videos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = run(videos, Work(), out=out)
    results = out / RESULTS_FILE
    results.write_text(results.read_text().replace('"content": "a"', '"content": "z"', 1))
    with Output(out, "settings") as output:
        assert output.passed_over == 1
    work = Work()
    assert run(videos, work, out=out) == before
    assert work.calls == ["a"]


def test_a_picture_that_was_deleted_is_made_again(videos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = run(videos, Work(), out=out)
    picture = out / before[1]["keyframes"][0]["image"]
    picture.unlink()
    work = Work()
    assert run(videos, work, out=out) == before
    assert work.calls == ["b"]
    assert picture.is_file()


def test_a_rejected_video_is_a_document_and_is_remembered(videos: Path, tmp_path: Path) -> None:
    error = PermanentError(Reason.NOT_A_VIDEO, "no signature")
    documents = run(videos, Work(b=[error]), out=tmp_path / "out")
    assert documents[1] == rejected_document(str(videos / "b.mp4"), error)
    work = Work()
    assert run(videos, work, out=tmp_path / "out") == documents
    assert work.calls == []


@pytest.mark.parametrize("reason", [Reason.DECODER_CRASHED, Reason.DECODE_TIMEOUT])
def test_a_decoder_that_dies_has_a_second_try_and_then_the_video_is_rejected(videos: Path, reason: Reason) -> None:
    work = Work(a=[transient(reason)], b=[transient(reason), transient(reason)])
    documents = run(videos, work)
    assert work.calls == ["a", "a", "b", "b", "c"]
    assert documents[0]["content"] == "a"
    assert documents[1]["rejected"]["reason"] == reason.value


def test_a_folder_named_like_a_video_or_a_file_that_went_is_a_rejection(videos: Path) -> None:
    files = [*find_files([videos]), videos, videos / "gone.mp4"]
    documents = run_files(files, Work(), jobs=2, output=None, on_result=ignore)
    assert [document["rejected"]["reason"] for document in documents[3:]] == ["not_a_video", "not_found"]


@pytest.mark.parametrize(
    "error",
    [PermanentError(Reason.NOT_FOUND, "gone"), TransientError(Reason.FORBIDDEN, "not yours")],
)
def test_what_may_be_mended_without_touching_the_file_is_tried_again_at_the_next_call(
    videos: Path, tmp_path: Path, error: VideosieveError
) -> None:
    documents = run(videos, Work(b=[error, error]), out=tmp_path / "out")
    assert documents[1]["rejected"]["reason"] == error.reason.value
    work = Work()
    assert run(videos, work, out=tmp_path / "out")[1]["content"] == "b"
    assert work.calls == ["b"]


def test_a_file_that_is_deleted_meanwhile_is_a_rejection_and_no_traceback(videos: Path, tmp_path: Path) -> None:
    files = find_files([videos])
    (videos / "b.mp4").unlink()
    with Output(tmp_path / "out", "settings") as output:
        documents = run_files(files, Work(), jobs=1, output=output, on_result=ignore)
    assert documents[1]["rejected"]["reason"] == "not_found"
    assert len(lines(tmp_path / "out")) == 2


@pytest.mark.parametrize(
    "error",
    [transient(Reason.STORE_UNAVAILABLE), FatalError(Reason.BAD_POLICY, "x"), ZeroDivisionError("ours")],
    ids=["outage", "fatal", "bug"],
)
def test_an_error_of_ours_is_raised_and_what_was_done_stays_done(
    videos: Path, tmp_path: Path, error: BaseException
) -> None:
    with pytest.raises(type(error)):
        run(videos, Work(b=[error]), out=tmp_path / "out")
    work = Work()
    run(videos, work, out=tmp_path / "out")
    assert "a" not in work.calls
    assert "b" in work.calls


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_interrupted_call_goes_on_where_it_was(tmp_path: Path, jobs: int) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    for number in range(12):
        (videos / f"{number:02d}.mp4").write_text(str(number))
    out, seen = tmp_path / "out", list[str]()

    def interrupt(file: Path, _document: Document) -> None:
        seen.append(file.stem)
        if len(seen) == 3:
            raise KeyboardInterrupt

    first = Work()
    with pytest.raises(KeyboardInterrupt):
        run(videos, first, out=out, jobs=jobs, on_result=interrupt)
    second = Work()
    documents = run(videos, second, out=out, jobs=jobs)
    assert [document["content"] for document in documents] == [str(number) for number in range(12)]
    assert sorted(first.calls + second.calls) == [f"{number:02d}" for number in range(12)]
    assert set(seen) <= set(first.calls)


def test_an_output_that_is_a_file_is_the_callers_mistake(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    for out in (tmp_path / "out", tmp_path / "out" / "deeper"):
        with pytest.raises(UserError, match="output folder"):
            Output(out, "settings")


def test_results_that_are_a_folder_are_the_callers_mistake(tmp_path: Path) -> None:
    (tmp_path / RESULTS_FILE).mkdir()
    with pytest.raises(UserError, match="output folder"):
        Output(tmp_path, "settings")


def test_a_full_disk_is_one_line_and_leaves_no_result(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        with pytest.raises(UserError, match="No space left on device"):
            run(videos, Work(), out=tmp_path / "out")
    assert lines(tmp_path / "out") == []


@pytest.mark.parametrize(
    "name", ["line\nbreak.mp4", "🎬 clip.mp4", os.fsdecode(b"\xff\xfe.mp4"), "-", "a;b'\"$(x).mp4"]
)
def test_odd_names_have_documents_pictures_and_are_remembered(tmp_path: Path, name: str) -> None:
    videos, out = tmp_path / "videos", tmp_path / "out"
    videos.mkdir()
    (videos / name).write_text("odd")
    (document,) = run(videos, Work(), out=out)
    assert document["path"] == str(videos / name)
    assert (out / document["keyframes"][0]["image"]).is_file()
    work = Work()
    assert run(videos, work, out=out) == [document]
    assert work.calls == []


def test_files_of_the_same_name_keep_their_own_pictures(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / "videos" / folder).mkdir(parents=True)
        (tmp_path / "videos" / folder / "clip.mp4").write_text(folder)
    documents = run(tmp_path / "videos", Work(), out=tmp_path / "out")
    assert len({document["keyframes"][0]["image"] for document in documents}) == 2


def test_pictures_that_do_not_match_the_document_are_a_fault_of_ours(videos: Path, tmp_path: Path) -> None:
    def work(_source: Source, path: str) -> tuple[Document, Sequence[BgrImage]]:
        return keyframes_document(path, extraction(keyframes=0), []), [np.zeros((1, 1, 3), np.uint8)]

    with Output(tmp_path / "out", "s") as output, pytest.raises(ValueError, match="zip"):
        run_files(find_files([videos]), work, jobs=1, output=output, on_result=ignore)
