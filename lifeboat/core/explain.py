"""What would happen to a request now, and why: the gate's own judgement, without acting on it.

Held by tests/core/test_explain.py: the decision told is the one `admit` then takes.
"""

from __future__ import annotations

from dataclasses import dataclass

from lifeboat.core.fit import why_not
from lifeboat.core.gate import Gate
from lifeboat.core.judging import Parking
from lifeboat.core.queue import Place
from lifeboat.core.seat import Seat
from lifeboat.core.vocabulary import Ask, Refusal


@dataclass(frozen=True, slots=True)
class BackendAnswer:
    """One backend's part: candidate, or why not; with_room, or why it could not take it now."""

    name: str
    candidate: bool
    with_room: bool
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The decision: exactly one of backend (dispatched there), parked and refusal is set.

    ahead: parked requests of the pool, which this one would join.
    """

    pool: str
    backends: tuple[BackendAnswer, ...]
    backend: str | None = None
    parked: bool = False
    ahead: int = 0
    refusal: Refusal | None = None


def explain(gate: Gate, ask: Ask, now: float) -> Explanation:
    """Return what `admit` would decide about a first arrival, and each backend's part in it."""
    # A sequence number no arrival gets: judging never compares it.
    decision = gate.judge(ask, Place(now, 0), now, first=True)
    backends = tuple(_answer(seat, ask) for seat in gate.seats.by_name.values())
    pool = gate.pool_of(ask.model)
    if isinstance(decision, Refusal):
        return Explanation(pool, backends, refusal=decision)
    if isinstance(decision, Parking):
        depth = gate.pools[decision.pool_name].depth
        return Explanation(decision.pool_name, backends, parked=True, ahead=depth)
    return Explanation(decision.pool_name, backends, backend=decision.seat.spec.name)


def _answer(seat: Seat, ask: Ask) -> BackendAnswer:
    spec = seat.spec
    if ask.backend is None:
        why = why_not(spec, ask.model, ask.capability, ask.estimate.tokens)
    elif ask.backend != spec.name:
        why = f"the request is one for {ask.backend}, which made what it names"
    else:
        # Whatever it serves by now; and one that drains still answers for what it made.
        return BackendAnswer(spec.name, True, seat.standing.live and seat.has_room, _room(seat))
    if why is not None:
        return BackendAnswer(spec.name, candidate=False, with_room=False, why=why)
    if not seat.in_service:
        state = seat.shown_state.value
        standing = seat.standing
        if state != "ready":
            why = f"it is in {state}"
        else:
            why = f"it is {standing.health.value}: {standing.detail or 'no reason known'}"
        return BackendAnswer(spec.name, candidate=True, with_room=False, why=why)
    return BackendAnswer(spec.name, candidate=True, with_room=seat.has_room, why=_room(seat))


def _room(seat: Seat) -> str:
    limit = "no limit" if seat.limit is None else f"{seat.limit} ({seat.reason.value})"
    return f"{seat.in_flight} in flight, effective limit {limit}"
