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

from collections.abc import Callable, Iterator
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

    parked_at, deadline: clock seconds of this stay. waiter: whatever the owner of the gate hangs
    on it to be told (a future in the door); the core never touches it.
    """

    __slots__ = (
        "ask",
        "deadline",
        "lane",
        "parked_at",
        "place",
        "pool_name",
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
        self.state = TicketState.PARKED
        self.lane: Lane | None = None
        self.waiter: object = None


_Entry: TypeAlias = tuple[float, int, Ticket]


class TicketHeap:
    """A heap of tickets by (key, seq) with lazy deletion: entries of tickets that left are dead.

    `belongs` tells the living from the dead; sweeping keeps the dead below the living.
    """

    __slots__ = ("_belongs", "_entries", "_sweep_above")

    def __init__(self, belongs: Callable[[Ticket], bool]) -> None:
        self._entries: list[_Entry] = []
        self._belongs = belongs
        self._sweep_above = SWEEP_AT

    def push(self, key: float, ticket: Ticket) -> None:
        """Add a ticket under a key; ties go to the earlier arrival."""
        entries = self._entries
        if len(entries) >= self._sweep_above:
            belongs = self._belongs
            entries[:] = [entry for entry in entries if belongs(entry[2])]
            heapify(entries)
            self._sweep_above = max(SWEEP_AT, 2 * len(entries))
        heappush(entries, (key, ticket.place.seq, ticket))

    def head(self) -> _Entry | None:
        """Return the first living entry, None when there is none."""
        entries = self._entries
        belongs = self._belongs
        while entries:
            entry = entries[0]
            if belongs(entry[2]):
                return entry
            heappop(entries)
        return None

    def __iter__(self) -> Iterator[Ticket]:
        """Yield the living, in no order."""
        belongs = self._belongs
        return (entry[2] for entry in self._entries if belongs(entry[2]))


def is_parked(ticket: Ticket) -> bool:
    """Return whether a ticket still waits."""
    return ticket.state == TicketState.PARKED


class Lane:
    """The tickets that one set of backends can serve.

    key: names of the configured backends that have the model, the capability and a covering cap,
    less the ticket's exclusions. count: parked tickets in it.
    """

    __slots__ = ("_by_arrival", "_by_size", "count", "key")

    def __init__(self, key: frozenset[str]) -> None:
        self.key = key
        self.count = 0
        self._by_arrival = tuple(TicketHeap(self._holds) for _ in range(CLASSES))
        self._by_size = tuple(TicketHeap(self._holds) for _ in range(CLASSES))

    def _holds(self, ticket: Ticket) -> bool:
        return ticket.lane is self

    def add(self, ticket: Ticket) -> None:
        """Put a parked ticket in its place."""
        rank = ticket.ask.priority.rank
        ticket.lane = self
        self._by_arrival[rank].push(ticket.place.arrived_at, ticket)
        self._by_size[rank].push(float(ticket.ask.estimate.total_tokens), ticket)
        self.count += 1

    def discard(self, ticket: Ticket) -> None:
        """Take a ticket out; its heap entries die in place."""
        ticket.lane = None
        self.count -= 1

    def head(
        self, now: float, boost_s: float, order: ParkedOrder
    ) -> tuple[OrderKey, Ticket] | None:
        """Return the ticket to be served first and its key in the one order, None when empty."""
        oldest: _Entry | None = None
        first: tuple[int, _Entry] | None = None
        for rank in range(CLASSES):
            entry = self._by_arrival[rank].head()
            if entry is None:
                continue
            if oldest is None or entry[:2] < oldest[:2]:
                oldest = entry
            if first is None:
                if order is ParkedOrder.SMALLEST_FIRST:
                    sized = self._by_size[rank].head()
                    first = (rank, entry if sized is None else sized)
                else:
                    first = (rank, entry)
        if oldest is None or first is None:
            return None
        if now - oldest[0] >= boost_s:
            return (0, oldest[0], float(oldest[1]), 0), oldest[2]
        rank, entry = first
        return (1, float(rank), entry[0], entry[1]), entry[2]

    def __iter__(self) -> Iterator[Ticket]:
        """Yield the parked tickets, in no order."""
        for heap in self._by_arrival:
            yield from heap
