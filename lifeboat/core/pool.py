"""One pool inside the gate: the parked and running requests of one model name, and its record."""

from __future__ import annotations

from collections import OrderedDict

from lifeboat.core.fit import Directory
from lifeboat.core.flow import FlowRecord
from lifeboat.core.queue import Ticket
from lifeboat.core.rates import RateWindow
from lifeboat.core.rules import GateRules
from lifeboat.core.vocabulary import UNKNOWN_POOL, Reason
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
        "flow",
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
        self.flow = FlowRecord()
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

    def limit_rate(self, per_minute: int) -> None:
        """Set the most requests in any minute; 0 = no limit. What was counted stays counted."""
        if per_minute <= 0:
            self.rate = None
        elif self.rate is None:
            self.rate = RateWindow(per_minute)
        else:
            self.rate.limit = per_minute

    def uncount(self, ticket: Ticket) -> None:
        """Give back to the rate what a parked request took that is refused and was never sent."""
        if self.rate is not None and ticket.parked_at == ticket.place.arrived_at:
            self.rate.give_back(ticket.parked_at)

    def parked(self) -> list[Ticket]:
        """Return the parked tickets, longest first."""
        self._sort()
        return list(self._parked)

    def _sort(self) -> None:
        if not self._in_order:
            tickets = sorted(self._parked, key=lambda ticket: (ticket.parked_at, ticket.place.seq))
            self._parked = OrderedDict.fromkeys(tickets)
            self._in_order = True


POOL_KEPT_S = 3600.0
"""How long the counters of a pool that nobody serves any more are kept (contract, section 9)."""


class Pools(dict[str, Pool]):
    """Every pool by name; the one of unknown names is always there."""

    def __init__(self) -> None:
        super().__init__({UNKNOWN_POOL: Pool(UNKNOWN_POOL)})

    def renew(self, directory: Directory, rules: GateRules, now: float) -> None:
        """Make a pool of every known model; forget those long unknown and empty."""
        members = directory.members
        for name, specs in members.items():
            pool = self.get(name)
            if pool is None:
                pool = self[name] = Pool(name)
            pool.gone_at = None
            pool.members = tuple(spec.name for spec in specs)
            pool.limit_rate(rules.of(name).max_requests_per_minute)
        for name, pool in list(self.items()):
            if name in members or name == UNKNOWN_POOL:
                continue
            pool.members = ()
            if pool.gone_at is None:
                pool.gone_at = now
            elif now - pool.gone_at > POOL_KEPT_S and not pool.depth and not pool.in_flight:
                del self[name]

    def forget_rates(self) -> None:
        """Drop every measured drain rate: it was that of other limits."""
        for pool in self.values():
            pool.drain.forget()
