"""The JSON pages of `/api/lb/*` that show the live gate: functions of a `GateView`.

Source: the contract's sections 4, 5 and 7. Every key is always there, every backend, pool and
reason is listed, zeros included. Held by tests/observe/test_state.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lifeboat.core.modes import MODES, Mode
from lifeboat.core.rejections import REJECTIONS, status_of
from lifeboat.core.view import BackendView, GateView, PoolView
from lifeboat.core.vocabulary import EngineReading, Reason
from lifeboat.observe.printable import encodable, iso_time
from lifeboat.observe.warnings import Warned, all_warnings, engine_is_queueing, shown_url

Json = dict[str, object]
"""A page ready for the serializer: strings that UTF-8 can carry, finite numbers."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the state shows besides the gate.

    started_at: clock seconds, on the clock of the view. urls, engines: by backend name; a backend
        without a reading is left out.
    warnings: what others found (settings, reload); those that follow from the view are added.
    sources: where each global value comes from (flag, environment, file, default, api), by its
        key in the state. backend_sources: the same for each backend's values.
    reject_status: the setting that the gate's own refusals use.
    expected_rates: requests per second that pools are known to serve at the most, by pool.
    """

    version: str
    started_at: float
    urls: Mapping[str, str] = field(default_factory=dict[str, str])
    engines: Mapping[str, EngineReading] = field(default_factory=dict[str, EngineReading])
    warnings: tuple[Warned, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    backend_sources: Mapping[str, Mapping[str, str]] = field(
        default_factory=dict[str, Mapping[str, str]]
    )
    reject_status: int = 503
    expected_rates: Mapping[str, float] = field(default_factory=dict[str, float])


def state_json(view: GateView, around: Surroundings) -> Json:
    """Return the page of `GET /api/lb/state`: contract, section 7, in its order of keys."""
    backends = {encodable(name): backend for name, backend in view.backends.items()}
    warnings = all_warnings(
        view, around.urls, around.engines, around.warnings, around.expected_rates
    )
    return {
        "routing_mode": view.mode.value,
        "queue_enabled": view.queue_enabled,
        "queue_ttl_sec": view.queue_ttl_s,
        "queue_depth_multiplier": _number(view.queue_depth_multiplier),
        "queue_deadline_boost_sec": view.boost_s,
        "superfast_cap": view.superfast_cap,
        "share": _number(view.share),
        "inflight": {name: backend.in_flight for name, backend in backends.items()},
        "dispatch_counts": {name: backend.dispatched for name, backend in backends.items()},
        "dispatched_total": view.dispatched,
        "reject_counts": _counts(view.rejected),
        "queue_total_waiters": view.parked,
        "queue_wait_p50_sec": _seconds(view.wait_p50_s),
        "queue_wait_p95_sec": _seconds(view.wait_p95_s),
        "queue_wait_p99_sec": _seconds(view.wait_p99_s),
        "parked_bytes": view.parked_bytes,
        "uptime_sec": _seconds(view.now - around.started_at),
        "version": around.version,
        "draining": view.draining,
        "pools": {
            encodable(name): pool_json(pool) for name, pool in view.pools.items() if pool.listed
        },
        "backends": _backends(view, around, warnings),
        "warnings": [
            {"backend": w.backend and encodable(w.backend), "message": encodable(w.message)}
            for w in warnings
        ],
        "sources": dict(around.sources),
    }


def pool_json(pool: PoolView) -> Json:
    """Return one pool's object; `effective_concurrency` null = a member has no gate."""
    return {
        "in_flight": pool.in_flight,
        "concurrency": pool.concurrency,
        "effective_concurrency": pool.effective_concurrency,
        "queue_enabled": pool.queue_enabled,
        "queue_ttl_sec": pool.queue_ttl_s,
        "queue_depth": pool.queue_depth,
        "queue_limit": pool.queue_limit,
        "oldest_wait_sec": _seconds(pool.oldest_wait_s),
        "wait_p50_sec": _seconds(pool.wait_p50_s),
        "wait_p95_sec": _seconds(pool.wait_p95_s),
        "wait_p99_sec": _seconds(pool.wait_p99_s),
        "dispatched": pool.dispatched,
        "rejected": _counts(pool.rejected),
        "drain_rate_per_sec": (
            None if pool.drain_rate_per_s is None else round(pool.drain_rate_per_s, 3)
        ),
        "backends": [encodable(name) for name in pool.members],
    }


