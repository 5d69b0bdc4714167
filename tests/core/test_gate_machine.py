"""The conservation laws of the gate (I1-I7), after every step of a random life at the full pool."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

from lifeboat.core.fit import why_not
from lifeboat.core.gate import Effect, Granted
from lifeboat.core.limits import LimitInputs, effective_limit
from lifeboat.core.queue import Place, Ticket, TicketState
from lifeboat.core.seat import Lease, Seat
from lifeboat.core.snapshot import parked_requests, take_view
from lifeboat.core.vocabulary import Ask, OperatorState, Reason, Refusal
from tests.core.driving import GateDriver


class GateMachine(GateDriver):
    """What must hold, whatever happens."""

    def before_step(self) -> None:
        self.selection.offered.clear()
        self.stood = {ticket: self._fitting(ticket.ask, ticket.place) for ticket in self.tickets}
        self.depths = {name: pool.depth for name, pool in self.gate.pools.items()}

    def after_admission(
        self, ask: Ask, place: Place | None, found: Lease | Ticket | Refusal
    ) -> None:
        if isinstance(found, Lease):
            self._check_grant(found)
            if ask.gated:
                overtaken = [
                    ticket for ticket in self.tickets if found.seat in self._fitting_of(ticket)
                ]
                assert not overtaken, "a fresh arrival overtook the parked"
        elif isinstance(found, Ticket):
            assert ask.gated
            pool = self.gate.pools[found.pool_name]
            if place is None:
                assert pool.depth <= self.gate.ceiling(pool), "I3: parked above the ceiling"
            assert found.deadline - self.now + found.place.parked_s == pytest.approx(
                found.place.ttl_s
            )
        elif place is not None:
            assert found.reason is not Reason.QUEUE_FULL, "a ceiling refused a re-admission"

    def after_step(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Granted):
                assert effect.ticket.deadline > self.now, "granted past its TTL"
                self._check_grant(effect.lease)
                self._check_boost(effect.ticket, effect.lease.seat)
            elif effect.ticket.state is TicketState.EXPIRED:
                assert effect.ticket.deadline <= self.now, "expired too early"
                assert effect.refusal.reason is Reason.QUEUE_TIMEOUT
        for offer in self.selection.offered:
            assert offer
            for name, in_flight, limit in offer:
                if self.gate.seats.by_name[name].standing.live:
                    assert limit is None or limit >= 0
                    assert in_flight >= 0
        self._check_limits()
        self._check_no_idle_room()
        self._check_counts()
        self._check_books()
        self._check_view()

    # ---- the laws -------------------------------------------------------------------------------

    def _check_grant(self, lease: Lease) -> None:
        if not lease.holds_slot:
            return
        limit = self._limit(lease.seat)
        assert limit is None or lease.level <= limit, "I1: granted above the effective limit"
        spec, ask = lease.seat.spec, lease.ask
        if ask.backend is None:
            why = why_not(spec, ask.model, ask.capability, ask.estimate.tokens)
            assert why is None, f"I5: granted a backend that does not fit: {why}"

    def _check_boost(self, ticket: Ticket, seat: Seat) -> None:
        own = (ticket.place.arrived_at, ticket.place.seq)
        for other in self.tickets:
            rank = (other.place.arrived_at, other.place.seq)
            boosted = self.now - other.parked_at >= self.gate.rules.boost_s
            if boosted and rank < own and seat in self.stood.get(other, ()):
                assert seat not in self._fitting_of(other), "I6: a boosted request was passed over"

    def _check_limits(self) -> None:
        for seat in self.gate.seats.by_name.values():
            assert seat.limit == self._limit(seat), f"stale limit of {seat.spec.name}"

    def _check_no_idle_room(self) -> None:
        for ticket in self.tickets:
            assert ticket.state is TicketState.PARKED
            assert ticket.deadline > self.now, "an expired request is still parked"
            for seat in self._fitting_of(ticket):
                assert not seat.has_room, f"I2: {seat.spec.name} has room for a parked request"

    def _check_counts(self) -> None:
        gate = self.gate
        held = Counter(lease.seat for lease in self.leases if lease.holds_slot)
        for seat in (*gate.seats.by_name.values(), *gate.seats.retired.values()):
            assert seat.in_flight == held[seat], "I4: in-flight is not the number of open leases"
        by_pool = Counter(lease.pool_name for lease in self.leases if lease.holds_slot)
        depths = Counter(ticket.pool_name for ticket in self.tickets)
        for name, pool in gate.pools.items():
            assert pool.in_flight == by_pool[name]
            assert pool.depth == depths[name], "I3: depth is not the number of parked requests"
        counted = (gate.asked, gate.open, gate.parked.count, gate.refused)
        assert counted == (self.asked, len(self.leases), len(self.tickets), self.refused)
        ended = (gate.withdrawn, gate.expired, gate.finished)
        assert ended == (self.withdrawn, self.expired, self.finished)
        assert gate.asked == sum((*counted[1:], *ended)), "I7"

    def _check_books(self) -> None:
        """Lanes, exclusions and deadlines hold the parked requests and nothing else."""
        lanes = self.gate.parked._lanes
        filed = {ticket: key for key, lane in lanes.items() for ticket in lane}
        assert set(filed) == set(self.tickets)
        assert sum(lane.count for lane in lanes.values()) == len(self.tickets)
        for ticket, key in filed.items():
            assert key == {seat.spec.name for seat in self._fitting_of(ticket)}
        for seat in self._all_seats():
            assert set(seat.lanes) == {key for key in lanes if seat.spec.name in key}
            assert seat.excluded_by <= set(self.tickets)
        if not self.tickets:
            assert self.gate.parked.next_deadline() is None

    def _check_view(self) -> None:
        gate = self.gate
        view = take_view(gate, self.now)
        assert view.parked == sum(pool.queue_depth for pool in view.pools.values())
        assert len(parked_requests(gate, self.now, 1000)) == view.parked
        for name, pool in view.pools.items():
            waits = [
                self.now - ticket.parked_at for ticket in self.tickets if ticket.pool_name == name
            ]
            assert pool.oldest_wait_s == pytest.approx(max(waits, default=0.0))
        for name, backend in view.backends.items():
            seat = gate.seats.by_name[name]
            assert (backend.in_flight, backend.effective_limit) == (seat.in_flight, seat.limit)
            assert min(backend.in_flight, backend.dispatched, backend.failed) >= 0

    # ---- from scratch ---------------------------------------------------------------------------

    def _all_seats(self) -> list[Seat]:
        return [*self.gate.seats.by_name.values(), *self.gate.seats.retired.values()]

    def _limit(self, seat: Seat) -> int | None:
        last_live = not self._others_are_trusted(seat)
        allowance = seat.standing.suspect_allowance(self.now)
        inputs = LimitInputs(
            seat.spec.kind, seat.spec.max_concurrency, seat.slots, seat.shown_state,
            seat.standing.health, None, seat.saturation.ceiling,
            None if last_live else allowance, self.now < seat.throttled_until,
            self._lingering(seat),
        )  # fmt: skip
        return effective_limit(inputs, self.gate.rules.limits).value

    def _lingering(self, seat: Seat) -> int:
        """What runs at the server of a backend for those who take nothing new there."""
        server = seat.spec.server
        return sum(
            at == server
            and (
                lease.seat.spec.server != server
                or lease.seat.leaving
                or lease.seat.operator_state is not OperatorState.READY
            )
            for lease, at in self.servers.items()
            if server and lease.holds_slot and lease.seat is not seat
        )

    def _others_are_trusted(self, seat: Seat) -> bool:
        models = seat.spec.models or ()
        return bool(models) and all(
            any(
                other is not seat
                and other.in_service
                and not other.is_suspect
                and model in (other.spec.models or ())
                for other in self.gate.seats.by_name.values()
            )
            for model in models
        )

    def _fitting(self, ask: Ask, place: Place) -> list[Seat]:
        return [
            seat
            for name, seat in self.gate.seats.by_name.items()
            if not seat.leaving
            and why_not(seat.spec, ask.model, ask.capability, ask.estimate.tokens) is None
            and place.excluded.get(name) != seat.standing.epoch
        ]

    def _fitting_of(self, ticket: Ticket) -> list[Seat]:
        return self._fitting(ticket.ask, ticket.place)


TestGateMachine = GateMachine.TestCase
TestGateMachine.settings = settings(
    max_examples=250,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestGateMachine.pytestmark = [pytest.mark.timeout(600)]
