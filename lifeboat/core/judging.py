"""What the gate decides, apart from acting on it: `admit` acts on it, `explain` tells it.

The order of the questions that depend on the moment: draining? fit (core.fit)? rate? room? held or
parked, or the reason why not. Held by tests/core/test_gate.py, test_gate_model.py, test_explain.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from lifeboat.core import refusals
from lifeboat.core.fit import Route, too_large
from lifeboat.core.ledger import BodyLedger
from lifeboat.core.parked import NOBODY
from lifeboat.core.pool import Pool, Pools
from lifeboat.core.queue import Place
from lifeboat.core.rules import GateRules
from lifeboat.core.seat import Seat
from lifeboat.core.seats import Seats
from lifeboat.core.selection import LeastUtilised, Selection
from lifeboat.core.vocabulary import UNKNOWN_POOL, Ask, Priority, Refusal


class Room(NamedTuple):
    """A decision: there is room, and this backend is chosen."""

    pool_name: str
    seat: Seat


class Parking(NamedTuple):
    """A decision: no room now, the request waits in this lane."""

    pool_name: str
    lane: frozenset[str]


Decision: TypeAlias = Room | Parking | Refusal

CANARY = 0.01
"""Part of the requests that park though their wait is expected to be too long: where the estimate
is wrong, or no longer true, they are what shows it."""


def no_chance() -> float:
    """Return the chance of a gate that leaves nothing to it: no jitter, every canary parks."""
    return 0.0


class Judge:
    """Judges requests by the rules, the backends and the pools as they are; changes none of them.

    parks: False once the router drains and serves no parked requests any more.
    chance: numbers in [0, 1), for what is to be spread.
    """

    def __init__(
        self,
        rules: GateRules,
        selection: Selection | None = None,
        probe_threshold: int = 3,
        chance: Callable[[], float] = no_chance,
    ) -> None:
        self.rules = rules
        self.seats = Seats(rules.limits, probe_threshold)
        self.pools = Pools()
        self.draining = False
        self.parks = True
        self.selection: Selection = selection or LeastUtilised()
        self.chance = chance

    def judge(self, ask: Ask, place: Place, now: float, *, first: bool) -> Decision:
        """Decide on a request without acting on it: what `admit` does, and what `explain` says."""
        if first and self.draining:
            return refusals.shutting_down(self.pool_of(ask.model))
        route = self.seats.directory.route(ask.model, ask.capability)
        if isinstance(route, Refusal):
            return route
        if ask.backend is not None:
            return self._judge_maker(ask.backend, ask, route, now)
        key = self.lane_key(route, ask, place)
        if key is None:
            return too_large(route, ask.estimate)
        seats = self.seats.of(key)
        pool = self.pools[route.pool]
        if first and pool.rate is not None and ask.gated:
            wait_s = pool.rate.wait_s(now)
            if wait_s > 0.0:
                return refusals.rate_limited(self, pool, seats, wait_s)
        if ask.gated:
            free = [seat for seat in seats if seat.has_room]
        else:
            free = [seat for seat in seats if seat.in_service]
        if free:
            return Room(pool.name, self.selection.choose(free))
        return self._judge_overflow(ask, place, route, key, now, first=first)

    def pool_of(self, model: str) -> str:
        """Return the pool that requests for this name are counted under."""
        return model if model in self.seats.directory.members else UNKNOWN_POOL

    def ceiling(self, pool: Pool) -> int:
        """Return the most parked requests of a pool now."""
        return self.rules.ceiling(pool.name, self.concurrency(pool))

    def concurrency(self, pool: Pool) -> int:
        """Return the configured concurrency of a pool (contract, section 2, "Pool concurrency")."""
        rules = self.rules
        total = 0
        for name in pool.members:
            seat = self.seats.by_name[name]
            if seat.counts_for_concurrency:
                total += seat.configured or rules.default_max_concurrency
        if total == 0 and rules.holds(pool.name):
            return rules.default_max_concurrency
        return total

    def bytes_full(self, pool_name: str, ledger: BodyLedger, now: float) -> Refusal:
        """Return the refusal of a pool whose bodies take more memory than its share."""
        pool = self.pools[pool_name]
        return refusals.bytes_full(self, pool, ledger.held(pool_name), ledger.bound_bytes, now)

    def lane_key(self, route: Route, ask: Ask, place: Place) -> frozenset[str] | None:
        """Return the lane of a request; None when no cap covers it."""
        if route.absent is not None:
            return NOBODY
        tier = route.tier(ask.estimate.tokens)
        if tier is None:
            return None
        if not place.excluded:
            return tier.key
        return tier.key - {name for name in place.excluded if self._excludes(place, name)}

    def _excludes(self, place: Place, name: str) -> bool:
        seat = self.seats.by_name.get(name)
        return seat is not None and seat.standing.epoch == place.excluded[name]

    def _judge_maker(self, name: str, ask: Ask, route: Route, now: float) -> Decision:
        """One named backend, or the reason why it cannot take the request now; never parks."""
        seat = self.seats.by_name.get(name)
        pool = self.pools[route.pool]
        if seat is None or not seat.standing.live:
            return refusals.maker_gone(self, pool, name)
        if ask.gated and not seat.has_room:
            return refusals.no_room(self, pool, (seat,), now)
        return Room(pool.name, seat)

    def _judge_overflow(
        self, ask: Ask, place: Place, route: Route, key: frozenset[str], now: float, *, first: bool
    ) -> Decision:
        """No room now: park, or the reason why not."""
        pool = self.pools[route.pool]
        rules = self.rules
        seats = self.seats.of(key)
        if not ask.gated or not any(seat.in_service for seat in seats):
            if not (ask.gated and rules.holds(pool.name)):
                return refusals.nothing_in_service(self, pool, route, ask, key)
        elif not rules.queues(pool.name) and place.ttl_s is None:
            return refusals.no_room(self, pool, seats, now)
        if not self.parks:
            return refusals.shutting_down(pool.name)
        if first and pool.depth >= self.ceiling(pool):
            return refusals.queue_full(self, pool, seats, now)
        if place.ttl_s is not None and place.parked_s >= place.ttl_s:
            return refusals.queue_timeout(self, pool, seats, place.parked_s, now)
        if first and rules.early_refusal:
            hopeless = self._judge_wait(ask, pool, seats, now)
            if hopeless is not None:
                return hopeless
        return Parking(pool.name, key)

    def _judge_wait(
        self, ask: Ask, pool: Pool, seats: tuple[Seat, ...], now: float
    ) -> Refusal | None:
        """Refuse whom the expected wait would leave without a slot; None = let it park.

        Not the urgent, who are served before most of what is parked, nor while nothing is in
        service: when that ends, no drain rate can tell.
        """
        if ask.priority is Priority.HIGH or not any(seat.in_service for seat in seats):
            return None
        wait_s = refusals.expected_wait(pool, now)
        ttl_s = self.rules.ttl_of(pool.name)
        bound_s = ttl_s if ask.patience_s is None else min(ttl_s, ask.patience_s)
        if wait_s is None or wait_s <= bound_s or self.chance() < CANARY:
            return None
        return refusals.too_late(self, pool, seats, ask, wait_s, now)
