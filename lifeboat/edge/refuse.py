"""Refusals and errors of the router's own, as responses.

Source: the contract's section 5. Everything the router itself says is JSON in the OpenAI envelope,
whatever went wrong; on Anthropic's paths the envelope carries `"type": "error"` on top, which is
what its SDK looks for. Held by tests/edge_tables/test_refuse.py and tests/wire/test_server.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from aiohttp import web

from lifeboat.core.modes import Mode
from lifeboat.core.rejections import REJECTIONS, ErrorType, RejectionRow, status_of
from lifeboat.core.vocabulary import Reason, Refusal, Verdict
from lifeboat.edge.headers import REJECT_REASON, REQUEST_ID, WAIT_MS

MAX_MESSAGE_CHARS = 2000
"""A message quotes what the client sent: a 200 KB model name must not come back whole."""
MAX_DETAIL_CHARS = 300
RETRY_AFTER_BOUNDS_S = (1, 119)
"""Whole seconds of Retry-After: the SDKs ignore zero, and two minutes or more."""
QUEUE_REASONS = frozenset({Reason.QUEUE_FULL, Reason.QUEUE_TIMEOUT})
"""Refusals that tell how long one more request would be parked."""
JSON_TYPE = "application/json; charset=utf-8"
ANTHROPIC_PREFIX = "/v1/messages"

_STATUS_OVERLOADED = 529
_REASON_PHRASES = {_STATUS_OVERLOADED: "Site is overloaded"}
"""Phrases that http.HTTPStatus does not have."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a backend, as listed in a `backend_unreachable` refusal."""

    backend: str
    verdict: Verdict
    detail: str = ""
    status: int | None = None


def is_anthropic(raw_path: str) -> bool:
    """Say whether a path speaks Anthropic's protocol, and so wants its error shape too."""
    path = raw_path.partition("?")[0]
    return path == ANTHROPIC_PREFIX or path.startswith(ANTHROPIC_PREFIX + "/")


def refusal_response(
    refusal: Refusal,
    *,
    mode: Mode,
    reject_status: int,
    request_id: str,
    wait_ms: int,
    attempts: Sequence[Attempt] = (),
    path: str = "",
    close: bool = False,
) -> web.Response:
    """Return the response for a refusal: envelope, status and every header of section 5.

    reject_status: the `LIFEBOAT_LB_REJECT_STATUS` setting. attempts: what was tried before, in
    order. path: of the request, for the error shape. close: end the connection after it.
    """
    row = REJECTIONS[refusal.reason]
    retry_after_s = refusal.retry_after_s
    error = _envelope(refusal.message, row.error_type, row.wire_reason, reason=row.wire_reason)
    if row.about_capacity:
        error |= {
            "routing_mode": mode.value,
            "effective_limit": {
                printable(name): limit for name, limit in refusal.effective_limits.items()
            },
            "queue_depth": refusal.queue_depth,
            "queue_limit": refusal.queue_limit,
        }
    error |= {
        "wait_ms": wait_ms,
        "retry_after_ms": None if retry_after_s is None else _retry_after_ms(retry_after_s),
        "request_id": request_id,
        "advice": refusal.advice or row.advice,
    }
    if refusal.reason in QUEUE_REASONS:
        wait_s = refusal.estimated_wait_s
        error["estimated_wait_ms"] = None if wait_s is None else math.ceil(wait_s * 1000)
        error["predicted"] = refusal.predicted
    if attempts:
        error["attempts"] = [_attempt_json(attempt) for attempt in attempts]
    response = _json_response(
        status_of(refusal.reason, reject_status), error, anthropic=is_anthropic(path)
    )
    response.headers[WAIT_MS.decode()] = str(wait_ms)
    response.headers[REQUEST_ID.decode()] = request_id
    _add_row_headers(response, row, refusal)
    if close:
        response.force_close()
    return response


