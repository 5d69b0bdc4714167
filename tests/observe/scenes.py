"""Views and events to show: a small router with what a test changes on it."""

from __future__ import annotations

from typing import Any

from lifeboat.core.modes import Mode
from lifeboat.core.view import BackendView, GateView, PoolView
from lifeboat.core.vocabulary import (
    BackendSpec,
    Capability,
    EstimateMethod,
    Health,
    Kind,
    OperatorState,
    Reason,
    Verdict,
)
from lifeboat.observe.events import Finished


def reasons(**counts: int) -> dict[Reason, int]:
    return {reason: counts.get(reason.value, 0) for reason in Reason}


def backend(name: str = "sim-a", models: tuple[str, ...] = ("m",), **changes: Any) -> BackendView:
    given: dict[str, Any] = {
        "spec": BackendSpec(
            name,
            changes.pop("kind", Kind.SIMULATED),
            frozenset({Capability.GENERATE}),
            frozenset(models),
            32,
        ),
        "operator_state": OperatorState.READY,
        "health": Health.UP,
        "health_detail": None,
        "live": True,
        "in_flight": 0,
        "configured_limit": 32,
        "effective_limit": 32,
        "limit_reason": "configured",
        "failed": 0,
        "cancelled": 0,
        "dispatched_by_pool": {},
    }
    given.update(changes)
    given.setdefault("dispatched", sum(given["dispatched_by_pool"].values()))
    return BackendView(**given)


def pool(name: str = "m", members: tuple[str, ...] = ("sim-a",), **changes: Any) -> PoolView:
    given: dict[str, Any] = {
        "name": name,
        "members": members,
        "in_flight": 0,
        "concurrency": 32 * len(members),
        "effective_concurrency": 32 * len(members),
        "queue_enabled": False,
        "queue_ttl_s": 30.0,
        "queue_depth": 0,
        "queue_limit": 128 * len(members),
        "oldest_wait_s": 0.0,
        "wait_p50_s": 0.0,
        "wait_p95_s": 0.0,
        "wait_p99_s": 0.0,
        "dispatched": 0,
        "drain_rate_per_s": None,
        "drain_seen": 20,
        "rejected": reasons(),
    }
    given.update(changes)
    return PoolView(**given)


def view(
    backends: tuple[BackendView, ...] | None = None,
    pools: tuple[PoolView, ...] | None = None,
    **changes: Any,
) -> GateView:
    backends = (backend(),) if backends is None else backends
    pools = (pool(),) if pools is None else pools
    given: dict[str, Any] = {
        "now": 1000.0,
        "mode": Mode.DEFAULT,
        "queue_enabled": False,
        "queue_ttl_s": 30.0,
        "queue_depth_multiplier": 4.0,
        "boost_s": 10.0,
        "superfast_cap": 4,
        "share": 1.0,
        "draining": False,
        "backends": {one.spec.name: one for one in backends},
        "pools": {one.name: one for one in pools},
        "parked": sum(one.queue_depth for one in pools),
        "wait_p50_s": 0.0,
        "wait_p95_s": 0.0,
        "wait_p99_s": 0.0,
        "rejected": {reason: sum(one.rejected[reason] for one in pools) for reason in Reason},
        "dispatched": sum(one.dispatched for one in pools),
        "asked": 0,
        "open_leases": 0,
        "refused": 0,
        "withdrawn": 0,
        "expired": 0,
        "finished": 0,
    }
    given.update(changes)
    return GateView(**given)


def finished(**changes: Any) -> Finished:
    given: dict[str, Any] = {
        "at_wall": 1_700_000_000.25,
        "request_id": "req-1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "model": "m",
        "pool": "m",
        "backend": "sim-a",
        "status": 200,
        "reason": None,
        "verdict": Verdict.ANSWERED,
        "wait_s": 0.0,
        "ttfb_s": 0.2,
        "total_s": 3.0,
        "estimated_tokens": 800,
        "estimate_method": EstimateMethod.QUICK,
        "body_bytes": 3200,
        "answer_bytes": 9000,
        "attempts": 1,
        "stream": True,
    }
    given.update(changes)
    return Finished(**given)
