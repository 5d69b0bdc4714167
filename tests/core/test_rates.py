"""Requests per minute, over every window of 60 seconds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lifeboat.core.rates import RateWindow


@given(st.integers(1, 5), st.lists(st.integers(0, 120), max_size=80))
def test_no_window_of_a_minute_holds_more_than_the_limit(limit: int, steps: list[int]) -> None:
    rate = RateWindow(limit)
    now, taken = 0.0, []
    for quarters in steps:
        now += quarters / 4
        wait_s = rate.wait_s(now)
        inside = [at for at in taken if at > now - 60.0]
        assert (wait_s == 0.0) is (len(inside) < limit)
        if wait_s == 0.0:
            rate.take(now)
            taken.append(now)
        else:
            assert rate.wait_s(now + wait_s - 0.25) > 0.0 or wait_s < 0.25
    for start in taken:
        assert sum(start <= at < start + 60.0 for at in taken) <= limit


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30))
def test_the_wait_told_is_exactly_long_enough(steps: list[int]) -> None:
    rate, now = RateWindow(2), 0.0
    for quarters in steps:
        now += quarters / 4
        wait_s = rate.wait_s(now)
        if wait_s > 0.0:
            now += wait_s
            assert rate.wait_s(now) == 0.0
        rate.take(now)


def test_a_limit_lowered_at_run_time_waits_until_enough_have_aged() -> None:
    rate = RateWindow(4)
    for at in (0.0, 10.0, 20.0, 30.0):
        rate.take(at)
    rate.limit = 2
    assert rate.wait_s(30.0) == 20.0 + 60.0 - 30.0
    assert rate.used(61.0) == 3


def test_memory_is_bounded_by_the_limit() -> None:
    rate = RateWindow(10)
    for step in range(10_000):
        if rate.wait_s(step * 1.0) == 0.0:
            rate.take(step * 1.0)
    assert len(rate._times) <= 10


def test_what_is_given_back_makes_room_at_once_and_only_once() -> None:
    rate = RateWindow(2)
    rate.take(1.0)
    rate.take(2.0)
    assert rate.wait_s(3.0) == 58.0
    rate.give_back(1.0)
    assert (rate.wait_s(3.0), rate.used(3.0)) == (0.0, 1)
    rate.give_back(1.0)
    assert rate.used(3.0) == 1
