"""Views of the gate: how a `GateView` is taken. Held by tests/core/test_snapshot.py."""

from __future__ import annotations

from lifeboat.core.gate import Gate
from lifeboat.core.pool import Pool
from lifeboat.core.seat import Seat
from lifeboat.core.view import BackendView, GateView, ParkedView, PoolView
from lifeboat.core.vocabulary import UNKNOWN_POOL


def take_view(gate: Gate, now: float, parked_bytes: int = 0) -> GateView:
    """Return what the gate is at `now`, due expiries and grants applied by the caller before."""
    rules = gate.rules
    p50_s, p95_s, p99_s = gate.waits.percentiles(now)
    departed = {name: dict(seat.dispatched_by_pool) for name, seat in gate.seats.retired.items()}
    return GateView(
        now=now,
        mode=rules.mode,
        queue_enabled=rules.row.always_queues or rules.queue_enabled,
        queue_ttl_s=rules.ttl_s,
        queue_depth_multiplier=rules.depth_multiplier,
        boost_s=rules.boost_s,
        superfast_cap=rules.superfast_cap,
        share=rules.share,
        draining=gate.draining,
        backends={name: _backend(seat) for name, seat in gate.seats.by_name.items()},
        pools={
            name: _pool(gate, pool, now)
            for name, pool in gate.pools.items()
            if pool.gone_at is None or pool.depth or pool.in_flight
        },
        parked=gate.parked.count,
        wait_p50_s=p50_s,
        wait_p95_s=p95_s,
        wait_p99_s=p99_s,
        rejected=dict(gate.rejected),
        dispatched=gate.dispatched,
        asked=gate.asked,
        open_leases=gate.open,
        refused=gate.refused,
        withdrawn=gate.withdrawn,
        expired=gate.expired,
        finished=gate.finished,
        parked_bytes=parked_bytes,
        departed=departed,
    )


def parked_requests(gate: Gate, now: float, most: int) -> list[ParkedView]:
    """Return the parked requests for the operator, longest first, at most `most` of each pool."""
    boost_s = gate.rules.boost_s
    return [
        ParkedView(
            model=ticket.ask.model,
            capability=ticket.ask.capability.value,
            priority=ticket.ask.priority.value,
            estimated_tokens=ticket.ask.estimate.tokens,
            age_s=now - ticket.parked_at,
            remaining_s=ticket.deadline - now,
            boosted=now - ticket.place.arrived_at >= boost_s,
            body_bytes=ticket.ask.body_bytes,
        )
        for pool in gate.pools.values()
        if pool.depth
        for ticket in pool.parked()[:most]
    ]


def _backend(seat: Seat) -> BackendView:
    return BackendView(
        spec=seat.spec,
        operator_state=seat.shown_state,
        health=seat.standing.health,
        health_detail=seat.standing.detail,
        live=seat.standing.live,
        in_flight=seat.in_flight,
        configured_limit=seat.configured,
        effective_limit=seat.limit,
        limit_reason=seat.reason.value,
        dispatched=sum(seat.dispatched_by_pool.values()),
        failed=seat.failed,
        cancelled=seat.cancelled,
        dispatched_by_pool=dict(seat.dispatched_by_pool),
    )


def _pool(gate: Gate, pool: Pool, now: float) -> PoolView:
    rules = gate.rules
    p50_s, p95_s, p99_s = pool.waits.percentiles(now)
    oldest_s = pool.oldest_wait_s(now)
    flow = pool.flow.read(now)
    rate = pool.rate
    limits = [seat.limit for name in pool.members if (seat := gate.seats.by_name[name]).in_service]
    return PoolView(
        name=pool.name,
        members=pool.members,
        in_flight=pool.in_flight,
        concurrency=gate.concurrency(pool),
        effective_concurrency=(
            None if None in limits else sum(limit for limit in limits if limit is not None)
        ),
        queue_enabled=rules.queues(pool.name),
        queue_ttl_s=rules.ttl_of(pool.name),
        queue_depth=pool.depth,
        queue_limit=gate.ceiling(pool),
        oldest_wait_s=oldest_s,
        wait_p50_s=p50_s,
        wait_p95_s=p95_s,
        wait_p99_s=p99_s,
        dispatched=pool.dispatched,
        drain_rate_per_s=pool.drain.per_second(now, oldest_s),
        drain_seen=pool.drain.seen,
        rejected=dict(pool.rejected),
        listed=pool.name != UNKNOWN_POOL or pool.name in gate.seats.directory.members,
        flow=flow,
        max_requests_per_minute=None if rate is None else rate.limit,
        requests_last_minute=flow.admitted_last_minute if rate is None else rate.used(now),
    )
