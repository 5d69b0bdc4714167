"""One pool inside the gate: the parked and running requests of one model name, and its record."""

from __future__ import annotations

from lifeboat.core.queue import Ticket, TicketHeap, is_parked
from lifeboat.core.rates import RateWindow
from lifeboat.core.vocabulary import Reason
from lifeboat.core.waits import DrainRate, WaitRecord


class Pool:
    """Counters and records of one model name.

    depth: its parked tickets, exactly (I3). in_flight: its open leases. members: names of the
    backends that serve it. named: known now, by a backend or by the configuration; gone_at: since
    when it is not.
    """

    __slots__ = (
        "_ages",
        "depth",
        "dispatched",
        "drain",
        "gone_at",
        "in_flight",
        "members",
        "name",
        "rate",
        "rejected",
        "waits",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: tuple[str, ...] = ()
        self.depth = 0
        self.in_flight = 0
        self.dispatched = 0
        self.rejected: dict[Reason, int] = dict.fromkeys(Reason, 0)
        self.waits = WaitRecord()
        self.drain = DrainRate()
        self.rate: RateWindow | None = None
        self.gone_at: float | None = None
        self._ages = TicketHeap(self._owns)

    def _owns(self, ticket: Ticket) -> bool:
        return is_parked(ticket) and ticket.pool_name == self.name

    def park(self, ticket: Ticket) -> None:
        """Count a ticket in."""
        self.depth += 1
        self._ages.push(ticket.parked_at, ticket)

    def unpark(self) -> None:
        """Count a ticket out; it must have left PARKED before."""
        self.depth -= 1

    def oldest_wait_s(self, now: float) -> float:
        """Return how long the longest parked has been waiting this time, 0.0 when none is."""
        oldest = self._ages.head()
        return 0.0 if oldest is None else max(0.0, now - oldest[0])

    def parked(self) -> list[Ticket]:
        """Return the parked tickets, longest first."""
        return sorted(set(self._ages), key=lambda ticket: (ticket.parked_at, ticket.place.seq))
