"""One pool inside the gate: the parked and running requests of one model name, and its record."""

from __future__ import annotations

from collections import OrderedDict

from lifeboat.core.queue import Ticket
from lifeboat.core.rates import RateWindow
from lifeboat.core.vocabulary import Reason
from lifeboat.core.waits import DrainRate, WaitRecord


class Pool:
    """Counters and records of one model name.

    in_flight: its open leases that hold a slot. members: names of the backends that serve it.
    gone_at: since when no backend serves it and no configuration names it, None while one does.
    """

    __slots__ = (
        "_in_order",
        "_parked",
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
        self.in_flight = 0
        self.dispatched = 0
        self.rejected: dict[Reason, int] = dict.fromkeys(Reason, 0)
        self.waits = WaitRecord()
        self.drain = DrainRate()
        self.rate: RateWindow | None = None
        self.gone_at: float | None = None
        # A dict would find its first key ever slower, past the ones that left before it.
        self._parked: OrderedDict[Ticket, None] = OrderedDict()
        self._in_order = True

    @property
    def depth(self) -> int:
        """The number of its parked tickets (I3)."""
        return len(self._parked)

    def park(self, ticket: Ticket) -> None:
        """Count in a ticket that is being parked."""
        self._parked[ticket] = None

    def take_over(self, ticket: Ticket) -> None:
        """Count in a ticket that was parked in another pool before."""
        self._parked[ticket] = None
        self._in_order = False

    def unpark(self, ticket: Ticket) -> None:
        """Count a ticket out."""
        del self._parked[ticket]

    def oldest_wait_s(self, now: float) -> float:
        """Return how long the longest parked has been waiting this time, 0.0 when none is."""
        self._sort()
        oldest = next(iter(self._parked), None)
        return 0.0 if oldest is None else max(0.0, now - oldest.parked_at)

    def parked(self) -> list[Ticket]:
        """Return the parked tickets, longest first."""
        self._sort()
        return list(self._parked)

    def _sort(self) -> None:
        if not self._in_order:
            tickets = sorted(self._parked, key=lambda ticket: (ticket.parked_at, ticket.place.seq))
            self._parked = OrderedDict.fromkeys(tickets)
            self._in_order = True
