"""The gate's refusals: the facts and the sentence of each, named with the knob that changes it.

Source: the contract's section 5: a message names the limit, its value, and the knob. Held by
tests/core/test_refusals.py and test_nothing_in_service.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from lifeboat.core.fit import Route, shorten, why_not
from lifeboat.core.pool import Pool
from lifeboat.core.rules import GateRules
from lifeboat.core.seat import Seat
from lifeboat.core.seats import Seats
from lifeboat.core.vocabulary import Ask, Reason, Refusal
from lifeboat.core.waits import expected_wait_s, retry_after_s

NAMES_LISTED = 8


class Pressed(Protocol):
    """What a refusal reads of the gate."""

    rules: GateRules
    seats: Seats
    chance: Callable[[], float]

    def ceiling(self, pool: Pool) -> int:
        """Return the most parked requests of a pool now."""
        ...


def no_room(gate: Pressed, pool: Pool, seats: Iterable[Seat], now: float) -> Refusal:
    """The gate's own refusal: every candidate full, and nothing parks."""
    limits = _limits(seats)
    return Refusal(
        Reason.GATE,
        f"every backend for {shorten(pool.name)} is at its effective limit ({_listed(limits)}) and "
        "the queue is off: raise max_concurrency, add a backend, or set "
        "LIFEBOAT_LB_QUEUE_ENABLED=true or LIFEBOAT_LB_MODE=queue-all",
        pool=pool.name,
        effective_limits=limits,
        queue_depth=pool.depth,
        queue_limit=0,
        retry_after_s=_retry_after(gate, pool, now),
    )


def queue_full(gate: Pressed, pool: Pool, seats: Iterable[Seat], now: float) -> Refusal:
    """The pool's parked requests are at their ceiling."""
    limits = _limits(seats)
    ceiling = gate.ceiling(pool)
    return Refusal(
        Reason.QUEUE_FULL,
        f"{pool.depth} requests for {shorten(pool.name)} are parked and the ceiling is {ceiling}: "
        "raise max_concurrency or add a backend; the ceiling is "
        f"{_ceiling_rule(gate, pool)}",
        pool=pool.name,
        effective_limits=limits,
        queue_depth=pool.depth,
        queue_limit=ceiling,
        retry_after_s=_retry_after(gate, pool, now),
        estimated_wait_s=expected_wait(pool, now),
    )


def too_late(
    gate: Pressed, pool: Pool, seats: Iterable[Seat], ask: Ask, wait_s: float, now: float
) -> Refusal:
    """The expected wait is longer than the request may be parked, or than its client waits."""
    ttl_s = gate.rules.ttl_of(pool.name)
    bound = f"its TTL is {ttl_s:g} s ({_ttl_rule(gate, pool)})"
    if ask.patience_s is not None and ask.patience_s < ttl_s:
        bound = f"its client waits {ask.patience_s:g} s more (X-Lifeboat-Deadline-ms)"
    return Refusal(
        Reason.QUEUE_FULL,
        f"a request for {shorten(pool.name)} would be parked for about {wait_s:.1f} s "
        f"({pool.depth} are before it) and {bound}: add capacity, or set "
        "LIFEBOAT_LB_EARLY_REFUSAL=false to let it wait all the same",
        pool=pool.name,
        effective_limits=_limits(seats),
        queue_depth=pool.depth,
        queue_limit=gate.ceiling(pool),
        retry_after_s=_retry_after(gate, pool, now),
        estimated_wait_s=wait_s,
        predicted=True,
    )


def bytes_full(
    gate: Pressed, pool: Pool | None, held_bytes: int, bound_bytes: int, now: float
) -> Refusal:
    """The request bodies held in memory are at their bound, this pool's over its share."""
    seats = [] if pool is None else [gate.seats.by_name[name] for name in pool.members]
    return Refusal(
        Reason.QUEUE_FULL,
        f"{held_bytes} bytes of request bodies are held in memory and the bound is {bound_bytes}: "
        "send smaller bodies or raise LIFEBOAT_LB_MAX_PARKED_BYTES",
        pool=None if pool is None else pool.name,
        effective_limits=_limits(seats),
        queue_depth=None if pool is None else pool.depth,
        queue_limit=None if pool is None else gate.ceiling(pool),
        retry_after_s=None if pool is None else _retry_after(gate, pool, now),
        estimated_wait_s=None if pool is None else expected_wait(pool, now),
    )


def queue_timeout(
    gate: Pressed, pool: Pool, seats: Iterable[Seat], waited_s: float, now: float
) -> Refusal:
    """Parked for the whole TTL."""
    limits = _limits(seats)
    return Refusal(
        Reason.QUEUE_TIMEOUT,
        f"the request for {shorten(pool.name)} was parked for {waited_s:.1f} s and no slot came "
        f"free ({_listed(limits)}): add capacity; a longer TTL ({_ttl_rule(gate, pool)}) moves "
        "the failure, not the cause",
        pool=pool.name,
        effective_limits=limits,
        queue_depth=pool.depth,
        queue_limit=gate.ceiling(pool),
        wait_s=waited_s,
        retry_after_s=_retry_after(gate, pool, now),
        estimated_wait_s=expected_wait(pool, now),
    )


