from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from workers.logs import configure_logs, get_logger
from workers.metrics import Metrics
from workers.settings import LogSettings

SIGNED = "https://s3/bucket/key.mp4?X-Amz-Algorithm=AWS4&X-Amz-Credential=AKIA%2F1&X-Amz-Signature=abc123"
SIGNED_V2 = "https://s3/bucket/key.mp4?AWSAccessKeyId=AKIA&Signature=abc%2F123&Expires=1"
UNITS = ("_ratio", "_requests", "_seconds", "_bytes", "_total", "_videos", "_messages", "_threads", "_open", "_ratio")
IDS = ("id", "key", "bucket", "path", "url", "trace", "tenant", "message", "worker", "hash", "detail", "version")


@pytest.fixture
def _logging() -> Iterator[None]:
    """What a process sets once is put back for the other tests."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in logging.root.manager.loggerDict}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in list(logging.root.manager.loggerDict):
        logging.getLogger(name).setLevel(levels.get(name, logging.NOTSET))
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def lines(captured: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    written = captured.readouterr()
    assert written.out == ""
    return [json.loads(line) for line in written.err.splitlines()]


@pytest.mark.usefixtures("_logging")
def test_a_log_line_is_json_on_stderr_with_event_level_time_service_and_bound_ids(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logs(LogSettings(format="json"), service="worker")
    with structlog.contextvars.bound_contextvars(run_id="r1"):
        get_logger().info("run_committed", cpu_s=1.5)
    get_logger().debug("not_written")
    (line,) = lines(capsys)
    assert str(line.pop("at")).endswith("Z")
    assert line == {"event": "run_committed", "level": "info", "service": "worker", "run_id": "r1", "cpu_s": 1.5}


@pytest.mark.usefixtures("_logging")
def test_the_libraries_lines_look_like_ours_and_the_chatty_ones_are_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogSettings(format="json"), service="worker")
    logging.getLogger("some.library").warning("odd %s", SIGNED)
    logging.getLogger("botocore.parsers").info("body")
    (line,) = lines(capsys)
    assert (line["event"], line["level"]) == ("odd https://s3/bucket/key.mp4?…", "warning")


@pytest.mark.usefixtures("_logging")
@pytest.mark.parametrize("url", [SIGNED, SIGNED_V2, SIGNED.lower()])
@pytest.mark.parametrize("format_name", ["json", "console"])
def test_no_signature_is_written_and_the_words_around_it_stay(
    capsys: pytest.CaptureFixture[str], url: str, format_name: str
) -> None:
    configure_logs(LogSettings.model_validate({"format": format_name}), service="worker")
    get_logger().warning("failed", detail=f"GET {url} gave 403; is it a question?", url=url)
    written = capsys.readouterr().err.replace("\\u2026", "…")
    assert "abc" not in written
    assert "AKIA" not in written.upper()
    assert "key.mp4?… gave 403; is it a question?" in written


@pytest.mark.usefixtures("_logging")
def test_no_signature_is_written_in_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogSettings(format="json"), service="worker")
    get_logger().error("screening_failed", exc_info=ValueError(f"bad answer from {SIGNED}"))
    (line,) = lines(capsys)
    assert "abc123" not in str(line)
    assert "ValueError: bad answer from https://s3/bucket/key.mp4?…" in str(line["exception"])


@pytest.mark.usefixtures("_logging")
def test_a_traceback_on_a_terminal_shows_no_local_variables(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogSettings(format="console"), service="worker")

    def fail() -> None:
        secret = "hunter" + "2"
        raise ValueError(len(secret))

    try:
        fail()
    except ValueError:
        get_logger().exception("screening_failed")
    written = capsys.readouterr().err
    assert "ValueError: 7" in written
    assert "hunter2" not in written


@pytest.mark.usefixtures("_logging")
def test_odd_values_never_break_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogSettings(format="json"), service="worker")
    get_logger().info("odd", path="a\udcff\n.mp4", thing=object(), raw=b"\xff", nested={"x": {1, 2}})
    (line,) = lines(capsys)
    assert line["path"] == "a\udcff\n.mp4"


def metrics() -> list[MetricWrapperBase]:
    declared = vars(Metrics(CollectorRegistry())).values()
    return [metric for metric in declared if isinstance(metric, MetricWrapperBase)]


def full_name(metric: MetricWrapperBase) -> str:
    (family,) = metric.describe()
    return f"{family.name}_total" if family.type == "counter" else family.name


@pytest.mark.parametrize("metric", metrics(), ids=full_name)
def test_a_metric_has_our_prefix_a_unit_a_meaning_and_no_ids(metric: MetricWrapperBase) -> None:
    (family,) = metric.describe()
    assert full_name(metric).startswith("videosieve_")
    assert full_name(metric).endswith(UNITS)
    assert len(family.documentation) > 10
    assert family.documentation.endswith(".")
    for label in metric._labelnames:
        assert not any(part in IDS for part in label.split("_")), label


def test_metrics_of_two_processes_do_not_share_a_registry() -> None:
    first, second = Metrics(CollectorRegistry()), Metrics(CollectorRegistry())
    first.heartbeats.inc()
    assert b"videosieve_heartbeats_total 1.0" in generate_latest(first.registry)
    assert b"videosieve_heartbeats_total 0.0" in generate_latest(second.registry)
    assert len(metrics()) > 15