def backend_json(view: GateView, name: str, around: Surroundings) -> Json:
    """Return one backend's object, as `PATCH` and `POST` answer it. Raises KeyError if unknown."""
    warnings = all_warnings(view, around.urls, around.engines, around.warnings)
    return _backend(view, view.backends[name], around, warnings)


def backends_json(view: GateView, around: Surroundings) -> Json:
    """Return the page of `GET /api/lb/backends`: the same objects as in the state."""
    warnings = all_warnings(view, around.urls, around.engines, around.warnings)
    return {"backends": _backends(view, around, warnings)}


def _backends(view: GateView, around: Surroundings, warnings: list[Warned]) -> Json:
    return {
        encodable(name): _backend(view, backend, around, warnings)
        for name, backend in view.backends.items()
    }


def _backend(
    view: GateView, backend: BackendView, around: Surroundings, warnings: list[Warned]
) -> Json:
    spec = backend.spec
    url = around.urls.get(spec.name)
    detail = backend.health_detail
    return {
        "kind": spec.kind.value,
        "url": None if url is None else shown_url(url),
        "serves": sorted(capability.value for capability in spec.serves),
        "models": sorted(encodable(model) for model in spec.models or ()),
        "state": backend.operator_state.value,
        "health": backend.health.value,
        "health_detail": None if detail is None else encodable(detail),
        "live": backend.live,
        "in_flight": backend.in_flight,
        "max_concurrency": backend.configured_limit,
        "effective_limit": backend.effective_limit,
        "limit_reason": backend.limit_reason,
        "max_input_tokens": spec.max_input_tokens,
        "dispatched": backend.dispatched,
        "failed": backend.failed,
        "cancelled": backend.cancelled,
        "engine": _engine(view.now, backend, around.engines.get(spec.name)),
        "warnings": [encodable(w.message) for w in warnings if w.backend == spec.name],
        "sources": dict(around.backend_sources.get(spec.name, {})),
    }


def _engine(now: float, backend: BackendView, engine: EngineReading | None) -> Json:
    """Return what the server says of itself; null where it tells nothing."""
    reading = EngineReading() if engine is None else engine
    return {
        "running": reading.running,
        "waiting": reading.waiting,
        "slots": reading.slots,
        "max_input_tokens": reading.max_input_tokens,
        "queueing": engine_is_queueing(backend.in_flight, reading),
        "age_sec": None if engine is None else _seconds(now - engine.read_at),
    }


def mode_json(view: GateView, sources: Mapping[str, str]) -> Json:
    """Return the page of `GET /api/lb/mode`, which `PUT` also answers with."""
    return {
        "mode": view.mode.value,
        "queue_enabled": view.queue_enabled,
        "queue_ttl_sec": view.queue_ttl_s,
        "queue_depth_multiplier": _number(view.queue_depth_multiplier),
        "sources": {
            key: sources[key] for key in ("routing_mode", "queue_enabled") if key in sources
        },
        "modes": {mode.value: MODES[mode].summary for mode in Mode},
    }


def rejections_json(view: GateView, seen_at: Mapping[Reason, float], reject_status: int) -> Json:
    """Return the page of `GET /api/lb/rejections`: the table, with what happened of late.

    seen_at: epoch seconds at which each reason was last given.
    """
    rows: list[Json] = []
    for reason, row in REJECTIONS.items():
        seen = seen_at.get(reason)
        rows.append(
            {
                "reason": reason.value,
                "code": row.wire_reason,
                "status": status_of(reason, reject_status),
                "type": row.error_type.value,
                "should_retry": not row.retry_is_pointless,
                "when": row.when,
                "advice": row.advice,
                "count": view.rejected.get(reason, 0),
                "last_seen": None if seen is None else iso_time(seen),
            }
        )
    return {"rejections": rows, "total": sum(view.rejected.values())}


def _counts(rejected: Mapping[Reason, int]) -> dict[str, int]:
    return {reason.value: rejected.get(reason, 0) for reason in Reason}


def _seconds(value_s: float) -> float:
    """Return seconds to the microsecond, never negative (a clock that stepped back)."""
    return round(max(value_s, 0.0), 6)


def _number(value: float) -> float | int:
    """Return a whole number without its `.0`."""
    return int(value) if value == int(value) else value
