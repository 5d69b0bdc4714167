"""One backend inside the gate, and the lease of one of its slots.

`Seat` caches the effective limit; whoever changes an input calls `refresh`. Only the gate changes
`in_flight`. Held by tests/core/test_gate_machine.py (I1, I4) and test_one_server.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lifeboat.core.adaptive import AdaptiveLimit
from lifeboat.core.fit import cap_of
from lifeboat.core.health import Standing
from lifeboat.core.limits import (
    LimitInputs,
    LimitReason,
    LimitRules,
    configured_limit,
    effective_limit,
)
from lifeboat.core.queue import Lane, Place, Ticket
from lifeboat.core.saturation import Saturation
from lifeboat.core.vocabulary import Ask, BackendSpec, Health, OperatorState


class Stay:
    """The time of a backend at one server. left: what still runs there, once it has moved on."""

    __slots__ = ("left", "server")

    def __init__(self, server: str) -> None:
        self.server = server
        self.left = 0


class Seat:
    """A backend's mutable side: what it holds, what it may hold, and why.

    limit, reason: the cached effective limit. configured: the one before mode and load, 0 = gate
    disabled. adaptive: the limit it learns, None while it does not. lanes: those with tickets it
    could serve. excluded_by: parked tickets that exclude it until it recovers. leaving: removed,
    and kept only until its leases end. stay: its time at the present server; past: its stays at
    earlier ones, as long as requests run there, which count in `in_flight` too.
    """

    __slots__ = (
        "adaptive",
        "cancelled",
        "cap_tokens",
        "configured",
        "dispatched_by_pool",
        "excluded_by",
        "failed",
        "in_flight",
        "lanes",
        "last_pick",
        "leaving",
        "limit",
        "operator_state",
        "past",
        "reason",
        "removed_at",
        "saturation",
        "slots",
        "spec",
        "standing",
        "stay",
        "throttled_until",
    )

    def __init__(self, spec: BackendSpec, probe_threshold: int) -> None:
        self.spec = spec
        self.cap_tokens = cap_of(spec)
        self.stay = Stay(spec.server)
        self.past: list[Stay] = []
        self.standing = Standing(probe_threshold)
        self.saturation = Saturation()
        self.operator_state = OperatorState.READY
        self.throttled_until = 0.0
        self.slots: int | None = None
        self.adaptive: AdaptiveLimit | None = None
        self.in_flight = 0
        self.limit: int | None = 0
        self.configured = 0
        self.reason = LimitReason.DEFAULT
        self.lanes: dict[frozenset[str], Lane] = {}
        self.excluded_by: set[Ticket] = set()
        self.leaving = False
        self.removed_at = 0.0
        self.failed = 0
        self.cancelled = 0
        self.last_pick = 0
        self.dispatched_by_pool: dict[str, int] = {}

    @property
    def has_room(self) -> bool:
        """Whether one more request may be granted now."""
        limit = self.limit
        return limit is None or self.in_flight < limit

    @property
    def in_service(self) -> bool:
        """Whether it is live and neither draining nor in maintenance, room or not."""
        return self.standing.live and self.counts_for_concurrency

    @property
    def counts_for_concurrency(self) -> bool:
        """Whether it is part of its pools' configured concurrency (down ones are)."""
        return self.operator_state is OperatorState.READY and not self.leaving

    @property
    def shown_state(self) -> OperatorState:
        """What an operator sees: a removed backend drains."""
        return OperatorState.DRAIN if self.leaving else self.operator_state

    @property
    def is_suspect(self) -> bool:
        """Whether only single trials are allowed, other backends permitting."""
        return self.standing.health is Health.SUSPECT

    def rejoin(self) -> None:
        """Come back after a removal: counters and in-flight go on, what was known does not.

        It may be another server under the old name.
        """
        self.forget_server()
        self.operator_state = OperatorState.READY
        self.leaving = False

    def forget_server(self) -> None:
        """Forget what was known of the server: another one may stand under the name now.

        So it counts as live until it shows otherwise, and no request excludes it any more.
        """
        epoch = self.standing.epoch + 1
        self.standing = Standing(self.standing.probe_threshold)
        self.standing.epoch = epoch
        self.saturation = Saturation()
        self.throttled_until = 0.0
        self.slots = None
        self.adaptive = None

    def respec(self, spec: BackendSpec) -> None:
        """Take a changed description of the same backend."""
        if spec.server != self.stay.server:
            self._move(spec.server)
        self.spec = spec
        self.cap_tokens = cap_of(spec)

    def _move(self, server: str) -> None:
        """Go to a server; one where requests of it still run is come back to."""
        self.stay.left = self._here
        if self.stay.left:
            self.past.append(self.stay)
        stay = next((stay for stay in self.past if stay.server == server), None)
        if stay is None:
            stay = Stay(server)
        else:
            self.past.remove(stay)
        self.stay = stay

    @property
    def _here(self) -> int:
        return self.in_flight - sum(stay.left for stay in self.past)

    def lingering(self) -> Iterator[tuple[str, int]]:
        """Yield where requests of it still run that leave others less room, and how many."""
        if self.shown_state is not OperatorState.READY:
            yield self.stay.server, self._here
        for stay in self.past:
            yield stay.server, stay.left

    def refresh(
        self, rules: LimitRules, now: float, *, last_live: bool, lingering: int = 0
    ) -> None:
        """Recompute the limit.

        last_live: suspicion does not close it, for nothing else is left. lingering: requests of
        others at its server that leave it less room.
        """
        inputs = LimitInputs(
            kind=self.spec.kind,
            configured=self.spec.max_concurrency,
            slots=self.slots,
            operator_state=self.shown_state,
            health=self.standing.health,
            saturated=self.saturation.ceiling,
            suspect=None if last_live else self.standing.suspect_allowance(now),
            throttled=now < self.throttled_until,
            lingering=lingering,
        )
        self.configured = configured_limit(inputs, rules).value or 0
        if self._learns(rules):
            inputs = replace(inputs, adaptive=self._learned())
        else:
            self.adaptive = None
        self.limit, self.reason = effective_limit(inputs, rules)

    def _learns(self, rules: LimitRules) -> bool:
        if self.spec.adaptive is None and rules.adaptive_models:
            return not rules.adaptive_models.isdisjoint(self.spec.models or ())
        return bool(self.spec.adaptive)

    def _learned(self) -> int:
        """Return the learned limit; one that is out of service starts slowly when it is back."""
        if self.adaptive is None:
            self.adaptive = AdaptiveLimit(self.configured)
        self.adaptive.rebound(self.configured)
        if not self.standing.live:
            self.adaptive.restart()
        return self.adaptive.limit

    @property
    def risen_at(self) -> int:
        """The limit at which overload answers count as forgotten, 0 for a disabled gate.

        One that learns remembers them itself: it needs the pause alone.
        """
        return self.configured if self.adaptive is None else self.adaptive.limit

    def next_event_at(self, now: float) -> float | None:
        """Return when the clock alone will change the limit; None when it will not."""
        times: list[float] = []
        if self.saturation.ceiling is not None:
            times.append(self.saturation.rise_at)
        if now < self.throttled_until:
            times.append(self.throttled_until)
        if self.is_suspect and now < self.standing.trial_at:
            times.append(self.standing.trial_at)
        return min(times, default=None)


class Lease:
    """A held slot; it is closed exactly once, by the gate.

    level: how many were in flight there with this one, when it was granted. holds_slot: False for
    requests that take none. dispatched: its request was sent (`Gate.note_dispatch`); what never
    was says nothing about the backend. stay: the server it was granted for. waited_s: all the time
    its request was parked.
    """

    __slots__ = (
        "ask",
        "dispatched",
        "granted_at",
        "holds_slot",
        "level",
        "open",
        "place",
        "pool_name",
        "seat",
        "stay",
    )

    def __init__(
        self, ask: Ask, place: Place, pool_name: str, seat: Seat, granted_at: float
    ) -> None:
        self.ask = ask
        self.place = place
        self.pool_name = pool_name
        self.seat = seat
        self.stay = seat.stay
        self.granted_at = granted_at
        self.level = seat.in_flight
        self.holds_slot = ask.gated
        self.open = True
        self.dispatched = False

    @property
    def backend(self) -> str:
        """The name of the backend whose slot this is."""
        return self.seat.spec.name

    @property
    def waited_s(self) -> float:
        """Seconds its request was parked, over all its waits."""
        return self.place.parked_s
