"""Reloads, heartbeats, probes, patches, removals and requests in any order: a state machine.

No server is asked here: every backend names its models, and no watch is started. What must hold is
that the fleet and the gate agree at every step, and that no request is lost or stranded.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable
from dataclasses import replace
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lifeboat.core.gate import Gate
from lifeboat.core.health import Probe, ProbeResult
from lifeboat.core.queue import Ticket
from lifeboat.core.seat import Lease, Seat
from lifeboat.core.vocabulary import (
    Ask,
    Capability,
    Kind,
    OperatorState,
    Outcome,
    Refusal,
    Verdict,
)
from lifeboat.door import Door
from lifeboat.fleet import Fleet, FleetError, Origin, Patch, Registration
from lifeboat.settings import BackendConfig, ModelConfig
from tests.fleet.scripted import Engines, configured

T = TypeVar("T")

NAMES = ("a", "b", "c")
MODELS = ("m", "n")
PROBES = st.sampled_from([ProbeResult.OK] * 3 + list(ProbeResult))
OUTCOMES = st.sampled_from(
    [Outcome(Verdict.ANSWERED, 200)] * 5
    + [
        Outcome(Verdict.SATURATED, 529),
        Outcome(Verdict.REFUSED),
        Outcome(Verdict.RESET),
        Outcome(Verdict.SERVER_ERROR, 500),
        Outcome(Verdict.LOADING, 503),
        Outcome(Verdict.CLIENT_GONE),
    ]
)
LIMITS = st.sampled_from([1, 2, 3])
MODEL_SETS = st.sampled_from([("m",), ("n",), ("m", "n")])
URL_ONE, URL_TWO = "http://127.0.0.1:1", "http://127.0.0.1:2"
URLS = st.sampled_from([URL_ONE, URL_TWO])


@st.composite
def backends(draw: st.DrawFn) -> BackendConfig:
    return BackendConfig(
        draw(st.sampled_from(NAMES)), Kind.OPENAI, draw(URLS),
        models=draw(MODEL_SETS), max_concurrency=draw(LIMITS),
    )  # fmt: skip


def fleets(least: int) -> st.SearchStrategy[list[BackendConfig]]:
    return st.lists(backends(), min_size=least, max_size=3, unique_by=lambda one: one.name)


class FleetMachine(RuleBasedStateMachine):
    """The fleet and its door on a clock that only the machine moves."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.now = 0.0
        gate = Gate(Fleet.rules(self.configuration([])))
        self.gate = gate
        self.door = Door(gate, lambda: self.now)
        engines = Engines()
        self.fleet = Fleet(
            self.configuration([]), self.door,
            embedded=engines.start, stop_embedded=engines.stop,
            clock=lambda: self.now, rng=random.Random(1), wall=lambda: 0.0,
        )  # fmt: skip
        self.asking: list[asyncio.Task[Lease | Refusal]] = []
        self.leases: list[Lease] = []
        self.urls: dict[Lease, str] = {}
        self.patched: dict[str, int] = {}
        self.asked = 0
        self.run_in_loop(self.fleet.reload(self.configuration([])))

    @staticmethod
    def configuration(entries: list[BackendConfig]):
        models = (ModelConfig("alias", alias_of="m"),)
        return configured(
            *entries, models=models, queue_enabled=True, queue_ttl_s=1e6, hold_when_down=True
        )

    def run_in_loop(self, step: Awaitable[T], *, whole: bool = False) -> T:
        """Take one step, and see what follows. whole: it changes several backends, one by one."""
        held = len(self.leases)

        async def settled() -> T:
            result = await step
            for _ in range(4):
                await asyncio.sleep(0)
            return result

        result = self.loop.run_until_complete(settled())
        for task in [task for task in self.asking if task.done()]:
            self.asking.remove(task)
            if isinstance(task.result(), Lease):
                self.leases.append(task.result())
        self.check_servers(self.leases[held:])
        if not whole:
            for lease in self.leases[held:]:
                self.check_grant(lease)
        return result

    def check_servers(self, new: list[Lease]) -> None:
        """No server gets more than its cap, under whatever names, after a step with new leases.

        Two names that both take requests have a cap each.
        """
        members = self.fleet.members()
        self.urls = {lease: url for lease, url in self.urls.items() if lease in self.leases}
        self.urls |= {lease: members[lease.backend].url for lease in new}
        for lease in new:
            url = self.urls[lease]
            others = {
                name
                for name, member in members.items()
                if member.url == url and name != lease.backend and self.takes_requests(name)
            }
            held = sum(at == url and other.backend not in others for other, at in self.urls.items())
            assert held <= lease.seat.configured, "a server got more than its cap"

    def takes_requests(self, name: str) -> bool:
        seat = self.gate.seats.by_name[name]
        return not seat.leaving and seat.operator_state is OperatorState.READY

    def check_grant(self, lease: Lease) -> None:
        """Judge a lease right after the step that gave it."""
        seat = lease.seat
        assert seat.limit is None or lease.level <= seat.limit, "I1: granted above the limit"
        assert lease.ask.model in (seat.spec.models or ()), "I5: granted a backend that cannot"
        for ticket in self.gate.parked.all():
            older = (ticket.place.arrived_at, ticket.place.seq) < (
                lease.place.arrived_at, lease.place.seq,
            )  # fmt: skip
            boosted = self.now - ticket.parked_at >= self.gate.rules.boost_s
            assert not (older and boosted and self.fits(ticket, seat)), "I6: passed over"

    def fits(self, ticket: Ticket, seat: Seat) -> bool:
        """Whether a parked request may use a backend, room or not."""
        excluded = ticket.place.excluded.get(seat.spec.name) == seat.standing.epoch
        return not (seat.leaving or excluded) and ticket.ask.model in (seat.spec.models or ())

    def teardown(self) -> None:
        async def end() -> None:
            for task in self.asking:
                task.cancel()
            await asyncio.gather(*self.asking, return_exceptions=True)
            await self.fleet.close()

        self.loop.run_until_complete(end())
        self.door.stop()
        self.loop.close()

    # -- what happens -------------------------------------------------------------------------

    @initialize(entries=fleets(least=2))
    def begin(self, entries: list[BackendConfig]) -> None:
        self.run_in_loop(self.fleet.reload(self.configuration(entries)), whole=True)

    @rule(entries=fleets(least=1) | fleets(least=0))
    def reload(self, entries: list[BackendConfig]) -> None:
        before = dict(self.fleet.members())
        registered = {name: one for name, one in before.items() if one.origin == "registered"}

        async def step() -> None:
            try:
                await self.fleet.reload(self.configuration(entries))
            except FleetError as error:
                assert error.status == 409
                assert self.fleet.members() == before
            else:
                for name, one in registered.items():
                    assert name in self.fleet.members() or name not in self.gate.seats.by_name, one

        self.run_in_loop(step(), whole=True)
        self.patched = {n: v for n, v in self.patched.items() if n in self.present}

    @rule(entry=backends(), ttl=st.sampled_from([None, None, None, 5.0]))
    def register(self, entry: BackendConfig, ttl: float | None) -> None:
        given = frozenset({"models", "max_concurrency"})

        async def step() -> None:
            try:
                await self.fleet.register(Registration(entry, ttl, given))
            except FleetError as error:
                assert error.status == 409
            else:
                assert entry.name in self.present

        self.run_in_loop(step())

    @rule(name=st.sampled_from(NAMES), sure=st.sampled_from([True, False, False]))
    def remove(self, name: str, sure: bool) -> None:
        if not sure:
            return

        async def step() -> None:
            try:
                self.fleet.remove(name)
            except FleetError as error:
                assert error.status == 404

        self.run_in_loop(step())
        self.patched.pop(name, None)

    @rule(
        name=st.sampled_from(NAMES),
        limit=LIMITS | st.none(),
        state=st.sampled_from([OperatorState.READY, OperatorState.DRAIN, None]),
    )
    def patch(self, name: str, limit: int | None, state: OperatorState | None) -> None:
        async def step() -> None:
            try:
                self.fleet.patch(name, Patch(max_concurrency=limit, state=state))
            except FleetError as error:
                assert error.status == 404
                return
            if limit is None:
                self.patched.pop(name, None)
            else:
                self.patched[name] = limit

        self.run_in_loop(step())

    @rule(seconds=st.sampled_from([1.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.run_in_loop(self.fleet._pulse.beat())
        self.patched = {n: v for n, v in self.patched.items() if n in self.present}
        for known in self.fleet._roster.present.values():
            assert known.expires_at is None or known.expires_at > self.now

    @rule(asked=st.sampled_from(["m", "n", "alias"]), many=st.integers(1, 3))
    def requests_come(self, asked: str, many: int) -> None:
        ask = Ask(self.fleet.resolve(asked).model, Capability.GENERATE)

        self.asked += many

        async def step() -> None:
            self.asking += [self.loop.create_task(self.door.enter(ask)) for _ in range(many)]

        self.run_in_loop(step())

    @precondition(lambda self: self.leases)
    @rule(at=st.integers(0, 1000), outcome=OUTCOMES)
    def request_ends(self, at: int, outcome: Outcome) -> None:
        lease = self.leases.pop(at % len(self.leases))

        async def step() -> None:
            self.door.close(lease, outcome)

        self.run_in_loop(step())

    @precondition(lambda self: self.leases)
    @rule(at=st.integers(0, 1000), outcome=OUTCOMES)
    def attempt_fails_over(self, at: int, outcome: Outcome) -> None:
        """As the journey does it: excluded there, admitted again in the old place."""
        lease = self.leases.pop(at % len(self.leases))
        self.asked += 1

        async def step() -> None:
            self.door.exclude(lease)
            self.door.close(lease, outcome)
            self.asking.append(self.loop.create_task(self.door.enter(lease.ask, lease.place)))

        self.run_in_loop(step())

    @precondition(lambda self: self.asking)
    @rule(at=st.integers(0, 1000))
    def client_leaves(self, at: int) -> None:
        task = self.asking.pop(at % len(self.asking))

        async def step() -> None:
            task.cancel()

        self.run_in_loop(step())

    @rule(name=st.sampled_from(NAMES), result=PROBES)
    def probe_ends(self, name: str, result: ProbeResult) -> None:
        """As a watch tells the gate; in-flight is never touched by it."""
        before, held = self.in_flight(), len(self.leases)

        async def step() -> None:
            probe = Probe(result)
            self.door.reconfigure(lambda gate, now: gate.observe_probe(name, probe, now, 0.0))

        self.run_in_loop(step())
        granted = Counter(lease.backend for lease in self.leases[held:])
        assert self.in_flight() == {one: count + granted[one] for one, count in before.items()}

    @precondition(lambda self: self.down())
    @rule(at=st.integers(0, 2))
    def backend_recovers(self, at: int) -> None:
        names = self.down()
        self.probe_ends(names[at % len(names)], ProbeResult.OK)

    def down(self) -> list[str]:
        return [name for name, seat in self.gate.seats.by_name.items() if not seat.standing.live]

    @precondition(lambda self: self.present)
    @rule(at=st.integers(0, 2))
    def backend_moves(self, at: int) -> None:
        """Another server under the name; all else of the configuration stays."""
        moved = sorted(self.present)[at % len(self.present)]
        other = {URL_ONE: URL_TWO, URL_TWO: URL_ONE}
        entries = [
            replace(known.config, url=other[known.member.url]) if name == moved else known.config
            for name, known in self.fleet._roster.present.items()
            if known.member.origin is not Origin.REGISTERED
        ]
        self.run_in_loop(self.fleet.reload(self.configuration(entries)), whole=True)

    def in_flight(self) -> dict[str, int]:
        return {name: seat.in_flight for name, seat in self.gate.seats.by_name.items()}

    # -- what must hold -------------------------------------------------------------------------

    @property
    def present(self) -> set[str]:
        return set(self.fleet._roster.present)

    @invariant()
    def fleet_and_gate_agree_on_who_is_in(self) -> None:
        seats = self.gate.seats.by_name
        assert {name for name, seat in seats.items() if not seat.leaving} == self.present
        for name in self.present:
            known = self.fleet._roster.present[name]
            assert seats[name].spec == known.spec
            if name in self.patched:
                assert seats[name].configured == self.patched[name]

    @invariant()
    def every_lease_counts_once_and_its_backend_is_at_hand(self) -> None:
        held = Counter(lease.backend for lease in self.leases)
        for name, seat in self.gate.seats.by_name.items():
            assert seat.in_flight == held[name]
            assert seat.standing.live or seat.limit == 0, "a backend that is down has room"
        for name in held:
            assert self.fleet.member(name) is not None

    @invariant()
    def nobody_waits_beside_free_room(self) -> None:
        """I2 and I3: every ticket is somebody's, and nothing that it fits has room."""
        for task in self.asking:
            assert not task.done()
        tickets = list(self.gate.parked.all())
        assert len(tickets) == self.gate.parked.count == len(self.asking)
        for ticket in tickets:
            for seat in self.gate.seats.by_name.values():
                assert not (seat.has_room and self.fits(ticket, seat))
                lane = ticket.lane
                assert lane is not None
                assert (seat.spec.name in lane.key) is self.fits(ticket, seat)
        depths = Counter(ticket.pool_name for ticket in tickets)
        for name, pool in self.gate.pools.items():
            assert pool.depth == depths[name]

    @invariant()
    def every_request_is_in_one_place(self) -> None:
        """I7, and I4 by pool."""
        gate = self.gate
        assert gate.asked == self.asked
        ended = gate.refused + gate.withdrawn + gate.expired + gate.finished
        assert gate.asked == gate.open + gate.parked.count + ended
        assert gate.open == len(self.leases)
        held = Counter(lease.pool_name for lease in self.leases)
        for name, pool in gate.pools.items():
            assert pool.in_flight == held[name]

    @invariant()
    def the_list_is_what_the_backends_serve(self) -> None:
        served = {model for name in self.present for model in self.models_of(name)}
        shown = {entry.id: entry.backends for entry in self.fleet.listing()}
        assert set(shown) - {"alias"} == served
        assert ("alias" in shown) is ("m" in served)
        for entry in self.fleet.listing():
            assert set(entry.backends) <= self.present

    def models_of(self, name: str) -> tuple[str, ...]:
        return self.fleet._roster.present[name].models or ()


FleetMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestFleetMachine = FleetMachine.TestCase