def nothing_in_service(
    gate: Pressed, pool: Pool, route: Route, ask: Ask, candidates: frozenset[str]
) -> Refusal:
    """A known model, and no backend of it that this request can be sent to now: temporary.

    candidates: those that fit the request and have not failed it. What is in service and none of
    them is named with what keeps the request away from it, or the sentence would deny itself.
    """
    seats = [gate.seats.by_name[name] for name in pool.members]
    obstacles = {seat: _obstacle(seat, ask, candidates) for seat in seats}
    # Those that could be waited for come first: the list is cut.
    absent = [f"{seat.spec.name} {_state(seat)}" for seat in seats if obstacles[seat] is None]
    others = [f"{seat.spec.name} {why}" for seat, why in obstacles.items() if why is not None]
    words = ", ".join([*absent, *others][:NAMES_LISTED])
    which = " that can take this request" if others else ""
    reason = route.absent or f"no backend for {shorten(route.model)}{which} is in service: {words}"
    one = "one that can take it" if others else "one"
    return Refusal(
        Reason.NO_BACKENDS,
        f"{reason}; start or undrain {one}, or set LIFEBOAT_LB_HOLD_WHEN_DOWN=true to park "
        "requests meanwhile",
        pool=pool.name,
        temporary=True,
        effective_limits=_limits(seats),
        queue_depth=pool.depth,
        queue_limit=gate.ceiling(pool),
    )


def maker_gone(gate: Pressed, pool: Pool, name: str) -> Refusal:
    """The one backend that made a job cannot be asked now."""
    return Refusal(
        Reason.NO_BACKENDS,
        f"this id was made by the backend {name}, which is not in service now; no other backend "
        "knows it",
        pool=pool.name,
        temporary=True,
    )


def rate_limited(gate: Pressed, pool: Pool, seats: Iterable[Seat], wait_s: float) -> Refusal:
    """The model's requests per minute are used up."""
    limit = gate.rules.of(pool.name).max_requests_per_minute
    return Refusal(
        Reason.RATE_LIMITED,
        f"{shorten(pool.name)} takes max_requests_per_minute {limit} and they are used up: slow "
        f"down, or raise models.{pool.name}.max_requests_per_minute",
        pool=pool.name,
        effective_limits=_limits(seats),
        retry_after_s=wait_s,
    )


def shutting_down(pool_name: str) -> Refusal:
    """The router drains."""
    return Refusal(
        Reason.SHUTTING_DOWN,
        "the router is shutting down and takes no new requests: send it again",
        pool=pool_name,
    )


def _limits(seats: Iterable[Seat]) -> dict[str, int | None]:
    return {seat.spec.name: seat.limit for seat in seats}


def _listed(limits: dict[str, int | None]) -> str:
    shown = [f"{name}: {limit}" for name, limit in list(limits.items())[:NAMES_LISTED]]
    more = f" and {len(limits) - NAMES_LISTED} more" if len(limits) > NAMES_LISTED else ""
    return ", ".join(shown) + more


def _obstacle(seat: Seat, ask: Ask, candidates: frozenset[str]) -> str | None:
    """Return what keeps a request away from a backend whether it is in service or not."""
    spec = seat.spec
    why = why_not(spec, ask.model, ask.capability, ask.estimate.tokens)
    if why is not None:
        return f"cannot: {why}"
    return "has failed it" if seat.in_service and spec.name not in candidates else None


def _state(seat: Seat) -> str:
    if seat.leaving:
        return "is being removed"
    if seat.operator_state.value != "ready":
        return f"is in {seat.operator_state.value}"
    detail = f" ({seat.standing.detail})" if seat.standing.detail else ""
    return f"is {seat.standing.health.value}{detail}"


def expected_wait(pool: Pool, now: float) -> float | None:
    """Return how long one more request would be parked, None where that would be a guess."""
    return expected_wait_s(pool.depth, pool.drain.per_second(now, pool.oldest_wait_s(now)))


def _retry_after(gate: Pressed, pool: Pool, now: float) -> float | None:
    rate = pool.drain.per_second(now, pool.oldest_wait_s(now))
    return retry_after_s(pool.depth, rate, gate.chance())


def _ceiling_rule(gate: Pressed, pool: Pool) -> str:
    rules = gate.rules
    if rules.of(pool.name).max_depth is not None:
        return f"models.{pool.name}.queue.max_depth"
    if rules.max_depth is not None:
        return "LIFEBOAT_LB_QUEUE_MAX_DEPTH"
    name = (
        "LIFEBOAT_LB_QUEUE_ALL_DEPTH_MULTIPLIER"
        if rules.row.long_wait
        else "LIFEBOAT_LB_QUEUE_MAX_DEPTH_MULTIPLIER"
    )
    return f"{name} ({rules.depth_multiplier:g}) x the pool's max concurrency"


def _ttl_rule(gate: Pressed, pool: Pool) -> str:
    rules = gate.rules
    if rules.of(pool.name).queue_ttl_s is not None:
        return f"models.{pool.name}.queue.ttl"
    return "LIFEBOAT_LB_QUEUE_ALL_TTL_SEC" if rules.row.long_wait else "LIFEBOAT_LB_QUEUE_TTL_SEC"
