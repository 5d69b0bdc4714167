"""Several names of one server: what lingers there under one leaves the others less room."""

from __future__ import annotations

import pytest

from lifeboat.core.gate import Gate
from lifeboat.core.limits import LimitReason
from lifeboat.core.seat import Lease
from lifeboat.core.vocabulary import OperatorState, Outcome, Verdict
from tests.core.building import OK, ask, gate_with, granted, leased, parked, spec

U, V = "http://h:1", "http://h:2"


def full(gate: Gate, count: int) -> list[Lease]:
    return [leased(gate, 0.0) for _ in range(count)]


def limit_of(gate: Gate, name: str) -> tuple[int | None, LimitReason]:
    seat = gate.seats.by_name[name]
    return seat.limit, seat.reason


def drain_and_join(gate: Gate) -> None:
    gate.set_operator_state("a", OperatorState.DRAIN, 1.0)
    gate.put_backend(spec("b", 3, server=U), 1.0)
    gate.remove_backend("a", 1.0)


def leave_and_join(gate: Gate) -> None:
    gate.remove_backend("a", 1.0)
    gate.put_backend(spec("b", 3, server=U), 1.0)


def move_away_and_join(gate: Gate) -> None:
    gate.put_backend(spec("a", 3, models=("z",), server=V), 1.0, new_server=True)
    gate.put_backend(spec("b", 3, server=U), 1.0)


def close_and_join(gate: Gate) -> None:
    gate.set_operator_state("a", OperatorState.MAINT, 1.0)
    gate.put_backend(spec("b", 3, server=U), 1.0)


@pytest.mark.parametrize(
    "rename", [drain_and_join, leave_and_join, move_away_and_join, close_and_join]
)
def test_a_newcomer_gets_the_room_of_its_predecessor_as_that_one_ends(rename) -> None:
    gate = gate_with(spec("a", 3, server=U))
    running = full(gate, 3)
    waiting = [parked(gate, 0.5) for _ in range(4)]
    rename(gate)
    assert gate.take_effects() == []
    assert limit_of(gate, "b") == (0, LimitReason.PREDECESSOR)
    for ended, lease in enumerate(running, 1):
        gate.release(lease, OK, 2.0)
        assert granted(gate) == [waiting[ended - 1]]
        assert gate.seats.by_name["b"].limit == ended
    assert limit_of(gate, "b") == (3, LimitReason.CONFIGURED)
    assert not gate.seats.lingering


def test_a_smaller_newcomer_waits_until_the_server_is_within_its_cap() -> None:
    gate = gate_with(spec("a", 4, server=U))
    running = full(gate, 4)
    waiting = parked(gate, 0.5)
    gate.remove_backend("a", 1.0)
    gate.put_backend(spec("b", 2, server=U), 1.0)
    for lease in running[:2]:
        gate.release(lease, OK, 2.0)
    assert gate.take_effects() == []
    gate.release(running[2], OK, 2.0)
    assert granted(gate) == [waiting]


def test_what_runs_elsewhere_or_where_nobody_told_leaves_the_limit_alone() -> None:
    for server, other in ((U, V), ("", "")):
        gate = gate_with(spec("a", 2, server=server))
        full(gate, 2)
        gate.remove_backend("a", 1.0)
        gate.put_backend(spec("b", 2, server=other), 1.0)
        assert limit_of(gate, "b") == (2, LimitReason.CONFIGURED)


def test_two_names_that_exchange_their_servers_leave_each_other_what_is_left() -> None:
    gate = gate_with(spec("a", 2, models=("m",), server=U), spec("b", 2, models=("n",), server=V))
    running = [leased(gate, 0.0, ask("m")) for _ in range(2)]
    for name in ("a", "b"):
        gate.set_operator_state(name, OperatorState.DRAIN, 1.0)
    gate.put_backend(spec("a", 2, models=("m",), server=V), 1.0, new_server=True)
    gate.put_backend(spec("b", 2, models=("n",), server=U), 1.0, new_server=True)
    for name in ("a", "b"):
        gate.set_operator_state(name, OperatorState.READY, 1.0)
    # Two of a still run at U, where b is now; they count under their name as well.
    assert limit_of(gate, "b") == (0, LimitReason.PREDECESSOR)
    assert gate.seats.by_name["a"].in_flight == 2 and not gate.seats.by_name["a"].has_room
    gate.release(running[0], OK, 2.0)
    leased(gate, 2.0, ask("n"))
    leased(gate, 2.0, ask("m"))


