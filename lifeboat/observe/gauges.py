"""Gauges read off the gate at the moment of a scrape: pure functions of a `GateView`.

Nothing is counted a second time here, so the figure scraped is the figure that decides. Held by
tests/observe/test_metrics.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from lifeboat.core.capacity import FullScale, report_of, utilization_of
from lifeboat.core.modes import Mode
from lifeboat.core.view import GateView
from lifeboat.core.vocabulary import EngineReading
from lifeboat.observe.series import Labels

Values = dict[tuple[str, ...], float]
"""The values of one metric by its label values, in the order of the metric table."""


def backend_gauges(
    view: GateView, engines: Mapping[str, EngineReading], labels: Labels
) -> dict[str, Values]:
    """Return the gauges with a backend label; those of a removed backend are 0 while kept."""
    every = sorted(labels.all())
    in_flight: Values = {(label,): 0.0 for label in every}
    up, running, waiting = dict(in_flight), dict(in_flight), dict(in_flight)
    limit: Values = {(label, kind): 0.0 for label in every for kind in ("configured", "effective")}
    for name, backend in view.backends.items():
        label = labels[name]
        in_flight[label,] += backend.in_flight
        up[label,] = max(up[label,], float(backend.live))
        limit[label, "configured"] += backend.configured_limit or math.inf
        effective = backend.effective_limit
        limit[label, "effective"] += math.inf if effective is None else effective
        engine = engines.get(name)
        if engine is not None:
            running[label,] += engine.running or 0
            waiting[label,] += engine.waiting or 0
    return {
        "lifeboat_lb_inflight": in_flight,
        "lifeboat_lb_limit": limit,
        "lifeboat_lb_backend_up": up,
        "lifeboat_lb_engine_running": running,
        "lifeboat_lb_engine_waiting": waiting,
    }


def pool_gauges(
    view: GateView, labels: Labels, scales: Mapping[str, FullScale]
) -> dict[str, Values]:
    """Return the gauges with a pool label; those that share the label `other` are summed
    (of waits and TTLs the longest is shown)."""
    zero: Values = {(label,): 0.0 for label in sorted(labels.all())}
    depth, ceiling, oldest, ttl = dict(zero), dict(zero), dict(zero), dict(zero)
    in_flight, demand, capacity, desired = dict(zero), dict(zero), dict(zero), dict(zero)
    for name, pool in view.pools.items():
        label = labels.get(name)
        if label is None:
            continue
        load = report_of(pool, view, scales.get(name))
        depth[label,] += pool.queue_depth
        ceiling[label,] += pool.queue_limit
        oldest[label,] = max(oldest[label,], pool.oldest_wait_s)
        ttl[label,] = max(ttl[label,], pool.queue_ttl_s)
        in_flight[label,] += load.in_flight
        demand[label,] += load.demand
        capacity[label,] += math.inf if load.current_limit is None else load.current_limit
        desired[label,] += load.desired_backends
    return {
        "lifeboat_lb_queue_depth": depth,
        "lifeboat_lb_queue_limit": ceiling,
        "lifeboat_lb_queue_oldest_seconds": oldest,
        "lifeboat_lb_queue_ttl_seconds": ttl,
        "lifeboat_lb_demand": demand,
        "lifeboat_lb_capacity": capacity,
        "lifeboat_lb_utilization": {
            key: utilization_of(in_flight[key], capacity[key]) for key in zero
        },
        "lifeboat_lb_desired_backends": desired,
    }


def router_gauges(view: GateView, version: str) -> dict[str, Values]:
    """Return the gauges of the router as a whole."""
    return {
        "lifeboat_lb_mode": {(mode.value,): float(mode is view.mode) for mode in Mode},
        "lifeboat_build_info": {(version,): 1.0},
        "lifeboat_lb_parked_bytes": {(): float(view.parked_bytes)},
    }
