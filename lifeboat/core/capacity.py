"""How much of its capacity a pool uses, whether that is too little, and how much would be enough.

Pure: a `GateView` in, a `CapacityReport` out. The page, the gauges, the dashboard and the
autoscaler read the same report. Source: the contract's section 8 and the Parasail seed.

demand = in flight + queued + refused per second x mean service time (Little's law: what is turned
away at a rate would have held that many slots), so that a pool without a queue is not blind to
what it sheds. Held by tests/core/test_capacity.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from lifeboat.core.flow import CAPACITY_REASONS
from lifeboat.core.limits import shared
from lifeboat.core.modes import clamp
from lifeboat.core.rejections import REJECTIONS
from lifeboat.core.selection import UNGATED_COUNTS_AS
from lifeboat.core.view import BackendView, GateView, PoolView
from lifeboat.core.vocabulary import OperatorState, Reason

MIN_SAMPLES = 20
"""Fewer requests than this in 5 minutes are no ground for a verdict: contract, section 8."""

SHED_TO_MATTER = 0.01
"""Part of the requests that must have been refused before it is more than a passing burst."""

WAIT_TO_MATTER = 0.5
"""Part of the TTL: where one in twenty waits this long, refusals are next."""

TARGET_UTILIZATION = 0.7
"""Part of its slots that a pool should use: the rest takes what comes in bursts, while more
backends start."""


class CapacityVerdict(StrEnum):
    """What the last 5 minutes say of a pool."""

    OK = "ok"
    UNDER_CAPACITY = "under_capacity"
    NOT_A_CAPACITY_PROBLEM = "not_a_capacity_problem"
    INSUFFICIENT_DATA = "insufficient_data"


@dataclass(frozen=True, slots=True)
class FullScale:
    """What autoscaling may make of a pool: at most so many backends. target: its utilization."""

    most_backends: int
    target: float


@dataclass(frozen=True, slots=True)
class CapacityReport:
    """One pool.

    current_limit: slots of its live, ready backends; None = one has no gate.
    full_limit: slots with everything configured up, or fully scaled; None = one has no gate.
    max_requests_per_minute: None = no limit. refused_per_s, mean_service_s: the terms of demand.
    utilization: in flight by current limit, None = no gate. backends: those live and ready;
    out_of_service: the others. slots_per_backend: of one more backend like these.
    target: the utilization to aim at. worst: the refusal met most, where more backends would not
    help. samples: requests served or refused in the window.
    """

    current_limit: int | None
    full_limit: int | None
    max_requests_per_minute: int | None
    requests_last_minute: int
    in_flight: int
    queued: int
    refused_per_s: float
    mean_service_s: float | None
    demand: float
    utilization: float | None
    served: int
    shed: Mapping[Reason, int]
    samples: int
    verdict: CapacityVerdict
    worst: Reason | None
    backends: int
    out_of_service: int
    slots_per_backend: float
    target: float
    desired_backends: int

    @property
    def computation(self) -> str:
        """How demand and desired backends came about, in one line."""
        if self.mean_service_s is None:
            refused = "refused unknown (nothing was served yet)" if self.refused_per_s else "0"
        else:
            refused = f"{self.refused_per_s:.2f}/s refused x {self.mean_service_s:.2f} s"
        return (
            f"demand {self.demand:.1f} = {self.in_flight} in flight + {self.queued} queued + "
            f"{refused}; {self.desired_backends} = ceil({self.demand:.1f} / ({self.target:g} x "
            f"{self.slots_per_backend:g} slots))"
        )

    @property
    def advice(self) -> str:
        """What to do; more backends only where they would help.

        The verdict is of the last 5 minutes, the desired backends are of this moment: where the
        two seem to differ, the advice says how both can be.
        """
        match self.verdict:
            case CapacityVerdict.OK:
                return self._fullness() or "Nothing to do."
            case CapacityVerdict.INSUFFICIENT_DATA:
                few = f"A verdict takes {MIN_SAMPLES} requests in 5 minutes; {self.samples} came."
                return f"{few} {self._fullness()}".rstrip()
            case CapacityVerdict.NOT_A_CAPACITY_PROBLEM:
                row = None if self.worst is None else REJECTIONS[self.worst].advice
                parts = ("More backends would not help.", row, self._fullness())
                return " ".join(part for part in parts if part)
            case CapacityVerdict.UNDER_CAPACITY:
                return self._add_room()

    def _fullness(self) -> str:
        """Say that a pool in which hardly anything is refused for load is fuller than it should
        be; nothing where it is not."""
        if self.desired_backends <= self.backends:
            return ""
        return (
            f"But the demand of this moment is above {self.target:.0%} of the slots in service: "
            "little is left for bursts, which more backends would take."
        )

    def _add_room(self) -> str:
        more = self.desired_backends - self.backends
        if self.out_of_service:
            return f"Start or undrain the {self.out_of_service} out of service before any is added."
        if more > 0:
            added = f"Add {more} backend{'s' if more > 1 else ''} like these"
        else:
            added = "The backends suffice for the demand of this moment, not for its peaks: add one"
        return f"{added}, or raise max_concurrency where the servers have room."


def report_of(pool: PoolView, view: GateView, scale: FullScale | None = None) -> CapacityReport:
    """Return the report of a pool. scale: what autoscaling may make of it, None without."""
    flow = pool.flow
    members = [view.backends[name] for name in pool.members if name in view.backends]
    in_service = [member for member in members if is_in_service(member)]
    slots = slots_per_backend(members, view)
    target = TARGET_UTILIZATION if scale is None else scale.target
    demand = pool.in_flight + pool.queue_depth + flow.refused_per_s * (flow.mean_service_s or 0.0)
    current = pool.effective_concurrency
    shed = {reason: flow.shed.get(reason, 0) for reason in Reason}
    samples = flow.served + sum(shed.values())
    verdict = _verdict(pool, shed, samples)
    return CapacityReport(
        current_limit=current,
        full_limit=_full_limit(members, view, slots, scale),
        max_requests_per_minute=pool.max_requests_per_minute,
        requests_last_minute=pool.requests_last_minute,
        in_flight=pool.in_flight,
        queued=pool.queue_depth,
        refused_per_s=flow.refused_per_s,
        mean_service_s=flow.mean_service_s,
        demand=demand,
        utilization=None if current is None else utilization_of(pool.in_flight, current),
        served=flow.served,
        shed=shed,
        samples=samples,
        verdict=verdict,
        worst=_worst(shed) if verdict is CapacityVerdict.NOT_A_CAPACITY_PROBLEM else None,
        backends=len(in_service),
        out_of_service=len(members) - len(in_service),
        slots_per_backend=slots,
        target=target,
        desired_backends=backends_for(demand, slots, target) if members or scale else 0,
    )


def backends_for(demand: float, slots: float, target: float) -> int:
    """Return the fewest backends of so many slots that carry a demand at a target utilization."""
    # Less a hair: 179.2 / (0.7 x 64) is 4, though not in floats.
    return max(0, math.ceil(demand / (target * slots) - 1e-9))


def utilization_of(in_flight: float, capacity: float) -> float:
    """In flight by capacity: 0.0 for an ungated pool, 1.0 for a closed one that still serves.

    capacity: slots, `inf` without a gate.
    """
    if capacity == 0.0:
        return 1.0 if in_flight else 0.0
    return in_flight / capacity


def is_in_service(backend: BackendView) -> bool:
    """Whether requests may be sent to a backend."""
    return backend.live and backend.operator_state is OperatorState.READY


def slots_per_backend(members: list[BackendView], view: GateView) -> float:
    """Return the mean slots of a pool's backends, 32 where there are none; one without a gate
    counts as 32. Health and saturation are left out: they pass."""
    if not members:
        return float(UNGATED_COUNTS_AS)
    return sum(healthy_slots(member, view) or UNGATED_COUNTS_AS for member in members) / len(
        members
    )


def healthy_slots(member: BackendView, view: GateView) -> int | None:
    """Return what a backend may hold while it is up and ready; None without a gate."""
    limit = clamp(view.mode, member.configured_limit or None, view.superfast_cap)
    return None if limit is None else shared(limit, view.share)


def _full_limit(
    members: list[BackendView], view: GateView, slots: float, scale: FullScale | None
) -> int | None:
    limits = [healthy_slots(member, view) for member in members]
    if any(limit is None for limit in limits):
        return None
    total = sum(limit for limit in limits if limit is not None)
    if scale is None:
        return total
    return total + round(max(0, scale.most_backends - len(members)) * slots)


def _verdict(pool: PoolView, shed: Mapping[Reason, int], samples: int) -> CapacityVerdict:
    if samples < MIN_SAMPLES:
        return CapacityVerdict.INSUFFICIENT_DATA
    lacking = sum(shed[reason] for reason in CAPACITY_REASONS)
    waits = pool.queue_depth > 0 or lacking > 0
    if lacking >= SHED_TO_MATTER * samples or (
        waits and pool.wait_p95_s >= WAIT_TO_MATTER * pool.queue_ttl_s
    ):
        return CapacityVerdict.UNDER_CAPACITY
    if sum(shed.values()) - lacking >= SHED_TO_MATTER * samples:
        return CapacityVerdict.NOT_A_CAPACITY_PROBLEM
    return CapacityVerdict.OK


def _worst(shed: Mapping[Reason, int]) -> Reason | None:
    others = [reason for reason, count in shed.items() if count and reason not in CAPACITY_REASONS]
    return max(others, key=lambda reason: shed[reason], default=None)
