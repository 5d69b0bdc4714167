"""A random operator, random backends and random clients for the gate, aimed at the full pool.

`GateDriver` only acts and keeps its own plain books; what must hold after each step is said by the
two machines over it: the invariants in test_gate_machine.py, the naive model in test_gate_model.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from lifeboat.core.gate import Effect, Gate, Granted
from lifeboat.core.health import Probe, ProbeResult
from lifeboat.core.modes import Mode
from lifeboat.core.queue import Place, Ticket
from lifeboat.core.rules import GateRules, PoolRules
from lifeboat.core.seat import Lease, Seat
from lifeboat.core.selection import Candidate, LeastUtilised
from lifeboat.core.vocabulary import (
    Ask,
    BackendSpec,
    Capability,
    Estimate,
    Kind,
    OperatorState,
    Outcome,
    Priority,
    Refusal,
    Verdict,
)

C = TypeVar("C", bound=Candidate)

MODELS = ("m", "n", "o")
NAMES = ("a", "b", "c")
GENERATE, EMBED = Capability.GENERATE, Capability.EMBED

specs = st.builds(
    BackendSpec,
    name=st.sampled_from(NAMES),
    kind=st.sampled_from([Kind.VLLM, Kind.GGUF]),
    serves=st.sampled_from([frozenset({GENERATE})] * 4 + [frozenset({GENERATE, EMBED})]),
    models=st.sampled_from(
        [frozenset({"m"}), frozenset({"m", "n"}), frozenset({"n"}), frozenset(MODELS), None]
    ),
    max_concurrency=st.sampled_from([1, 1, 1, 2, 2, 0, None]),
    max_input_tokens=st.sampled_from([0, 0, 10]),
    server=st.sampled_from(["", "u", "u", "v"]),
)
asks = st.builds(
    Ask,
    model=st.sampled_from(["m", "m", "m", "n", "n", "o", "nobody"]),
    capability=st.sampled_from([GENERATE] * 6 + [EMBED]),
    estimate=st.sampled_from([Estimate(5, 5), Estimate(10, 30), Estimate(11, 11)]),
    priority=st.sampled_from([Priority.NORMAL, Priority.NORMAL, Priority.HIGH, Priority.LOW]),
    gated=st.sampled_from([True] * 9 + [False]),
    backend=st.sampled_from([None] * 9 + ["a"]),
)
outcomes = st.sampled_from(
    [Outcome(Verdict.ANSWERED, 200)] * 6
    + [Outcome(Verdict.SATURATED, 529)] * 2
    + [Outcome(verdict) for verdict in Verdict if verdict is not Verdict.SATURATED]
    + [
        Outcome(Verdict.SATURATED, 529, retry_after_s=3.0),
        Outcome(Verdict.THROTTLED, 429, retry_after_s=4.0),
        Outcome(Verdict.ANSWERED, 404),
    ]
)
gate_rules = st.builds(
    GateRules,
    mode=st.sampled_from(list(Mode)),
    queue_enabled=st.sampled_from([True, True, True, False]),
    queue_ttl_s=st.just(6.0),
    queue_depth_multiplier=st.sampled_from([2.0, 4.0]),
    max_depth=st.sampled_from([None, None, None, 0, 2]),
    boost_s=st.just(3.0),
    queue_all_ttl_s=st.just(9.0),
    queue_all_depth_multiplier=st.just(6.0),
    superfast_cap=st.just(1),
    share=st.sampled_from([1.0, 1.0, 0.5]),
    default_max_concurrency=st.just(2),
    gguf_default_max_concurrency=st.just(1),
    hold_when_down=st.sampled_from([False, False, True]),
    pools=st.sampled_from([{}, {"o": PoolRules()}, {"m": PoolRules(max_depth=1)}]),
)
probes = st.sampled_from([ProbeResult.OK] * 3 + list(ProbeResult))


class WatchedSelection:
    """The usual policy; remembers every choice and what was offered, for the checks."""

    def __init__(self) -> None:
        self.offered: list[list[tuple[str, int, int | None]]] = []

    def choose(self, candidates: Sequence[C]) -> C:
        self.offered.append(
            [
                (seat.spec.name, seat.in_flight, seat.limit)
                for seat in candidates
                if isinstance(seat, Seat)
            ]
        )
        return LeastUtilised().choose(candidates)


class GateDriver(RuleBasedStateMachine):
    """Acts on a gate. `leases` and `tickets` are the books a client side would keep."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.selection = WatchedSelection()
        self.leases: list[Lease] = []
        self.servers: dict[Lease, str] = {}
        """Where each lease was granted."""
        self.tickets: list[Ticket] = []
        self.parks_no_more = False
        """The router drains and does not serve who is parked."""
        self.sent_away = False
        """In this very step the parked are told so."""
        self.asked = self.refused = self.withdrawn = self.expired = self.finished = 0

    # ---- what the machines say ------------------------------------------------------------------

    def before_step(self) -> None:
        """Called before the gate is touched."""

    def after_step(self, effects: list[Effect]) -> None:
        """Called after a step of the gate; the books show its effects already."""

    def after_admission(
        self, ask: Ask, place: Place | None, found: Lease | Ticket | Refusal
    ) -> None:
        """Called between the two, with the verdict on a request; it is not in the books yet."""

    # ---- steps ----------------------------------------------------------------------------------

    def step(self, act: Callable[[], object]) -> None:
        self.before_step()
        act()
        effects = self.gate.take_effects()
        self._book(effects)
        self.after_step(effects)

    def _book(self, effects: list[Effect]) -> None:
        for effect in effects:
            self.tickets.remove(effect.ticket)
            if isinstance(effect, Granted):
                self._take(effect.lease)
            elif effect.ticket.state.name == "EXPIRED":
                self.expired += 1
            else:
                self.refused += 1

    def _take(self, lease: Lease) -> None:
        self.leases.append(lease)
        self.servers[lease] = lease.seat.spec.server

    def admit(self, ask: Ask, place: Place | None = None) -> None:
        self.before_step()
        self.asked += 1
        found = self.gate.admit(ask, self.now, place)
        effects = self.gate.take_effects()
        self._book(effects)
        self.after_admission(ask, place, found)
        if isinstance(found, Lease):
            self._take(found)
        elif isinstance(found, Ticket):
            self.tickets.append(found)
        else:
            self.refused += 1
        self.after_step(effects)

    @initialize(rules=gate_rules, first=specs, second=specs)
    def start(self, rules: GateRules, first: BackendSpec, second: BackendSpec) -> None:
        self.gate = Gate(rules, self.selection, probe_threshold=2, now=self.now)
        self.step(lambda: self.gate.put_backend(first, self.now))
        self.step(lambda: self.gate.put_backend(second, self.now))

    @rule(burst=st.lists(asks, min_size=1, max_size=6))
    def requests_arrive(self, burst: list[Ask]) -> None:
        for ask in burst:
            self.admit(ask)

    @rule(data=st.data(), outcome=outcomes)
    def a_request_ends(self, data: st.DataObject, outcome: Outcome) -> None:
        if self.leases:
            self._end(data.draw(st.sampled_from(self.leases)), outcome)

    def _end(self, lease: Lease, outcome: Outcome) -> None:
        self.leases.remove(lease)
        del self.servers[lease]
        self.finished += 1
        self.step(lambda: self.gate.release(lease, outcome, self.now))
        self.step(lambda: self.gate.release(lease, outcome, self.now))

    @rule(outcome=outcomes)
    def all_requests_end(self, outcome: Outcome) -> None:
        for lease in list(self.leases):
            self._end(lease, outcome)

    @rule(data=st.data(), outcome=outcomes, away=st.booleans())
    def an_attempt_fails_over(self, data: st.DataObject, outcome: Outcome, away: bool) -> None:
        if not self.leases:
            return
        lease = data.draw(st.sampled_from(self.leases))
        self._end(lease, outcome)
        if away:
            self.gate.exclude(lease.place, lease)
        self.admit(lease.ask, lease.place)

    @rule(data=st.data())
    def a_client_leaves(self, data: st.DataObject) -> None:
        if self.tickets:
            ticket = data.draw(st.sampled_from(self.tickets))
            self.tickets.remove(ticket)
            self.withdrawn += 1

            def leave() -> None:
                self.gate.withdraw(ticket, self.now)
                self.gate.withdraw(ticket, self.now)
                # A withdrawal frees no room, so it applies nothing that is due.
                self.gate.advance(self.now)

            self.step(leave)

    @rule(seconds=st.sampled_from([0.25, 0.5, 1.0, 2.0, 3.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.step(lambda: self.gate.advance(self.now))

    @rule(seconds=st.sampled_from([0.25, 0.5, 1.0, 3.0]))
    def time_passes_unseen(self, seconds: float) -> None:
        """The timer is late: the next step finds what is due."""
        self.now += seconds

    @rule(rules=gate_rules)
    def the_settings_change(self, rules: GateRules) -> None:
        self.step(lambda: self.gate.set_rules(rules, self.now))

    @rule(spec=specs)
    def a_backend_is_put(self, spec: BackendSpec) -> None:
        self.step(lambda: self.gate.put_backend(spec, self.now))

    @rule(data=st.data(), most=st.sampled_from([0, 1, 2, 3]))
    def a_limit_changes(self, data: st.DataObject, most: int) -> None:
        seat = self._seat(data)
        if seat is not None:
            old = seat.spec
            spec = replace(old, max_concurrency=most)
            self.step(lambda: self.gate.put_backend(spec, self.now))

    @rule(data=st.data())
    def a_backend_is_removed(self, data: st.DataObject) -> None:
        seat = self._seat(data)
        if seat is not None:
            self.step(lambda: self.gate.remove_backend(seat.spec.name, self.now))

    @rule(data=st.data(), state=st.sampled_from(OperatorState))
    def an_operator_acts(self, data: st.DataObject, state: OperatorState) -> None:
        seat = self._seat(data)
        if seat is not None:
            self.step(lambda: self.gate.set_operator_state(seat.spec.name, state, self.now))

    @rule(name=st.sampled_from(NAMES), slots=st.sampled_from([None, 1, 2]))
    def an_engine_reports_slots(self, name: str, slots: int | None) -> None:
        def report() -> None:
            self.gate.set_slots(name, slots, self.now)
            self.gate.advance(self.now)

        self.step(report)

    @rule(name=st.sampled_from(NAMES), result=probes)
    def a_probe_ends(self, name: str, result: ProbeResult) -> None:
        def observe() -> None:
            self.gate.observe_probe(name, Probe(result), self.now, quiet_s=1.0)
            self.gate.advance(self.now)

        self.step(observe)

    @rule(serve_parked=st.booleans(), sure=st.sampled_from([True] + [False] * 20))
    def the_router_drains(self, serve_parked: bool, sure: bool) -> None:
        if sure:

            def drain() -> None:
                self.gate.drain(self.now, serve_parked=serve_parked)
                self.gate.advance(self.now)

            self.parks_no_more = self.sent_away = not serve_parked
            self.step(drain)
            self.sent_away = False

    def _seat(self, data: st.DataObject) -> Seat | None:
        present = [seat for seat in self.gate.seats.by_name.values() if not seat.leaving]
        return data.draw(st.sampled_from(present)) if present else None
