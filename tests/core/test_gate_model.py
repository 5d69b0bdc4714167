"""The gate against a model that keeps a plain list of tickets and re-fits each one at every step.

The model takes from the gate only what a backend is (its spec, limit and health epoch) and what
was asked; who is served, where, in what order, and who is refused why, it works out by itself.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings

from lifeboat.core.gate import Effect, Granted
from lifeboat.core.modes import Mode
from lifeboat.core.queue import Place, Ticket
from lifeboat.core.rejections import MISSING_CAPABILITY
from lifeboat.core.rules import PoolRules
from lifeboat.core.seat import Lease, Seat
from lifeboat.core.vocabulary import (
    UNKNOWN_POOL,
    Ask,
    BackendSpec,
    Capability,
    OperatorState,
    Reason,
    Refusal,
)
from tests.core.driving import NAMES, GateDriver

PARK = "park"


@dataclass
class Known:
    """What the model keeps of one backend: who it gave slots to, and when it was last picked."""

    spec: BackendSpec
    limit: int | None
    live: bool
    ready: bool
    leaving: bool
    epoch: int
    in_flight: int
    last_pick: int

    @property
    def has_room(self) -> bool:
        return self.limit is None or self.in_flight < self.limit

    @property
    def in_service(self) -> bool:
        return self.live and self.ready and not self.leaving


class ModelMachine(GateDriver):
    """Same next grant, same backend, same refusals."""

    def __init__(self) -> None:
        super().__init__()
        self.held: Counter[str] = Counter()
        self.picks: dict[str, int] = {}
        self.ages: dict[str, int] = {}
        self.pick = 0
        self.listed: list[Ticket] = []

    # ---- the steps ------------------------------------------------------------------------------

    def before_step(self) -> None:
        self.listed = list(self.tickets)
        self.pools_before = {ticket: ticket.pool_name for ticket in self.tickets}
        self.held = Counter(lease.backend for lease in self.leases if lease.holds_slot)
        self.judged = False

    def after_admission(
        self, ask: Ask, place: Place | None, found: Lease | Ticket | Refusal
    ) -> None:
        self._check_handing_on()
        expected = self._judge(ask, place)
        self.judged = True
        if isinstance(found, Lease):
            assert found.backend == expected
            self._note_pick(found.backend)
        elif isinstance(found, Ticket):
            assert expected == PARK
        else:
            assert found.reason == expected

    def after_step(self, effects: list[Effect]) -> None:
        if not self.judged:
            self.effects = effects
            self._check_handing_on()

    def _book(self, effects: list[Effect]) -> None:
        self.effects = effects
        super()._book(effects)

    # ---- who is served next ---------------------------------------------------------------------

    def _check_handing_on(self) -> None:
        known = self._known()
        waiting: list[Ticket] = []
        away: dict[Ticket, Reason] = {}
        for ticket in self.listed:
            reason = self._turned_away(ticket)
            if reason is None:
                waiting.append(ticket)
            else:
                away[ticket] = reason
        expected = self._hand_on(waiting, known)
        granted = [
            (effect.ticket, effect.lease.backend)
            for effect in self.effects
            if isinstance(effect, Granted)
        ]
        refused = {
            effect.ticket: effect.refusal.reason
            for effect in self.effects
            if not isinstance(effect, Granted)
        }
        assert granted == expected
        assert refused == away

    def _turned_away(self, ticket: Ticket) -> Reason | None:
        if self.sent_away:
            return Reason.SHUTTING_DOWN
        permanent = self._permanent(ticket.ask)
        # Whose last backend went waits for another; a name of nobody never had one.
        if permanent is Reason.REQUEST_TOO_LARGE or self.pools_before[ticket] == UNKNOWN_POOL:
            if permanent is not None:
                return permanent
        return Reason.QUEUE_TIMEOUT if ticket.deadline <= self.now else None

    def _hand_on(self, waiting: list[Ticket], known: list[Known]) -> list[tuple[Ticket, str]]:
        found: list[tuple[Ticket, str]] = []
        while True:
            fitting = {
                ticket: [
                    one for one in self._fitting(ticket.ask, ticket.place, known) if one.has_room
                ]
                for ticket in waiting
            }
            able = [ticket for ticket in waiting if fitting[ticket]]
            if not able:
                return found
            ticket = min(able, key=self._order)
            chosen = self._choose(fitting[ticket])
            chosen.in_flight += 1
            self._note_pick(chosen.spec.name)
            chosen.last_pick = self.pick
            waiting.remove(ticket)
            found.append((ticket, chosen.spec.name))

    def _order(self, ticket: Ticket) -> tuple[float, ...]:
        rules, place = self.gate.rules, ticket.place
        if self.now - place.arrived_at >= rules.boost_s:
            return (0, place.arrived_at, place.seq)
        size = 0 if rules.mode is Mode.QUEUE_ALL else ticket.ask.estimate.total_tokens
        rank = ["high", "normal", "low"].index(ticket.ask.priority.value)
        return (1, rank, size, place.arrived_at, place.seq)

    # ---- what is answered at once ---------------------------------------------------------------

    def _judge(self, ask: Ask, place: Place | None) -> str | Reason:
        """The order of questions, asked one by one of every backend."""
        rules, first = self.gate.rules, place is None
        if first and self.gate.draining:
            return Reason.SHUTTING_DOWN
        permanent = self._permanent(ask)
        if permanent is not None:
            return permanent
        known = self._known(granted_too=True)
        if ask.backend is not None:
            maker = next((one for one in known if one.spec.name == ask.backend), None)
            if maker is None or not maker.live:
                return Reason.NO_BACKENDS
            return maker.spec.name if maker.has_room or not ask.gated else Reason.GATE
        fitting = self._fitting(ask, place, known)
        if not ask.gated:
            serving = [one for one in fitting if one.in_service]
            return self._choose(serving).spec.name if serving else Reason.NO_BACKENDS
        with_room = [one for one in fitting if one.has_room]
        if with_room:
            return self._choose(with_room).spec.name
        if not any(one.in_service for one in fitting):
            if not (rules.hold_when_down or rules.mode is Mode.QUEUE_ALL):
                return Reason.NO_BACKENDS
        elif not (rules.queue_enabled or rules.mode is Mode.QUEUE_ALL) and (
            place is None or place.ttl_s is None
        ):
            return Reason.GATE
        return self._park(ask, place, known)

    def _park(self, ask: Ask, place: Place | None, known: list[Known]) -> str | Reason:
        if self.parks_no_more:
            return Reason.SHUTTING_DOWN
        members = [one for one in known if not one.leaving and ask.model in (one.spec.models or ())]
        pool = ask.model if members or ask.model in self.gate.rules.pools else UNKNOWN_POOL
        depth = sum(ticket.pool_name == pool for ticket in self.tickets)
        if place is None and depth >= self._ceiling(pool, members):
            return Reason.QUEUE_FULL
        if place is not None and place.ttl_s is not None and place.parked_s >= place.ttl_s:
            return Reason.QUEUE_TIMEOUT
        return PARK

    def _ceiling(self, pool: str, members: list[Known]) -> int:
        rules = self.gate.rules
        own = rules.pools.get(pool, PoolRules()).max_depth
        absolute = rules.max_depth if own is None else own
        if absolute is not None:
            return max(1, int(absolute * rules.share)) if absolute else 0
        seats = self.gate.seats.by_name
        total = sum(seats[one.spec.name].configured or 2 for one in members if one.ready)
        if total == 0 and (rules.hold_when_down or rules.mode is Mode.QUEUE_ALL):
            total = 2
        factor = (
            rules.queue_all_depth_multiplier
            if rules.mode is Mode.QUEUE_ALL
            else rules.queue_depth_multiplier
        )
        return max(1, int(factor * total * rules.share))

    def _permanent(self, ask: Ask) -> Reason | None:
        specs = [seat.spec for seat in self.gate.seats.by_name.values() if not seat.leaving]
        capability = ask.capability
        if (
            not any(capability in spec.serves for spec in specs)
            and capability in MISSING_CAPABILITY
        ):
            return MISSING_CAPABILITY[capability]
        members = [spec for spec in specs if ask.model in (spec.models or ())]
        able = [spec for spec in members if capability in spec.serves]
        if not members:
            unlisted = any(spec.models is None and capability in spec.serves for spec in specs)
            known = unlisted or ask.model in self.gate.rules.pools
            return None if known else Reason.NO_BACKENDS
        if not able:
            embeds = any(Capability.EMBED in spec.serves for spec in members)
            generates = capability is Capability.GENERATE
            return Reason.EMBEDDING_ONLY_POOL if generates and embeds else Reason.NO_BACKENDS
        # Whoever asks for what a backend made asks that backend, whatever its cap.
        if ask.backend is None and not any(self._covers(spec, ask) for spec in able):
            return Reason.REQUEST_TOO_LARGE
        return None

    # ---- the backends, from scratch -------------------------------------------------------------

    def _known(self, granted_too: bool = False) -> list[Known]:
        held = Counter(self.held)
        if granted_too:
            held = Counter(lease.backend for lease in self.leases if lease.holds_slot)
        return [self._of(seat, held) for seat in self.gate.seats.by_name.values()]

    def _of(self, seat: Seat, held: Counter[str]) -> Known:
        name = seat.spec.name
        return Known(
            seat.spec, seat.limit, seat.standing.live, seat.operator_state is OperatorState.READY,
            seat.leaving, seat.standing.epoch, held[name], self._last_pick(name),
        )  # fmt: skip

    def _last_pick(self, name: str) -> int:
        # A backend never picked goes by its age, before all that were.
        age = self.ages.setdefault(name, len(self.ages))
        return self.picks.get(name, age - len(NAMES))

    def _note_pick(self, name: str) -> None:
        self.pick += 1
        self.picks[name] = self.pick

    def _fitting(self, ask: Ask, place: Place | None, known: list[Known]) -> list[Known]:
        return [
            one
            for one in known
            if not one.leaving
            and ask.model in (one.spec.models or ())
            and ask.capability in one.spec.serves
            and self._covers(one.spec, ask)
            and (place is None or place.excluded.get(one.spec.name) != one.epoch)
        ]

    @staticmethod
    def _covers(spec: BackendSpec, ask: Ask) -> bool:
        return spec.max_input_tokens == 0 or ask.estimate.tokens <= spec.max_input_tokens

    @staticmethod
    def _choose(candidates: list[Known]) -> Known:
        def rank(one: Known) -> tuple[float, float, int]:
            infinite = float("inf")
            weight = 32 if one.limit is None else one.limit
            ratio = one.in_flight / weight if weight else infinite
            return (ratio, one.spec.max_input_tokens or infinite, one.last_pick)

        return min(candidates, key=rank)


TestGateModel = ModelMachine.TestCase
TestGateModel.settings = settings(
    max_examples=250,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestGateModel.pytestmark = [pytest.mark.timeout(600)]
