"""The rejection table: every reason Lifeboat refuses for, with its status, type and remedy.

Source: the contract's section 5. Total over `Reason` (I8, held by tests/core/test_rejections.py);
docs, `GET /api/lb/rejections`, the CLI and the dashboard read it. A status that a backend itself
answered never passes through here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lifeboat.core.vocabulary import Capability, Reason


class ErrorType(StrEnum):
    """The `type` of the OpenAI error envelope."""

    OVERLOADED = "overloaded_error"
    INVALID_REQUEST = "invalid_request_error"
    TIMEOUT = "timeout_error"
    API = "api_error"


REJECT_STATUSES = (503, 429, 529)
"""What `LIFEBOAT_LB_REJECT_STATUS` may turn the gate and queue_full rejections into."""


@dataclass(frozen=True, slots=True)
class RejectionRow:
    """One row of the table.

    status: HTTP status; `status_is_configurable` rows take the reject_status setting instead.
    wire_reason: the `code`, `reason` and X-Lifeboat-Reject-Reason; None for the gate (code null,
        no header).
    retry_is_pointless: `x-should-retry: false` is sent, unless the refusal is temporary.
    about_capacity: the body carries `routing_mode` and `effective_limit`.
    when: one sentence for the docs. advice: what to do about it.
    """

    reason: Reason
    status: int
    wire_reason: str | None
    error_type: ErrorType
    retry_is_pointless: bool
    about_capacity: bool
    when: str
    advice: str
    status_is_configurable: bool = False


_ADD_ROOM = (
    "Raise max_concurrency, add a replica, or use the queue-all mode so that requests wait "
    "their turn."
)

_ROWS = (
    RejectionRow(
        Reason.GATE,
        503,
        None,
        ErrorType.OVERLOADED,
        False,
        True,
        "every candidate is at its effective limit and the queue is off",
        _ADD_ROOM,
        status_is_configurable=True,
    ),
    RejectionRow(
        Reason.QUEUE_FULL,
        503,
        "queue_full",
        ErrorType.OVERLOADED,
        False,
        True,
        "the pool is at its ceiling of parked requests, or parked bytes are at their bound",
        "A capacity problem: raise max_concurrency, add a replica, or use the queue-all mode. "
        "The queue redistributes, it does not create capacity.",
        status_is_configurable=True,
    ),
    RejectionRow(
        Reason.QUEUE_TIMEOUT,
        504,
        "queue_timeout",
        ErrorType.TIMEOUT,
        False,
        True,
        "the request was parked for the whole TTL",
        "More load than the pool can serve, sustained: add capacity. A longer TTL "
        "moves the failure, not the cause.",
    ),
    RejectionRow(
        Reason.REQUEST_TOO_LARGE,
        413,
        "request_too_large",
        ErrorType.INVALID_REQUEST,
        True,
        False,
        "no candidate's input cap covers the estimate",
        "Raise max_input_tokens on a backend that can take it, or shorten the prompt.",
    ),
    RejectionRow(
        Reason.NO_BACKENDS,
        503,
        "no_backends",
        ErrorType.OVERLOADED,
        True,
        True,
        "nothing is running for that model (usually a name that matches nothing), or "
        "nothing of that model "
        "has the wanted capability",
        "Check the model's name against GET /v1/models, and start or undrain a "
        "backend that serves it.",
    ),
    RejectionRow(
        Reason.EMBEDDING_ONLY_POOL,
        503,
        "embedding_only_pool",
        ErrorType.OVERLOADED,
        True,
        True,
        "a generation request is aimed at an embedding model",
        "Use a model that generates, or send this model to /v1/embeddings.",
    ),
    RejectionRow(
        Reason.NO_EMBEDDING_BACKEND,
        501,
        "no_embedding_backend",
        ErrorType.INVALID_REQUEST,
        True,
        False,
        "/v1/embeddings is asked and there is no embedding server at all",
        "Add a backend with `serves: [embed]`.",
    ),
    RejectionRow(
        Reason.NO_DIFFUSION_BACKEND,
        501,
        "no_diffusion_backend",
        ErrorType.INVALID_REQUEST,
        True,
        False,
        "an image or video endpoint is asked and there is no diffusion server at all",
        "Add a backend with `serves: [image]` or `serves: [video]`.",
    ),
    RejectionRow(
        Reason.NO_RERANK_BACKEND,
        501,
        "no_rerank_backend",
        ErrorType.INVALID_REQUEST,
        True,
        False,
        "a rerank or score endpoint is asked and there is no rerank server at all",
        "Add a backend with `serves: [rerank]`.",
    ),
    RejectionRow(
        Reason.NO_AUDIO_BACKEND,
        501,
        "no_audio_backend",
        ErrorType.INVALID_REQUEST,
        True,
        False,
        "an audio endpoint is asked and there is no audio server at all",
        "Add a backend with `serves: [transcribe]` or `serves: [speech]`.",
    ),
    RejectionRow(
        Reason.INVALID_REQUEST,
        400,
        "invalid_request",
        ErrorType.INVALID_REQUEST,
        True,
        False,
        "the body is not JSON, not an object, too deep or with too many nodes, or "
        "`model` is missing where "
        "required or not a string",
        "Send a JSON object with a string `model`.",
    ),
    RejectionRow(
        Reason.BODY_TOO_LARGE,
        413,
        "body_too_large",
        ErrorType.INVALID_REQUEST,
        True,
        False,
        "the request body is over the body limit",
        "Send a smaller body, or raise LIFEBOAT_MAX_BODY_BYTES.",
    ),
    RejectionRow(
        Reason.RATE_LIMITED,
        429,
        "rate_limited",
        ErrorType.OVERLOADED,
        False,
        True,
        "the model's max_requests_per_minute is used up",
        "Slow down until Retry-After, or raise max_requests_per_minute of the model.",
    ),
    RejectionRow(
        Reason.UNAUTHORIZED,
        401,
        "unauthorized",
        ErrorType.INVALID_REQUEST,
        True,
        False,
        "the key is missing or wrong",
        "Send one of the configured keys as `Authorization: Bearer KEY` or `x-api-key: KEY`.",
    ),
    RejectionRow(
        Reason.SHUTTING_DOWN,
        503,
        "shutting_down",
        ErrorType.OVERLOADED,
        False,
        True,
        "the request was parked or arrived while the router drains",
        "Send it again: another router, or this one after its restart, will take it.",
    ),
    RejectionRow(
        Reason.BACKEND_UNREACHABLE,
        502,
        "backend_unreachable",
        ErrorType.API,
        False,
        True,
        "every candidate failed before the first byte of an answer",
        "Look at the listed attempts: start the servers, or check their urls.",
    ),
    RejectionRow(
        Reason.BACKEND_TIMEOUT,
        504,
        "backend_timeout",
        ErrorType.TIMEOUT,
        True,
        True,
        "the backend sent no byte of an answer within the first-byte timeout",
        "Raise first_byte_timeout for slow models, or find out why the server is stuck.",
    ),
)

REJECTIONS: dict[Reason, RejectionRow] = {row.reason: row for row in _ROWS}
"""The table, one row per reason, in the contract's order."""

MISSING_CAPABILITY: dict[Capability, Reason] = {
    Capability.EMBED: Reason.NO_EMBEDDING_BACKEND,
    Capability.IMAGE: Reason.NO_DIFFUSION_BACKEND,
    Capability.VIDEO: Reason.NO_DIFFUSION_BACKEND,
    Capability.RERANK: Reason.NO_RERANK_BACKEND,
    Capability.TRANSCRIBE: Reason.NO_AUDIO_BACKEND,
    Capability.SPEECH: Reason.NO_AUDIO_BACKEND,
}
"""The 501 for a capability that no configured server has; `generate` has no such row."""


def status_of(reason: Reason, reject_status: int = 503) -> int:
    """Return the HTTP status of a reason under the `reject_status` setting."""
    row = REJECTIONS[reason]
    return reject_status if row.status_is_configurable else row.status
