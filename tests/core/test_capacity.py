"""The capacity report: demand, verdict, and how many backends would be enough."""

from __future__ import annotations

from typing import Any

import pytest

from lifeboat.core.capacity import (
    MIN_SAMPLES,
    CapacityReport,
    CapacityVerdict,
    FullScale,
    backends_for,
    report_of,
)
from lifeboat.core.flow import CAPACITY_REASONS, Flow
from lifeboat.core.modes import Mode
from lifeboat.core.vocabulary import OperatorState, Reason
from tests.observe.scenes import backend, pool, view

OK = CapacityVerdict.OK
UNDER = CapacityVerdict.UNDER_CAPACITY
OTHER = CapacityVerdict.NOT_A_CAPACITY_PROBLEM
FEW = CapacityVerdict.INSUFFICIENT_DATA


def report(
    *backends: Any, scale: FullScale | None = None, mode: Mode = Mode.DEFAULT, **of_pool: Any
) -> CapacityReport:
    members = backends or (backend("sim-a"),)
    names = tuple(one.spec.name for one in members)
    one = pool("m", names, **of_pool)
    return report_of(one, view(members, (one,), mode=mode), scale)


def test_demand_is_what_runs_waits_and_was_turned_away() -> None:
    found = report(
        in_flight=32,
        queue_depth=8,
        flow=Flow(served=400, shed={Reason.GATE: 600}, mean_service_s=4.0, refused_per_s=2.5),
    )
    assert found.demand == 32 + 8 + 2.5 * 4.0
    assert found.utilization == 1.0
    # 50 / (0.7 x 32)
    assert found.desired_backends == 3
    assert found.computation == (
        "demand 50.0 = 32 in flight + 8 queued + 2.50/s refused x 4.00 s; "
        "3 = ceil(50.0 / (0.7 x 32 slots))"
    )
    assert "Add 2 backends" in found.advice


def test_a_pool_without_a_queue_sees_what_it_sheds() -> None:
    shedding = Flow(served=100, shed={Reason.GATE: 900}, mean_service_s=2.0, refused_per_s=30.0)
    assert report(in_flight=4, flow=shedding).demand == 64.0
    assert report(in_flight=4).demand == 4.0


@pytest.mark.parametrize("served", [MIN_SAMPLES - 1, MIN_SAMPLES])
def test_there_is_no_verdict_on_fewer_than_twenty_samples(served: int) -> None:
    found = report(flow=Flow(served=served))
    assert found.verdict is (FEW if served < MIN_SAMPLES else OK)
    refused_too = report(flow=Flow(served=served - 5, shed={Reason.GATE: 5}))
    assert refused_too.verdict is (FEW if served < MIN_SAMPLES else UNDER)


@pytest.mark.parametrize(
    ("served", "shed", "verdict"),
    [
        (1000, {}, OK),
        (1000, {Reason.GATE: 1}, OK),
        (1000, {Reason.GATE: 20}, UNDER),
        (1000, {Reason.QUEUE_FULL: 20}, UNDER),
        (1000, {Reason.QUEUE_TIMEOUT: 20}, UNDER),
        (1000, {Reason.REQUEST_TOO_LARGE: 20}, OTHER),
        (1000, {Reason.NO_BACKENDS: 20}, OTHER),
        (0, {Reason.NO_BACKENDS: 20}, OTHER),
        (1000, {Reason.RATE_LIMITED: 20}, OTHER),
        (1000, {Reason.REQUEST_TOO_LARGE: 500, Reason.GATE: 50}, UNDER),
    ],
)
def test_the_verdict_follows_what_was_shed(
    served: int, shed: dict[Reason, int], verdict: CapacityVerdict
) -> None:
    assert report(flow=Flow(served=served, shed=shed)).verdict is verdict


@pytest.mark.parametrize("reason", [one for one in Reason if one not in CAPACITY_REASONS])
def test_more_backends_are_never_advised_for_what_they_cannot_cure(reason: Reason) -> None:
    found = report(flow=Flow(served=5, shed={reason: 500}, mean_service_s=9.0))
    assert found.verdict is OTHER
    assert found.desired_backends == 0
    assert found.advice.startswith("More backends would not help.")
    assert "Add" not in found.advice.removeprefix("More backends would not help.") or (
        # Their own rows: a backend of another kind, not another one of this pool.
        "serves" in found.advice
    )


