"""What a backend's own answer means: rows of the contract's table, and real servers' bodies."""

from __future__ import annotations

import json
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifeboat.core.answers import (
    IN_STREAM_OVERLOAD_CODES,
    OVERLOAD_CODES,
    classify,
    first_event_end,
    is_overload_event,
    parse_retry_after,
)
from lifeboat.core.vocabulary import Kind, Outcome, Verdict

NOW = 1_800_000_000.0


def verdict(
    status: int,
    body: object = b"",
    *,
    retry_after: str | None = None,
    kind: Kind = Kind.OPENAI,
    own_key: bool = False,
    content_type: str | None = "application/json",
) -> Verdict:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return classify(status, content_type, raw, retry_after, kind, own_key, wall_now=NOW).verdict


@pytest.mark.parametrize("status", [503, 429])
@pytest.mark.parametrize("code", OVERLOAD_CODES)
@pytest.mark.parametrize("field", ["type", "code"])
def test_every_overload_code_means_saturated(status: int, code: str, field: str) -> None:
    assert verdict(status, {"error": {"message": "m", field: code}}) is Verdict.SATURATED
    assert verdict(status, {"error": {"message": "m", field: code.upper()}}) is Verdict.SATURATED


REAL_BODIES = [
    (
        "inference-lab",
        529,
        {"error": {"type": "overloaded_error", "code": "queue_saturated"}},
        Kind.OPENAI,
        Verdict.SATURATED,
    ),
    ("529 whatever it says", 529, b"<html>", Kind.OPENAI, Verdict.SATURATED),
    (
        "Anthropic",
        503,
        {"type": "error", "error": {"type": "overloaded_error", "message": "O"}},
        Kind.OPENAI,
        Verdict.SATURATED,
    ),
    (
        "another Lifeboat at its gate",
        503,
        {"error": {"type": "overloaded_error", "code": None, "message": "full"}},
        Kind.OPENAI,
        Verdict.SATURATED,
    ),
    (
        "vLLM with a full queue",
        503,
        {
            "error": {
                "message": "Too many",
                "type": "Service Unavailable",
                "param": None,
                "code": 503,
            }
        },
        Kind.VLLM,
        Verdict.SATURATED,
    ),
    (
        "vLLM before 0.9, bare error object",
        503,
        {"object": "error", "message": "busy", "type": "x", "code": 503},
        Kind.VLLM,
        Verdict.SATURATED,
    ),
    (
        "the same from an unknown server",
        503,
        {"error": {"message": "upstream gone", "type": "x", "code": 503}},
        Kind.OPENAI,
        Verdict.SERVER_ERROR,
    ),
    (
        "llama.cpp loading",
        503,
        {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}},
        Kind.GGUF,
        Verdict.LOADING,
    ),
    ("old llama.cpp loading", 503, {"status": "loading model"}, Kind.GGUF, Verdict.LOADING),
    (
        "old llama.cpp without a slot",
        503,
        {"status": "no slot available"},
        Kind.GGUF,
        Verdict.SATURATED,
    ),
    (
        "llama.cpp without a slot",
        503,
        {"error": {"code": 503, "message": "slot unavailable", "type": "unavailable_error"}},
        Kind.GGUF,
        Verdict.SATURATED,
    ),
    (
        "Ollama",
        503,
        {"error": "server busy, please try again.  maximum pending requests exceeded"},
        Kind.OPENAI,
        Verdict.SATURATED,
    ),
    (
        "text-generation-inference",
        429,
        {"error": "Model is overloaded", "error_type": "overloaded"},
        Kind.OPENAI,
        Verdict.SATURATED,
    ),
    (
        "SGLang",
        503,
        {"object": "error", "message": "The request queue is full.", "type": "X", "code": 503},
        Kind.OPENAI,
        Verdict.SATURATED,
    ),
    ("a proxy's page", 503, b"<h1>503</h1> overloaded_error", Kind.VLLM, Verdict.SERVER_ERROR),
    ("an empty 503", 503, b"", Kind.VLLM, Verdict.SERVER_ERROR),
    ("a list", 503, [1], Kind.VLLM, Verdict.SERVER_ERROR),
    ("deep nonsense", 503, b"[" * 100_000, Kind.VLLM, Verdict.SERVER_ERROR),
    ("an error that is a number", 503, {"error": 5}, Kind.VLLM, Verdict.SERVER_ERROR),
    (
        "a 500 with an overload code",
        500,
        {"error": {"type": "overloaded_error"}},
        Kind.OPENAI,
        Verdict.SERVER_ERROR,
    ),
]


