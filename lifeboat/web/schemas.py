"""The JSON of the router's own pages, as schemas.

Enumerations come from the tables in code. An object lists every key it has, all of them required,
so that a key that comes or goes without a word here fails tests/web/test_openapi.py, which checks
them against a live router.
"""

from __future__ import annotations

from lifeboat.core.capacity import CapacityVerdict
from lifeboat.core.limits import LimitReason
from lifeboat.core.modes import Mode
from lifeboat.core.rejections import REJECTIONS, ErrorType
from lifeboat.core.scaling import ScalingReason
from lifeboat.core.vocabulary import (
    Capability,
    EstimateMethod,
    Health,
    Kind,
    OperatorState,
    Priority,
    Reason,
)
from lifeboat.edge.endpoints import ENDPOINTS
from lifeboat.web.shapes import (
    Schema,
    by_name,
    flag,
    many,
    one_of,
    or_null,
    record,
    ref,
    seconds,
    text,
    whole,
)

EXPLAINED_PATHS = tuple(
    dict.fromkeys(row.path for row in ENDPOINTS if "POST" in row.methods and row.protocol)
)
"""Proxied paths that `explain` knows how to read."""


_REASON_COUNTS = record(
    "Refusals by reason; `gate` is the one without a wire reason.",
    {reason.value: whole(REJECTIONS[reason].when) for reason in Reason},
)
_SOURCES = by_name(text(""), "Where a value comes from: api, flag, environment, file, default.")
_CONCURRENCY: Schema = {"type": "integer", "minimum": 0, "maximum": 1_000_000}
_INPUT_TOKENS: Schema = {
    "description": "0 is no cap; `auto` is the engine's own.",
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": 1_000_000_000},
        {"type": "string", "enum": ["auto"]},
    ],
}
_MODE = one_of((mode.value for mode in Mode), "the routing mode")

_WAITS: dict[str, Schema] = {
    f"wait_p{part}_sec": seconds(f"{part}th percentile of waits, last 5 minutes")
    for part in (50, 95, 99)
}

_ENGINE = record(
    "What the server reports of itself; null where it tells nothing.",
    {
        "running": or_null(whole("sequences it runs, ours and others'; null while it is down")),
        "waiting": or_null(whole("requests that wait inside it; null while it is down")),
        "slots": or_null(whole("sequences it can run at once")),
        "max_input_tokens": or_null(whole("its own input cap")),
        "queueing": or_null(flag("requests wait inside it")),
        "age_sec": or_null(seconds("age of this reading")),
    },
)

_BACKEND_PROPERTIES: dict[str, Schema] = {
    "kind": one_of((kind.value for kind in Kind), "what software it is"),
    "url": or_null(text("where it listens, without a password")),
    "serves": many(one_of((one.value for one in Capability), "")),
    "models": many(text("")),
    "state": text(f"what the operator wants: {', '.join(OperatorState)}"),
    "health": one_of((health.value for health in Health), "what probes and requests say"),
    "health_detail": or_null(text("why, in words")),
    "live": flag("requests may be sent to it"),
    "in_flight": whole("slots held"),
    "max_concurrency": whole("configured, 0 = no gate"),
    "effective_limit": or_null(whole("in force now; null = no gate, 0 = closed")),
    "limit_reason": one_of((reason.value for reason in LimitReason), "what decided the limit"),
    "max_input_tokens": whole("0 = no cap"),
    "dispatched": whole("requests sent"),
    "failed": whole("ended by a fault of the backend"),
    "cancelled": whole("ended by the client"),
    "engine": ref("Engine"),
    "warnings": many(text(""), "What an operator should know."),
    "sources": _SOURCES,
}

_POOL = record(
    "The backends that serve one model name.",
    {
        "in_flight": whole("leases of this pool"),
        "concurrency": whole("sum of configured limits"),
        "effective_concurrency": or_null(whole("sum of limits in force; null = a member ungated")),
        "queue_enabled": flag("what does not fit is parked"),
        "queue_ttl_sec": seconds("longest time parked"),
        "queue_depth": whole("parked requests"),
        "queue_limit": whole("the ceiling"),
        "oldest_wait_sec": seconds("of those parked now"),
        **_WAITS,
        "dispatched": whole("requests sent"),
        "rejected": _REASON_COUNTS,
        "drain_rate_per_sec": or_null(seconds("leases finished a second while there was no room")),
        "backends": many(text("")),
    },
)

