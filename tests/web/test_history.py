"""The last quarter of an hour: peaks are kept, refusals are counted once, memory is bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifeboat.core.vocabulary import Reason
from lifeboat.observe.history import MOST_POOLS, PERIOD_S, WINDOW_S, History, history_json
from tests.observe.scenes import pool, reasons, view

BINS = int(WINDOW_S / PERIOD_S)


def shown(history: History, now: float) -> dict:
    return history_json(history, now)


def test_a_router_without_a_past_shows_empty_columns() -> None:
    assert shown(History(), 0.0) == {
        "period_sec": 5.0,
        "window_sec": 900.0,
        "age_sec": [],
        "total": {"in_flight": [], "queue_depth": [], "wait_p95_sec": [], "rejected": {}},
        "pools": {},
    }


def test_a_burst_between_two_bins_ends_is_not_missed() -> None:
    history = History()
    for at, in_flight, depth, p95_s in ((10.0, 1, 0, 0.1), (12.0, 9, 4, 0.7), (14.9, 0, 0, 0.3)):
        busy = pool(in_flight=in_flight, queue_depth=depth, wait_p95_s=p95_s)
        history.sample(view(pools=(busy,), now=at, wait_p95_s=p95_s))
    columns = {
        "in_flight": [9], "queue_depth": [4], "wait_p95_sec": [0.7], "rejected": {}
    }  # fmt: skip
    page = shown(history, 14.9)
    assert page["age_sec"] == [0.0]
    assert page["total"] == columns
    assert page["pools"] == {"m": columns}


def test_a_refusal_is_counted_in_the_bin_it_came_in_and_never_again() -> None:
    history = History()
    for at, full, gate in ((1.0, 2, 0), (2.0, 3, 0), (6.0, 3, 1), (11.0, 3, 1)):
        refusing = pool(rejected=reasons(queue_full=full, gate=gate))
        history.sample(view(pools=(refusing,), now=at))
    page = shown(history, 11.0)
    assert page["age_sec"] == [10.0, 5.0, 0.0]
    expected = {"gate": [0, 1, 0], "queue_full": [3, 0, 0]}
    assert page["total"]["rejected"] == page["pools"]["m"]["rejected"] == expected


def test_counters_that_begin_anew_count_from_zero() -> None:
    history = History()
    for at, count in ((1.0, 7), (6.0, 2)):
        history.sample(view(pools=(pool(rejected=reasons(gate=count)),), now=at))
    assert shown(history, 6.0)["pools"]["m"]["rejected"] == {"gate": [7, 2]}


def test_refusals_of_names_that_nobody_serves_are_in_the_total_alone() -> None:
    history = History()
    unknown = pool("unknown", (), rejected=reasons(no_backends=4), listed=False)
    history.sample(view(pools=(unknown,), now=1.0))
    page = shown(history, 1.0)
    assert page["total"]["rejected"] == {"no_backends": [4]}
    assert page["pools"] == {}


def test_a_pool_shows_zeros_for_the_bins_in_which_it_was_idle() -> None:
    history = History()
    history.sample(view(now=1.0))
    history.sample(view(pools=(pool(in_flight=3),), now=6.0))
    history.sample(view(pools=(), now=11.0))
    assert shown(history, 11.0)["pools"]["m"]["in_flight"] == [0, 3, 0]


def test_what_is_older_than_the_window_is_gone_even_without_new_samples() -> None:
    history = History()
    history.sample(view(pools=(pool(in_flight=1),), now=0.0))
    assert shown(history, WINDOW_S - 0.1)["total"]["in_flight"] == [1]
    assert shown(history, WINDOW_S)["total"]["in_flight"] == []


def test_a_clock_that_steps_back_stays_in_the_newest_bin() -> None:
    history = History()
    history.sample(view(pools=(pool(in_flight=1),), now=20.0))
    history.sample(view(pools=(pool(in_flight=2),), now=3.0))
    page = shown(history, 3.0)
    assert (page["age_sec"], page["total"]["in_flight"]) == ([0.0], [2])


def test_the_busiest_pools_of_a_bin_stay_and_no_more() -> None:
    history = History()
    pools = tuple(pool(f"lora-{number}", in_flight=number + 1) for number in range(1000))
    history.sample(view(pools=pools, now=1.0))
    names = set(shown(history, 1.0)["pools"])
    assert names == {f"lora-{number}" for number in range(1000 - MOST_POOLS, 1000)}


def test_a_name_that_utf8_cannot_carry_is_made_safe() -> None:
    history = History()
    history.sample(view(pools=(pool("\ud800m", in_flight=1),), now=1.0))
    assert set(shown(history, 1.0)["pools"]) == {"?m"}


@pytest.mark.parametrize("step_s", [0.1, 1.0, 5.0, 7.0, 400.0])
def test_there_are_never_more_bins_than_the_window_has(step_s: float) -> None:
    history = History()
    for number in range(2 * BINS):
        history.sample(view(now=number * step_s))
    assert len(history.moments(2 * BINS * step_s)) <= BINS


@given(st.lists(st.tuples(st.floats(0.0, 30.0), st.integers(0, 5)), min_size=1, max_size=60))
def test_refusals_of_the_history_sum_up_to_the_counter(steps: list[tuple[float, int]]) -> None:
    """As long as nothing has left the window, whatever the pace of the samples."""
    history, now, counted = History(), 0.0, 0
    for pause_s, came in steps:
        now = min(now + pause_s, WINDOW_S - 1.0)
        counted += came
        history.sample(view(pools=(pool(rejected=reasons(queue_timeout=counted)),), now=now))
    for columns in (shown(history, now)["total"], *shown(history, now)["pools"].values()):
        found = columns["rejected"].get(Reason.QUEUE_TIMEOUT.value, [])
        assert sum(found) == counted
        assert all(count >= 0 for count in found)
