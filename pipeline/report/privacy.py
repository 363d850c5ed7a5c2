"""Which pictures stay blurred until somebody asks to see them. Pure.

A picture is shown at once only where every sensitive question is *clearly* negative on it: its video's answer is
negative, and the first stage that was asked settled the picture. Everything else is blurred, also what nobody
looked at: a stage stops looking once it has found a positive, and the pictures beside a positive one mostly show
the same scene. Where a document does not say that a question is harmless, it counts as sensitive.
"""

from __future__ import annotations

from pipeline.document import Document
from pipeline.report.reading import items, mapping, text, whole


def blurred_keyframes(document: Document) -> dict[int, tuple[str, ...]]:
    """Keyframe index → the sensitive questions for whose sake it is blurred; absent where it may be shown."""
    every = set(range(len(items(document.get("keyframes")))))
    blurred: dict[int, list[str]] = {}
    for question in sensitive_questions(document):
        for index in every - _clearly_negative(document, question):
            blurred.setdefault(index, []).append(question)
    return {index: tuple(questions) for index, questions in sorted(blurred.items())}


def sensitive_questions(document: Document) -> tuple[str, ...]:
    """The questions not declared harmless, in the document's order."""
    declared = mapping(mapping(document.get("policy")).get("questions"))
    asked = [text(mapping(verdict).get("question")) for verdict in items(document.get("verdicts"))]
    names = dict.fromkeys([*declared, *asked])
    return tuple(name for name in names if mapping(declared.get(name)).get("sensitive") is not False)


def _clearly_negative(document: Document, question: str) -> set[int]:
    """Keyframes that the first stage asked `question` settled as negative."""
    verdicts = [mapping(verdict) for verdict in items(document.get("verdicts"))]
    answers = [verdict for verdict in verdicts if verdict.get("question") == question]
    judged = [
        {whole(mapping(finding).get("keyframe")) for finding in items(stage.get("findings"))}
        for stage in map(mapping, items(document.get("stages")))
        if question in items(stage.get("asked"))
    ]
    answer = text(answers[0].get("answer")) if len(answers) == 1 else ""
    if answer not in {"negative", "review"} or not judged:
        return set()
    evidence = set(map(whole, items(answers[0].get("evidence")))) if answer == "review" else set()
    return {i for i in judged[0].difference(evidence, *judged[1:]) if i is not None}
