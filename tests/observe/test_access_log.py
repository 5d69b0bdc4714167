"""One line a request, whatever the request calls itself."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifeboat.core.vocabulary import Reason
from lifeboat.observe.access_log import AccessLog, fields_of, text_of
from lifeboat.observe.events import Finished, GoneAt
from lifeboat.observe.log_pipe import JsonFormatter, TextFormatter
from tests.observe.scenes import finished


def record_of(event: Finished) -> logging.LogRecord:
    return logging.LogRecord("lifeboat.access", logging.INFO, "f", 0, event, None, None)


def test_the_line_has_the_fields_of_the_contract() -> None:
    event = finished(
        status=504, reason=Reason.QUEUE_TIMEOUT, wait_s=1.5, ttfb_s=None, total_s=1.6,
        client_gone=GoneAt.PARKED, retry_causes=("refused", "reset"), attempts=3,
    )  # fmt: skip
    assert json.loads(JsonFormatter().format(record_of(event))) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "info",
        "logger": "lifeboat.access",
        "event": "request",
        "request_id": "req-1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "model": "m",
        "pool": "m",
        "backend": "sim-a",
        "status": 504,
        "reason": "queue_timeout",
        "verdict": "answered",
        "wait_ms": 1500.0,
        "ttfb_ms": None,
        "total_ms": 1600.0,
        "estimated_tokens": 800,
        "estimate_method": "quick",
        "body_bytes": 3200,
        "answer_bytes": 9000,
        "attempts": 3,
        "retry_causes": "refused,reset",
        "stream": True,
        "client_gone": "parked",
        "priority": "normal",
    }


def test_the_text_line_is_for_reading() -> None:
    line = TextFormatter().format(record_of(finished(model='a "b" c', retry_causes=())))
    assert line == (
        "2023-11-14T22:13:20.250Z info    lifeboat.access: POST /v1/chat/completions 200 "
        'request_id=req-1 model="a \\"b\\" c" pool=m backend=sim-a verdict=answered wait_ms=0.0 '
        "ttfb_ms=200.0 total_ms=3000.0 estimated_tokens=800 estimate_method=quick body_bytes=3200 "
        "answer_bytes=9000 attempts=1 stream=true priority=normal"
    )


def test_a_query_string_is_not_logged() -> None:
    """It may carry a key."""
    assert "secret" not in text_of(finished(path="/v1/models?api_key=secret"))


ANY_TEXT = st.text(st.characters(), max_size=400)


@given(ANY_TEXT, ANY_TEXT, ANY_TEXT, st.none() | ANY_TEXT)
def test_a_line_is_one_line_that_encodes_and_reads_back(
    request_id: str, path: str, method: str, model: str | None
) -> None:
    record = record_of(
        finished(request_id=request_id, path=path, method=method, model=model, pool=model)
    )
    as_json, as_text = JsonFormatter().format(record), TextFormatter().format(record)
    assert isinstance(json.loads(as_json), dict)
    for line in (as_json, as_text):
        assert len(line.splitlines()) == 1
        assert line.isprintable()
        line.encode()


@pytest.mark.parametrize(
    "changes",
    [{"model": "x" * 1_000_000}, {"request_id": "\x1b" * 100_000}, {"path": "/" + "\n" * 100_000}],
)
def test_a_line_is_bounded(changes: dict[str, Any]) -> None:
    """Case BUG-183: a model name of 200 KB."""
    assert len(JsonFormatter().format(record_of(finished(**changes)))) < 4096


def test_a_pool_cannot_be_mistaken_for_another_field() -> None:
    assert 'pool="m status=500"' in text_of(finished(pool="m status=500"))
    assert 'model=""' in text_of(finished(model=""))


def test_no_field_carries_a_prompt_or_a_key() -> None:
    """The event has no room for one: a new field must be looked at here."""
    assert set(fields_of(finished())) == {
        "request_id", "method", "path", "model", "pool", "backend", "status", "reason", "verdict",
        "wait_ms", "ttfb_ms", "total_ms", "estimated_tokens", "estimate_method", "body_bytes",
        "answer_bytes", "attempts", "retry_causes", "stream", "client_gone", "priority",
    }  # fmt: skip


@pytest.mark.parametrize(("level", "lines"), [(logging.INFO, 1), (logging.WARNING, 0)])
def test_requests_are_logged_at_level_info(
    caplog: pytest.LogCaptureFixture, level: int, lines: int
) -> None:
    with caplog.at_level(level, logger="lifeboat"):
        AccessLog().finished(finished())
    assert len(caplog.records) == lines
