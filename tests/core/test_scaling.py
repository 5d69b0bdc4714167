"""The autoscaling controller against tables, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifeboat.core.scaling import (
    SAMPLES_KEPT,
    Decision,
    Sample,
    SampleRecord,
    ScalingPolicy,
    ScalingReason,
    decide,
    replicas_for,
)

SEED = ScalingPolicy(least=1, most=16, target=0.5)
"""The Parasail page: five minutes of sustained traffic, about five of start-up."""

Load = Callable[[float], float]
Step = tuple[float, int, ScalingReason]


def follow(
    policy: ScalingPolicy,
    offered: Load,
    current: int,
    until_s: float,
    *,
    slots: float = 64.0,
    tick_s: float = 1.0,
    fixed_slots: float = 0.0,
) -> tuple[list[Step], list[tuple[float, float]]]:
    """Run the controller; return its steps, and the slots that serve whenever they change."""
    record = SampleRecord(policy)
    steps: list[Step] = []
    serving: list[tuple[float, float]] = [(0.0, current * slots)]
    starting: list[tuple[float, int]] = []
    now = 0.0
    while now <= until_s:
        for ready_at, count in [one for one in starting if one[0] <= now]:
            starting.remove((ready_at, count))
            serving.append((now, count * slots))
        decision = decide(
            policy, record.add(Sample(now, offered(now), slots, fixed_slots)), current
        )
        if decision.desired != current:
            steps.append((now, decision.desired, decision.reason))
            if decision.desired > current:
                starting.append((now + policy.startup_s, decision.desired))
            else:
                serving.append((now, decision.desired * slots))
            current = decision.desired
        now += tick_s
    return steps, serving


def constant(demand: float) -> Load:
    return lambda now: demand


def test_the_table_of_the_seed_256_and_then_512() -> None:
    steps, serving = follow(SEED, constant(256.0), 4, 3600.0)
    assert steps == [(300.0, 8, ScalingReason.SUSTAINED)]
    assert serving == [(0.0, 256.0), (600.0, 512.0)]


@pytest.mark.parametrize("lasts_s", [60.0, 299.0])
def test_traffic_that_does_not_last_five_minutes_adds_nothing(lasts_s: float) -> None:
    steps, _ = follow(SEED, lambda now: 256.0 if now < lasts_s else 100.0, 4, 590.0)
    assert steps == []


def test_a_dip_starts_the_five_minutes_again() -> None:
    steps, _ = follow(SEED, lambda now: 100.0 if 200.0 <= now < 210.0 else 256.0, 4, 700.0)
    assert steps == [(510.0, 8, ScalingReason.SUSTAINED)]


def test_the_least_of_the_five_minutes_decides() -> None:
    steps, _ = follow(SEED, lambda now: 200.0 + 50.0 * (now % 2), 4, 400.0)
    assert steps == [(300.0, 7, ScalingReason.SUSTAINED)]


def test_replicas_go_once_they_were_superfluous_for_the_whole_delay() -> None:
    steps, _ = follow(SEED, lambda now: 256.0 if now < 100.0 else 60.0, 8, 2000.0)
    assert steps == [(700.0, 2, ScalingReason.SUPERFLUOUS)]


def test_what_the_busiest_moment_of_the_delay_needed_stays() -> None:
    steps, _ = follow(SEED, lambda now: 60.0 + 100.0 * (int(now) % 300 == 0), 8, 5000.0)
    assert steps == [(600.0, 5, ScalingReason.SUPERFLUOUS)]


def test_a_burst_beyond_all_slots_does_not_wait_for_five_minutes() -> None:
    steps, _ = follow(SEED, lambda now: 100.0 if now < 60.0 else 700.0, 4, 200.0)
    # 700 / 32 is 22, and 16 is the most; a tenth of the five minutes is the burst's own sustain.
    assert steps == [(90.0, 16, ScalingReason.PANIC)]


@pytest.mark.parametrize(
    ("policy", "load"),
    [
        (replace(SEED, panic_factor=0.0), lambda now: 700.0),
        (SEED, lambda now: 512.0),
        (SEED, lambda now: 700.0 if int(now) % 20 else 400.0),
    ],
)
def test_no_panic_where_it_is_off_the_demand_is_less_or_it_does_not_last(
    policy: ScalingPolicy, load: Load
) -> None:
    steps, _ = follow(policy, load, 4, 299.0)
    assert steps == []


def test_a_pool_may_sleep_and_the_first_request_wakes_it_at_once() -> None:
    policy = replace(SEED, least=0)
    steps, _ = follow(policy, lambda now: 1.0 if now >= 2000.0 else 0.0, 2, 2400.0)
    assert steps == [
        (600.0, 0, ScalingReason.SUPERFLUOUS),
        (2000.0, 1, ScalingReason.WAKE),
    ]


def test_the_bounds_hold_from_the_first_look() -> None:
    policy = replace(SEED, least=2, most=3)
    assert follow(policy, constant(0.0), 1, 0.0)[0] == [(0.0, 2, ScalingReason.BOUNDS)]
    assert follow(policy, constant(9999.0), 8, 0.0)[0] == [(0.0, 3, ScalingReason.BOUNDS)]


def test_a_router_that_has_just_started_takes_nothing_away() -> None:
    assert follow(SEED, constant(0.0), 8, 599.0)[0] == []
    assert follow(SEED, constant(0.0), 8, 600.0)[0] == [(600.0, 1, ScalingReason.SUPERFLUOUS)]


def test_backends_that_are_not_scaled_take_their_part_first() -> None:
    steps, _ = follow(SEED, constant(256.0), 1, 400.0, fixed_slots=256.0)
    # 256 - 0.5 x 256 is left for replicas of 64.
    assert steps == [(300.0, 4, ScalingReason.SUSTAINED)]


@given(
    st.lists(st.floats(0.0, 2000.0), min_size=2, max_size=40),
    st.integers(0, 3),
    st.integers(3, 20),
    st.integers(0, 25),
    st.floats(0.1, 1.0),
)
def test_the_bounds_are_never_left_and_every_step_has_its_ground(
    demands: list[float], least: int, most: int, current: int, target: float
) -> None:
    policy = ScalingPolicy(least, most, target, 60.0, 0.0, 120.0)
    record = SampleRecord(policy)
    seen: list[Sample] = []
    for number, demand in enumerate(demands):
        seen.append(Sample(number * 10.0, demand, 32.0))
        found = decide(policy, record.add(seen[-1]), current)
        assert least <= found.desired <= most
        if least <= current <= most:
            wanted = [replicas_for(policy, sample) for sample in seen]
            if found.desired > current:
                assert found.desired <= max(wanted) and found.raw > current
            if found.desired < current:
                assert found.desired >= min(wanted) and max(wanted[-13:]) < current
        current = found.desired


@given(st.floats(0.001, 10.0), st.floats(1.0, 5000.0))
def test_samples_are_bounded_and_cover_the_window(tick_s: float, window_s: float) -> None:
    policy = ScalingPolicy(sustain_s=window_s, scale_down_delay_s=window_s)
    record = SampleRecord(policy)
    kept = record.add(Sample(0.0, 1.0, 1.0))
    for number in range(1, 1500):
        kept = record.add(Sample(number * tick_s, 1.0, 1.0))
        assert len(kept) <= 2 * SAMPLES_KEPT
    assert kept[-1].at == 1499 * tick_s
    if 1499 * tick_s >= window_s:
        assert kept[0].at <= kept[-1].at - window_s


def test_a_steady_pool_says_so() -> None:
    found = decide(SEED, [Sample(0.0, 100.0, 64.0)], 4)
    assert found == Decision(4, 4, ScalingReason.STEADY)
