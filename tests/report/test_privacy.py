from pipeline.document import Document
from pipeline.report.privacy import blurred_keyframes
from tests.report.samples import analysed

NUDITY = "exposed_nudity"


def blurred(document: Document) -> set[int]:
    return set(blurred_keyframes(document))


def test_pictures_that_the_first_stage_found_clearly_negative_are_shown() -> None:
    assert blurred(analysed("a.mp4", faces=[0.9] * 3, exposed=[0.1] * 3)) == set()


def test_a_picture_that_was_passed_on_stays_blurred_though_the_next_stage_cleared_it() -> None:
    document = analysed("a.mp4", faces=[0.9] * 3, exposed=[0.1, 0.5, 0.1], nsfw=[0.0] * 3)
    assert blurred_keyframes(document) == {1: (NUDITY,)}


def test_what_a_person_has_to_look_at_is_blurred() -> None:
    document = analysed("a.mp4", faces=[0.9] * 4, exposed=[0.1, 0.5, 0.1, 0.6], nsfw=[0.0, 0.5, 0.0, 0.1])
    assert blurred(document) == {1, 3}


def test_every_picture_of_a_video_with_a_sensitive_positive_is_blurred() -> None:
    assert blurred(analysed("a.mp4", faces=[0.9] * 4, exposed=[0.1, 0.95, 0.5, 0.1])) == {0, 1, 2, 3}


def test_pictures_that_no_stage_looked_at_are_blurred() -> None:
    document = analysed("a.mp4", faces=[0.1] * 3, exposed=[0.1] * 3)
    document["stages"][0]["findings"].pop()
    assert blurred(document) == {2}


def test_a_negative_that_rests_on_too_little_of_the_video_counts_as_doubtful() -> None:
    document = analysed("a.mp4", faces=[0.1] * 3, exposed=[0.1] * 3)
    verdict = next(v for v in document["verdicts"] if v["question"] == NUDITY)
    verdict.update(answer="review", stage="review", reason="low_coverage")
    assert blurred(document) == {0, 1, 2}


def test_a_question_that_is_not_declared_harmless_counts_as_sensitive() -> None:
    document = analysed("a.mp4", faces=[0.9] * 2, exposed=[0.1] * 2)
    del document["policy"]
    assert blurred_keyframes(document) == {0: ("face",), 1: ("face",)}


def test_a_sensitive_question_without_a_verdict_blurs_everything() -> None:
    document = analysed("a.mp4", faces=[0.9] * 2, exposed=[0.1] * 2)
    document["verdicts"] = []
    assert blurred(document) == {0, 1}
    document["verdicts"] = [{"question": NUDITY, "answer": ["negative"]}]
    assert blurred(document) == {0, 1}


def test_without_questions_nothing_is_blurred() -> None:
    assert blurred({"keyframes": [{}, {}]}) == set()
