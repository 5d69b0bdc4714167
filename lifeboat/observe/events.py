"""The terminal event of a request, and the observers it goes to.

Invariants, held by tests/observe/test_events.py: an observer that raises disturbs neither the
request nor the other observers (I12; a negative increment once killed a stream in another
router), and its errors are counted and logged, but not once per request.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from lifeboat.core.vocabulary import EstimateMethod, Priority, Reason, Verdict

_log = logging.getLogger("lifeboat.observe")

CLIENT_LEFT_STATUS = 499
"""The status shown for a client that left before it was sent a head (nginx's convention)."""


class GoneAt(StrEnum):
    """What a request was doing when its client left."""

    PARKED = "parked"
    WAITING = "waiting"
    """Dispatched, and no byte of an answer relayed yet."""
    STREAMING = "streaming"


class RetryCause(StrEnum):
    """Why a request was sent again, or elsewhere: verdicts of the attempt before, and our own."""

    SATURATED = Verdict.SATURATED.value
    LOADING = Verdict.LOADING.value
    THROTTLED = Verdict.THROTTLED.value
    REFUSED = Verdict.REFUSED.value
    UNREACHABLE = Verdict.UNREACHABLE.value
    RESET = Verdict.RESET.value
    SERVER_ERROR = Verdict.SERVER_ERROR.value
    """A plain 503: the next candidate was asked."""
    STALE_CONNECTION = "stale_connection"
    """A reused idle connection turned out closed: once more, same backend, fresh connection."""


@dataclass(slots=True)
class Finished:
    """How one request ended: every Ask ends in exactly one of these. Not to be changed.

    Not frozen: that would triple the cost of making one, and each request makes one.

    at_wall: epoch seconds of the end. path: without its query. model: as the client asked, None
        where it named none. pool: None before a pool was known.
    backend: the one whose answer was relayed, or that was asked last; None if none was asked.
    status: what the client was sent; 499 for one that left before a head.
    reason: set where Lifeboat itself refused. verdict: how the last lease ended.
    wait_s: parked, in all. ttfb_s: from the last dispatch to the first byte of the answer, None
        without one: what the backend took. total_s: from the request's head to its end.
    body_bytes, answer_bytes: of the request and of the answer as far as it was relayed.
    attempts: sends to backends. retry_causes: one per send beyond the first (RetryCause values).
    """

    at_wall: float
    request_id: str
    method: str
    path: str
    model: str | None
    pool: str | None
    backend: str | None
    status: int
    reason: Reason | None
    verdict: Verdict | None
    wait_s: float
    ttfb_s: float | None
    total_s: float
    estimated_tokens: int
    estimate_method: EstimateMethod
    body_bytes: int
    answer_bytes: int
    attempts: int
    stream: bool
    client_gone: GoneAt | None = None
    retry_causes: tuple[str, ...] = ()
    priority: Priority = Priority.NORMAL
    unknown_priority: bool = False


class Observer(Protocol):
    """Something that is told how requests end. Synchronous, quick, and without effect on them."""

    def finished(self, event: Finished, /) -> None:
        """Take note of the end of one request."""
        ...


_FAULT_LOG_S = 60.0
"""Errors of observers are logged at most this often: a broken metric breaks once per request."""


class Observers:
    """Several observers as one; none of them can raise into traffic."""

    def __init__(self, observers: tuple[Observer, ...], clock: Callable[[], float]) -> None:
        """clock: monotonic seconds, for the pace of complaints."""
        self._observers = observers
        self._clock = clock
        self._logged_at: float | None = None
        self._unlogged = 0
        self.errors = 0
        """Calls that raised, since start."""

    def finished(self, event: Finished, /) -> None:
        """Tell every observer. Never raises an Exception."""
        for observer in self._observers:
            try:
                observer.finished(event)
            except Exception:
                self._note_fault(observer)

    def _note_fault(self, observer: Observer) -> None:
        self.errors += 1
        self._unlogged += 1
        # A log that cannot be written is no reason to fail a request either.
        with contextlib.suppress(Exception):
            now = self._clock()
            if self._logged_at is not None and now - self._logged_at < _FAULT_LOG_S:
                return
            self._logged_at = now
            count, self._unlogged = self._unlogged, 0
            _log.exception(
                "%s failed on the end of a request (%d times since this was last logged);"
                " the request itself was not affected",
                type(observer).__name__,
                count,
            )


class LastRefusals:
    """When each reason was last given, for the rejections page."""

    def __init__(self) -> None:
        self.seen_at: dict[Reason, float] = {}
        """Epoch seconds, for the reasons given since start."""

    def finished(self, event: Finished, /) -> None:
        """Note the reason of a refusal."""
        if event.reason is not None:
            self.seen_at[event.reason] = event.at_wall
