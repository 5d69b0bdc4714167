"""Refusing at once whom the expected wait would leave without a slot."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from lifeboat.core.gate import Gate
from lifeboat.core.judging import CANARY
from lifeboat.core.modes import Mode
from lifeboat.core.queue import Ticket
from lifeboat.core.rules import GateRules, PoolRules
from lifeboat.core.vocabulary import OperatorState, Priority, Reason, Refusal
from tests.core.building import OK, QUEUED, ask, leased, parked, refused, spec

EARLY = replace(QUEUED, early_refusal=True, queue_ttl_s=5.0, max_depth=100)


def pressed(rules: GateRules = EARLY, depth: int = 7, chance: float = 0.5) -> tuple[Gate, float]:
    """Return a gate that has been seen to serve one request a second, with some parked."""
    gate = Gate(rules, now=0.0, chance=lambda: chance)
    gate.put_backend(spec("a", 1), 0.0)
    running = leased(gate, 0.0)
    for second in range(1, 11):
        gate.note_dispatch(running)
        gate.release(running, OK, float(second))
        running = leased(gate, float(second))
    for _ in range(depth):
        parked(gate, 10.0, ask(priority=Priority.HIGH))
    return gate, 10.0


def test_a_request_that_cannot_make_it_is_refused_at_once_and_told_why() -> None:
    gate, now = pressed()
    found = refused(gate, now)
    assert (found.reason, found.predicted) == (Reason.QUEUE_FULL, True)
    assert found.estimated_wait_s == pytest.approx(8.0, rel=0.1)
    assert found.retry_after_s == pytest.approx(8.0 * 1.125, rel=0.1)
    assert (found.queue_depth, found.queue_limit, found.effective_limits) == (7, 100, {"a": 1})
    for words in ("8.0 s", "5 s", "LIFEBOAT_LB_QUEUE_TTL_SEC", "LIFEBOAT_LB_EARLY_REFUSAL"):
        assert words in found.message


def test_it_is_off_by_default() -> None:
    gate, now = pressed(replace(EARLY, early_refusal=False))
    parked(gate, now)
    parked(gate, now, ask(patience_s=0.1))


def test_who_can_make_it_parks() -> None:
    gate, now = pressed(depth=3)
    parked(gate, now)


@pytest.mark.parametrize(("patience_s", "parks"), [(None, True), (4.5, True), (3.0, False)])
def test_the_clients_own_deadline_counts_where_it_is_the_shorter(
    patience_s: float | None, parks: bool
) -> None:
    gate, now = pressed(depth=3)
    found = gate.admit(ask(patience_s=patience_s), now)
    assert isinstance(found, Ticket) is parks
    if isinstance(found, Refusal):
        assert "X-Lifeboat-Deadline-ms" in found.message and "3 s" in found.message


def test_a_longer_deadline_does_not_lengthen_the_ttl() -> None:
    gate, now = pressed()
    assert refused(gate, now, ask(patience_s=600.0)).predicted


def test_the_ttl_that_counts_is_the_pools_or_the_modes() -> None:
    own = replace(EARLY, pools={"m": PoolRules(queue_ttl_s=60.0)})
    for rules in (own, replace(EARLY, mode=Mode.QUEUE_ALL)):
        gate, now = pressed(rules)
        parked(gate, now)


def test_nothing_is_predicted_from_nothing() -> None:
    gate = Gate(EARLY, now=0.0, chance=lambda: 0.5)
    gate.put_backend(spec("a", 1), 0.0)
    leased(gate, 0.0)
    for _ in range(50):
        parked(gate, 0.0, ask(patience_s=0.001))


def test_the_urgent_are_not_judged_by_a_queue_that_they_overtake() -> None:
    gate, now = pressed()
    parked(gate, now, ask(priority=Priority.HIGH))


def test_while_nothing_is_in_service_nobody_can_tell() -> None:
    gate, now = pressed(replace(EARLY, hold_when_down=True))
    gate.set_operator_state("a", OperatorState.MAINT, now)
    parked(gate, now)


def test_a_second_attempt_is_never_refused_early() -> None:
    gate, now = pressed(depth=3)
    gate.put_backend(spec("b", 1), now)
    (granted, *_) = gate.take_effects()
    for _ in range(7):
        parked(gate, now, ask(priority=Priority.HIGH))
    lease = granted.lease
    gate.exclude(lease.place, lease)
    gate.release(lease, OK, now)
    assert isinstance(gate.admit(lease.ask, now, lease.place), Ticket)


def test_one_in_a_hundred_parks_so_that_a_wrong_estimate_heals() -> None:
    gate, now = pressed(chance=CANARY - 1e-6)
    parked(gate, now)
    gate, now = pressed(chance=CANARY)
    assert refused(gate, now).predicted

    gate, now = pressed()
    gate.chance = Random(7).random
    found = [gate.admit(ask(), now) for _ in range(500)]
    assert 1 <= sum(isinstance(one, Ticket) for one in found) <= 10


def test_a_full_queue_and_a_timeout_tell_the_wait_too_and_predict_nothing() -> None:
    gate, now = pressed(replace(EARLY, early_refusal=False, max_depth=7))
    full = refused(gate, now)
    assert (full.reason, full.predicted) == (Reason.QUEUE_FULL, False)
    assert full.estimated_wait_s == pytest.approx(8.0, rel=0.1)
    gate.advance(now + 5.0)
    late = [effect.refusal for effect in gate.take_effects()]
    assert {one.reason for one in late} == {Reason.QUEUE_TIMEOUT}
    assert all(one.estimated_wait_s is not None for one in late)
