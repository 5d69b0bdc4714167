"""The virtual router: conservation, caps, waits, refusals, and the same run from the same seed."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from lifeboat.simulate.traces import Arrival, excerpt, read_trace, synthetic
from tests.shared_files import shared_path
from tests.simulate.worlds import entry, run

BURST = [Arrival(0.0, 100, 50) for _ in range(20)]


def test_a_burst_over_the_limit_is_refused_without_a_queue_and_parked_with_one(
    tmp_path: Path,
) -> None:
    backend = entry(max_concurrency=4)
    refused = run(tmp_path, BURST, backend)
    assert (refused.answered, refused.refused) == (4, {"gate": 16})
    parked = run(tmp_path, BURST, backend, queue={"enabled": True})
    assert (parked.answered, parked.parked) == (20, 16)
    assert parked.wait.mean_s > 0.0
    full = run(tmp_path, BURST, backend, queue={"enabled": True, "max_depth": 6})
    assert (full.answered, full.refused) == (10, {"queue_full": 10})
    short = run(tmp_path, BURST, backend, queue={"enabled": True, "ttl": "50ms"})
    assert set(short.refused) == {"queue_timeout"}
    assert short.answered + short.refusals == 20


def test_never_more_in_flight_than_the_limit_and_every_request_ends(tmp_path: Path) -> None:
    trace = synthetic(300.0, 5.0, 400, 60, seed=3)
    two = [entry("a", max_concurrency=3), entry("b", max_concurrency=5)]
    figures = run(tmp_path, trace, *two, queue={"enabled": True, "max_depth": 30})
    assert figures.requests == len(trace) == figures.answered + figures.refusals
    assert max(point.in_flight for point in figures.course) == 8
    assert max(point.parked for point in figures.course) == 30
    assert all(figures.by_backend.values())
    assert 0.5 < (figures.utilization or 0.0) <= 1.0


def test_an_engine_that_refuses_is_met_and_clients_with_a_queue_do_not_see_it(
    tmp_path: Path,
) -> None:
    backend = entry(max_concurrency=16, simulate={"max_waiting": 2})
    without = run(tmp_path, BURST, backend)
    assert without.refused["529"] > 0
    parked = run(tmp_path, BURST, backend, queue={"enabled": True})
    assert parked.answered == 20
    assert parked.engine_refusals > 0


def test_a_request_that_the_engine_could_never_hold_is_answered_400(tmp_path: Path) -> None:
    figures = run(tmp_path, [Arrival(0.0, 200_000, 5)], entry(max_concurrency=4))
    assert figures.refused == {"400": 1}
    capped = entry(max_concurrency=4, max_input_tokens=1000)
    assert run(tmp_path, [Arrival(0.0, 2000, 5)], capped).refused == {"request_too_large": 1}


def test_aliases_and_unknown_names_are_as_in_the_router(tmp_path: Path) -> None:
    trace = [Arrival(0.0, 10, 5, "alias"), Arrival(0.1, 10, 5, "nobody")]
    figures = run(tmp_path, trace, entry(), models={"alias": {"alias_of": "m"}})
    assert (figures.answered, figures.refused) == (1, {"no_backends": 1})


def test_an_engine_slowed_down_in_time_takes_as_many_times_as_long(tmp_path: Path) -> None:
    one = [Arrival(0.0, 100, 50)]
    fast = run(tmp_path, one, entry())
    slow = run(tmp_path, one, entry(simulate={"time_scale": 10.0}))
    hops_s = 0.002
    assert slow.took.mean_s - hops_s == pytest.approx(10 * (fast.took.mean_s - hops_s))


def test_the_same_trace_gives_the_same_figures(tmp_path: Path) -> None:
    trace = synthetic(100.0, 5.0, 400, 60, seed=3)
    top = {"queue": {"enabled": True}}
    backend = entry(max_concurrency=4, adaptive=True)
    first = run(tmp_path, trace, backend, **top)
    assert run(tmp_path, trace, backend, **top) == first
    later = [replace(trace[0], at_s=trace[0].at_s + 0.001), *trace[1:]]
    assert run(tmp_path, later, backend, **top) != first


def test_the_azure_hour_with_four_engines_takes_less_than_a_minute_of_cpu(tmp_path: Path) -> None:
    trace = read_trace(shared_path("traces/azure2023_code.csv"))
    backend = entry(max_concurrency=32, replicas=4, simulate={"max_num_seqs": 32})
    began = time.process_time()
    figures = run(tmp_path, trace, backend, queue={"enabled": True})
    assert time.process_time() - began < 60.0
    assert figures.requests == 8819 == figures.answered
    assert len(figures.by_backend) == 4


def test_a_faster_clock_and_fewer_slots_make_them_wait(tmp_path: Path) -> None:
    trace = excerpt(read_trace(shared_path("traces/azure2023_code.csv")), 0.0, 300.0, 30.0)
    top = {"queue": {"enabled": True}}
    few = run(tmp_path, trace, entry(max_concurrency=4), **top)
    more = run(tmp_path, trace, entry(max_concurrency=4), case="replicas=4", **top)
    assert few.wait.mean_s > more.wait.mean_s
    assert few.good <= more.good
