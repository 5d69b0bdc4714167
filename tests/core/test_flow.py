"""What flowed through a pool of late."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifeboat.core.flow import CAPACITY_REASONS, NO_FLOW, PIECE_S, WINDOW_S, FlowRecord
from lifeboat.core.gate import Gate
from lifeboat.core.rules import GateRules
from lifeboat.core.snapshot import take_view
from lifeboat.core.vocabulary import Reason
from tests.core.building import FULL, OK, QUEUED, ask, gate_with, leased, parked, refused, spec

EVENTS = st.lists(
    st.tuples(st.floats(0.0, 60.0), st.sampled_from([None, *Reason])), min_size=1, max_size=60
)


def test_an_empty_record_tells_nothing() -> None:
    assert FlowRecord().read(1000.0) == NO_FLOW


@given(EVENTS)
def test_what_was_served_and_shed_is_told_for_five_minutes_give_or_take_a_piece(
    events: list[tuple[float, Reason | None]],
) -> None:
    record, now = FlowRecord(), 0.0
    happened: list[tuple[float, Reason | None]] = []
    for step_s, reason in events:
        now += step_s
        happened.append((now, reason))
        if reason is None:
            record.served(now, 2.0)
        else:
            record.refused(now, reason)
    told = Counter({**record.read(now).shed, None: record.read(now).served})
    least = Counter(reason for at, reason in happened if at > now - WINDOW_S + PIECE_S)
    most = Counter(reason for at, reason in happened if at > now - WINDOW_S)
    assert least <= told <= most
    assert len(record._pieces) <= WINDOW_S / PIECE_S


@pytest.mark.parametrize("reason", Reason)
def test_only_a_lack_of_capacity_counts_as_refused_per_second(reason: Reason) -> None:
    record = FlowRecord()
    for tenth in range(600):
        record.refused(tenth / 10, reason)
    expected = pytest.approx(10.0, rel=0.02) if reason in CAPACITY_REASONS else 0.0
    assert record.read(60.0 - 0.01).refused_per_s == expected


def test_a_rate_of_refusals_falls_to_nothing_within_half_a_minute() -> None:
    record = FlowRecord()
    for second in range(60):
        record.refused(float(second), Reason.GATE)
    assert record.read(60.0).refused_per_s == pytest.approx(1.0, rel=0.2)
    assert 0.0 < record.read(75.0).refused_per_s < 0.6
    assert record.read(90.0).refused_per_s == 0.0


def test_the_last_known_service_time_outlives_the_window() -> None:
    record = FlowRecord()
    record.served(0.0, 4.0)
    record.served(1.0, 8.0)
    assert record.read(1.0).mean_service_s == 6.0
    assert (record.read(900.0).served, record.read(900.0).mean_service_s) == (0, 6.0)


def test_a_clock_that_steps_back_loses_and_breaks_nothing() -> None:
    record = FlowRecord()
    record.served(100.0, 1.0)
    record.served(40.0, -3.0)
    assert (record.read(100.0).served, record.read(100.0).mean_service_s) == (2, 0.5)


def test_the_gate_feeds_it_with_what_really_happened() -> None:
    gate = gate_with(spec("a", 1), rules=QUEUED)
    first = leased(gate, 0.0)
    gate.note_dispatch(first)
    ticket = parked(gate, 1.0)
    leased(gate, 1.0, ask(gated=False))
    gate.release(first, OK, 4.0)
    (effect,) = gate.take_effects()
    assert effect.ticket is ticket
    second = effect.lease
    gate.note_dispatch(second)
    gate.release(second, FULL, 5.0)
    gate.note_rejected("m", Reason.QUEUE_FULL, 6.0)
    flow = take_view(gate, 6.0).pools["m"].flow
    assert (flow.served, flow.mean_service_s, flow.shed) == (1, 4.0, {Reason.QUEUE_FULL: 1})
    assert flow.admitted_last_minute == 2


def test_a_refused_request_and_a_second_attempt_are_not_admitted_again() -> None:
    gate = gate_with(spec("a", 1), spec("b", 1), rules=GateRules())
    lease = leased(gate, 0.0)
    leased(gate, 0.0)
    refused(gate, 0.0)
    gate.release(lease, FULL, 1.0)
    gate.exclude(lease.place, lease)
    refused(gate, 1.0, place=lease.place)
    assert _admitted(gate) == 2


def _admitted(gate: Gate) -> int:
    return take_view(gate, 2.0).pools["m"].requests_last_minute