def test_backends_that_are_down_come_back_before_others_are_added() -> None:
    flow = Flow(served=10, shed={Reason.QUEUE_TIMEOUT: 100}, mean_service_s=9.0, refused_per_s=9.0)
    found = report(backend("sim-a", live=False), backend("sim-b"), flow=flow)
    assert (found.backends, found.out_of_service) == (1, 1)
    assert found.advice == "Start or undrain the 1 out of service before any is added."


@pytest.mark.parametrize(
    ("flow", "verdict"),
    [
        (Flow(served=1000), OK),
        (Flow(served=MIN_SAMPLES - 1), FEW),
        (Flow(served=100, shed={Reason.REQUEST_TOO_LARGE: 50}), OTHER),
    ],
)
@pytest.mark.parametrize(("in_flight", "desired"), [(22, 1), (23, 2), (32, 2), (90, 5)])
def test_a_verdict_that_is_not_of_load_says_why_more_backends_are_desired_all_the_same(
    flow: Flow, verdict: CapacityVerdict, in_flight: int, desired: int
) -> None:
    found = report(in_flight=in_flight, flow=flow)
    assert (found.verdict, found.desired_backends, found.backends) == (verdict, desired, 1)
    says = "the demand of this moment is above 70% of the slots in service" in found.advice
    assert says is (desired > 1)
    assert "Nothing to do." not in found.advice or desired == 1


def test_waits_of_half_the_ttl_are_too_little_capacity_though_nothing_is_refused() -> None:
    flow = Flow(served=100)
    waiting: dict[str, Any] = {"queue_ttl_s": 30.0, "queue_depth": 3, "flow": flow}
    assert report(wait_p95_s=15.0, **waiting).verdict is UNDER
    assert report(wait_p95_s=14.0, **waiting).verdict is OK
    # It is over: the waits are those of a queue that has emptied since.
    assert report(wait_p95_s=15.0, **{**waiting, "queue_depth": 0}).verdict is OK


@pytest.mark.parametrize(
    ("backends", "mode", "current", "full"),
    [
        ((backend("a"), backend("b", live=False)), Mode.DEFAULT, 32, 64),
        ((backend("a"), backend("b", operator_state=OperatorState.MAINT)), Mode.DEFAULT, 32, 64),
        ((backend("a"), backend("b")), Mode.SUPERFAST, 8, 8),
        ((backend("a", configured_limit=0),), Mode.DEFAULT, None, None),
        ((backend("a", configured_limit=0),), Mode.SUPERFAST, 4, 4),
    ],
)
def test_the_full_limit_is_with_everything_up(
    backends: tuple[Any, ...], mode: Mode, current: int | None, full: int | None
) -> None:
    found = report(*backends, mode=mode, effective_concurrency=current)
    assert (found.current_limit, found.full_limit) == (current, full)


def test_the_full_limit_of_a_scaled_pool_is_that_of_all_its_replicas() -> None:
    four = [backend(f"sim-{number}", configured_limit=64) for number in range(4)]
    found = report(*four, scale=FullScale(16, 0.5), in_flight=256)
    assert found.full_limit == 1024
    assert (found.target, found.desired_backends) == (0.5, 8)


def test_an_ungated_pool_has_no_utilization_and_counts_as_the_default() -> None:
    found = report(backend("a", configured_limit=0), effective_concurrency=None, in_flight=40)
    assert (found.utilization, found.desired_backends) == (None, 2)


@pytest.mark.parametrize(
    ("demand", "slots", "target", "count"),
    [
        (0.0, 32.0, 0.7, 0),
        (0.1, 32.0, 0.7, 1),
        (22.4, 32.0, 0.7, 1),
        (22.5, 32.0, 0.7, 2),
        (179.2, 64.0, 0.7, 4),
        (256.0, 64.0, 0.5, 8),
        (257.0, 64.0, 0.5, 9),
    ],
)
def test_as_few_backends_as_carry_the_demand_at_the_target(
    demand: float, slots: float, target: float, count: int
) -> None:
    assert backends_for(demand, slots, target) == count


def test_a_pool_that_nobody_serves_wants_no_backends_of_its_own_making() -> None:
    one = pool("m", (), queue_depth=5, effective_concurrency=0)
    found = report_of(one, view((), (one,)))
    assert (found.desired_backends, found.current_limit, found.full_limit) == (0, 0, 0)
    scaled = report_of(one, view((), (one,)), FullScale(4, 0.7))
    assert (scaled.desired_backends, scaled.full_limit) == (1, 128)
