"""Warnings that follow from the live state."""

from __future__ import annotations

import pytest

from lifeboat.core.vocabulary import EngineReading
from lifeboat.observe.warnings import all_warnings, shown_url
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
