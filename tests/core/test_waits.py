"""Waits and drain rate: what the percentiles and Retry-After are made of."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifeboat.core.waits import (
    RETRY_AFTER_MAX_S,
    WINDOW_S,
    DrainRate,
    WaitRecord,
    expected_wait_s,
    retry_after_s,
)


def naive_percentile(waits: list[float], part: float) -> float:
    return sorted(waits)[max(math.ceil(part * len(waits)), 1) - 1]


# ---- waits --------------------------------------------------------------------------------------


def test_an_empty_record_reads_as_zeros() -> None:
    assert WaitRecord().percentiles(12.0) == (0.0, 0.0, 0.0)


@given(st.lists(st.floats(0.0, 600.0), min_size=1, max_size=127))
def test_percentiles_are_the_nearest_rank_of_all_waits_while_they_are_few(
    waits: list[float],
) -> None:
    record = WaitRecord()
    for wait_s in waits:
        record.add(wait_s, 100.0)

    expected = tuple(naive_percentile(waits, part) for part in (0.50, 0.95, 0.99))
    assert record.percentiles(100.0) == expected


@given(st.lists(st.tuples(st.floats(-1.0, 50.0), st.floats(-5.0, 90.0)), max_size=300))
def test_percentiles_are_ordered_and_never_negative_whatever_the_clock_does(
    steps: list[tuple[float, float]],
) -> None:
    record = WaitRecord()
    now = 1000.0
    for wait_s, step_s in steps:
        now += step_s
        record.add(wait_s, now)
        p50, p95, p99 = record.percentiles(now)
        assert 0.0 <= p50 <= p95 <= p99 <= 50.0


def test_a_read_after_an_add_sees_the_new_wait() -> None:
    record = WaitRecord()
    record.add(1.0, 100.0)
    assert record.percentiles(100.0) == (1.0, 1.0, 1.0)
    record.add(3.0, 100.0)
    record.add(3.0, 100.0)
    assert record.percentiles(100.0) == (3.0, 3.0, 3.0)


@pytest.mark.parametrize(
    ("age_s", "remembered"), [(0.0, True), (WINDOW_S - 10.1, True), (WINDOW_S, False)]
)
def test_a_wait_is_remembered_for_five_minutes_less_a_slice(age_s: float, remembered: bool) -> None:
    record = WaitRecord()
    record.add(7.0, 1000.0)
    assert (record.percentiles(1000.0 + age_s)[0] == 7.0) is remembered


def test_a_record_that_emptied_starts_again() -> None:
    record = WaitRecord()
    record.add(7.0, 0.0)
    assert record.percentiles(1000.0) == (0.0, 0.0, 0.0)
    record.add(2.0, 1001.0)
    assert record.percentiles(1001.0) == (2.0, 2.0, 2.0)


def test_a_busy_record_keeps_at_most_4096_samples_and_still_covers_the_window() -> None:
    """The first minute waits 1 s, the rest 2 s, at 100 a second: the old minute is not lost."""
    record = WaitRecord()
    for tick in range(30_000):
        now = tick * 0.01
        record.add(1.0 if now < 60.0 else 2.0, now)

    kept = sum(len(piece.samples) for piece in record._slices)
    covered = sum(len(p.samples) * p.stride for p in record._slices if p.samples[0] == 1.0)
    assert kept <= 4096
    assert covered == pytest.approx(6_000, rel=0.03)


def test_a_burst_weighs_as_many_as_it_has_and_not_as_many_as_are_kept() -> None:
    """10,000 waits of 1 s in one slice, 99 of 9 s in another: p95 is 1 s."""
    record = WaitRecord()
    for _ in range(10_000):
        record.add(1.0, 5.0)
    for _ in range(99):
        record.add(9.0, 15.0)

    assert record.percentiles(15.0)[1] == 1.0


def test_thinning_keeps_an_even_spread_of_a_ramp() -> None:
    record = WaitRecord()
    for step in range(5_000):
        record.add(step / 5_000, 5.0)

    assert record.percentiles(5.0) == pytest.approx((0.50, 0.95, 0.99), abs=0.02)


# ---- drain rate ---------------------------------------------------------------------------------


def run_slots(
    rate: DrainRate, *, start: float, count: int, slots: int, held_s: float, full: bool = True
) -> float:
    """End `count` leases of `held_s` on `slots` evenly staggered slots; return the last instant."""
    now = start
    for number in range(count):
        now = start + held_s + number * held_s / slots
        rate.finished(now, now - held_s, full)
    return now


@pytest.mark.parametrize(
    ("slots", "held_s", "count"),
    [(1, 1.0, 60), (4, 2.0, 100), (32, 5.0, 400), (4, 60.0, 20), (512, 0.05, 30_000)],
)
def test_the_rate_of_a_full_pool_is_slots_over_service_time(
    slots: int, held_s: float, count: int
) -> None:
    rate = DrainRate()
    now = run_slots(rate, start=100.0, count=count, slots=slots, held_s=held_s)
    # The first finish opens the record with a whole hold: one hold too many at the worst.
    assert rate.per_second(now) == pytest.approx(slots / held_s, rel=0.2)


def test_too_few_finishes_are_no_rate() -> None:
    rate = DrainRate()
    assert rate.per_second(0.0) is None
    now = run_slots(rate, start=0.0, count=4, slots=4, held_s=1.0)
    assert rate.per_second(now) is None
    rate.finished(now + 0.25, now - 0.75, True)
    assert rate.per_second(now + 0.25) is not None


def test_what_was_seen_outlives_the_window_until_the_record_is_empty() -> None:
    rate = DrainRate()
    now = run_slots(rate, start=0.0, count=40, slots=1, held_s=10.0)
    assert rate.per_second(now) == pytest.approx(0.1)
    assert rate.seen == 40
    assert rate.per_second(now + 601.0) is None
    assert rate.seen == 0


def test_a_forgotten_rate_is_measured_anew_from_what_comes_after() -> None:
    rate = DrainRate()
    now = run_slots(rate, start=0.0, count=100, slots=1, held_s=1.0)
    rate.forget()
    assert (rate.per_second(now), rate.seen) == (None, 0)
    for number in range(1, 6):
        rate.finished(now + number / 8, now, True)
    assert rate.per_second(now + 5 / 8) == pytest.approx(8.0)
    assert rate.seen == 5


def test_light_load_says_nothing_about_the_rate() -> None:
    rate = DrainRate()
    now = run_slots(rate, start=0.0, count=500, slots=1, held_s=1.0, full=False)
    assert rate.per_second(now) is None


def test_an_idle_night_does_not_slow_the_rate_of_the_morning() -> None:
    rate = DrainRate()
    now = run_slots(rate, start=0.0, count=100, slots=4, held_s=2.0)
    before = rate.per_second(now)
    # Quiet for five minutes with one light request in the middle, then full again.
    rate.finished(now + 150.0, now + 148.0, False)
    now = run_slots(rate, start=now + 300.0, count=8, slots=4, held_s=2.0)
    assert before is not None
    assert rate.per_second(now) == pytest.approx(before, rel=0.1)


def test_a_night_longer_than_ten_minutes_is_forgotten() -> None:
    rate = DrainRate()
    now = run_slots(rate, start=0.0, count=100, slots=4, held_s=2.0)
    assert rate.per_second(now + 500.0) is not None
    assert rate.per_second(now + 601.0) is None


def test_a_slower_backend_shows_within_a_minute() -> None:
    rate = DrainRate()
    now = run_slots(rate, start=0.0, count=1000, slots=4, held_s=0.4)
    assert rate.per_second(now) == pytest.approx(10.0, rel=0.05)
    now = run_slots(rate, start=now, count=65, slots=4, held_s=4.0)
    assert rate.per_second(now) == pytest.approx(1.0, rel=0.1)


def test_leases_that_end_together_all_count_when_the_first_found_a_full_backend() -> None:
    rate = DrainRate()
    for batch in range(1, 7):
        for number in range(4):
            rate.finished(batch * 10.0, (batch - 1) * 10.0, number == 0)
    assert rate.per_second(60.0) == pytest.approx(0.4)


def test_a_straggler_after_the_rush_does_not_count() -> None:
    rate = DrainRate()
    now = run_slots(rate, start=0.0, count=100, slots=4, held_s=2.0)
    before = rate.per_second(now)
    rate.finished(now + 400.0, now, False)
    assert rate.per_second(now + 400.0) == before


def test_a_silence_that_somebody_waits_through_lowers_the_rate() -> None:
    rate = DrainRate()
    now = run_slots(rate, start=0.0, count=200, slots=4, held_s=2.0)
    steady = rate.per_second(now)
    assert steady is not None
    assert rate.per_second(now + 60.0) == steady, "nobody waited: an idle minute"
    hung = rate.per_second(now + 60.0, pressed_for_s=60.0)
    assert hung == pytest.approx(steady / 2, rel=0.05)
    assert rate.per_second(now + 60.0, pressed_for_s=0.1) == steady, "only just parked"


@given(
    st.lists(st.tuples(st.floats(-2.0, 30.0), st.floats(-2.0, 60.0), st.booleans()), max_size=400)
)
def test_the_rate_is_positive_and_memory_bounded_whatever_the_clock_does(
    steps: list[tuple[float, float, bool]],
) -> None:
    rate = DrainRate()
    now = 50.0
    for step_s, held_s, full in steps:
        now += step_s
        rate.finished(now, now - held_s, full)
        found = rate.per_second(now)
        assert found is None or found > 0.0
    assert len(rate._buckets) <= 130


def test_memory_of_the_rate_does_not_grow_with_load() -> None:
    rate = DrainRate()
    run_slots(rate, start=0.0, count=200_000, slots=1000, held_s=1.0)
    assert len(rate._buckets) <= 130


# ---- retry after --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("depth", "rate_per_s", "expected"),
    [
        (0, None, None),
        (10, 0.0, None),
        (10, math.nan, None),
        (0, 4.0, 0.25),
        (128, 43.0, 3.0),
        (-3, 1.0, 1.0),
        (100_000, 1.0, RETRY_AFTER_MAX_S),
        (0, 1e-9, RETRY_AFTER_MAX_S),
    ],
)
def test_retry_after_is_the_time_to_drain_what_is_ahead_or_nothing(
    depth: int, rate_per_s: float | None, expected: float | None
) -> None:
    assert retry_after_s(depth, rate_per_s) == expected


@given(
    st.integers(0, 10_000),
    st.floats(1e-6, 1e6),
    st.floats(0.0, 1.0, exclude_max=True),
)
def test_retries_are_spread_and_stay_below_two_minutes(
    depth: int, rate_per_s: float, chance: float
) -> None:
    told = retry_after_s(depth, rate_per_s, chance)
    expected = expected_wait_s(depth, rate_per_s)
    assert told is not None and expected is not None
    assert 0.0 < told <= RETRY_AFTER_MAX_S
    if expected * 1.25 <= RETRY_AFTER_MAX_S:
        assert expected <= told <= expected * 1.25
    else:
        # Cut off, and spread all the same.
        assert told >= 0.75 * RETRY_AFTER_MAX_S


def test_two_who_are_refused_together_are_told_different_times() -> None:
    for depth in (0, 10, 10_000):
        told = [retry_after_s(depth, 1.0, chance) for chance in (0.0, 0.3, 0.6, 0.9)]
        assert len(set(told)) == 4
