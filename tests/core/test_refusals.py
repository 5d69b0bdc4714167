"""Each refusal names its limit, the value, and the knob that changes it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lifeboat.core import refusals
from lifeboat.core.modes import Mode
from lifeboat.core.rules import GateRules, PoolRules
from lifeboat.core.vocabulary import Reason
from tests.core.building import OK, QUEUED, ask, gate_with, leased, parked, refused, spec


def test_the_gates_own_refusal_names_the_limits_and_three_ways_out() -> None:
    gate = gate_with(spec("a", 1), spec("b", 2), rules=GateRules())
    for _ in range(3):
        leased(gate, 0.0)
    found = refused(gate, 0.0)
    assert found.effective_limits == {"a": 1, "b": 2}
    assert (found.queue_depth, found.queue_limit, found.pool) == (0, 0, "m")
    for words in ("a: 1", "b: 2", "max_concurrency", "LIFEBOAT_LB_QUEUE_ENABLED", "queue-all"):
        assert words in found.message


@pytest.mark.parametrize(
    ("rules", "knob"),
    [
        (QUEUED, "LIFEBOAT_LB_QUEUE_MAX_DEPTH_MULTIPLIER (4)"),
        (replace(QUEUED, mode=Mode.QUEUE_ALL, queue_all_depth_multiplier=4.0),
         "LIFEBOAT_LB_QUEUE_ALL_DEPTH_MULTIPLIER (4)"),
        (replace(QUEUED, max_depth=4), "LIFEBOAT_LB_QUEUE_MAX_DEPTH"),
        (replace(QUEUED, pools={"m": PoolRules(max_depth=4)}), "models.m.queue.max_depth"),
    ],
)  # fmt: skip
def test_a_full_queue_names_its_depth_and_the_setting_in_force(rules: GateRules, knob: str) -> None:
    gate = gate_with(spec("a", 1), rules=rules)
    leased(gate, 0.0)
    for _ in range(4):
        parked(gate, 0.0)
    found = refused(gate, 0.0)
    assert (found.reason, found.queue_depth, found.queue_limit) == (Reason.QUEUE_FULL, 4, 4)
    assert knob in found.message and "4 requests" in found.message


@pytest.mark.parametrize(
    ("rules", "knob"),
    [
        (QUEUED, "LIFEBOAT_LB_QUEUE_TTL_SEC"),
        (GateRules(mode=Mode.QUEUE_ALL), "LIFEBOAT_LB_QUEUE_ALL_TTL_SEC"),
        (replace(QUEUED, pools={"m": PoolRules(queue_ttl_s=3.0)}), "models.m.queue.ttl"),
    ],
)
def test_a_timeout_tells_the_wait_and_the_setting_in_force(rules: GateRules, knob: str) -> None:
    gate = gate_with(spec("a", 1), rules=rules)
    leased(gate, 0.0)
    ticket = parked(gate, 0.0)
    gate.advance(ticket.deadline)
    (effect,) = gate.take_effects()
    found = effect.refusal
    assert (found.wait_s, found.effective_limits) == (ticket.deadline, {"a": 1})
    assert knob in found.message and f"{ticket.deadline:.1f} s" in found.message


def test_retry_after_is_left_out_while_it_would_be_a_guess() -> None:
    gate = gate_with(spec("a", 1), rules=GateRules())
    running = leased(gate, 0.0)
    assert refused(gate, 0.0).retry_after_s is None
    for second in range(1, 9):
        gate.note_dispatch(running)
        gate.release(running, OK, float(second))
        running = leased(gate, float(second))
    assert refused(gate, 8.0).retry_after_s == pytest.approx(1.0, rel=0.2)


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"mode": Mode.SUPERFAST}, False),
        ({"mode": Mode.QUEUE_ALL}, False),
        ({"share": 0.5}, False),
        ({}, True),
        ({"boost_s": 3.0, "max_depth": 0}, True),
    ],
)
def test_a_rate_measured_under_other_limits_is_forgotten(change: dict, kept: bool) -> None:
    gate = gate_with(spec("a", 1), rules=replace(QUEUED, max_depth=0))
    for second in range(8):
        running = leased(gate, float(second))
        gate.note_dispatch(running)
        gate.release(running, OK, second + 1.0)
    leased(gate, 8.0)
    assert refused(gate, 8.0).retry_after_s is not None
    gate.set_rules(replace(gate.rules, **{"queue_all_depth_multiplier": 0.0, **change}), 8.0)
    assert (refused(gate, 8.0).retry_after_s is not None) is kept
    assert (gate.pools["m"].drain.seen == 8) is kept


def test_nothing_in_service_says_what_each_backend_does() -> None:
    gate = gate_with(*(spec(name, 1) for name in "abcdefghij"))
    gate.remove_backend("j", 0.0)
    for name in "abcdefghi":
        gate.set_operator_state(name, gate.seats.by_name[name].operator_state.MAINT, 0.0)
    found = refused(gate, 0.0)
    assert found.temporary and set(found.effective_limits.values()) == {0}
    for words in ("a is in maint", "LIFEBOAT_LB_HOLD_WHEN_DOWN"):
        assert words in found.message
    assert "i is in maint" not in found.message, "the list is bounded"


def test_the_other_sentences_name_what_they_must() -> None:
    gate = gate_with(spec("a", 1))
    pool = gate.pools["m"]
    assert "made by the backend zzz" in refusals.maker_gone(gate, pool, "zzz").message
    assert refusals.shutting_down("m").reason is Reason.SHUTTING_DOWN
    full = refusals.bytes_full(gate, pool, 120, 100, 0.0)
    assert (full.reason, full.queue_limit) == (Reason.QUEUE_FULL, 4)
    for words in ("120", "100", "LIFEBOAT_LB_MAX_PARKED_BYTES"):
        assert words in full.message
    assert refusals.bytes_full(gate, None, 1, 1, 0.0).pool is None
    limited = gate_with(
        spec("a", 1), rules=GateRules(pools={"m": PoolRules(max_requests_per_minute=1)})
    )
    leased(limited, 0.0)
    found = refused(limited, 1.0, ask())
    assert "max_requests_per_minute 1" in found.message and found.retry_after_s == 59.0
