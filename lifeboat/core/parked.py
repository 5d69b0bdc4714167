"""All parked requests: lanes by the set of backends that can serve them, deadlines, exclusions.

The gate decides who parks and who is granted; this keeps the books so that each question costs
little: the first of all tickets that some backends can serve, the tickets that are due, and those
that a change of membership concerns. Held by tests/core/test_gate_machine.py (I2, I3).
"""

from __future__ import annotations

from collections.abc import Sequence

from lifeboat.core.modes import ParkedOrder
from lifeboat.core.queue import (
    Lane,
    OrderKey,
    Ticket,
    TicketHeap,
    TicketState,
)
from lifeboat.core.seat import Seat
from lifeboat.core.seats import Seats

NOBODY: frozenset[str] = frozenset()
"""The lane of held requests that no configured backend can serve yet."""


class Parked:
    """The parked tickets, however looked at."""

    def __init__(self, seats: Seats) -> None:
        self._seats = seats
        self._lanes: dict[frozenset[str], Lane] = {}
        self._deadlines = TicketHeap()
        self.count = 0

    def add(self, ticket: Ticket, key: frozenset[str]) -> None:
        """Park a ticket in the lane of `key`."""
        self.count += 1
        self._deadlines.push(ticket.deadline, ticket)
        self._enter(ticket, key)

    def leave(self, ticket: Ticket, state: TicketState) -> None:
        """Take a ticket out for good."""
        self.count -= 1
        ticket.state = state
        self._exit(ticket)

    def move(self, ticket: Ticket, key: frozenset[str]) -> None:
        """Put a ticket into another lane; its place in the order goes with it."""
        if ticket.lane is None or ticket.lane.key != key:
            self._exit(ticket)
            self._enter(ticket, key)

    def attach(self) -> None:
        """Tell every seat of its lanes."""
        for key, lane in self._lanes.items():
            self._attach(lane, key)

    def _attach(self, lane: Lane, key: frozenset[str]) -> None:
        for seat in self._seats.of(key):
            seat.lanes[key] = lane

    def _enter(self, ticket: Ticket, key: frozenset[str]) -> None:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(key)
            self._attach(lane, key)
        lane.add(ticket)
        for name in ticket.place.excluded:
            seat = self._seats.by_name.get(name)
            if seat is not None:
                seat.excluded_by.add(ticket)

    def _exit(self, ticket: Ticket) -> None:
        lane = ticket.lane
        if lane is not None:
            lane.discard(ticket)
            if lane.count == 0:
                del self._lanes[lane.key]
                for name in lane.key:
                    seat = self._seats.by_name.get(name)
                    if seat is not None:
                        seat.lanes.pop(lane.key, None)
        for name in ticket.place.excluded:
            seat = self._seats.by_name.get(name)
            if seat is not None:
                seat.excluded_by.discard(ticket)

    def first_for(
        self, seats: Sequence[Seat], now: float, boost_s: float, order: ParkedOrder
    ) -> Ticket | None:
        """Return the first, in the one order, of all tickets that any of `seats` can serve.

        seats: at least one.
        """
        best: OrderKey | None = None
        first: Ticket | None = None
        lanes = seats[0].lanes
        for seat in seats[1:]:
            lanes = lanes | seat.lanes
        for lane in lanes.values():
            head = lane.head(now, boost_s, order)
            if head is not None and (best is None or head[0] < best):
                best, first = head
        return first

    def next_deadline(self) -> float | None:
        """Return the earliest deadline, None when nothing is parked."""
        entry = self._deadlines.head()
        return None if entry is None else entry[0]

    def due(self, now: float) -> Ticket | None:
        """Return a ticket whose deadline has passed, None when there is none."""
        entry = self._deadlines.head()
        return entry[2] if entry is not None and entry[0] <= now else None

    def concerned_by(self, names: frozenset[str], models: frozenset[str]) -> list[Ticket]:
        """Return the tickets touched by a change of these backends or of who serves these models.

        A lane is concerned when it names one of the backends, when one of its members serves one
        of the models (a newcomer would join it), or when it waits for any backend at all.
        """
        tickets: dict[Ticket, None] = {}
        for key, lane in self._lanes.items():
            if not key or key & names or any(self._serves(name, models) for name in key):
                tickets.update(dict.fromkeys(lane))
        return list(tickets)

    def _serves(self, name: str, models: frozenset[str]) -> bool:
        seat = self._seats.by_name.get(name)
        return seat is not None and bool(seat.spec.models and seat.spec.models & models)

    def all(self) -> list[Ticket]:
        """Return every parked ticket once."""
        tickets: dict[Ticket, None] = {}
        for lane in self._lanes.values():
            tickets.update(dict.fromkeys(lane))
        return list(tickets)
