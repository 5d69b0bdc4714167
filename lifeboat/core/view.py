"""Immutable snapshots of the gate: all that observers read.

State JSON, metrics, the dashboard and `explain` are functions of a `GateView` and nothing else, so
that a figure shown is the figure that decides (I12). Taking a view costs time in proportion to the
number of backends and pools, never to the number of parked requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lifeboat.core.flow import NO_FLOW, Flow
from lifeboat.core.modes import Mode
from lifeboat.core.vocabulary import BackendSpec, Health, OperatorState, Reason


@dataclass(frozen=True, slots=True)
class BackendView:
    """One backend as the gate sees it.

    configured_limit: max concurrency in force before mode, health and saturation: what was
        configured, else a default or the engine's own slots; 0 = gate disabled.
    effective_limit: None = ungated, 0 = closed. limit_reason: the input that won (core.limits).
    dispatched, failed, cancelled: requests sent, ended by a fault of the backend, ended by the
        client, since the backend was first added. dispatched_by_pool splits the first by pool.
    health_detail: why the health is what it is, in words; None while up and quiet.
    """

    spec: BackendSpec
    operator_state: OperatorState
    health: Health
    health_detail: str | None
    live: bool
    in_flight: int
    configured_limit: int
    effective_limit: int | None
    limit_reason: str
    dispatched: int
    failed: int
    cancelled: int
    dispatched_by_pool: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool: the backends that serve one model name.

    concurrency: sum of configured limits over members neither draining nor in maintenance.
    effective_concurrency: sum of effective limits of live, ready members; None with an ungated one.
    queue_depth, queue_limit: parked requests and the ceiling in force.
    in_flight: leases of this pool (not of its backends, which other pools may share).
    wait_*_s: percentiles over requests parked and then granted or expired, last 5 minutes.
    drain_rate_per_s: leases finished per second of late; None where too few were seen to tell.
    drain_seen: finishes since that record was last empty: how far its rate is to be trusted.
    rejected: every reason, zeros included.
    flow: what came and went of late. max_requests_per_minute: None = no limit.
    listed: False for the pool that requests for unknown names are counted under: it is in the
        metrics but not among the pools of the state.
    """

    name: str
    members: tuple[str, ...]
    in_flight: int
    concurrency: int
    effective_concurrency: int | None
    queue_enabled: bool
    queue_ttl_s: float
    queue_depth: int
    queue_limit: int
    oldest_wait_s: float
    wait_p50_s: float
    wait_p95_s: float
    wait_p99_s: float
    dispatched: int
    drain_rate_per_s: float | None
    drain_seen: int
    rejected: Mapping[Reason, int]
    listed: bool = True
    flow: Flow = NO_FLOW
    max_requests_per_minute: int | None = None
    requests_last_minute: int = 0


@dataclass(frozen=True, slots=True)
class GateView:
    """The whole gate at one instant.

    asked .. finished: the terms of I7: asked = open + parked + refused + withdrawn + expired +
        finished, over admissions (a request that failed over asks again).
    rejected: refusals sent to clients since start, those before a pool was known included (every
        reason); a refused re-admission whose client got the backend's own answer is not one.
    parked_bytes: bytes of request bodies held in memory.
    dispatched: requests sent since start, also to backends and of pools that are gone: what is
        left of the counters of those does not add up to it.
    departed: what backends that left of late were sent, by pool, so that no count is lost with
        them.
    """

    now: float
    mode: Mode
    queue_enabled: bool
    queue_ttl_s: float
    queue_depth_multiplier: float
    boost_s: float
    superfast_cap: int
    share: float
    draining: bool
    backends: Mapping[str, BackendView]
    pools: Mapping[str, PoolView]
    parked: int
    wait_p50_s: float
    wait_p95_s: float
    wait_p99_s: float
    rejected: Mapping[Reason, int]
    dispatched: int
    asked: int
    open_leases: int
    refused: int
    withdrawn: int
    expired: int
    finished: int
    parked_bytes: int = 0
    departed: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])


@dataclass(frozen=True, slots=True)
class ParkedView:
    """One parked request for the operator's list: never its content."""

    model: str
    capability: str
    priority: str
    estimated_tokens: int
    age_s: float
    remaining_s: float
    boosted: bool
    body_bytes: int
