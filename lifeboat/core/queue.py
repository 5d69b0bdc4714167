"""Parked requests: lanes, and the one order over them.

A lane holds the tickets that the same set of configured backends can serve. Order (contract,
section 2): the boosted first, by arrival; then by priority class; within a class by the mode,
smallest first or by arrival. The mode and the clock only choose which heap's head to look at, so a
mode change rebuilds nothing and the boost needs no timer; a re-parked ticket finds its old place.

Invariants: I3 (the depth of a pool counts exactly its parked tickets; who leaves, leaves at once)
and I6 (a boosted ticket precedes every fresher one). Held by tests/core/test_queue.py and
tests/core/test_gate_machine.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from lifeboat.core.modes import ParkedOrder
from lifeboat.core.vocabulary import Ask

OrderKey: TypeAlias = tuple[int, float, float, int]
"""(0, arrived, seq, 0) for the boosted, (1, class, size or arrival, seq) for the rest."""

CLASSES = 3
"""Priority classes: high, normal, low."""

SWEEP_AT = 64
"""Heap entries below which the dead are left alone; above, they stay fewer than the living."""


class Place:
    """A request's standing across its admissions: kept when it is parked again after a failure.

    arrived_at, seq: its arrival, which orders it. parked_s: time spent parked so far. ttl_s: the
    TTL it was first parked under, None until then (live changes govern later arrivals).
    excluded: backends that failed it, by name, with their health epoch at the time.
    """

    __slots__ = ("arrived_at", "excluded", "parked_s", "seq", "ttl_s")

    def __init__(self, arrived_at: float, seq: int) -> None:
        self.arrived_at = arrived_at
        self.seq = seq
        self.parked_s = 0.0
        self.ttl_s: float | None = None
        self.excluded: dict[str, int] = {}


class TicketState(IntEnum):
    """Where a ticket is; it leaves PARKED exactly once."""

    PARKED = 0
    GRANTED = 1
    WITHDRAWN = 2
    EXPIRED = 3
    REFUSED = 4


class Ticket:
    """A parked request.

    parked_at, deadline: clock seconds of this stay. rank: its class, 0 first. waiter: whatever the
    owner of the gate hangs on it to be told (a future in the door); the core never touches it.
    """

    __slots__ = (
        "ask",
        "deadline",
        "lane",
        "parked_at",
        "place",
        "pool_name",
        "rank",
        "state",
        "waiter",
    )

    def __init__(
        self, ask: Ask, place: Place, pool_name: str, parked_at: float, deadline: float
    ) -> None:
        self.ask = ask
        self.place = place
        self.pool_name = pool_name
        self.parked_at = parked_at
        self.deadline = deadline
        self.rank = ask.priority.rank
        self.state = TicketState.PARKED
        self.lane: Lane | None = None
        self.waiter: object = None

    def __lt__(self, other: Ticket) -> bool:
        """Entries of one request tie (parked again, or back in a lane): either may be first."""
        return False


_Entry: TypeAlias = tuple[float, int, Ticket]


class TicketHeap:
    """A heap of tickets by (key, seq) with lazy deletion: entries of tickets that left are dead.

    A ticket lives while it is in `lane`, or in any lane where that is None. Sweeping keeps the dead
    below the living.
    """

    __slots__ = ("_entries", "_lane", "_sweep_above")

    def __init__(self, lane: Lane | None = None) -> None:
        self._entries: list[_Entry] = []
        self._lane = lane
        self._sweep_above = SWEEP_AT

    def push(self, key: float, ticket: Ticket) -> None:
        """Add a ticket under a key; ties go to the earlier arrival."""
        entries = self._entries
        if len(entries) >= self._sweep_above:
            self._sweep()
        heappush(self._entries, (key, ticket.place.seq, ticket))

    def _sweep(self) -> None:
        entries, own = self._entries, self._lane
        if own is None:
            living = [entry for entry in entries if entry[2].lane is not None]
        else:
            living = [entry for entry in entries if entry[2].lane is own]
        if 3 * len(living) > 2 * len(entries):
            # Grown, or full of tickets that left and came back: those have an entry for each time.
            living = list({entry[2]: entry for entry in living}.values())
        heapify(living)
        self._entries = living
        self._sweep_above = max(SWEEP_AT, 2 * len(living))

    def head(self) -> _Entry | None:
        """Return the first living entry, None when there is none."""
        entries = self._entries
        own = self._lane
        while entries:
            entry = entries[0]
            lane = entry[2].lane
            # As in `_lives`, spelled out: every grant comes by here.
            if lane is not None and (lane is own or own is None):
                return entry
            heappop(entries)
        return None

    def _lives(self, ticket: Ticket) -> bool:
        lane = ticket.lane
        return lane is not None and (lane is self._lane or self._lane is None)

    def __iter__(self) -> Iterator[Ticket]:
        """Yield the living, in no order; one that left and came back may come twice."""
        return (entry[2] for entry in self._entries if self._lives(entry[2]))


class Lane:
    """The tickets that one set of backends can serve.

    key: names of the configured backends that have the model, the capability and a covering cap,
    less the ticket's exclusions. count: parked tickets in it.
    """

    __slots__ = ("_by_arrival", "_by_size", "_of_class", "count", "key")

    def __init__(self, key: frozenset[str]) -> None:
        self.key = key
        self.count = 0
        self._of_class = [0] * CLASSES
        self._by_arrival = tuple(TicketHeap(self) for _ in range(CLASSES))
        self._by_size = tuple(TicketHeap(self) for _ in range(CLASSES))

    def add(self, ticket: Ticket) -> None:
        """Put a parked ticket in its place."""
        rank = ticket.rank
        ticket.lane = self
        self._by_arrival[rank].push(ticket.place.arrived_at, ticket)
        self._by_size[rank].push(float(ticket.ask.estimate.total_tokens), ticket)
        self._of_class[rank] += 1
        self.count += 1

    def discard(self, ticket: Ticket) -> None:
        """Take a ticket out; its heap entries die in place."""
        ticket.lane = None
        self._of_class[ticket.rank] -= 1
        self.count -= 1

    def head(
        self, now: float, boost_s: float, order: ParkedOrder
    ) -> tuple[OrderKey, Ticket] | None:
        """Return the ticket to be served first and its key in the one order, None when empty."""
        oldest: _Entry | None = None
        first: _Entry | None = None
        first_class = 0
        for rank in range(CLASSES):
            entry = self._by_arrival[rank].head() if self._of_class[rank] else None
            if entry is None:
                continue
            if oldest is None or entry < oldest:
                oldest = entry
            if first is None:
                first_class, first = rank, entry
        if oldest is None or first is None:
            return None
        arrived_at, seq, ticket = oldest
        if now - arrived_at >= boost_s:
            return (0, arrived_at, float(seq), 0), ticket
        if order is ParkedOrder.SMALLEST_FIRST:
            first = self._by_size[first_class].head() or first
        key, seq, ticket = first
        return (1, float(first_class), key, seq), ticket

    def __iter__(self) -> Iterator[Ticket]:
        """Yield the parked tickets, in no order."""
        for heap in self._by_arrival:
            yield from heap
