"""The learned limit on a simulated engine: 64 seats, then 16, then 64 again, with a line of 8."""

from __future__ import annotations

from statistics import mean

import pytest

from tests.adaptive.closed_loop import Course, run

FIXED = (24, 72)
"""The best fixed limits of the phases: the seats and the line."""


@pytest.fixture(scope="module")
def learned() -> Course:
    return run(256, adaptive=True)


def test_it_is_within_15_percent_of_the_seats_in_10_virtual_seconds_and_stays(
    learned: Course,
) -> None:
    settled = learned.between(10.0, 30.0)
    assert 0.85 * 64 <= min(settled)
    assert max(settled) <= 1.15 * 64
    assert "adaptive" in learned.reasons


def test_it_comes_down_within_10_seconds_of_a_lost_capacity(learned: Course) -> None:
    settled = learned.between(40.0, 60.0)
    assert 0.85 * 16 <= mean(settled) <= 1.15 * 16
    assert max(settled) <= 16 + 8


def test_it_is_back_within_10_seconds_of_the_capacitys_return(learned: Course) -> None:
    settled = learned.between(70.0, 90.0)
    assert 0.85 * 64 <= min(settled)
    assert max(settled) <= 1.15 * 64


def test_clients_see_no_529(learned: Course) -> None:
    assert set(learned.ended) == {"answered"}


def test_its_throughput_is_95_percent_of_the_best_fixed_limits_in_every_phase(
    learned: Course,
) -> None:
    fixed = [run(limit, adaptive=False).tokens_per_s for limit in FIXED]
    for phase, rate in enumerate(learned.tokens_per_s):
        assert rate >= 0.95 * max(rates[phase] for rates in fixed), phase


def test_an_engine_that_never_refuses_is_found_by_its_first_tokens_alone() -> None:
    course = run(256, adaptive=True, max_waiting=0, phases=((0.0, 64),), end_s=15.0)
    assert 0.85 * 64 <= mean(course.between(5.0, 15.0)) <= 1.15 * 64
    assert max(course.between(5.0, 15.0)) < 96


def test_few_users_never_raise_what_they_do_not_use() -> None:
    course = run(256, adaptive=True, users=10, phases=((0.0, 64),), end_s=10.0)
    assert max(course.between(0.0, 10.0)) == 32, "the slow start's own beginning"