_STATE = record(
    "The live state.",
    {
        "routing_mode": _MODE,
        "queue_enabled": flag("the queue is on"),
        "queue_ttl_sec": seconds("TTL in force"),
        "queue_depth_multiplier": {"type": "number"},
        "queue_deadline_boost_sec": seconds("parked this long: before everything fresher"),
        "superfast_cap": whole("limit of a backend under superfast"),
        "share": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        "inflight": by_name(whole(""), "By backend."),
        "dispatch_counts": by_name(whole(""), "By backend."),
        "dispatched_total": whole("requests sent since start, also to backends that are gone"),
        "reject_counts": _REASON_COUNTS,
        "queue_total_waiters": whole("parked requests of all pools"),
        **{f"queue_{key}": schema for key, schema in _WAITS.items()},
        "parked_bytes": whole("request bodies held in memory"),
        "uptime_sec": seconds("since start"),
        "version": text("of Lifeboat"),
        "draining": flag("the router shuts down"),
        "pools": by_name(ref("Pool"), "By model name."),
        "backends": by_name(ref("Backend"), "By name."),
        "warnings": many(
            record("", {"backend": or_null(text("null: the router")), "message": text("")})
        ),
        "sources": _SOURCES,
    },
)

_COLUMNS = record(
    "One value a bin: the largest seen in it; refusals are counted.",
    {
        "in_flight": many(whole("")),
        "queue_depth": many(whole("")),
        "wait_p95_sec": many(seconds("")),
        "rejected": by_name(many(whole("")), "By reason, without those that nobody met."),
    },
)

_ESTIMATE_PROPERTIES: dict[str, Schema] = {
    "tokens": whole("longest sequence: what an input cap must cover"),
    "total_tokens": whole("sum over a batch"),
    "method": one_of((method.value for method in EstimateMethod), "the stage that decided"),
    "error": seconds("relative error"),
}

_SCALING = record(
    "Autoscaling of the pool.",
    {
        "actuator": one_of(("simulated", "command"), "what changes the replicas"),
        "min": whole("fewest replicas"),
        "max": whole("most replicas"),
        "present": whole("replicas that are there"),
        "wanted": whole("replicas wanted, those that start included"),
        "wanted_now": whole("what the demand of this moment alone asks for"),
        "reason": one_of((reason.value for reason in ScalingReason), "of the last change"),
        "failure": or_null(text("why the last change failed")),
    },
)

_CAPACITY = record(
    "What one pool can carry, what is asked of it, and what would be enough.",
    {
        "current_concurrency_limit": or_null(whole("slots that serve now; null = ungated")),
        "full_concurrency_limit": or_null(whole("slots with all up, or fully scaled")),
        "max_requests_per_minute": or_null(whole("null = no limit")),
        "requests_last_minute": whole("granted or parked"),
        "in_flight": whole("leases of this pool"),
        "queued": whole("parked requests"),
        "refused_per_sec": seconds("refusals for lack of capacity, of late"),
        "mean_service_sec": or_null(seconds("how long an answered request held its slot")),
        "demand": seconds("slots wanted"),
        "utilization": or_null(seconds("in flight by current limit; null = ungated")),
        "served": whole("answered in the window"),
        "shed": _REASON_COUNTS,
        "samples": whole("served and shed"),
        "verdict": one_of((verdict.value for verdict in CapacityVerdict), ""),
        "advice": text("what to do"),
        "backends": whole("live and ready"),
        "slots_per_backend": seconds("of one more like these"),
        "target_utilization": seconds("to aim at"),
        "desired_backends": whole("that carry the demand at the target"),
        "computation": text("how demand and desired_backends came about"),
        # No `or_null`: it has no single type.
        "scaling": {"anyOf": [ref("Scaling"), {"type": "null"}]},
    },
)

