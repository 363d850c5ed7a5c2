"""An engine that tells coloured shapes apart, and does as it is told with everything else."""

from __future__ import annotations

import json

from pipeline.vlm.canary import FACTS
from tests.vlm.server import Behaviour, Call, says, statement

_KNOWN = {fact.question: statement("yes", 99, [fact.image or 0]) if fact.is_true else statement() for fact in FACTS}
_RIGHT = says(json.dumps({"seen": "shapes", "answers": _KNOWN}))


def knows(other: Behaviour) -> Behaviour:
    """Right about the known-answer pictures; `other` for all else."""

    def behave(call: Call) -> None:
        (_RIGHT if set(call.questions) == set(_KNOWN) else other)(call)

    return behave
