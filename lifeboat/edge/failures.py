"""Refusals for attempts that failed and are not made again: what the client is told.

Held by tests/acceptance/test_backend_answers.py.
"""

from __future__ import annotations

from lifeboat.core.seat import Lease
from lifeboat.core.vocabulary import Reason, Refusal
from lifeboat.wire.upstream import UpstreamError


def exhausted(lease: Lease, error: UpstreamError, pool: str | None) -> Refusal:
    """Return the refusal where this process could open no connection."""
    return Refusal(
        Reason.BACKEND_UNREACHABLE,
        f"the router itself could not open a connection to {lease.backend} ({error.detail}): raise "
        "its limit of open files (ulimit -n, LimitNOFILE=) or lower what its gates let through",
        pool=pool,
    )


def timed_out(lease: Lease, error: UpstreamError, pool: str | None) -> Refusal:
    """Return the refusal where the backend sent no byte in time."""
    return Refusal(
        Reason.BACKEND_TIMEOUT,
        f"{lease.backend} sent no byte of an answer in time ({error.detail}): raise "
        "LIFEBOAT_UPSTREAM_FIRST_BYTE_TIMEOUT_SEC or the backend's first_byte_timeout",
        pool=pool,
        effective_limits={lease.backend: lease.seat.limit},
    )


def lost(lease: Lease, error: UpstreamError, pool: str | None) -> Refusal:
    """Return the refusal where the connection broke and the work may have been done."""
    when = "within the head" if error.answer_begun else "before any byte"
    return Refusal(
        Reason.BACKEND_UNREACHABLE,
        f"the connection to {lease.backend} was lost after the request was sent, {when} "
        f"of an answer ({error.detail}); it is not sent again",
        pool=pool,
    )
