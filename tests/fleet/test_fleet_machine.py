"""Reloads, registrations, heartbeats, patches, removals and requests in any order: a state machine.

No server is asked here: every backend names its models, and no watch is started. What must hold is
that the fleet and the gate agree at every step, and that no request is lost or stranded.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lifeboat.core.gate import Gate
from lifeboat.core.seat import Lease
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
from lifeboat.fleet import Fleet, FleetError, Patch, Registration
from lifeboat.settings import BackendConfig, ModelConfig
from tests.fleet.scripted import Engines, configured

T = TypeVar("T")

NAMES = ("a", "b", "c")
MODELS = ("m", "n")
DONE = Outcome(Verdict.ANSWERED, 200)
LIMITS = st.sampled_from([1, 2, 3])
MODEL_SETS = st.sampled_from([("m",), ("n",), ("m", "n")])
URLS = st.sampled_from(["http://127.0.0.1:1", "http://127.0.0.1:2"])


@st.composite
def backends(draw: st.DrawFn) -> BackendConfig:
    return BackendConfig(
        draw(st.sampled_from(NAMES)), Kind.OPENAI, draw(URLS),
        models=draw(MODEL_SETS), max_concurrency=draw(LIMITS),
    )  # fmt: skip


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
        self.patched: dict[str, int] = {}
        self.run_in_loop(self.fleet.reload(self.configuration([])))

    @staticmethod
    def configuration(entries: list[BackendConfig]):
        models = (ModelConfig("alias", alias_of="m"),)
        return configured(*entries, models=models, queue_enabled=True, queue_ttl_s=1e6)

    def run_in_loop(self, step: Awaitable[T]) -> T:
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
        return result

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

    @rule(entries=st.lists(backends(), max_size=3, unique_by=lambda one: one.name))
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

        self.run_in_loop(step())
        self.patched = {n: v for n, v in self.patched.items() if n in self.present}

    @rule(entry=backends(), ttl=st.sampled_from([None, 5.0]))
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

    @rule(name=st.sampled_from(NAMES))
    def remove(self, name: str) -> None:
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

        async def step() -> None:
            self.asking += [self.loop.create_task(self.door.enter(ask)) for _ in range(many)]

        self.run_in_loop(step())

    @precondition(lambda self: self.leases)
    @rule(at=st.integers(0, 1000))
    def request_ends(self, at: int) -> None:
        lease = self.leases.pop(at % len(self.leases))

        async def step() -> None:
            self.door.close(lease, DONE)

        self.run_in_loop(step())

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
        for name in held:
            assert self.fleet.member(name) is not None

    @invariant()
    def nobody_waits_beside_free_room(self) -> None:
        for task in self.asking:
            assert not task.done()
        parked = {pool.name for pool in self.gate.pools.values() if pool.depth}
        for seat in self.gate.seats.by_name.values():
            if seat.has_room and not seat.leaving:
                assert not parked & (seat.spec.models or frozenset())
        assert self.gate.parked.count == len(self.asking)

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
