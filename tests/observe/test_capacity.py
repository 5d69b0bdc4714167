"""The page of `GET /api/lb/capacity`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from lifeboat.core.flow import Flow
from lifeboat.core.scaling import ScalingReason, ScalingStatus
from lifeboat.core.vocabulary import Reason
from lifeboat.observe.capacity import capacity_json
from tests.observe.scenes import backend, pool, view

STATUS = ScalingStatus("command", 1, 8, 0.5, 0, 4, 3, ScalingReason.SUSTAINED, "no \ud800 quota")


def page(*args: Any) -> dict:
    return orjson.loads(orjson.dumps(capacity_json(*args)))


def test_a_pool_in_figures() -> None:
    flow = Flow(900, {Reason.GATE: 100}, 2.0, 1.5, 77)
    one = pool(
        in_flight=30, queue_depth=2, flow=flow, max_requests_per_minute=600,
        requests_last_minute=500,
    )  # fmt: skip
    found = page(view((backend(),), (one,)), {})
    assert found["window_sec"] == 300.0
    shown = found["pools"]["m"]
    assert (shown["current_concurrency_limit"], shown["full_concurrency_limit"]) == (32, 32)
    assert (shown["max_requests_per_minute"], shown["requests_last_minute"]) == (600, 500)
    assert (shown["in_flight"], shown["queued"], shown["demand"]) == (30, 2, 35.0)
    assert (shown["utilization"], shown["served"], shown["samples"]) == (0.938, 900, 1000)
    assert set(shown["shed"]) == {reason.value for reason in Reason}
    assert shown["shed"]["gate"] == 100 and shown["verdict"] == "under_capacity"
    assert (shown["desired_backends"], shown["scaling"]) == (2, None)
    assert "2 = ceil(35.0 / (0.7 x 32 slots))" in shown["computation"]


def test_a_scaled_pool_shows_its_scaling_and_any_failure_can_be_encoded() -> None:
    shown = page(view(), {"m": STATUS})["pools"]["m"]
    assert shown["full_concurrency_limit"] == 8 * 32
    assert shown["target_utilization"] == 0.5
    scaling = shown["scaling"]
    assert (scaling["present"], scaling["wanted"], scaling["max"]) == (1, 4, 8)
    assert scaling["reason"] == "sustained" and "quota" in scaling["failure"]
    assert (
        page(view(), {"m": replace(STATUS, failure=None)})["pools"]["m"]["scaling"]["failure"]
        is None
    )


def test_the_pool_of_unknown_names_is_left_out_and_infinities_are_null() -> None:
    ungated = pool("m", effective_concurrency=None)
    found = page(
        view((backend(configured_limit=0),), (ungated, pool("unknown", (), listed=False))), {}
    )
    assert set(found["pools"]) == {"m"}
    shown = found["pools"]["m"]
    assert shown["current_concurrency_limit"] is None and shown["utilization"] is None
