"""The policy alone: bounds, epochs, slow start, what counts as used, what a line takes away."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifeboat.core.adaptive import LEAST_START, AdaptiveLimit, FirstTokens
from lifeboat.core.health import Probe, ProbeResult
from lifeboat.core.rules import GateRules, PoolRules
from lifeboat.core.vocabulary import BackendSpec, Capability, Kind, Outcome, Verdict
from tests.core.building import FULL, OK, QUEUED, gate_with, leased, parked


def answered(
    limit: AdaptiveLimit, times: int = 1, *, in_flight: int | None = None, at: float = 1.0
) -> None:
    """Let answers come back to a limit that is in full use, unless told what is left in flight."""
    for _ in range(times):
        left = limit.limit - 1 if in_flight is None else in_flight
        limit.observe(OK, granted_at=at, in_flight=left, tokens=10, now=at)


def refused(limit: AdaptiveLimit, in_flight: int, granted_at: float, now: float) -> None:
    limit.observe(FULL, granted_at=granted_at, in_flight=in_flight, tokens=10, now=now)


@pytest.mark.parametrize(
    ("bound", "start"), [(256, 32), (64, 8), (16, LEAST_START), (3, 3), (0, LEAST_START)]
)
def test_a_slow_start_begins_at_an_eighth_of_the_bound(bound: int, start: int) -> None:
    assert AdaptiveLimit(bound).limit == start


def test_a_slow_start_rises_with_every_answer_while_the_limit_is_used() -> None:
    limit = AdaptiveLimit(256)
    answered(limit, 10)
    assert limit.limit == 42
    answered(limit, 5, in_flight=3)
    assert limit.limit == 42


def test_a_refusal_leaves_nine_tenths_of_what_is_in_flight_and_ends_the_slow_start() -> None:
    limit = AdaptiveLimit(256)
    refused(limit, 20, granted_at=1.0, now=2.0)
    assert limit.limit == 18
    assert not limit.starting
    answered(limit, 1, at=3.0)
    assert limit.limit == 18


def test_one_burst_causes_one_decrease_and_corrects_the_level() -> None:
    limit = AdaptiveLimit(800)
    refused(limit, 99, granted_at=1.0, now=2.0)
    assert limit.limit == 89
    refused(limit, 98, granted_at=1.0, now=2.0)
    assert limit.limit == 89
    refused(limit, 72, granted_at=1.0, now=2.1)
    assert limit.limit == 72
    refused(limit, 72, granted_at=2.2, now=2.3)
    assert limit.limit == 64


def test_after_a_decrease_it_rises_by_one_a_round_and_faster_after_four() -> None:
    limit = AdaptiveLimit(256)
    refused(limit, 20, granted_at=0.0, now=0.5)
    found: list[int] = []
    for at in range(1, 9):
        answered(limit, 9, at=float(at))
        answered(limit, 3, in_flight=0, at=float(at))
        found.append(limit.limit)
    assert found[:4] == [19, 20, 21, 22]
    assert found[5] - found[4] == 2


def test_answers_to_what_was_granted_before_a_decrease_make_no_round() -> None:
    limit = AdaptiveLimit(256)
    refused(limit, 20, granted_at=0.0, now=5.0)
    answered(limit, 100, at=4.0)
    assert limit.limit == 18
    answered(limit, 9, at=6.0)
    assert limit.limit == 19


def test_a_limit_that_is_not_used_does_not_rise() -> None:
    limit = AdaptiveLimit(256)
    refused(limit, 20, granted_at=0.0, now=0.5)
    answered(limit, 200, in_flight=5)
    assert limit.limit == 18


def test_a_line_inside_the_engine_takes_its_share_away() -> None:
    limit = AdaptiveLimit(800)
    refused(limit, 45, granted_at=0.0, now=0.5)
    assert limit.limit == 40
    for at, first_token_s in ((2.0, 0.01), (12.0, 2.51)):
        outcome = Outcome(Verdict.ANSWERED, 200, first_token_s=first_token_s)
        for _ in range(20):
            limit.observe(outcome, granted_at=at, in_flight=39, tokens=10, now=at + 10.0)
    assert limit.limit == 30, "a quarter of the time of each was spent in line"


def test_long_prompts_are_compared_with_long_prompts() -> None:
    first = FirstTokens()
    assert first.excess_s(10, 0.01, now=0.0) == 0.0
    assert first.excess_s(8000, 0.50, now=0.0) == 0.0
    assert first.excess_s(8000, 0.75, now=0.0) == pytest.approx(0.25)
    assert first.excess_s(4000, 0.75, now=0.0) == pytest.approx(0.25), "the longer was faster"
    assert first.excess_s(16000, 0.75, now=0.0) == 0.0


def test_a_best_time_that_is_never_reached_again_is_forgotten() -> None:
    first = FirstTokens()
    first.excess_s(10, 0.01, now=0.0)
    assert first.excess_s(10, 0.11, now=130.0) == pytest.approx(0.10)
    assert first.excess_s(10, 0.11, now=260.0) == 0.0


@given(
    bound=st.integers(0, 64),
    ends=st.lists(
        st.tuples(
            st.sampled_from([OK, FULL, Outcome(Verdict.RESET), Outcome(Verdict.ANSWERED, 500)]),
            st.integers(0, 80),
            st.floats(0, 5),
        ),
        max_size=200,
    ),
)
def test_it_stays_within_1_and_the_bound_and_rises_only_in_use(
    bound: int, ends: list[tuple[Outcome, int, float]]
) -> None:
    limit = AdaptiveLimit(bound)
    now = 0.0
    for outcome, in_flight, held_s in ends:
        now += 0.1
        before = limit.limit
        limit.observe(outcome, granted_at=now - held_s, in_flight=in_flight, tokens=10, now=now)
        assert 1 <= limit.limit <= (bound or limit.limit)
        if in_flight + 1 < before and outcome is not OK:
            assert limit.limit <= before
        if outcome is FULL:
            assert limit.limit <= max(1, min(before, in_flight))


# ---- in the gate ---------------------------------------------------------------------------------


def learner(adaptive: bool | None = True, most: int = 64) -> BackendSpec:
    serves = frozenset({Capability.GENERATE})
    return BackendSpec("a", Kind.VLLM, serves, frozenset({"m"}), most, adaptive=adaptive)


def test_the_gate_enforces_the_learned_limit_and_names_it() -> None:
    gate = gate_with(learner(), rules=QUEUED)
    leases = [leased(gate, 0.0) for _ in range(8)]
    parked(gate, 0.0)
    seat = gate.seats["a"]
    assert (seat.limit, seat.reason.value) == (8, "adaptive")
    gate.release(leases[0], OK, 1.0)
    assert seat.limit == 9
    assert seat.in_flight == 8, "the parked one has the slot, and nobody else is there"


def test_a_learner_forgets_a_529_after_its_pause_and_remembers_the_level() -> None:
    gate = gate_with(learner(), rules=QUEUED)
    leases = [leased(gate, 0.0) for _ in range(8)]
    gate.release(leases[0], FULL, 1.0)
    seat = gate.seats["a"]
    assert seat.limit == 6
    gate.advance(1.3)
    assert (seat.limit, seat.reason.value) == (6, "adaptive")
    assert seat.saturation.ceiling is None


@pytest.mark.parametrize(
    ("own", "of_pool", "learns"),
    [(True, False, True), (None, True, True), (False, True, False), (None, False, False)],
)
def test_a_pool_or_a_backend_opts_in_and_a_backends_own_word_wins(
    own: bool | None, of_pool: bool, learns: bool
) -> None:
    rules = GateRules(pools={"m": PoolRules(adaptive=of_pool)})
    gate = gate_with(learner(own), rules=rules)
    assert (gate.seats["a"].adaptive is not None) is learns
    gate.set_rules(GateRules(), 1.0)
    assert (gate.seats["a"].adaptive is not None) is (own is True)


def test_a_backend_that_was_down_starts_slowly_again() -> None:
    gate = gate_with(learner(), rules=QUEUED)
    leases = [leased(gate, 0.0) for _ in range(8)]
    for _ in range(20):
        parked(gate, 0.0)
    for lease in leases:
        gate.release(lease, OK, 1.0)
    assert gate.seats["a"].limit == 16
    gate.observe_probe("a", Probe(ProbeResult.REFUSED), 2.0)
    assert gate.seats["a"].limit == 0
    gate.observe_probe("a", Probe(ProbeResult.OK), 3.0)
    assert gate.seats["a"].limit == 8