def _add_row_headers(response: web.Response, row: RejectionRow, refusal: Refusal) -> None:
    headers = response.headers
    if row.wire_reason is not None:
        headers[REJECT_REASON.decode()] = row.wire_reason
    if refusal.retry_after_s is not None:
        low, high = RETRY_AFTER_BOUNDS_S
        headers["Retry-After"] = str(min(max(math.ceil(refusal.retry_after_s), low), high))
        headers["retry-after-ms"] = str(_retry_after_ms(refusal.retry_after_s))
    if row.retry_is_pointless and not refusal.temporary:
        headers["x-should-retry"] = "false"
    if refusal.reason is Reason.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"


def _retry_after_ms(retry_after_s: float) -> int:
    return min(max(math.ceil(retry_after_s * 1000), 1), RETRY_AFTER_BOUNDS_S[1] * 1000)


def _attempt_json(attempt: Attempt) -> dict[str, object]:
    return {
        "backend": printable(attempt.backend),
        "outcome": attempt.verdict.value,
        "status": attempt.status,
        "detail": printable(attempt.detail, MAX_DETAIL_CHARS),
    }


def error_response(
    status: int,
    message: str,
    *,
    code: str | None,
    error_type: ErrorType = ErrorType.INVALID_REQUEST,
    request_id: str | None = None,
    path: str = "",
    allow: Iterable[str] = (),
    close: bool = False,
) -> web.Response:
    """Return an error that is no refusal: 404, 405 (allow names the methods), bad HTTP, a fault.

    It carries no reject reason and is counted under none.
    """
    error = _envelope(message, error_type, code)
    if request_id is not None:
        error["request_id"] = request_id
    response = _json_response(status, error, anthropic=is_anthropic(path))
    if request_id is not None:
        response.headers[REQUEST_ID.decode()] = request_id
    methods = ", ".join(allow)
    if methods:
        response.headers["Allow"] = methods
    if close:
        response.force_close()
    return response


def not_found(path: str, *, request_id: str | None = None) -> web.Response:
    """Return the JSON 404 for a path nobody serves."""
    return error_response(
        404,
        f"there is no {printable(path.partition('?')[0], MAX_DETAIL_CHARS)} here",
        code="not_found",
        request_id=request_id,
        path=path,
    )


def method_not_allowed(
    method: str, path: str, allow: Iterable[str], *, request_id: str | None = None
) -> web.Response:
    """Return the JSON 405 with its Allow header."""
    methods = tuple(allow)
    return error_response(
        405,
        f"{printable(method, 32)} is not a method of "
        f"{printable(path.partition('?')[0], MAX_DETAIL_CHARS)}: use {', '.join(methods)}",
        code="method_not_allowed",
        request_id=request_id,
        path=path,
        allow=methods,
    )


def _envelope(
    message: str, error_type: ErrorType, code: str | None, **more: object
) -> dict[str, object]:
    return {
        "message": printable(message, MAX_MESSAGE_CHARS),
        "type": error_type.value,
        "code": code,
        "param": None,
        **more,
    }


def _json_response(status: int, error: dict[str, object], *, anthropic: bool) -> web.Response:
    body: dict[str, object] = {"type": "error", "error": error} if anthropic else {"error": error}
    # ensure_ascii: whatever a name holds, the bytes are ASCII and decode everywhere.
    return web.Response(
        status=status,
        reason=_reason_phrase(status),
        body=json.dumps(body, ensure_ascii=True).encode("ascii"),
        headers={"Content-Type": JSON_TYPE},
    )


def _reason_phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return _REASON_PHRASES.get(status, "Error")


def printable(text: str, most_chars: int = MAX_MESSAGE_CHARS) -> str:
    """Return text that is safe to encode, log and show, cut to most_chars.

    Lone surrogates and control characters become U+FFFD; a cut is marked with an ellipsis.
    """
    cut = text if len(text) <= most_chars else text[: most_chars - 1] + "…"
    if cut.isprintable():
        return cut
    return "".join(char if char.isprintable() or char == " " else "�" for char in cut)
