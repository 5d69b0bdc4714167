"""Warnings that follow from the live state."""

from __future__ import annotations

import pytest

from lifeboat.core.vocabulary import EngineReading
from lifeboat.observe.warnings import all_warnings, lingering, shown_url, undrainable
from tests.observe.scenes import backend, pool, view


@pytest.mark.parametrize(
    ("limit", "slots", "warned"),
    [(4, 4, False), (5, 4, True), (0, 4, True), (32, None, False), (1, 4, False)],
)
def test_a_limit_above_the_slots_of_the_server_is_a_warning(
    limit: int, slots: int | None, warned: bool
) -> None:
    found = all_warnings(
        view((backend(configured_limit=limit),)), {}, {"sim-a": EngineReading(slots=slots)}
    )
    assert [w.backend for w in found] == (["sim-a"] if warned else [])
    if warned:
        assert "4 slots" in found[0].message


def test_requests_waiting_inside_a_server_are_a_warning() -> None:
    found = all_warnings(view(), {}, {"sim-a": EngineReading(waiting=3)})
    assert [w.message.partition(":")[0] for w in found] == [
        "3 requests wait inside the server of sim-a (it holds 0 of ours)"
    ]


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({"drain_rate_per_s": 2.0, "queue_limit": 61}, True),
        ({"drain_rate_per_s": 2.0, "queue_limit": 60}, False),
        ({"drain_rate_per_s": None, "queue_limit": 61}, False),
        ({"drain_rate_per_s": 2.0, "queue_limit": 61, "drain_seen": 19}, False),
        ({"drain_rate_per_s": 2.0, "queue_limit": 61, "queue_ttl_s": 31.0}, False),
        ({"drain_rate_per_s": 2.0, "queue_limit": 61, "queue_enabled": False}, False),
    ],
)
def test_a_ceiling_that_cannot_drain_within_the_ttl_is_a_warning(
    changes: dict, warned: bool
) -> None:
    found = all_warnings(view(pools=(pool(**{"queue_enabled": True, **changes}),)), {}, {})
    assert len(found) == warned
    if warned:
        assert "may hold 61 requests" in found[0].message
        assert "only 60 would be served" in found[0].message


@pytest.mark.parametrize(
    ("expected", "changes", "warned"),
    [
        (2.0, {"queue_limit": 61}, True),
        (2.0, {"queue_limit": 60}, False),
        (2.0, {"queue_limit": 61, "queue_enabled": False}, False),
        # What was measured counts, once it was.
        (2.0, {"queue_limit": 61, "drain_rate_per_s": 9.0}, False),
        (9.0, {"queue_limit": 61, "drain_rate_per_s": 2.0}, True),
        # Of a few requests it counts not yet.
        (9.0, {"queue_limit": 61, "drain_rate_per_s": 2.0, "drain_seen": 19}, False),
    ],
)
def test_before_a_rate_was_measured_the_known_one_of_the_engines_counts(
    expected: float, changes: dict, warned: bool
) -> None:
    one = pool(**{"name": "m", "queue_enabled": True, "drain_rate_per_s": None, **changes})
    found = all_warnings(view(pools=(one,)), {}, {}, (), {"m": expected})
    assert len(found) == warned
    assert all_warnings(view(pools=(one,)), {}, {}, (), {"other": 0.01}) == [
        one for one in found if "of late" in one.message
    ]
    if warned and "drain_rate_per_s" not in changes:
        assert "its simulated engines serve 60 of usual length" in found[0].message


@pytest.mark.parametrize(("ttl_s", "most"), [(30.0, 60), (60.0, 60), (90.0, 120)])
def test_a_ceiling_that_the_rate_limit_never_lets_fill_promises_nothing(
    ttl_s: float, most: int
) -> None:
    def found(rate: float) -> list:
        one = pool(
            queue_enabled=True, queue_limit=10_000, queue_ttl_s=ttl_s,
            max_requests_per_minute=60, drain_rate_per_s=rate,
        )  # fmt: skip
        return undrainable(view(pools=(one,)), {})

    assert found(most / ttl_s) == []
    (warned,) = found((most - 1) / ttl_s)
    assert f"may hold {most} requests, but of late only {most - 1} " in warned.message


@pytest.mark.parametrize(
    ("rate", "stands", "lingers"),
    [(1.9, True, True), (2.0, False, True), (2.4, False, True), (2.5, False, False),
     (None, False, True)],
)  # fmt: skip
def test_a_rate_near_the_border_or_forgotten_is_not_clearly_better(
    rate: float | None, stands: bool, lingers: bool
) -> None:
    one = pool(queue_enabled=True, queue_limit=60, drain_rate_per_s=rate)
    assert bool(undrainable(view(pools=(one,)), {})) is stands
    assert bool(lingering(view(pools=(one,)), {})) is lingers
    off = pool(queue_enabled=False, queue_limit=60, drain_rate_per_s=rate)
    assert lingering(view(pools=(off,)), {}) == []


def test_a_limit_that_a_predecessor_takes_from_is_a_warning() -> None:
    after = backend(effective_limit=5, limit_reason="predecessor")
    (found,) = all_warnings(view((after,)), {}, {})
    assert found.backend == "sim-a"
    assert found.message.startswith("sim-a may hold 5 instead of 32:")


def test_two_names_with_one_url_are_a_warning_without_its_password() -> None:
    urls = {"a": "http://u:pw@h:1/", "b": "HTTP://u:pw@h:1/v1", "c": "http://h:2"}
    (found,) = all_warnings(view(), urls, {})
    assert found.backend is None
    assert found.message.startswith("a, b have one url, http://h:1:")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8081", "http://127.0.0.1:8081"),
        ("http://[::1]:8081/v1", "http://[::1]:8081/v1"),
        ("https://key@host/v1?x=a@b", "https://host/v1?x=a@b"),
        ("https://host/a@b", "https://host/a@b"),
    ],
)
def test_a_url_is_shown_without_its_credentials(url: str, shown: str) -> None:
    assert shown_url(url) == shown
