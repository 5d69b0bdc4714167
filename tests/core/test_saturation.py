"""Saturation: how far an overload answer closes a backend, and how it opens again."""

from __future__ import annotations

import heapq
from dataclasses import replace
from itertools import pairwise

import pytest

from lifeboat.core.gate import Gate
from lifeboat.core.queue import Place
from lifeboat.core.saturation import LONGEST_PAUSE_S, Saturation
from lifeboat.core.seat import Lease
from lifeboat.core.vocabulary import Outcome, Verdict
from tests.core.building import FULL, OK, QUEUED, ask, gate_with, grants, leased, parked, spec


def test_an_overload_answer_closes_the_backend_to_what_it_holds() -> None:
    gate = gate_with(spec("a", 32))
    leases = [leased(gate, 0.0) for _ in range(3)]
    gate.release(leases[2], FULL, 1.0)
    seat = gate.seats.by_name["a"]
    assert (seat.limit, seat.reason.value) == (2, "saturated")
    assert seat.standing.live and seat.failed == 0


def test_the_ceiling_rises_by_one_a_pause_until_the_configured_limit() -> None:
    gate = gate_with(spec("a", 4))
    gate.release(leased(gate, 0.0), FULL, 0.0)
    seat = gate.seats.by_name["a"]
    seen = []
    for step in range(1, 6):
        gate.advance(step * 0.25)
        seen.append((seat.limit, seat.reason.value))
    configured = (4, "configured")
    assert seen == [*((step, "saturated") for step in (1, 2, 3)), configured, configured]
    assert gate.next_event_at(2.0) is None


def test_the_pause_doubles_on_repeated_refusal_up_to_its_bound() -> None:
    saturation = Saturation()
    now, pauses = 0.0, []
    for _ in range(7):
        saturation.refuse(0, now, None, now)
        pauses.append(saturation.rise_at - now)
        now = saturation.rise_at
        assert saturation.rise(8, now)
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_refusals_of_one_burst_lower_the_ceiling_and_count_once() -> None:
    saturation = Saturation()
    for left in (5, 4, 3):
        saturation.refuse(left, 0.0, None, 1.0)
    assert (saturation.ceiling, saturation.rise_at) == (3, 1.25)


def test_success_above_what_was_left_brings_the_short_pause_back() -> None:
    saturation = Saturation()
    saturation.refuse(2, 0.0, None, 1.0)
    saturation.refuse(2, 1.0, None, 2.0)
    saturation.served(2)
    assert saturation.rise(8, 2.5) and saturation.rise_at == 3.0
    saturation.served(3)
    assert saturation.rise(8, 3.0) and saturation.rise_at == 3.25


@pytest.mark.parametrize(
    ("asked_s", "pause_s"), [(3.0, 3.0), (0.0, 0.25), (900.0, 300.0), (None, 0.25)]
)
def test_the_backend_may_ask_for_a_longer_pause(asked_s: float | None, pause_s: float) -> None:
    gate = gate_with(spec("a", 4))
    gate.release(leased(gate, 0.0), Outcome(Verdict.SATURATED, 529, asked_s), 10.0)
    assert gate.next_event_at(10.0) == 10.0 + pause_s
    gate.advance(10.0 + pause_s)
    assert gate.seats.by_name["a"].limit == 1


def test_a_disabled_gate_opens_again_after_a_default_limit_above_what_the_engine_held() -> None:
    saturation = Saturation()
    saturation.refuse(3, 0.0, None, 0.0)
    now, steps = 0.0, 0
    while saturation.ceiling is not None:
        now += 5.0
        saturation.rise(0, now)
        steps += 1
    assert steps == 32


def test_a_throttled_backend_is_closed_until_then_at_most_five_minutes() -> None:
    for asked_s, closed_s in ((7.0, 7.0), (9000.0, 300.0)):
        gate = gate_with(spec("a", 1))
        gate.release(leased(gate, 0.0), Outcome(Verdict.THROTTLED, 429, asked_s), 0.0)
        waiting = parked(gate, 0.0)
        assert gate.seats.by_name["a"].reason.value == "throttled"
        assert gate.next_event_at(0.0) == min(closed_s, 30.0)
        if closed_s < 30.0:
            gate.advance(closed_s)
            assert [ticket for ticket, _ in grants(gate.take_effects())] == [waiting]


class Engine:
    """Seats behind a much larger limit: takes what fits, answers 529 to the rest."""

    def __init__(self, gate: Gate, seats: int, service_s: float, foreign: int = 0) -> None:
        self.gate = gate
        self.seats = seats
        self.service_s = service_s
        self.busy = foreign
        self.ends: list[tuple[float, int, Lease]] = []
        self.attempts = 0
        self.started: list[Place] = []
        self.now = 0.0
        self.idle_at = 0.0

    def send(self, lease: Lease) -> None:
        self.gate.note_dispatch(lease)
        self.attempts += 1
        if self.busy < self.seats:
            self.busy += 1
            self.started.append(lease.place)
            heapq.heappush(self.ends, (self.now + self.service_s, self.attempts, lease))
        else:
            heapq.heappush(self.ends, (self.now + 0.005, -self.attempts, lease))

    def run(self, until: float) -> None:
        while self.now < until:
            at = self.gate.next_event_at(self.now)
            ends_at = self.ends[0][0] if self.ends else None
            times = [time for time in (at, ends_at) if time is not None]
            if not times:
                return
            self.now = max(self.now, min(times))
            self.gate.advance(self.now)
            self.deliver()
            while self.ends and self.ends[0][0] <= self.now:
                _, number, lease = heapq.heappop(self.ends)
                if number > 0:
                    self.busy -= 1
                    self.idle_at = self.now
                    self.gate.release(lease, OK, self.now)
                else:
                    self.gate.release(lease, FULL, self.now)
                    again = self.gate.admit(lease.ask, self.now, lease.place)
                    if isinstance(again, Lease):
                        self.send(again)
                self.deliver()

    def deliver(self) -> None:
        for _, lease in grants(self.gate.take_effects()):
            self.send(lease)


def test_two_seats_behind_a_limit_of_32_cost_few_attempts_and_keep_the_order() -> None:
    rules = replace(QUEUED, queue_ttl_s=10_000.0, max_depth=1000, boost_s=0.0)
    gate = gate_with(spec("a", 32), rules=rules)
    engine = Engine(gate, seats=2, service_s=1.0)
    for _ in range(32):
        engine.send(leased(gate, 0.0))
    for _ in range(200):
        parked(gate, 0.0)
    engine.run(until=10_000.0)
    assert len(engine.started) == 232
    assert engine.attempts / len(engine.started) <= 1.5
    # In order, but for who was told to wait while the others of its burst were still on the way.
    seqs = [place.seq for place in engine.started]
    assert sum(after < before for before, after in pairwise(seqs)) <= 1
    assert engine.idle_at <= 232 / 2 * 1.05, "seats stood empty"


def test_with_foreign_load_the_timer_alone_wakes_the_parked() -> None:
    gate = gate_with(spec("a", 32), rules=replace(QUEUED, queue_ttl_s=1000.0))
    engine = Engine(gate, seats=2, service_s=1.0, foreign=2)
    engine.send(leased(gate, 0.0))
    engine.run(until=20.0)
    assert gate.parked.count == 1 or engine.ends
    assert engine.attempts <= 12, "a foreign load is hammered"
    engine.busy = 0
    engine.run(until=60.0)
    assert len(engine.started) == 1 and gate.open == gate.parked.count == 0
    assert isinstance(gate.admit(ask(), 60.0), Lease)