@pytest.mark.parametrize("row", REAL_BODIES, ids=[row[0] for row in REAL_BODIES])
def test_the_bodies_of_real_servers(row: tuple[str, int, object, Kind, Verdict]) -> None:
    _, status, body, kind, expected = row
    assert verdict(status, body, kind=kind) is expected


@pytest.mark.parametrize("status", [500, 502, 504, 599])
def test_a_server_error_counts_against_health(status: int) -> None:
    assert verdict(status) is Verdict.SERVER_ERROR


@pytest.mark.parametrize("status", [200, 204, 302, 400, 401, 404, 413, 422, 499, 501])
def test_any_other_status_is_an_answer(status: int) -> None:
    assert verdict(status, {"error": {"type": "overloaded_error"}}) is Verdict.ANSWERED


@pytest.mark.parametrize(
    ("own_key", "retry_after", "expected"),
    [
        (True, "7", Verdict.THROTTLED),
        (True, None, Verdict.ANSWERED),
        (True, "soon", Verdict.ANSWERED),
        (False, "7", Verdict.ANSWERED),
    ],
)
def test_a_429_closes_a_backend_only_for_its_own_key(
    own_key: bool, retry_after: str | None, expected: Verdict
) -> None:
    body = {"error": {"type": "rate_limit_error", "code": "rate_limit_exceeded"}}
    assert verdict(429, body, own_key=own_key, retry_after=retry_after) is expected


def test_an_outcome_carries_status_and_what_was_asked_for() -> None:
    outcome = classify(529, None, b"", "2.5", Kind.VLLM, False, wall_now=NOW)
    assert outcome == Outcome(Verdict.SATURATED, 529, 2.5)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("0", 0.0),
        (" 7 ", 7.0),
        ("1.5", 1.5),
        ("301", 300.0),
        ("999999999999", 300.0),
        ("-1", None),
        ("", None),
        ("1e3", None),
        ("NaN", None),
        ("\u0661", None),
        (formatdate(NOW + 30, usegmt=True), 30.0),
        (formatdate(NOW - 30, usegmt=True), 0.0),
        (formatdate(NOW + 9000, usegmt=True), 300.0),
        ("Fri, 99 Foo 2027 99:99:99 GMT", None),
        ("Mon, 01 Jan 99999999 00:00:00 GMT", None),
    ],
)
def test_retry_after_in_all_its_spellings(value: str | None, seconds: float | None) -> None:
    assert parse_retry_after(value, NOW) == seconds


@given(st.text(max_size=60))
def test_retry_after_never_raises_and_stays_in_bounds(value: str) -> None:
    seconds = parse_retry_after(value, NOW)
    assert seconds is None or 0.0 <= seconds <= 300.0


@given(st.binary(max_size=200))
def test_no_body_makes_classify_raise(body: bytes) -> None:
    assert verdict(503, body) in Verdict


# ---- in-stream refusals ---------------------------------------------------------------------


def event(payload: object, end: bytes = b"\n\n", lead: bytes = b"data: ") -> bytes:
    return lead + json.dumps(payload).encode() + end


@pytest.mark.parametrize("code", sorted(IN_STREAM_OVERLOAD_CODES))
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("lead", [b"data: ", b"data:", b": p\n\ndata: ", b"event: error\ndata: "])
def test_a_first_event_of_code_503_or_529_is_a_refusal(code: int, end: bytes, lead: bytes) -> None:
    assert is_overload_event(event({"error": {"message": "m", "code": code}}, end, lead))
    assert is_overload_event(event({"object": "error", "code": code}, end, lead))
    assert is_overload_event(event({"error": {"code": str(code)}}, end, lead) + b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        b"data: [DONE]\n\n",
        event({"choices": []}),
        event({"error": {"code": 500}}),
        event({"error": {"code": True}}),
        event({"error": {"code": "busy"}}),
        event({"error": {"message": "no code"}}),
        event({"code": 503}),
        event([503]),
        event({"error": {"code": 503}})[:-1],
        event({"choices": []}) + event({"error": {"code": 503}}),
        b"data: {broken\n\n",
        b"\xff\xfe\n\n",
    ],
)
def test_anything_else_is_an_ordinary_stream(stream: bytes) -> None:
    assert not is_overload_event(stream)


@pytest.mark.parametrize(
    ("stream", "end"),
    [
        (b"data: 1\n\ndata: 2\n\n", 9),
        (b": ping\n\ndata: 1\n\nx", 17),
        (b"data: 1\r\n\r\n", 11),
        (b"data: 1\n", None),
        (b": ping\n\n", None),
        (b"event: x\n\ndata: 1", None),
        (b"\xef\xbb\xbfdata: 1\n\n", 12),
    ],
)
def test_where_the_first_event_ends(stream: bytes, end: int | None) -> None:
    assert first_event_end(stream) == end