SCHEMAS: dict[str, Schema] = {
    "Capacity": record(
        "The capacity of every pool.",
        {
            "window_sec": seconds("served and shed are over this long"),
            "pools": by_name(ref("PoolCapacity"), "By model name."),
        },
    ),
    "PoolCapacity": _CAPACITY,
    "Scaling": _SCALING,
    "State": _STATE,
    "Pool": _POOL,
    "Backend": record("One model server.", _BACKEND_PROPERTIES),
    "NamedBackend": record(
        "One model server, with its name.", {"name": text(""), **_BACKEND_PROPERTIES}
    ),
    "Engine": _ENGINE,
    "Backends": record("", {"backends": by_name(ref("Backend"), "By name.")}),
    "Mode": record(
        "The routing mode in force.",
        {
            "mode": _MODE,
            "queue_enabled": flag(""),
            "queue_ttl_sec": seconds(""),
            "queue_depth_multiplier": {"type": "number"},
            "sources": _SOURCES,
            "modes": by_name(text(""), "Every mode in a sentence."),
        },
    ),
    "ModeChange": {
        **record(
            "Either alone, or both; null resets to what is configured.",
            {
                "mode": {"type": ["string", "null"], "examples": [mode.value for mode in Mode]},
                "queue_enabled": {"type": ["boolean", "null"]},
            },
            optional=("mode", "queue_enabled"),
        ),
        "minProperties": 1,
    },
    "Rejections": record(
        "The rejection table.",
        {
            "rejections": many(
                record(
                    "",
                    {
                        "reason": one_of((reason.value for reason in Reason), ""),
                        "code": or_null(text("as in the body; null for the gate")),
                        "status": whole("HTTP status"),
                        "type": one_of((kind.value for kind in ErrorType), ""),
                        "should_retry": flag(""),
                        "when": text(""),
                        "advice": text("what to do about it"),
                        "count": whole("since start"),
                        "last_seen": or_null(text("ISO 8601, UTC")),
                    },
                )
            ),
            "total": whole(""),
        },
    ),
    "History": record(
        "The last 15 minutes, oldest bin first.",
        {
            "period_sec": seconds("length of a bin"),
            "window_sec": seconds("how far back it reaches"),
            "age_sec": many(seconds("from a bin to the one under way")),
            "total": ref("Columns"),
            "pools": by_name(ref("Columns"), "Those that were not idle."),
        },
    ),
    "Columns": _COLUMNS,
    "Parked": record(
        "The requests parked longest; never their content.",
        {
            "total": whole("parked requests"),
            "parked": many(
                record(
                    "",
                    {
                        "model": text(""),
                        "capability": one_of((one.value for one in Capability), ""),
                        "priority": one_of((one.value for one in Priority), ""),
                        "estimated_tokens": whole(""),
                        "age_sec": seconds("parked for"),
                        "remaining_sec": seconds("until its TTL"),
                        "boosted": flag("goes before every fresher one"),
                        "body_bytes": whole(""),
                    },
                )
            ),
        },
    ),
    "ExplainRequest": record(
        "A request that will not be sent.",
        {
            "path": {"type": "string", "examples": list(EXPLAINED_PATHS)},
            "body": {"description": "The body, as it would be posted."},
            "priority": {"description": "The X-Lifeboat-Priority; anything else is normal."},
        },
        optional=("body", "priority"),
    ),
    "Explanation": record(
        "What would happen to it now.",
        {
            "model": text("as asked for"),
            "pool": text("it is counted under"),
            "capability": one_of((one.value for one in Capability), ""),
            "estimate": record(
                "",
                {
                    **_ESTIMATE_PROPERTIES,
                    "caps": many(whole(""), "Input caps on its way."),
                    "quick": record("The first figure.", _ESTIMATE_PROPERTIES),
                },
            ),
            "backends": many(
                record(
                    "",
                    {
                        "name": text(""),
                        "candidate": flag(""),
                        "room": flag(""),
                        "why": text(""),
                    },
                )
            ),
            "decision": one_of(("dispatch", "park", "refuse"), ""),
            "backend": text("with dispatch"),
            "ahead": whole("with park: those parked already"),
            "status": whole("with refuse"),
            "reason": or_null(text("with refuse; null for the gate")),
            "message": text("with refuse"),
            "advice": text("with refuse"),
        },
        optional=(
            "model", "pool", "capability", "estimate", "backends", "backend", "ahead", "status",
            "reason", "message", "advice",
        ),
    ),
    "BackendChange": {
        **record(
            "Any of them; null resets to what is configured.",
            {
                "max_concurrency": or_null(_CONCURRENCY),
                "max_input_tokens": {"anyOf": [_INPUT_TOKENS, {"type": "null"}]},
                "state": or_null(one_of((state.value for state in OperatorState), "")),
            },
            optional=("max_concurrency", "max_input_tokens", "state"),
        ),
        "minProperties": 1,
    },
    "Registration": {
        "type": "object",
        "description": "A backend of the configuration file, with a url, and its heartbeat.",
        "properties": {
            "name": text(""),
            "url": {"type": "string", "examples": ["http://127.0.0.1:8081"]},
            "kind": one_of((kind.value for kind in Kind), ""),
            "models": many(text("")),
            "serves": many(one_of((one.value for one in Capability), "")),
            "max_concurrency": _CONCURRENCY,
            "max_input_tokens": _INPUT_TOKENS,
            "adaptive": flag("its limit is learned, up to max_concurrency"),
            "ttl": {
                "description": "Gone without another one in this time: seconds, or such as 15s.",
                "type": ["number", "string"],
            },
        },
        "required": ["name", "url"],
    },
    "Error": record(
        "The envelope of every error.",
        {
            "error": {
                "type": "object",
                "properties": {
                    "message": text(""),
                    "type": one_of((kind.value for kind in ErrorType), ""),
                    "code": or_null(text("")),
                    "param": {"type": "null"},
                    "request_id": text(""),
                },
                "required": ["message", "type", "code", "param"],
            }
        },
    ),
    "Status": record("", {"status": text("")}),
    "Models": {"type": "object", "description": "As OpenAI lists models."},
    "Model": {"type": "object", "description": "One model."},
}  # fmt: skip
"""Every schema of the page, by name."""
