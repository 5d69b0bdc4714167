"""The router's journey of every request, in virtual time: admit, park, send, relay, release.

The order within a moment is that of the real edge: what ends is released first, what that grants is
sent, and only then is a request that the engine refused admitted again with its place. Held by
tests/simulate/test_world.py, and against a run over sockets by tests/simulate/test_over_sockets.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import TypeAlias

from lifeboat.core.gate import Admission, Gate, Granted
from lifeboat.core.queue import Place, Ticket
from lifeboat.core.seat import Lease
from lifeboat.core.vocabulary import (
    Ask,
    Capability,
    Estimate,
    Outcome,
    Reason,
    Refusal,
    Verdict,
)
from lifeboat.sim.engine import Engine
from lifeboat.sim.scheduler import Sequence
from lifeboat.simulate.machines import Machine
from lifeboat.simulate.traces import Arrival

HOP_S = 0.001
"""From the router to an engine or back, one way: what a machine on the same network takes."""

MOST_ATTEMPTS = 64
"""As in edge.dispatch: no request spins for ever."""

SATURATED = Outcome(Verdict.SATURATED, 529)
TOO_LONG = Outcome(Verdict.ANSWERED, 400)

_SUPERSEDED = frozenset({Reason.GATE, Reason.NO_BACKENDS})
"""As in edge.proxy: refusals that give way to the 529 a backend gave."""

RELAYED_529 = "529"
ANSWERED_400 = "400"


@dataclass(slots=True)
class Trip:
    """One request on its way.

    ended: None until it is over, "" when it was answered, else why not: a reason of ours, or the
    status of the engine's that was relayed. wait_s: parked in all. first_token_s, took_s: as the
    client sees them, from its arrival.
    """

    arrival: Arrival
    ask: Ask
    asked_at_s: float
    place: Place | None = None
    attempts: int = 0
    backend: str | None = None
    sent_at_s: float = 0.0
    ended: str | None = None
    wait_s: float = 0.0
    first_token_s: float = -1.0
    took_s: float = 0.0


_Event: TypeAlias = tuple[float, int, Callable[[], None]]


class World:
    """A gate and its machines on one clock that jumps from event to event.

    on_end: called once for each request that is over; it may `ask` again (a closed loop).
    """

    def __init__(
        self,
        gate: Gate,
        machines: Mapping[str, Machine],
        model: str,
        on_end: Callable[[Trip], None] = lambda trip: None,
        hop_s: float = HOP_S,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        """model: of requests that name none. hop_s: one way to an engine or back, in seconds."""
        self.gate = gate
        self.machines = machines
        self.now_s = 0.0
        self.events = 0
        self._model = model
        self._aliases = aliases or {}
        self._on_end = on_end
        self._hop_s = hop_s
        self._heap: list[_Event] = []
        self._order = count()
        self._trips: dict[int, tuple[Trip, Lease, Machine]] = {}
        self._timer_at_s = inf

    def at(self, at_s: float, act: Callable[[], None]) -> None:
        """Let something happen at a moment; what was put in first happens first."""
        heappush(self._heap, (max(at_s, self.now_s), next(self._order), act))

    def ask(self, arrival: Arrival, at_s: float | None = None) -> None:
        """Let a request arrive, at its own time or at the given one."""
        self.at(arrival.at_s if at_s is None else at_s, lambda: self._arrive(arrival))

    def play(self, trace: Iterable[Arrival]) -> None:
        """Let a trace arrive, in its order; only one of its requests lies in the heap at a time."""
        rest = iter(trace)

        def arrive_next() -> None:
            arrival = next(rest, None)
            if arrival is None:
                return

            def arrive() -> None:
                self._arrive(arrival)
                arrive_next()

            self.at(arrival.at_s, arrive)

        arrive_next()

    def run(self, until_s: float = inf) -> None:
        """Let everything happen that happens up to a moment; without one, until all is over."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            self.now_s, _, act = heappop(heap)
            self.events += 1
            act()
        if until_s != inf:
            self.now_s = max(self.now_s, until_s)

    # -- the journey ------------------------------------------------------------------------

    def _arrive(self, arrival: Arrival) -> None:
        tokens = arrival.input_tokens
        named = arrival.model or self._model
        model = self._aliases.get(named, named)
        ask = Ask(model, Capability.GENERATE, Estimate(tokens, tokens), arrival.priority)
        self._enter(Trip(arrival, ask, self.now_s))

    def _enter(self, trip: Trip) -> None:
        admission = self.gate.admit(trip.ask, self.now_s, trip.place)
        if isinstance(admission, Ticket):
            admission.waiter = trip
            trip.place = admission.place
        self._settle()
        self._follow(trip, admission)

    def _follow(self, trip: Trip, admission: Admission) -> None:
        match admission:
            case Lease():
                self._send(trip, admission)
            case Refusal():
                self._turned_away(trip, admission)
            case Ticket():
                pass

    def _settle(self) -> None:
        """Deliver what the gate decided about the parked, then set its timer."""
        gate = self.gate
        while effects := gate.take_effects():
            for effect in effects:
                trip = effect.ticket.waiter
                assert isinstance(trip, Trip)
                self._follow(trip, effect.lease if isinstance(effect, Granted) else effect.refusal)
        event_at_s = gate.next_event_at(self.now_s)
        if event_at_s is not None and event_at_s < self._timer_at_s:
            self._timer_at_s = event_at_s
            self.at(event_at_s, self._tick)

    def _tick(self) -> None:
        self._timer_at_s = inf
        self.gate.advance(self.now_s)
        self._settle()

    def _send(self, trip: Trip, lease: Lease) -> None:
        trip.place = lease.place
        trip.backend = lease.backend
        trip.sent_at_s = self.now_s
        trip.attempts += 1
        self.gate.note_dispatch(lease)
        self.at(self.now_s + self._hop_s, lambda: self._deliver(trip, lease))

    def _deliver(self, trip: Trip, lease: Lease) -> None:
        machine = self.machines[lease.backend]
        sequence = machine.sequence(trip.arrival.input_tokens, trip.arrival.output_tokens)
        if sequence is None:
            self._answer(trip, lease, TOO_LONG)
            return
        idle = {id(engine) for engine in machine.engines if engine.idle}
        engine = machine.submit(sequence, self.now_s)
        if engine is None:
            self._answer(trip, lease, SATURATED)
            return
        self._trips[id(sequence)] = (trip, lease, machine)
        if id(engine) in idle:
            self._await_step(machine, engine)

    def _await_step(self, machine: Machine, engine: Engine) -> None:
        self.at(machine.step_at_s(engine), lambda: self._step(machine, engine))

    def _step(self, machine: Machine, engine: Engine) -> None:
        for sequence in machine.step(engine):
            self._finished(sequence)
        if engine.step_ends_s != inf:
            self._await_step(machine, engine)

    def _finished(self, sequence: Sequence) -> None:
        trip, lease, machine = self._trips.pop(id(sequence))
        first_at_s = machine.first_token_at_s(sequence) + self._hop_s
        trip.first_token_s = first_at_s - trip.asked_at_s
        outcome = Outcome(Verdict.ANSWERED, 200, first_token_s=first_at_s - trip.sent_at_s)
        self._answer(trip, lease, outcome)

    def _answer(self, trip: Trip, lease: Lease, outcome: Outcome) -> None:
        self.at(self.now_s + self._hop_s, lambda: self._answered(trip, lease, outcome))

    def _answered(self, trip: Trip, lease: Lease, outcome: Outcome) -> None:
        self.gate.release(lease, outcome, self.now_s)
        self._settle()
        if outcome.verdict is not Verdict.SATURATED:
            self._end(trip, "" if outcome.status == 200 else ANSWERED_400)
        elif trip.attempts < MOST_ATTEMPTS:
            self._enter(trip)
        else:
            self._end(trip, RELAYED_529)

    def _turned_away(self, trip: Trip, refusal: Refusal) -> None:
        if trip.attempts and refusal.reason in _SUPERSEDED:
            self._end(trip, RELAYED_529)
            return
        self.gate.note_rejected(refusal.pool, refusal.reason, self.now_s)
        trip.wait_s = refusal.wait_s
        self._end(trip, refusal.reason.value)

    def _end(self, trip: Trip, why: str) -> None:
        trip.ended = why
        trip.took_s = self.now_s - trip.asked_at_s
        if trip.place is not None:
            trip.wait_s = max(trip.wait_s, trip.place.parked_s)
        self._on_end(trip)