def test_a_name_that_comes_back_to_its_server_counts_its_own_once() -> None:
    gate = gate_with(spec("a", 2, server=U))
    running = full(gate, 1)
    gate.put_backend(spec("a", 2, server=V), 1.0, new_server=True)
    assert gate.seats.lingering == {U: 1}
    gate.put_backend(spec("a", 2, server=U), 2.0, new_server=True)
    assert not gate.seats.lingering
    assert limit_of(gate, "a") == (2, LimitReason.CONFIGURED)
    gate.release(running[0], OK, 3.0)
    assert gate.seats.by_name["a"].in_flight == 0


def test_two_names_that_both_take_requests_keep_a_limit_each() -> None:
    gate = gate_with(spec("a", 2, server=U), spec("b", 2, server=U))
    full(gate, 4)
    assert limit_of(gate, "a") == limit_of(gate, "b") == (2, LimitReason.CONFIGURED)


def test_a_name_that_is_reopened_lingers_no_more() -> None:
    gate = gate_with(spec("a", 2, server=U), spec("b", 2, server=U))
    full(gate, 4)
    gate.set_operator_state("a", OperatorState.DRAIN, 1.0)
    assert limit_of(gate, "b") == (0, LimitReason.PREDECESSOR)
    gate.set_operator_state("a", OperatorState.READY, 2.0)
    assert limit_of(gate, "b") == (2, LimitReason.CONFIGURED)


def test_a_request_that_holds_no_slot_lingers_nowhere() -> None:
    gate = gate_with(spec("a", 1, server=U))
    counting = leased(gate, 0.0, ask(gated=False))
    held = leased(gate, 0.0)
    gate.remove_backend("a", 1.0)
    gate.put_backend(spec("b", 1, server=U), 1.0)
    gate.release(counting, OK, 2.0)
    assert limit_of(gate, "b") == (0, LimitReason.PREDECESSOR)
    gate.release(held, Outcome(Verdict.SATURATED, 529), 2.0)
    assert limit_of(gate, "b") == (1, LimitReason.CONFIGURED)


def test_a_rename_with_a_smaller_cap_elsewhere_grants_nothing_by_the_half_of_it() -> None:
    gate = gate_with(spec("a", 3, server=U))
    running = full(gate, 2)
    gate.put_backend(spec("b", 1, models=("n",), server=U), 0.0)
    gone = leased(gate, 0.0, ask("n"))
    gate.remove_backend("b", 0.0)
    waiting = parked(gate, 0.5)
    assert limit_of(gate, "a") == (2, LimitReason.PREDECESSOR)
    with gate.as_one(1.0):
        # b takes requests again, so that a has its own three for a moment, and then one.
        gate.put_backend(spec("b", 1, models=("n",), server=U), 1.0)
        gate.put_backend(spec("a", 1, server=U), 1.0)
    assert gate.take_effects() == []
    for lease in (gone, *running):
        gate.release(lease, OK, 2.0)
    assert granted(gate) == [waiting]


def test_what_leaves_and_comes_back_within_one_change_serves_on() -> None:
    gate = gate_with(spec("a", 1), spec("z", 1))
    gate.set_operator_state("a", OperatorState.DRAIN, 0.0)
    leased(gate, 0.0)
    waiting = parked(gate, 0.5)
    with gate.as_one(1.0):
        gate.remove_backend("a", 1.0)
        gate.put_backend(spec("a", 1), 1.0)
        gate.set_operator_state("a", OperatorState.READY, 1.0)
    assert granted(gate) == [waiting]


def test_nobody_is_refused_by_the_half_of_a_change() -> None:
    gate = gate_with(spec("a", 1, cap=100))
    running = leased(gate, 0.0)
    large = parked(gate, 0.5, ask(tokens=90))
    with gate.as_one(1.0):
        gate.remove_backend("a", 1.0)
        gate.put_backend(spec("small", 1, cap=50), 1.0)
        gate.put_backend(spec("large", 1, cap=100), 1.0)
    assert granted(gate) == [large]
    gate.release(running, OK, 2.0)
