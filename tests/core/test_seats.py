"""Backends inside the gate: membership, names, and what is remembered of the removed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lifeboat.core.gate import Granted
from lifeboat.core.limits import LimitRules
from lifeboat.core.modes import Mode
from lifeboat.core.queue import Ticket
from lifeboat.core.seats import RETIRED_FOR_S, Seats, UnknownBackendError
from lifeboat.core.vocabulary import OperatorState, Outcome, Verdict
from tests.core.building import FULL, GONE, OK, QUEUED, RESET, ask, gate_with, leased, spec


def seats_with(*names: str) -> Seats:
    seats = Seats(LimitRules(Mode.DEFAULT))
    for name in names:
        seats.put(spec(name), 0.0)
    return seats


def test_an_unknown_name_is_an_error_that_lists_the_known() -> None:
    seats = seats_with("a", "b")
    seats.by_name["b"].in_flight = 1
    seats.remove("b", 0.0)
    for name in ("zzz", "b"):
        with pytest.raises(UnknownBackendError, match=f"'{name}'; known: a$"):
            seats[name]


def test_the_seats_of_a_lane_are_in_the_order_they_were_added() -> None:
    seats = seats_with("c", "a", "b")
    assert [seat.spec.name for seat in seats.of(frozenset({"a", "b", "c"}))] == ["c", "a", "b"]
    assert seats.of(frozenset({"nobody"})) == ()


def test_a_changed_cap_reaches_the_routes() -> None:
    gate = gate_with(spec("a", 1, cap=5))
    gate.put_backend(spec("a", 1, cap=10), 0.0)
    assert gate.seats.by_name["a"].cap_tokens == 10.0
    leased(gate, 0.0, ask(tokens=10))


def test_counters_of_a_removed_backend_wait_an_hour_for_its_return() -> None:
    seats = seats_with("a", "b")
    seats.by_name["a"].failed = 7
    seats.remove("a", 0.0)
    seats.put(spec("a"), RETIRED_FOR_S)
    assert seats.by_name["a"].failed == 7
    seats.remove("a", RETIRED_FOR_S)
    seats.remove("b", 2 * RETIRED_FOR_S + 1)
    assert set(seats.retired) == {"b"}
    seats.put(spec("a"), 2 * RETIRED_FOR_S + 1)
    assert seats.by_name["a"].failed == 0


def test_another_server_under_the_name_of_a_removed_one_starts_from_nothing() -> None:
    seats = seats_with("a")
    seats.by_name["a"].failed = 7
    seats.remove("a", 0.0)
    seats.put(spec("a"), 1.0, new_server=True)
    assert seats.by_name["a"].failed == 0


def test_another_server_under_a_present_name_is_live_until_it_shows_otherwise() -> None:
    gate = gate_with(spec("a", 2))
    held = leased(gate, 0.0)
    gate.release(leased(gate, 0.0), Outcome(Verdict.REFUSED), 0.0)
    gate.set_slots("a", 2, 0.0)
    assert gate.seats.by_name["a"].limit == 0
    gate.set_operator_state("a", OperatorState.DRAIN, 0.0)
    gate.put_backend(spec("a", 2), 1.0, new_server=True)
    # What the operator wants of the name, and what runs under it, is not the server's.
    seat = gate.seats.by_name["a"]
    assert (seat.operator_state, seat.in_flight, seat.slots) == (OperatorState.DRAIN, 1, None)
    gate.set_operator_state("a", OperatorState.READY, 1.0)
    leased(gate, 1.0)
    gate.release(held, OK, 2.0)
    assert seat.in_flight == 1


def test_who_excluded_the_old_server_may_use_the_new_one() -> None:
    gate = gate_with(spec("a", 1), rules=replace(QUEUED, hold_when_down=True))
    lease = leased(gate, 0.0)
    gate.release(lease, Outcome(Verdict.REFUSED), 0.0)
    gate.exclude(lease.place, lease)
    waiting = gate.admit(ask(), 0.0, lease.place)
    assert isinstance(waiting, Ticket)
    gate.put_backend(spec("a", 1), 1.0, new_server=True)
    granted = [effect for effect in gate.take_effects() if isinstance(effect, Granted)]
    assert [effect.ticket for effect in granted] == [waiting]


def test_a_backend_that_comes_back_while_it_still_leaves_is_ready_again() -> None:
    seats = seats_with("a")
    seat = seats.by_name["a"]
    seats["a"].operator_state = OperatorState.MAINT
    seat.in_flight = 1
    seats.remove("a", 0.0)
    assert (seat.limit, seat.shown_state) == (0, OperatorState.DRAIN)
    seats.put(spec("a", 2), 1.0)
    assert seats.by_name["a"] is seat
    assert (seat.limit, seat.in_flight, seat.shown_state) == (2, 1, OperatorState.READY)


@pytest.mark.parametrize(
    ("outcome", "failed", "cancelled"),
    [
        (OK, 0, 0),
        (GONE, 0, 1),
        (RESET, 1, 0),
        (FULL, 0, 0),
        (Outcome(Verdict.SERVER_ERROR, 500), 1, 0),
        (Outcome(Verdict.LOADING, 503), 0, 0),
        (Outcome(Verdict.THROTTLED, 429, 1.0), 0, 0),
        (Outcome(Verdict.ABANDONED), 0, 0),
    ],
)
def test_what_counts_as_failed_and_as_cancelled(
    outcome: Outcome, failed: int, cancelled: int
) -> None:
    gate = gate_with(spec("a", 1))
    lease = leased(gate, 0.0)
    gate.note_dispatch(lease)
    gate.release(lease, outcome, 1.0)
    assert (lease.seat.failed, lease.seat.cancelled) == (failed, cancelled)


def test_suspicion_may_close_a_backend_only_if_each_of_its_pools_has_another() -> None:
    gate = gate_with(
        spec("a", models=("m", "n")), spec("b", models=("m",)), spec("c", models=("n",))
    )
    seats = gate.seats
    assert seats.may_eject(seats.by_name["a"]) and seats.may_eject(seats.by_name["b"])
    gate.set_operator_state("c", OperatorState.DRAIN, 0.0)
    assert not seats.may_eject(seats.by_name["a"])
    assert not seats_with().directory.members
