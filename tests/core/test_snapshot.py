"""A view is what the gate is, and costs nothing per parked request."""

from __future__ import annotations

from dataclasses import replace

from lifeboat.core.modes import Mode
from lifeboat.core.rules import GateRules, PoolRules
from lifeboat.core.snapshot import parked_requests, take_view
from lifeboat.core.vocabulary import UNKNOWN_POOL, OperatorState, Priority, Reason
from tests.core.building import FULL, OK, QUEUED, ask, gate_with, grants, leased, parked, spec


def test_a_view_shows_every_backend_pool_and_reason_with_zeros() -> None:
    gate = gate_with(
        spec("a", 2), spec("b", 0), rules=replace(QUEUED, pools={"planned": PoolRules()})
    )
    view = take_view(gate, 1.0, parked_bytes=7)
    assert list(view.backends) == ["a", "b"]
    assert set(view.pools) == {"m", "planned", UNKNOWN_POOL}
    assert not view.pools[UNKNOWN_POOL].listed and view.pools["planned"].listed
    assert set(view.rejected) == set(view.pools["m"].rejected) == set(Reason)
    assert (view.parked_bytes, view.queue_enabled, view.queue_ttl_s) == (7, True, 30.0)
    pool = view.pools["m"]
    assert (pool.concurrency, pool.effective_concurrency, pool.queue_limit) == (34, None, 136)


def test_figures_follow_the_requests() -> None:
    gate = gate_with(spec("a", 1), spec("b", 3))
    leases = [leased(gate, 0.0) for _ in range(4)]
    for lease in leases:
        gate.note_dispatch(lease)
    parked(gate, 1.0)
    parked(gate, 2.0)
    view = take_view(gate, 5.0)
    pool = view.pools["m"]
    assert (pool.in_flight, pool.queue_depth, pool.oldest_wait_s) == (4, 2, 4.0)
    assert (pool.dispatched, pool.effective_concurrency, view.open_leases) == (4, 4, 4)
    assert {name: backend.in_flight for name, backend in view.backends.items()} == {"a": 1, "b": 3}
    gate.release(leases[0], OK, 5.0)
    grants(gate.take_effects())
    view = take_view(gate, 5.0)
    assert (view.pools["m"].wait_p50_s, view.wait_p99_s) == (4.0, 4.0)
    assert view.pools["m"].oldest_wait_s == 3.0
    assert (view.asked, view.finished, view.parked) == (6, 1, 1)


def test_the_total_sent_loses_nothing_when_backends_and_pools_go() -> None:
    gate = gate_with(spec("a", 4), spec("b", 4, models=("n",)))
    for model in ("m", "m", "n"):
        lease = leased(gate, 0.0, ask(model))
        gate.note_dispatch(lease)
        gate.release(lease, OK, 1.0)
    gate.remove_backend("b", 2.0)
    gate.remove_backend("a", 2.0)
    gate.put_backend(spec("c", 4), 3.0)
    gate.put_backend(spec("a", 4, models=("o",)), 2.0 + 2 * 3600.0, new_server=True)
    view = take_view(gate, 2.0 + 2 * 3600.0)
    assert view.dispatched == 3
    assert sum(one.dispatched for one in view.backends.values()) == 0
    assert sum(one.dispatched for one in view.pools.values()) == 2


def test_a_limit_shows_why_it_is_what_it_is() -> None:
    gate = gate_with(spec("a", 8), spec("b", 0), spec("c", 8))
    for _ in range(3):
        lease = leased(gate, 0.0)
        if lease.backend == "a":
            gate.release(lease, FULL, 0.0)
    gate.set_operator_state("c", OperatorState.DRAIN, 0.0)
    shown = {
        name: (backend.effective_limit, backend.limit_reason, backend.configured_limit)
        for name, backend in take_view(gate, 0.0).backends.items()
    }
    assert shown == {
        "a": (0, "saturated", 8), "b": (None, "ungated", 0), "c": (0, "drain", 8),
    }  # fmt: skip
    assert take_view(gate, 0.0).backends["a"].operator_state is OperatorState.READY


def test_a_pool_that_is_gone_is_shown_while_anything_of_it_is_left() -> None:
    gate = gate_with(spec("a", 1))
    lease = leased(gate, 0.0)
    gate.remove_backend("a", 1.0)
    view = take_view(gate, 1.0)
    assert view.backends["a"].operator_state is OperatorState.DRAIN
    assert (view.pools["m"].in_flight, view.pools["m"].members) == (1, ())
    gate.release(lease, OK, 2.0)
    view = take_view(gate, 2.0)
    assert (list(view.backends), set(view.pools)) == ([], {UNKNOWN_POOL})


def test_the_mode_in_force_decides_what_is_shown_of_the_queue() -> None:
    gate = gate_with(spec("a", 1), rules=GateRules())
    assert not take_view(gate, 0.0).queue_enabled
    gate.set_rules(GateRules(mode=Mode.QUEUE_ALL), 0.0)
    view = take_view(gate, 0.0)
    assert (view.queue_enabled, view.queue_ttl_s, view.pools["m"].queue_limit) == (True, 600, 1000)


def test_the_operators_list_is_longest_first_bounded_and_without_content() -> None:
    gate = gate_with(spec("a", 1))
    leased(gate, 0.0)
    for number in range(4):
        parked(gate, float(number), ask(tokens=number, priority=Priority.LOW, body_bytes=9))
    found = parked_requests(gate, 11.0, most=3)
    assert [(one.age_s, one.remaining_s, one.boosted) for one in found] == [
        (11.0, 19.0, True), (10.0, 20.0, True), (9.0, 21.0, False),
    ]  # fmt: skip
    assert (found[0].model, found[0].priority, found[0].body_bytes) == ("m", "low", 9)
