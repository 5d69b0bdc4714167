"""The gate: the admission state machine that every request passes.

Each call is one synchronous step of (state, now): it judges, then pumps, so that no step ends with
a ready backend that has room and a parked request that fits it (I2). Picking and reserving are one
step, and a freed slot passes straight to the next ticket (I1, I4); a fresh arrival can therefore
take any room it finds, for no parked request could have used it. What happens to parked requests
comes out of `take_effects`, in order; the door delivers it.

Invariants I1-I4, I6 and I7 are held by tests/core/test_gate_machine.py, and the whole by a naive
model in tests/core/test_gate_model.py.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

from lifeboat.core import refusals
from lifeboat.core.fit import too_large
from lifeboat.core.health import Probe
from lifeboat.core.judging import Judge, Room, no_chance
from lifeboat.core.parked import NOBODY, Parked
from lifeboat.core.pool import Pool
from lifeboat.core.queue import Place, Ticket, TicketState
from lifeboat.core.rules import GateRules
from lifeboat.core.seat import Lease, Seat
from lifeboat.core.selection import Selection
from lifeboat.core.vocabulary import (
    UNKNOWN_POOL,
    Ask,
    BackendSpec,
    OperatorState,
    Outcome,
    Reason,
    Refusal,
    Verdict,
)
from lifeboat.core.waits import WaitRecord

NO_DRAIN = frozenset(
    {
        Verdict.SATURATED,
        Verdict.LOADING,
        Verdict.REFUSED,
        Verdict.UNREACHABLE,
        Verdict.THROTTLED,
    }
)
"""Verdicts of requests that no engine worked on: no evidence of how fast a pool drains."""


@dataclass(frozen=True, slots=True)
class Granted:
    """A parked request got a slot."""

    ticket: Ticket
    lease: Lease


@dataclass(frozen=True, slots=True)
class Refused:
    """A parked request is refused: expired, shut down, or nothing can serve it any more."""

    ticket: Ticket
    refusal: Refusal


Effect: TypeAlias = Granted | Refused
Admission: TypeAlias = Lease | Ticket | Refusal


class Gate(Judge):
    """Who may run where, who waits, and who is refused.

    All times are seconds of one monotonic clock. Every method is synchronous; none awaits, none
    raises for what a client or a backend does.
    """

    def __init__(
        self,
        rules: GateRules,
        selection: Selection | None = None,
        probe_threshold: int = 3,
        now: float = 0.0,
        chance: Callable[[], float] = no_chance,
    ) -> None:
        """chance: numbers in [0, 1), for what is to be spread: retries, canaries."""
        super().__init__(rules, selection, probe_threshold, chance)
        self.parked = Parked(self.seats)
        self.waits = WaitRecord()
        self.rejected: dict[Reason, int] = dict.fromkeys(Reason, 0)
        self.dispatched = 0
        self.asked = self.open = self.refused = 0
        self.withdrawn = self.expired = self.finished = 0
        self._effects: list[Effect] = []
        self._concerned: dict[Ticket, None] | None = None
        """Of several changes that take force as one: the tickets to be fitted again at the end."""
        self._seq = 0
        self._picks = 0
        self.set_rules(rules, now)

    # -- requests ---------------------------------------------------------------------------

    def admit(self, ask: Ask, now: float, place: Place | None = None) -> Admission:
        """Judge a request: a lease where there is room, else a ticket, else the reason why not.

        place: that of an earlier admission of the same request, whose lease was closed; it keeps
        its order and what is left of its TTL, and no ceiling refuses it.
        """
        self.asked += 1
        if self.seats.timed or self.parked.count:
            self.advance(now)
        first = place is None
        if place is None:
            self._seq += 1
            place = Place(now, self._seq)
        decision = self.judge(ask, place, now, first=first)
        if isinstance(decision, Refusal):
            self.refused += 1
            return decision
        pool = self.pools[decision.pool_name]
        if first and pool.rate is not None and ask.gated and ask.backend is None:
            pool.rate.take(now)
        if first and ask.gated:
            pool.flow.admitted(now)
        if isinstance(decision, Room):
            return self._grant(ask, place, pool, decision.seat, now)
        return self._park(ask, place, pool, decision.lane, now)

    def release(self, lease: Lease, outcome: Outcome, now: float) -> None:
        """Close a lease with its outcome; the freed slot passes on. Closing again does nothing."""
        if not lease.open:
            return
        lease.open = False
        self.open -= 1
        self.finished += 1
        seat = lease.seat
        heirs: Sequence[Seat] = ()
        if lease.holds_slot:
            pool = self.pools[lease.pool_name]
            pressed = not seat.has_room or pool.depth > 0
            seat.in_flight -= 1
            pool.in_flight -= 1
            if self.seats.lingering:
                heirs = self.seats.outlived(lease, now)
            if lease.dispatched and outcome.verdict not in NO_DRAIN:
                pool.drain.finished(now, lease.granted_at, pressed)
                if outcome.verdict is Verdict.ANSWERED:
                    pool.flow.served(now, now - lease.granted_at)
        epoch = seat.standing.epoch
        turned = self.seats.learn(lease, outcome, now)
        if seat.leaving:
            self.seats.retire_if_empty(seat, now)
        if self.parked.count or self.seats.timed:
            if seat.standing.epoch != epoch:
                self._readmit_excluders(seat, now)
            due = self._apply_due(now)
            # A turn of one backend's health may open others: the last trusted one, for instance.
            self._pump(self.seats.by_name.values() if turned else (seat, *heirs, *due), now)

    def exclude(self, place: Place, lease: Lease) -> None:
        """Keep a request away from the backend that failed it, until that backend recovers."""
        place.excluded[lease.backend] = lease.seat.standing.epoch

    def withdraw(self, ticket: Ticket, now: float) -> None:
        """Take out a parked request whose client left. Does nothing once it left by itself."""
        if ticket.state == TicketState.PARKED:
            self.withdrawn += 1
            self._leave(ticket, TicketState.WITHDRAWN, now)

    def note_dispatch(self, lease: Lease) -> None:
        """Count a request that is being sent to the backend of its lease."""
        lease.dispatched = True
        self.dispatched += 1
        pool = self.pools[lease.pool_name]
        pool.dispatched += 1
        by_pool = lease.seat.dispatched_by_pool
        by_pool[pool.name] = by_pool.get(pool.name, 0) + 1

    def note_rejected(self, pool_name: str | None, reason: Reason, now: float) -> None:
        """Count a refusal that is being sent to a client."""
        self.rejected[reason] += 1
        pool = self.pools.get(pool_name or UNKNOWN_POOL, self.pools[UNKNOWN_POOL])
        pool.rejected[reason] += 1
        pool.flow.refused(now, reason)

    # -- time -------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Apply what the clock alone decides: expiry, the end of pauses, and who gets that room."""
        self._pump(self._apply_due(now), now)

    def next_event_at(self, now: float) -> float | None:
        """Return when `advance` has something to do; None while the clock changes nothing."""
        times = (self.parked.next_deadline(), self.seats.next_event_at(now))
        return min((at for at in times if at is not None), default=None)

    @property
    def is_still(self) -> bool:
        """Whether nothing waits to be delivered, and the clock alone changes nothing."""
        return not (self._effects or self.parked.count or self.seats.timed)

    def take_effects(self) -> list[Effect]:
        """Return what happened to parked requests since the last call, in order."""
        effects = self._effects
        if effects:
            self._effects = []
        return effects

    # -- changes ----------------------------------------------------------------------------

    @contextmanager
    def as_one(self, now: float) -> Generator[None]:
        """Let several changes take force as one: nobody is granted or refused by half of them."""
        self._concerned = {}
        try:
            yield
        finally:
            concerned, self._concerned = self._concerned, None
            # A seat that left and came back within them has lost sight of its lanes.
            self.parked.attach()
            self._refit(concerned, now)
            self._settle(now)

    def set_rules(self, rules: GateRules, now: float) -> None:
        """Replace the settings: they govern later arrivals, and whoever now fits is granted."""
        if rules.limits != self.rules.limits:
            self.pools.forget_rates()
        self.rules = rules
        self.seats.set_rules(rules.limits, now)
        renamed = self.seats.name_models(frozenset(rules.pools), now)
        self.pools.renew(self.seats.directory, self.rules, now)
        if renamed:
            self._refit(self.parked.all(), now)
        self._settle(now)

    def put_backend(self, spec: BackendSpec, now: float, *, new_server: bool = False) -> None:
        """Add a backend or change one; parked requests it can serve reach it at once.

        new_server: another server stands under this name, of which nothing is known yet.
        """
        old = self.seats.by_name.get(spec.name)
        before = None if old is None or old.leaving else old.spec
        self.seats.put(spec, now, new_server=new_server)
        same = before and replace(before, max_concurrency=spec.max_concurrency) == spec
        if new_server or not same:
            self.pools.renew(self.seats.directory, self.rules, now)
            models = (spec.models or NOBODY) | ((before and before.models) or NOBODY)
            self._refit(self.parked.concerned_by(frozenset({spec.name}), models), now)
        self._settle(now)

    def remove_backend(self, name: str, now: float) -> None:
        """Take a backend out: no new requests, its leases run on. Raises UnknownBackendError."""
        models = self.seats[name].spec.models or NOBODY
        self.seats.remove(name, now)
        self.pools.renew(self.seats.directory, self.rules, now)
        self._refit(self.parked.concerned_by(frozenset({name}), models), now)
        self._settle(now)

    def set_operator_state(self, name: str, state: OperatorState, now: float) -> None:
        """Drain, close or reopen a backend. Raises UnknownBackendError."""
        self.seats[name].operator_state = state
        self.seats.refresh_all(now)
        self._settle(now)

    def set_slots(self, name: str, slots: int | None, now: float) -> None:
        """Take the parallel sequences an engine reports; unknown names are ignored."""
        seat = self.seats.by_name.get(name)
        if seat is not None and seat.slots != slots:
            seat.slots = slots
            self.seats.refresh(seat, now)
            self._settle(now)

    def observe_probe(self, name: str, probe: Probe, now: float, quiet_s: float = 15.0) -> None:
        """Take in what a probe found; in-flight is never touched by it."""
        seat = self.seats.by_name.get(name)
        if seat is None:
            return
        epoch = seat.standing.epoch
        self.seats.observe_probe(name, probe, quiet_s, now)
        if seat.standing.epoch != epoch:
            self._readmit_excluders(seat, now)
        self._settle(now)

    def drain(self, now: float, *, serve_parked: bool) -> None:
        """Stop admitting for good; refuse the parked unless they are still to be served."""
        self.draining = True
        self.parks = serve_parked
        if not serve_parked:
            for ticket in self.parked.all():
                self._turn_away(ticket, refusals.shutting_down(ticket.pool_name), now)

    # -- inside -----------------------------------------------------------------------------

    def _grant(self, ask: Ask, place: Place, pool: Pool, seat: Seat, now: float) -> Lease:
        if ask.gated:
            seat.in_flight += 1
            pool.in_flight += 1
        self._picks += 1
        seat.last_pick = self._picks
        self.open += 1
        return Lease(ask, place, pool.name, seat, now)

    def _park(self, ask: Ask, place: Place, pool: Pool, lane: frozenset[str], now: float) -> Ticket:
        if place.ttl_s is None:
            place.ttl_s = self.rules.ttl_of(pool.name)
        deadline = now + place.ttl_s - place.parked_s
        ticket = Ticket(ask, place, pool.name, now, deadline)
        pool.park(ticket)
        self.parked.add(ticket, lane)
        return ticket

    def _leave(self, ticket: Ticket, state: TicketState, now: float) -> None:
        self.parked.leave(ticket, state)
        self.pools[ticket.pool_name].unpark(ticket)
        ticket.place.parked_s += max(0.0, now - ticket.parked_at)

    def _turn_away(self, ticket: Ticket, refusal: Refusal, now: float) -> None:
        self.refused += 1
        self.pools[ticket.pool_name].uncount(ticket)
        self._leave(ticket, TicketState.REFUSED, now)
        self._effects.append(Refused(ticket, replace(refusal, wait_s=ticket.place.parked_s)))

    def _expire(self, ticket: Ticket, now: float) -> None:
        seats = self.seats.of(ticket.lane.key if ticket.lane is not None else NOBODY)
        pool = self.pools[ticket.pool_name]
        self.expired += 1
        pool.uncount(ticket)
        self._leave(ticket, TicketState.EXPIRED, now)
        self._record_wait(ticket, now)
        refusal = refusals.queue_timeout(self, pool, seats, ticket.place.parked_s, now)
        self._effects.append(Refused(ticket, refusal))

    def _record_wait(self, ticket: Ticket, now: float) -> None:
        wait_s = now - ticket.parked_at
        self.waits.add(wait_s, now)
        self.pools[ticket.pool_name].waits.add(wait_s, now)

    def _apply_due(self, now: float) -> Sequence[Seat]:
        """Expire and reopen what is due; return the backends whose room the caller must pump.

        It does not pump by itself: two pumps in a step, each over some of the backends with new
        room, would let the first give away a slot that the order has for a ticket of the second.
        """
        while (ticket := self.parked.due(now)) is not None:
            self._expire(ticket, now)
        return self.seats.take_due(now) if self.seats.timed else ()

    def _settle(self, now: float) -> None:
        """After a change that may have opened anything: apply what is due, then pump all."""
        if self._concerned is not None:
            return
        self._apply_due(now)
        self._pump(self.seats.by_name.values(), now)

    def _pump(self, seats: Iterable[Seat], now: float) -> None:
        """Grant, in the one order, as long as one of `seats` has room and somebody to serve."""
        if not self.parked.count:
            return
        boost_s, order = self.rules.boost_s, self.rules.row.order
        free = [seat for seat in seats if seat.lanes and seat.has_room]
        while free:
            ticket = self.parked.first_for(free, now, boost_s, order)
            if ticket is None or ticket.lane is None:
                return
            if ticket.deadline <= now:
                self._expire(ticket, now)
            else:
                choice = [seat for seat in self.seats.of(ticket.lane.key) if seat.has_room]
                self._grant_parked(ticket, self.selection.choose(choice), now)
            free = [seat for seat in free if seat.lanes and seat.has_room]

    def _grant_parked(self, ticket: Ticket, seat: Seat, now: float) -> None:
        self._leave(ticket, TicketState.GRANTED, now)
        self._record_wait(ticket, now)
        pool = self.pools[ticket.pool_name]
        lease = self._grant(ticket.ask, ticket.place, pool, seat, now)
        self._effects.append(Granted(ticket, lease))

    def _readmit_excluders(self, seat: Seat, now: float) -> None:
        """A backend recovered: the requests that excluded it may use it again."""
        self._refit(list(seat.excluded_by), now)

    def _refit(self, tickets: Iterable[Ticket], now: float) -> None:
        """Find the lane of parked requests again after a change of who can serve them.

        Whose last backend went waits for another until its TTL (contract, section 2); only what
        became too large for all, or turned out to be a name of nobody, is answered at once.
        """
        if self._concerned is not None:
            self._concerned.update(dict.fromkeys(tickets))
            return
        for ticket in tickets:
            ask = ticket.ask
            route = self.seats.directory.route(ask.model, ask.capability)
            if isinstance(route, Refusal):
                if ticket.pool_name == UNKNOWN_POOL:
                    self._turn_away(ticket, route, now)
                else:
                    self.parked.move(ticket, NOBODY)
                continue
            if ticket.pool_name == UNKNOWN_POOL:
                self._move_to_pool(ticket, route.pool)
            key = self.lane_key(route, ask, ticket.place)
            if key is None:
                self._turn_away(ticket, too_large(route, ask.estimate), now)
            else:
                self.parked.move(ticket, key)

    def _move_to_pool(self, ticket: Ticket, pool_name: str) -> None:
        if ticket.pool_name != pool_name:
            self.pools[ticket.pool_name].unpark(ticket)
            ticket.pool_name = pool_name
            self.pools[pool_name].take_over(ticket)
