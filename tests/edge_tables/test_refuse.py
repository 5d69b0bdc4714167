"""Refusals as responses: envelope, status and headers of the contract's section 5."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web

from lifeboat.core.modes import Mode
from lifeboat.core.rejections import REJECTIONS
from lifeboat.core.vocabulary import Reason, Refusal, Verdict
from lifeboat.edge.refuse import (
    MAX_MESSAGE_CHARS,
    Attempt,
    error_response,
    is_anthropic,
    method_not_allowed,
    not_found,
    printable,
    refusal_response,
)


def refuse(refusal: Refusal, **changes: Any) -> web.Response:
    given: dict[str, Any] = {
        "mode": Mode.DEFAULT,
        "reject_status": 503,
        "request_id": "r-1",
        "wait_ms": 7,
    }
    return refusal_response(refusal, **(given | changes))


def body_of(response: web.Response) -> dict[str, Any]:
    assert isinstance(response.body, bytes)
    assert response.body.isascii()
    return json.loads(response.body)


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_its_row_on_the_wire(reason: Reason) -> None:
    row = REJECTIONS[reason]
    response = refuse(Refusal(reason, "why", effective_limits={"a": 2, "b": None}))
    error = body_of(response)["error"]
    assert response.status == row.status
    assert response.headers["Content-Type"] == "application/json; charset=utf-8"
    assert response.headers.get("X-Lifeboat-Reject-Reason") == row.wire_reason
    assert response.headers["X-Lifeboat-Wait-ms"] == "7"
    assert response.headers["X-Request-ID"] == "r-1"
    assert (response.headers.get("x-should-retry") == "false") is row.retry_is_pointless
    assert error["message"] == "why"
    assert error["type"] == row.error_type
    assert error["code"] == error["reason"] == row.wire_reason
    assert error["param"] is None
    assert (error["wait_ms"], error["request_id"]) == (7, "r-1")
    assert error["advice"] == row.advice
    if row.about_capacity:
        assert error["routing_mode"] == "default"
        assert error["effective_limit"] == {"a": 2, "b": None}
        assert "queue_depth" in error and "queue_limit" in error


def test_the_gate_has_a_null_code_and_no_reason_header() -> None:
    response = refuse(Refusal(Reason.GATE, "full"), mode=Mode.SUPERFAST)
    error = body_of(response)["error"]
    assert error["code"] is None and error["reason"] is None
    assert "X-Lifeboat-Reject-Reason" not in response.headers
    assert error["routing_mode"] == "superfast"


@pytest.mark.parametrize("status", [503, 429, 529])
def test_only_the_gate_and_a_full_queue_follow_the_reject_status(status: int) -> None:
    for reason in Reason:
        expected = (
            status if reason in (Reason.GATE, Reason.QUEUE_FULL) else REJECTIONS[reason].status
        )
        response = refuse(Refusal(reason, "m"), reject_status=status)
        assert response.status == expected
        assert response.reason


@pytest.mark.parametrize(
    ("retry_after_s", "seconds", "millis"),
    [
        (0.0, "1", "1"),
        (0.0004, "1", "1"),
        (0.85, "1", "850"),
        (1.2, "2", "1200"),
        (118.5, "119", "118500"),
        (5000.0, "119", "119000"),
    ],
)
def test_retry_after_is_whole_seconds_beside_exact_milliseconds(
    retry_after_s: float, seconds: str, millis: str
) -> None:
    response = refuse(Refusal(Reason.QUEUE_FULL, "m", retry_after_s=retry_after_s))
    assert response.headers["Retry-After"] == seconds
    assert response.headers["retry-after-ms"] == millis
    assert body_of(response)["error"]["retry_after_ms"] == int(millis)


def test_a_guess_is_left_out() -> None:
    response = refuse(Refusal(Reason.QUEUE_FULL, "m"))
    assert "Retry-After" not in response.headers
    assert "retry-after-ms" not in response.headers
    assert body_of(response)["error"]["retry_after_ms"] is None


def test_a_temporary_refusal_may_be_retried() -> None:
    assert "x-should-retry" not in refuse(Refusal(Reason.NO_BACKENDS, "m", temporary=True)).headers


def test_depth_and_limit_are_named() -> None:
    error = body_of(refuse(Refusal(Reason.QUEUE_FULL, "m", queue_depth=128, queue_limit=128)))[
        "error"
    ]
    assert (error["queue_depth"], error["queue_limit"]) == (128, 128)


def test_attempts_are_listed() -> None:
    attempts = [Attempt("a", Verdict.REFUSED, "x" * 5000), Attempt("b", Verdict.RESET, "lost", 200)]
    error = body_of(refuse(Refusal(Reason.BACKEND_UNREACHABLE, "m"), attempts=attempts))["error"]
    assert [row["backend"] for row in error["attempts"]] == ["a", "b"]
    assert error["attempts"][1] == {
        "backend": "b",
        "outcome": "reset",
        "status": 200,
        "detail": "lost",
    }
    assert len(error["attempts"][0]["detail"]) < 1000


HOSTILE_NAMES = {
    "lone surrogate": "\ud800",
    "control characters": "a\x00b\x1b[31m\r\nX-Evil: 1",
    "200 KB": "x" * 200_000,
    "astral": "\U0001f600" * 3000,
    "right to left": "\u202e gnp.exe",
}


@pytest.mark.parametrize("name", HOSTILE_NAMES.values(), ids=HOSTILE_NAMES)
def test_hostile_names_encode_cleanly_and_come_back_short(name: str) -> None:
    """BUG-067."""
    message = f"no backend serves {name!s}"
    response = refuse(Refusal(Reason.NO_BACKENDS, message, effective_limits={name: 1}))
    error = body_of(response)["error"]
    for text in (error["message"], *error["effective_limit"]):
        assert len(text) <= MAX_MESSAGE_CHARS
        text.encode("utf-8")
        assert text.isprintable()


def test_printable_keeps_what_is_printable() -> None:
    assert printable("héllo 模型 a b") == "héllo 模型 a b"
    assert printable("a\nb", 10) == "a�b"
    assert printable("abcdef", 4) == "abc…"
    assert printable("abcd", 4) == "abcd"


def test_the_anthropic_paths_carry_its_error_shape_on_top() -> None:
    for path in ("/v1/messages", "/v1/messages?beta=true", "/v1/messages/count_tokens"):
        assert is_anthropic(path)
        body = body_of(refuse(Refusal(Reason.GATE, "full"), path=path))
        assert body["type"] == "error"
        assert body["error"]["type"] == "overloaded_error"
    assert not is_anthropic("/v1/messages2")
    assert "type" not in body_of(refuse(Refusal(Reason.GATE, "full"), path="/v1/chat/completions"))


def test_unauthorized_says_how_to_authorize() -> None:
    assert refuse(Refusal(Reason.UNAUTHORIZED, "m")).headers["WWW-Authenticate"] == "Bearer"


def test_not_found_and_wrong_method() -> None:
    missing = not_found("/v1/nothing?key=secret", request_id="r-1")
    assert missing.status == 404
    assert body_of(missing)["error"]["code"] == "not_found"
    assert "secret" not in body_of(missing)["error"]["message"]
    wrong = method_not_allowed("GET", "/v1/messages", ("POST",))
    assert wrong.status == 405
    assert wrong.headers["Allow"] == "POST"
    assert body_of(wrong)["type"] == "error"
    assert "X-Lifeboat-Reject-Reason" not in wrong.headers


def test_an_error_can_end_the_connection() -> None:
    assert error_response(400, "m", code=None, close=True).keep_alive is False
    assert refuse(Refusal(Reason.SHUTTING_DOWN, "m"), close=True).keep_alive is False


@pytest.mark.parametrize("reason", Reason)
def test_refusals_of_the_queue_tell_the_expected_wait(reason: Reason) -> None:
    told = body_of(refuse(Refusal(reason, "m", estimated_wait_s=2.5, predicted=True)))["error"]
    if reason in (Reason.QUEUE_FULL, Reason.QUEUE_TIMEOUT):
        assert (told["estimated_wait_ms"], told["predicted"]) == (2500, True)
        unknown = body_of(refuse(Refusal(reason, "m")))["error"]
        assert (unknown["estimated_wait_ms"], unknown["predicted"]) == (None, False)
    else:
        assert "estimated_wait_ms" not in told and "predicted" not in told
