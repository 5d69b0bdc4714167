"""The asyncio seam over the gate, and its only owner.

Every call into the gate goes through here, so that what the gate decides about parked requests is
delivered before anything else runs: a future per ticket, one timer for all that only the clock
decides. Whatever interleaving of grant, cancel and timeout (I9): a waiter that is cancelled in the
tick of its grant gives the slot straight back, and nothing of it stays. Held by
tests/door/test_door.py. Sources of the hazard: cpython#90155, anyio#1145.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar, cast

from lifeboat.core.explain import Explanation, explain
from lifeboat.core.gate import Admission, Gate, Granted
from lifeboat.core.ledger import BodyLedger
from lifeboat.core.queue import Place, Ticket
from lifeboat.core.rules import GateRules
from lifeboat.core.seat import Lease
from lifeboat.core.snapshot import parked_requests, take_view
from lifeboat.core.view import GateView, ParkedView
from lifeboat.core.vocabulary import Ask, Capability, Outcome, Reason, Refusal, Verdict

T = TypeVar("T")

CLIENT_GONE = Outcome(Verdict.CLIENT_GONE)
ABANDONED = Outcome(Verdict.ABANDONED)


class Door:
    """Admits requests, waits for those that are parked, and keeps the gate's time.

    clock: seconds, monotonic, the same as the event loop's timers run on.
    """

    def __init__(self, gate: Gate, clock: Callable[[], float]) -> None:
        self._gate = gate
        self.clock = clock
        self.changes = 0
        """Steps the gate has taken: watchers compare it to know whether to look again."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._emptied = asyncio.Event()

    # -- requests ---------------------------------------------------------------------------

    async def enter(self, ask: Ask, place: Place | None = None) -> Lease | Refusal:
        """Return a lease, now or after waiting, or the reason why there is none.

        Cancelling the caller withdraws a parked request at once; a slot granted in the same tick
        passes on. Whoever gets a lease must close it.
        """
        admission = self.admit(ask, place)
        return await self.wait(admission) if isinstance(admission, Ticket) else admission

    def admit(self, ask: Ask, place: Place | None = None) -> Admission:
        """Return a lease, the reason why there is none, or a ticket that must be waited on."""
        admission = self._gate.admit(ask, self.clock(), place)
        if not isinstance(admission, Ticket):
            self._settle()
        return admission

    async def wait(self, ticket: Ticket) -> Lease | Refusal:
        """Return what becomes of a parked request; see `enter`."""
        waiter: asyncio.Future[Lease | Refusal] = asyncio.get_running_loop().create_future()
        ticket.waiter = waiter
        self._settle()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                granted = waiter.result()
                if isinstance(granted, Lease):
                    self.close(granted, CLIENT_GONE)
            else:
                self._gate.withdraw(ticket, self.clock())
                self._settle()
            raise

    def slot(self, ask: Ask, place: Place | None = None) -> Slot:
        """Enter for the length of a block (`async with`); a lease still open at its end is closed.

        A cancelled block means that the client left; any other exception is a fault of ours and
        says nothing about the backend.
        """
        return Slot(self, ask, place)

    def close(self, lease: Lease, outcome: Outcome) -> None:
        """Close a lease; closing again does nothing. Synchronous, and it cannot fail."""
        if lease.open:
            self._gate.release(lease, outcome, self.clock())
            self._settle()

    def exclude(self, lease: Lease) -> None:
        """Keep a request away from the backend that failed it, until that backend recovers."""
        self._gate.exclude(lease.place, lease)

    def note_dispatch(self, lease: Lease) -> None:
        """Count a request that is being sent under a lease."""
        self._gate.note_dispatch(lease)

    def note_rejected(self, pool: str | None, reason: Reason) -> None:
        """Count a refusal that is being sent."""
        self._gate.note_rejected(pool, reason, self.clock())

    # -- changes and views ------------------------------------------------------------------

    def reconfigure(self, change: Callable[[Gate, float], T]) -> T:
        """Apply a change to the gate and deliver what follows from it.

        change: called with the gate and the time; it must not keep the gate.
        """
        try:
            return change(self._gate, self.clock())
        finally:
            self._settle()

    @contextmanager
    def as_one(self) -> Generator[None]:
        """Let all changes within a block take force as one, at its end; it must not await."""
        try:
            with self._gate.as_one(self.clock()):
                yield
        finally:
            self._settle()

    def caps(self, model: str, capability: Capability) -> tuple[int, ...]:
        """Return the input caps on the way of such requests: where a count may decide."""
        route = self._gate.seats.directory.route(model, capability)
        return () if isinstance(route, Refusal) else route.caps

    def explain(self, ask: Ask) -> Explanation:
        """Return what would happen to such a request now; nothing happens."""
        self._advance()
        return explain(self._gate, ask, self.clock())

    def pool_of(self, model: str) -> str:
        """Return the pool that requests for this name are counted under."""
        return self._gate.pool_of(model)

    def bytes_full(self, pool: str, ledger: BodyLedger) -> Refusal:
        """Return the refusal of a pool whose bodies take more memory than its share."""
        return self._gate.bytes_full(pool, ledger, self.clock())

    @property
    def draining(self) -> bool:
        """Whether new requests are refused because the router shuts down."""
        return self._gate.draining

    @property
    def rules(self) -> GateRules:
        """The settings the gate obeys now."""
        return self._gate.rules

    def view(self, parked_bytes: int = 0) -> GateView:
        """Return a snapshot, with everything that was due applied."""
        changes = self.changes
        self._advance()
        # Looking is no change: a watcher that looks must not wake the other watchers.
        self.changes = changes
        return take_view(self._gate, self.clock(), parked_bytes)

    def parked(self, most: int) -> list[ParkedView]:
        """Return the parked requests, at most `most` of each pool."""
        self._advance()
        return parked_requests(self._gate, self.clock(), most)

    async def drained(self) -> None:
        """Wait until no lease is open and nothing is parked."""
        while self._gate.open or self._gate.parked.count:
            self._emptied.clear()
            await self._emptied.wait()

    def stop(self) -> None:
        """Stop the timer; only for the end of the process."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- inside -----------------------------------------------------------------------------

    def _fire(self) -> None:
        self._timer = None
        self._advance()

    def _advance(self) -> None:
        self._gate.advance(self.clock())
        self._settle()

    def _settle(self) -> None:
        """Deliver what the gate decided, until nothing follows any more, then set the timer."""
        gate = self._gate
        self.changes += 1
        if gate.is_still:
            # By far the most steps: nobody is parked, so nothing was decided about anybody.
            if not gate.open:
                self._emptied.set()
            return
        while effects := gate.take_effects():
            for effect in effects:
                # The door hangs a future on every ticket it parks, and is the only one to do so.
                waiter = cast("asyncio.Future[Lease | Refusal]", effect.ticket.waiter)
                if isinstance(effect, Granted):
                    if waiter.done():
                        # Cancelled in this very tick, before its task could say so.
                        gate.release(effect.lease, CLIENT_GONE, self.clock())
                    else:
                        waiter.set_result(effect.lease)
                elif not waiter.done():
                    waiter.set_result(effect.refusal)
        if not gate.open and not gate.parked.count:
            self._emptied.set()
        self._set_timer()

    def _set_timer(self) -> None:
        now = self.clock()
        event_at = self._gate.next_event_at(now)
        if event_at is None or (self._timer is not None and self._timer_at <= event_at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = event_at
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, event_at - now), self._fire)


class Slot:
    """What `Door.slot` returns: gives the admission, and closes its lease when the block ends.

    By hand: `asynccontextmanager` would cost each request 2 us more, of 10 in all.
    """

    __slots__ = ("_admission", "_ask", "_door", "_place")

    def __init__(self, door: Door, ask: Ask, place: Place | None) -> None:
        self._door = door
        self._ask = ask
        self._place = place
        self._admission: Lease | Refusal | None = None

    async def __aenter__(self) -> Lease | Refusal:
        admission = self._door.admit(self._ask, self._place)
        if isinstance(admission, Ticket):
            admission = await self._door.wait(admission)
        self._admission = admission
        return admission

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(self._admission, Lease):
            left = isinstance(error, asyncio.CancelledError)
            self._door.close(self._admission, CLIENT_GONE if left else ABANDONED)
