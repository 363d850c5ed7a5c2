import base64
import hashlib
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from pipeline.advice import ADVICE
from pipeline.document import Document
from pipeline.errors import Reason
from pipeline.report import render_report
from pipeline.report.money import money_text
from pipeline.report.page import MAX_VIDEOS_IN_FULL
from tests.report.samples import HOSTILE_NAME, Shelf, analysed, crowd, extraction, gallery, picture, rejected

VOID = {"meta", "img", "input", "link", "br", "hr", "base"}


class Page(HTMLParser):
    """The parsed page; fails where tags are not closed in order, as an injected tag would cause."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._texts: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in {"style", "script"}:
            self._texts.append(data)

    def all(self, tag: str, css_class: str = "") -> list[dict[str, str | None]]:
        return [a for t, a in self.tags if t == tag and (not css_class or css_class in (a.get("class") or "").split())]

    @property
    def text(self) -> str:
        """What is to be read, in its order."""
        return " ".join("".join(self._texts).split())


def render(documents: list[Document], shelf: Shelf | None = None, title: str = "Report") -> str:
    return render_report(documents, title=title, read_image=(shelf or Shelf()).read)


@pytest.fixture(scope="module")
def gallery_html() -> str:
    documents, shelf = gallery()
    return render(documents, shelf, title="</title><script>alert(0)</script>")


def test_hostile_names_are_text_and_nothing_else(gallery_html: str) -> None:
    page = Page(gallery_html)
    assert len(page.all("script")) == 1
    assert "<script>alert" not in gallery_html
    assert "\u202e" not in gallery_html
    assert "\\u202egpj.exe" in page.text
    gallery_html.encode("utf-8")
    assert HOSTILE_NAME.partition("/")[0] in page.text


def test_there_are_neither_inline_handlers_nor_style_attributes(gallery_html: str) -> None:
    attributes = {name for _, attrs in Page(gallery_html).tags for name in attrs}
    assert not {name for name in attributes if name.startswith("on") or name == "style"}


def test_the_page_asks_for_nothing_from_outside(gallery_html: str) -> None:
    page = Page(gallery_html)
    targets = [a[name] or "" for _, a in page.tags for name in ("src", "href", "action", "data", "poster") if name in a]
    assert targets
    assert all(target.startswith(("#", "data:image/jpeg;base64,")) for target in targets)
    assert not re.search(r"https?://|@import|url\((?!#)", re.sub(r"data:image/jpeg;base64,[\w+/=]+", "", gallery_html))


def test_only_the_pages_own_style_and_script_may_run(gallery_html: str) -> None:
    page = Page(gallery_html)
    csp = next(a["content"] or "" for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert csp.startswith("default-src 'none'; img-src data:;")
    assert "unsafe" not in csp
    for tag in ("style", "script"):
        (source,) = re.findall(rf"<{tag}>(.*?)</{tag}>", gallery_html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in csp


def test_doubtful_pictures_of_sensitive_questions_are_blurred_until_somebody_asks(gallery_html: str) -> None:
    page = Page(gallery_html)
    blurred, veils = page.all("li", "is-blurred"), page.all("button", "veil")
    assert len(blurred) == len(veils) == 3 + 4 + 3 + 1
    assert all(veil["aria-pressed"] == "false" and veil["aria-label"] and veil["type"] == "button" for veil in veils)
    assert not page.all("li", "is-shown")
    assert re.search(r"\.is-blurred img \{ filter: blur\(\d\dpx\)", gallery_html)


def test_links_lead_somewhere_and_no_id_is_given_twice(gallery_html: str) -> None:
    page = Page(gallery_html)
    ids = [a["id"] for _, a in page.tags if a.get("id")]
    assert len(ids) == len(set(ids))
    assert {(a["href"] or "")[1:] for a in [*page.all("a"), *page.all("use")]} <= set(ids)


def test_boxes_are_drawn_in_the_keyframes_own_pixels() -> None:
    document = analysed("a.mp4", faces=[0.9], exposed=[0.0], images=[picture(0, 1000, 500)])
    page = Page(render([document]))
    (overlay,) = page.all("svg", "boxes")
    assert overlay["viewbox"] == "0 0 1000 500"
    halo, box = (a for a in page.all("rect") if a.get("x") == "150.0")
    assert {k: box[k] for k in ("x", "y", "width", "height")} == {
        "x": "150.0",
        "y": "90.0",
        "width": "160.0",
        "height": "170.0",
    }
    assert halo["class"] == "halo"
    assert "FACE_FEMALE 0.90" in page.text


def test_weak_detections_are_left_out_of_the_picture() -> None:
    document = analysed("a.mp4", faces=[0.24], exposed=[0.0])
    assert not Page(render([document])).all("svg", "boxes")


def test_totals_are_exact() -> None:
    documents, shelf = gallery()
    page = Page(render(documents, shelf))
    bills = [d["money"] for d in documents if "money" in d]
    total = sum(bill["total_nano"] for bill in bills)
    assert total % 1000 != 0
    assert f"The answers cost {money_text(total, 'USD')}, of which $0.30 for people’s review;" in page.text
    assert money_text(sum(bill["vlm_every_frame_nano"] for bill in bills), "USD") in page.text
    assert "9 videos: 3 decided, 2 waiting for a person, 1 keyframes only, 3 rejected." in page.text
    assert "3 rejected: 1 not a video, 1 empty file, 1 no video stream" in page.text
    decoded, frames = (
        sum(part[key] for d in documents if "cost" in d for part in (d["cost"] | d["video"],))
        for key in ("frames_decoded", "frames")
    )
    assert f"{decoded:,} of {frames:,}" in page.text


def test_the_way_through_the_cascade_tells_who_passed_on_what() -> None:
    document = analysed("a.mp4", faces=[0.9] * 3, exposed=[0.1, 0.5, 0.6], nsfw=[0.0, 0.1, 0.5])
    text = Page(render([document])).text
    face, nudity = text.index("Is a face to be seen? 3 keyframes"), text.index("Is there exposed nudity? 3 keyframes")
    assert "detector nudenet-320n looked at 3 keyframes" in text[face:nudity]
    assert "highest score 0.90 settled ● positive" in text[face:nudity]
    assert re.search(
        r"looked at 3 keyframes.* passed on classifier open-nsfw looked at 2 keyframes highest score 0.50 passed on "
        r"person to look at 1 keyframe waits ◐ review",
        text[nudity:],
    )


def test_what_was_left_open_reads_as_that_and_not_as_waiting_for_a_person() -> None:
    document = analysed("a.mp4", faces=[0.9] * 3, exposed=[0.1, 0.5, 0.6], nsfw=[0.0, 0.1, 0.5])
    document["verdicts"][1] |= {"answer": "open", "stage": "judge", "reason": "budget_exhausted"}
    document["state"] = "decided"
    html = render([document])
    text = Page(html).text
    assert "nobody no person is asked left unanswered ◌ open" in text
    assert "◌ openscore 0.50the budget for the vision-language model is spent (budget_exhausted)" in text
    assert "◐ review" not in text
    assert ">exposed nudity: open</option>" in html


def test_a_vlm_looked_at_all_that_it_was_shown() -> None:
    document = analysed("a.mp4", faces=[0.9] * 3, exposed=[0.1, 0.5, 0.6], nsfw=[0.0, 0.1, 0.5])
    document["verdicts"][1] |= {"answer": "negative", "stage": "judge", "reason": None}
    judge = document["stages"][-1] | {"stage": "judge", "findings": [], "settled": ["exposed_nudity"], "scores": {}}
    document["stages"].append(judge | {"asked": ["exposed_nudity"], "vlm": {"shown": [1, 2]}})
    assert "judge open-nsfw looked at 2 keyframes settled ○ negative" in Page(render([document])).text


def test_a_verdict_names_model_weights_policy_hash_and_owner() -> None:
    document = analysed("a.mp4", faces=[0.9], exposed=[0.0])
    verdict = document["verdicts"][0]
    html = render([document])
    for value in (verdict["weights_sha256"], verdict["decision_hash"]):
        assert f">{value[:10]}</code>" in html
        assert value in html
    assert "nudenet-320n" in html
    assert "trust-and-safety" in html


@pytest.mark.parametrize("reason", sorted(ADVICE))
def test_every_rejection_has_its_sentence(reason: str) -> None:
    text = Page(render([rejected("a.mp4", Reason(reason), "the detail")])).text
    assert ADVICE[Reason(reason)] in text
    assert "the detail" in text


def test_an_unknown_rejection_still_reads_as_one() -> None:
    assert "The file could not be analysed." in render([{"path": "a", "rejected": {"reason": "moonlight"}}])


def test_warnings_and_coverage_are_told() -> None:
    taken = extraction([picture(0)], warnings=("truncated: <b>early</b>",), coverage=0.31)
    text = Page(render([analysed("a.mp4", faces=[0.1], exposed=[0.0], images=[picture(0)], taken=taken)])).text
    assert "31% of its length" in text
    assert "truncated: <b>early</b>" in text
    assert "too little of the video could be seen for a negative answer" in text


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"path": None, "rejected": None},
        {"path": "a/", "keyframes": None, "verdicts": None, "stages": 3, "money": [], "video": "x", "cost": 1},
        {"path": "a", "keyframes": [None, 1, {"size_px": [0, -1]}, {"size_px": [10**30, 1], "t_s": 1e308, "image": 7}]},
        {
            "path": "a",
            "video": {"duration_s": 1e308, "frames": 10**4000},
            "cuts_s": [1e307, None],
            "motion_s": [[2, 1], 3, [0, 1e308]],
        },
        {
            "path": "a",
            "keyframes": [{}],
            "verdicts": [{}, 3, {"question": "q", "answer": "maybe", "score": "x", "evidence": [-1, 99, None]}],
        },
        {
            "path": "a",
            "keyframes": [{}],
            "stages": [
                {
                    "findings": [
                        {
                            "keyframe": 0,
                            "detections": [
                                {"score": 2, "label": "x", "box_px": [1, 2, 3]},
                                {"score": 1, "box_px": [9e99, 0, 1, 1]},
                            ],
                        }
                    ]
                }
            ],
        },
        {
            "path": "a",
            "verdicts": [],
            "money": {"currency": "<b>", "total_nano": 10**4000, "review_nano": -5, "vlm_every_frame_nano": 1},
        },
    ],
)
def test_odd_and_incomplete_documents_still_render(document: Document) -> None:
    page = Page(render([document]))
    assert "nan" not in [value for _, a in page.tags for value in a.values()]


def test_no_videos_make_a_page_too() -> None:
    assert "There are no videos in this report." in Page(render([])).text


def test_a_video_without_keyframes_says_so() -> None:
    document = analysed("a.mp4", faces=[], exposed=[], images=[], taken=extraction([]))
    assert "No keyframes were taken." in Page(render([document])).text


def test_several_currencies_are_not_added_up() -> None:
    one, other = (analysed(f"{i}.mp4", faces=[0.9], exposed=[0.0]) for i in range(2))
    other["money"] = other["money"] | {"currency": "CHF"}
    text = Page(render([one, other])).text
    assert money_text(one["money"]["total_nano"], "USD") in text
    assert money_text(other["money"]["total_nano"], "CHF") in text


def test_a_picture_that_is_gone_leaves_a_placeholder_with_its_boxes() -> None:
    page = Page(render([analysed("a.mp4", faces=[0.9], exposed=[0.0], names=["gone.jpg"])]))
    assert page.all("svg", "no-picture")[0]["aria-label"] == "Keyframe 1: the stored picture is gone"
    assert page.all("svg", "boxes")


def test_five_hundred_videos_stay_a_page_that_opens() -> None:
    documents, shelf = crowd(500)
    html = render(documents, shelf)
    assert len(html) < 24_000_000
    page = Page(html)
    assert len(page.all("details", "video")) == 500
    assert not [a for a in page.all("details") if "open" in a]
    assert len(page.all("img")) == 2500
    assert all(a.get("loading") == "lazy" for a in page.all("img"))


def test_many_keyframes_show_the_evidence_first() -> None:
    count = 200
    faces: list[float] = [0.0] * count
    faces[131] = 0.9
    image = picture(0, 64, 36)
    document = analysed("a.mp4", faces=faces, exposed=[0.0] * count, images=[image.copy() for _ in range(count)])
    page = Page(render([document]))
    shown = {a["id"] for a in page.all("li", "card")}
    assert len(shown) == 60
    assert "v1-k132" in shown
    assert "140 more keyframes left out" in page.text


def test_beyond_a_thousand_videos_the_table_goes_on_without_sections() -> None:
    documents: list[dict[str, Any]] = [{"path": f"{i}.mp4", "keyframes": []} for i in range(MAX_VIDEOS_IN_FULL + 3)]
    page = Page(render(documents))
    assert len(page.all("details", "video")) == MAX_VIDEOS_IN_FULL
    assert "Only the first 1,000 videos are shown in full" in page.text
