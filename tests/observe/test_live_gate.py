"""State and metrics of a real gate: every figure in both, and equal."""

from __future__ import annotations

import orjson
from prometheus_client.parser import text_string_to_metric_families

from lifeboat.core.gate import Gate, Granted
from lifeboat.core.queue import Ticket
from lifeboat.core.rules import GateRules
from lifeboat.core.seat import Lease
from lifeboat.core.snapshot import take_view
from lifeboat.core.vocabulary import (
    Ask,
    BackendSpec,
    Capability,
    EngineReading,
    Kind,
    Outcome,
    Refusal,
    Verdict,
)
from lifeboat.observe.metrics import Metrics
from lifeboat.observe.state import Surroundings, state_json


def test_state_and_metrics_of_a_loaded_gate_agree() -> None:
    """Cases BUG-163 and BUG-193: two run, eight are parked, two are refused, one is unknown."""
    gate = Gate(GateRules(queue_enabled=True))
    generate = frozenset({Capability.GENERATE})
    gate.put_backend(BackendSpec("a", Kind.VLLM, generate, frozenset({"m"}), 2), 0.0)
    now = 0.0
    metrics = Metrics(
        lambda: take_view(gate, now),
        version="1",
        configured_pools=lambda: ["m"],
        engines=dict[str, EngineReading],
    )
    leases: list[Lease] = []
    for number in range(13):
        now = number / 10
        found = gate.admit(Ask("m" if number < 12 else "nobody", Capability.GENERATE), now)
        if isinstance(found, Lease):
            leases.append(found)
            gate.note_dispatch(found)
        elif isinstance(found, Refusal):
            gate.note_rejected(found.pool, found.reason, now)
        else:
            assert isinstance(found, Ticket)
    gate.release(leases[0], Outcome(Verdict.ANSWERED, 200), now)
    (granted,) = (effect for effect in gate.take_effects() if isinstance(effect, Granted))
    gate.note_dispatch(granted.lease)

    state = orjson.loads(orjson.dumps(state_json(take_view(gate, now), Surroundings("1", 0.0))))
    assert state["inflight"] == {"a": 2}
    assert state["dispatch_counts"] == {"a": 3}
    assert state["queue_total_waiters"] == state["pools"]["m"]["queue_depth"] == 7
    assert (state["reject_counts"]["queue_full"], state["reject_counts"]["no_backends"]) == (2, 1)

    shown = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(metrics.render(None)[0].decode())
        for sample in family.samples
    }
    assert shown["lifeboat_lb_inflight", "a"] == 2
    assert shown["lifeboat_lb_dispatch_total", "a", "m"] == 3
    assert shown["lifeboat_lb_queue_depth", "m"] == 7
    assert shown["lifeboat_lb_queue_limit", "m"] == state["pools"]["m"]["queue_limit"] == 8
    assert shown["lifeboat_lb_rejected_total", "m", "queue_full"] == 2
    assert shown["lifeboat_lb_rejected_total", "no_backends", "unknown"] == 1
    # Nine are there; two were refused within seconds, at a second of service each.
    assert 9.0 < shown["lifeboat_lb_demand", "m"] < 9.2


def test_what_a_backend_was_sent_still_counts_when_it_leaves_between_two_scrapes() -> None:
    gate = Gate(GateRules())
    generate = frozenset({Capability.GENERATE})
    for name in ("a", "b"):
        gate.put_backend(BackendSpec(name, Kind.VLLM, generate, frozenset({"m"}), 8), 0.0)
    metrics = Metrics(
        lambda: take_view(gate, 1.0),
        version="1",
        configured_pools=lambda: ["m"],
        engines=dict[str, EngineReading],
    )
    for name in ("b", "c"):
        # `c` comes and goes without ever being seen by a scrape.
        gate.put_backend(BackendSpec("c", Kind.VLLM, generate, frozenset({"m"}), 8), 0.5)
        for _ in range(6):
            lease = gate.admit(Ask("m", Capability.GENERATE), 0.5)
            assert isinstance(lease, Lease)
            gate.note_dispatch(lease)
            gate.release(lease, Outcome(Verdict.ANSWERED, 200), 0.6)
        gate.remove_backend(name, 0.7)
    page, _ = metrics.render(None)
    sent = {
        sample.labels["backend"]: sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if sample.name == "lifeboat_lb_dispatch_total"
    }
    assert sum(sent.values()) == gate.pools["m"].dispatched == 12
    assert sent["c"] > 0
