"""The JSON of `GET /api/lb/capacity`: contract, section 8. Every key is always there.

Held by tests/observe/test_capacity.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from lifeboat.core.capacity import CapacityReport, report_of
from lifeboat.core.flow import WINDOW_S
from lifeboat.core.scaling import ScalingStatus
from lifeboat.core.view import GateView
from lifeboat.observe.printable import encodable

Json = dict[str, object]


def capacity_json(view: GateView, scaling: Mapping[str, ScalingStatus]) -> Json:
    """Return the page. scaling: of the pools that are scaled, by name."""
    return {
        "window_sec": WINDOW_S,
        "pools": {
            encodable(name): _pool(
                report_of(pool, view, scaling[name].scale if name in scaling else None),
                scaling.get(name),
                len(pool.members),
            )
            for name, pool in view.pools.items()
            if pool.listed
        },
    }


def _pool(report: CapacityReport, scaling: ScalingStatus | None, members: int) -> Json:
    """Return one pool's object; a limit or a utilization of null = a member has no gate."""
    return {
        "current_concurrency_limit": report.current_limit,
        "full_concurrency_limit": report.full_limit,
        "max_requests_per_minute": report.max_requests_per_minute,
        "requests_last_minute": report.requests_last_minute,
        "in_flight": report.in_flight,
        "queued": report.queued,
        "refused_per_sec": round(report.refused_per_s, 3),
        "mean_service_sec": _rounded(report.mean_service_s),
        "demand": round(report.demand, 3),
        "utilization": _rounded(report.utilization),
        "served": report.served,
        "shed": {reason.value: count for reason, count in report.shed.items()},
        "samples": report.samples,
        "verdict": report.verdict.value,
        "advice": report.advice,
        "backends": report.backends,
        "slots_per_backend": round(report.slots_per_backend, 3),
        "target_utilization": report.target,
        "desired_backends": report.desired_backends,
        "computation": report.computation,
        "scaling": None if scaling is None else _scaling(scaling, members),
    }


def _scaling(status: ScalingStatus, members: int) -> Json:
    return {
        "actuator": status.actuator,
        "min": status.least,
        "max": status.most,
        # Of the view that the limits are read off, not of the last look of a second ago.
        "present": max(0, members - status.fixed),
        "wanted": status.wanted,
        "wanted_now": status.raw,
        "reason": status.reason.value,
        "failure": None if status.failure is None else encodable(status.failure),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
