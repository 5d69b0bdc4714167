"""One request on its way through the router: what is known of it, and its one terminal event.

The proxy fills it in as it goes; whatever happens, `finish` tells the observers exactly once
(I12, held by tests/acceptance/test_observed.py over sockets).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web

from lifeboat.core.ledger import READING, BodyLedger
from lifeboat.core.queue import Place
from lifeboat.core.vocabulary import (
    NO_TOKENS,
    Ask,
    Estimate,
    EstimateMethod,
    Priority,
    Reason,
    Verdict,
)
from lifeboat.edge.endpoints import Endpoint
from lifeboat.edge.headers import HeadFacts
from lifeboat.edge.refuse import Attempt
from lifeboat.observe.events import CLIENT_LEFT_STATUS, Finished, GoneAt, Observers, RetryCause
from lifeboat.wire.headers import Headers

MODEL_SHOWN_CHARS = 200
"""Characters of a client's model name that are kept for the log."""


@dataclass(slots=True)
class Journey:
    """The mutable record of one request.

    facts: read off its headers. started_at: clock seconds at its head. body: the bytes to be sent,
        dropped at the commit of an answer. pool: the one it is counted under, None before it is
        known. account: where the ledger holds its bytes. sends: requests that may have reached a
        backend.
    sent_path: the path and query for the backend, None where they are the client's.
    parked_since: clock seconds since when it waits for a slot, None while it does not.
    status: what the client was sent, None before a head. reason: why we refused, if we did.
    """

    request: web.BaseRequest
    endpoint: Endpoint
    headers: Headers
    facts: HeadFacts
    request_id: str
    started_at: float
    ledger: BodyLedger
    priority: Priority = Priority.NORMAL
    unknown_priority: bool = False
    sent_path: str | None = None
    body: bytes | None = None
    body_bytes: int = 0
    held_bytes: int = 0
    account: str = READING
    model: str | None = None
    pool: str | None = None
    estimate: Estimate = NO_TOKENS
    stream: bool = False
    stored: bool = True
    drop_encoding: bool = False
    ask: Ask | None = None
    place: Place | None = None
    phase: GoneAt = GoneAt.WAITING
    parked_since: float | None = None
    refused_wait_s: float = 0.0
    backend: str | None = None
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    sends: int = 0
    redispatched: bool = False
    retry_causes: list[str] = field(default_factory=list[str])
    dispatched_at: float = 0.0
    first_byte_at: float | None = None
    answer_bytes: int = 0
    status: int | None = None
    reason: Reason | None = None
    verdict: Verdict | None = None
    gone: bool = False
    _finished: bool = False

    @property
    def wait_ms(self) -> int:
        """Milliseconds parked so far, over all waits."""
        return 0 if self.place is None else round(self.place.parked_s * 1000)

    def wait_s(self, now: float) -> float:
        """Return seconds parked, over all waits, the one that is going on included."""
        waited_s = 0.0 if self.place is None else self.place.parked_s
        if self.parked_since is not None:
            waited_s += now - self.parked_since
        return max(waited_s, self.refused_wait_s)

    def hold(self, count_bytes: int) -> None:
        """Charge body bytes to the ledger; give some back where there are fewer."""
        if count_bytes >= 0:
            self.ledger.take(self.account, count_bytes)
        else:
            self.ledger.give_back(self.account, -count_bytes)
        self.held_bytes += count_bytes

    def charge(self, account: str) -> bool:
        """Charge the body to its pool, now that it is known; return whether there is room."""
        ledger, held_bytes = self.ledger, self.held_bytes
        if held_bytes:
            if not ledger.fits(self.account, account, held_bytes):
                return False
            ledger.move(self.account, account, held_bytes)
        self.account = account
        # A small one, which came whole, was not charged while it was read; and for an alias a name
        # is replaced, and an encoding undone.
        more_bytes = (0 if self.body is None else len(self.body)) - held_bytes
        if more_bytes > 0 and not ledger.has_room(account, more_bytes):
            return False
        self.hold(more_bytes)
        return True

    def drop_body(self) -> None:
        """Give the body's memory back: an answer is committed, or the request is over."""
        self.body = None
        if self.held_bytes:
            self.ledger.give_back(self.account, self.held_bytes)
            self.held_bytes = 0

    def about_to_send(self, backend: str, now: float) -> None:
        """Note a send; every one beyond the first has the last attempt's verdict as its cause."""
        if self.sends:
            self.retry_causes.append(self.attempts[-1].verdict.value)
        self.sends += 1
        self.backend = backend
        self.dispatched_at = now
        self.phase = GoneAt.WAITING

    def sent_again(self) -> None:
        """Note that a stale connection made the wire send the request once more."""
        self.sends += 1
        self.retry_causes.append(RetryCause.STALE_CONNECTION.value)

    def finish(self, observers: Observers, now: float, wall_now: float) -> None:
        """Tell the observers how the request ended; later calls do nothing."""
        if self._finished:
            return
        self._finished = True
        status = CLIENT_LEFT_STATUS if self.status is None else self.status
        first_byte_at = self.first_byte_at
        observers.finished(
            Finished(
                at_wall=wall_now,
                request_id=self.request_id,
                method=self.request.method,
                path=self.request.raw_path.partition("?")[0],
                model=None if self.model is None else self.model[:MODEL_SHOWN_CHARS],
                pool=self.pool,
                backend=self.backend,
                status=status,
                reason=self.reason,
                verdict=self.verdict,
                wait_s=self.wait_s(now),
                ttfb_s=None if first_byte_at is None else first_byte_at - self.dispatched_at,
                total_s=now - self.started_at,
                estimated_tokens=self.estimate.tokens,
                estimate_method=self.estimate.method or EstimateMethod.NONE,
                body_bytes=self.body_bytes,
                answer_bytes=self.answer_bytes,
                attempts=self.sends,
                stream=self.stream,
                client_gone=self.phase if self.gone else None,
                retry_causes=tuple(self.retry_causes),
                priority=self.priority,
                unknown_priority=self.unknown_priority,
            )
        )


NewId = Callable[[], str]
"""Makes a fresh request id."""
