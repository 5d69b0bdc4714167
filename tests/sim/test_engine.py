"""Virtual time: what admission sees, and that lateness changes nothing."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lifeboat.sim.engine import Engine
from lifeboat.sim.scheduler import Sequence
from tests.sim.virtual import engine


def _offer(tested: Engine, count: int, at_s: float = 0.0, *, tokens: int = 50) -> int:
    """Offer requests as admission does; return how many were refused."""
    refused = 0
    for _ in range(count):
        if tested.saturated:
            refused += 1
        else:
            tested.submit(Sequence(32, tokens), at_s)
    return refused


@pytest.mark.parametrize("steps_between", [0, 1])
def test_twelve_at_once_onto_four_seats_and_a_line_of_three_are_five_too_many(
    steps_between: int,
) -> None:
    """Whether or not the engine takes a step in the middle of the burst."""
    tested = engine(max_num_seqs=4, max_waiting=3)
    refused = _offer(tested, 5)
    tested.advance(0.0, steps_between)
    refused += _offer(tested, 7)
    assert refused == 5
    assert tested.depth == 3
    tested.advance(0.001)
    assert (len(tested.running), tested.depth) == (4, 3)


@pytest.mark.parametrize("line", [1, 3, 10])
def test_one_more_than_the_line_holds_onto_full_seats_is_one_refusal(line: int) -> None:
    tested = engine(max_num_seqs=4, max_waiting=line)
    _offer(tested, 4)
    tested.advance(0.0001)
    assert (len(tested.running), tested.depth) == (4, 0)
    assert _offer(tested, line + 1, 0.0001) == 1


def test_an_unbounded_line_refuses_nobody() -> None:
    tested = engine(max_num_seqs=1, max_waiting=0)
    assert _offer(tested, 500) == 0
    assert tested.depth == 499


def test_the_depth_falls_as_seats_fall_free_and_clients_leave() -> None:
    tested = engine(max_num_seqs=2, max_waiting=2)
    sequences = [Sequence(32, 10) for _ in range(4)]
    for sequence in sequences:
        tested.submit(sequence, 0.0)
    assert tested.depth == 2
    tested.withdraw(sequences[3])
    assert tested.depth == 1
    tested.advance(0.0001)
    tested.withdraw(sequences[2])
    assert tested.depth == 0
    assert tested.in_flight == 2


def test_lowering_the_line_keeps_what_is_queued() -> None:
    tested = engine(max_num_seqs=1, max_waiting=8)
    _offer(tested, 6)
    tested.max_waiting = 2
    assert tested.depth == 5
    assert tested.saturated
    tested.advance(1e9)
    assert tested.idle
    assert tested.scheduler.emitted_tokens == 6 * 50


def test_a_full_cache_fills_the_line_though_there_are_seats() -> None:
    """Free seats are of no use to a request whose prompt does not fit: the line is what it is."""
    tested = engine(max_num_seqs=256, max_waiting=2, kv_blocks=3)
    for _ in range(4):
        tested.submit(Sequence(128, 50), 0.0)
    tested.advance(0.0001)
    assert len(tested.running) == 1
    assert tested.depth == 3
    assert tested.saturated


def test_an_idle_engine_stands_still_until_the_next_arrival() -> None:
    tested = engine()
    first, second = Sequence(32, 1), Sequence(32, 1)
    tested.submit(first, 0.0)
    tested.advance(10.0)
    assert tested.idle
    tested.submit(second, 20.0)
    tested.advance(30.0)
    assert second.first_token_s - 20.0 == pytest.approx(first.first_token_s)


def test_a_sequence_longer_than_the_cache_never_fits() -> None:
    tested = engine(kv_blocks=2)
    assert tested.fits(Sequence(100, 29))
    assert not tested.fits(Sequence(100, 30))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), calls=st.integers(1, 400))
def test_the_run_does_not_depend_on_how_often_it_is_looked_at(seed: int, calls: int) -> None:
    """Arrivals carry their time, so late or lazy replays admit at the same boundaries."""

    def run(looks_s: list[float]) -> list[tuple[float, float, int]]:
        rng = random.Random(seed)
        tested = engine(max_num_seqs=4, token_budget=256, kv_blocks=40)
        now_s = 0.0
        sequences: list[Sequence] = []
        for _ in range(20):
            later_s = now_s + rng.expovariate(300.0)
            for look_s in looks_s:
                if now_s < look_s <= later_s:
                    tested.advance(look_s)
            now_s = later_s
            sequence = Sequence(rng.randint(1, 300), rng.randint(1, 60))
            sequences.append(sequence)
            tested.submit(sequence, now_s)
        tested.advance(1e9)
        return [(s.started_s, s.finished_s, s.preemptions) for s in sequences]

    rng = random.Random(calls)
    often = sorted(rng.uniform(0, 0.1) for _ in range(calls))
    assert run(often) == run([])


def test_the_next_event_is_never_promised_late() -> None:
    """`next_event_s` is a lower bound of the next first token or finish: pacing relies on it."""
    rng = random.Random(3)
    tested = engine(max_num_seqs=8)
    sequences = [Sequence(rng.randint(1, 500), rng.randint(1, 40)) for _ in range(30)]
    for sequence in sequences:
        tested.submit(sequence, 0.0)
    tested.advance(0.0)
    while not tested.idle:
        bound_s = tested.next_event_s
        before = {id(s): (s.emitted, s.ended) for s in sequences}
        tested.advance(tested.step_ends_s, 1)
        for sequence in sequences:
            emitted, ended = before[id(sequence)]
            if sequence.ended and not ended:
                assert sequence.finished_s >= bound_s - 1e-12
            if sequence.emitted and not emitted:
                assert sequence.first_token_s >= bound_s - 1e-12
