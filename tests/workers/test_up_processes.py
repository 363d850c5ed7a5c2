from __future__ import annotations

from pipeline.cascade.policy import Policy
from tests.cascade.fakes import document, rule, vlm
from workers.settings import Settings, VlmSettings
from workers.up import processes

ENGINE = Settings(vlm=VlmSettings(url="http://127.0.0.1:8000/v1"))
PLAIN = Policy.model_validate(document({"cheap": {"q": rule("a")}}))
JUDGED = Policy.model_validate(document({"cheap": {"q": rule("a")}}, vlm=vlm("q")))


def test_a_judging_worker_is_run_where_there_is_an_engine_and_the_policy_asks_it() -> None:
    assert processes(ENGINE, JUDGED) == ("api", "worker", "judge")
    assert processes(ENGINE, PLAIN) == ("api", "worker")
    assert processes(Settings(), JUDGED) == ("api", "worker")
