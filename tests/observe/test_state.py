"""The state page: every key, every backend, pool and reason, and JSON whatever the names."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from lifeboat.core.modes import Mode
from lifeboat.core.rejections import REJECTIONS
from lifeboat.core.vocabulary import EngineReading, Health, Reason
from lifeboat.observe.state import (
    Surroundings,
    backend_json,
    backends_json,
    mode_json,
    rejections_json,
    state_json,
)
from lifeboat.observe.warnings import Warned
from tests.observe.scenes import backend, pool, reasons, view

AROUND = Surroundings("1.2.3", started_at=990.0)


def page(state: object) -> Any:
    """Return what a client reads."""
    return orjson.loads(orjson.dumps(state))


def test_an_idle_router_shows_every_key_of_the_contract_in_its_order() -> None:
    state = page(state_json(view(), AROUND))
    contract = [
        "routing_mode", "queue_enabled", "queue_ttl_sec", "queue_depth_multiplier",
        "queue_deadline_boost_sec", "superfast_cap", "inflight", "dispatch_counts",
        "reject_counts", "queue_total_waiters", "queue_wait_p50_sec", "queue_wait_p95_sec",
        "queue_wait_p99_sec", "uptime_sec", "version", "draining", "pools", "backends",
    ]  # fmt: skip
    assert [key for key in state if key in contract] == contract
    assert state["reject_counts"] == {reason.value: 0 for reason in Reason}
    assert state["inflight"] == state["dispatch_counts"] == {"sim-a": 0}
    assert state["dispatched_total"] == 0
    assert state["uptime_sec"] == 10.0
    assert state["warnings"] == []
    assert set(state["pools"]["m"]) >= {
        "in_flight", "concurrency", "effective_concurrency", "queue_depth", "queue_limit",
        "oldest_wait_sec", "wait_p50_sec", "wait_p95_sec", "wait_p99_sec", "dispatched",
        "rejected", "drain_rate_per_sec", "backends",
    }  # fmt: skip
    assert set(state["backends"]["sim-a"]) >= {
        "kind", "url", "serves", "models", "state", "health", "health_detail", "in_flight",
        "max_concurrency", "effective_limit", "limit_reason", "max_input_tokens", "dispatched",
        "failed", "cancelled", "engine",
    }  # fmt: skip
    assert state["backends"]["sim-a"]["engine"] == {
        "running": None, "waiting": None, "slots": None, "max_input_tokens": None,
        "queueing": None, "age_sec": None,
    }  # fmt: skip


def test_the_figures_are_those_of_the_view() -> None:
    state = page(
        state_json(
            view(
                (backend("sim-a", in_flight=3, effective_limit=None, dispatched=120, failed=2,
                         cancelled=1, health=Health.SUSPECT, health_detail="3 failures"),),
                (pool("m", in_flight=3, queue_depth=6, oldest_wait_s=1.5, dispatched=120,
                      effective_concurrency=None, drain_rate_per_s=41.0004,
                      rejected=reasons(queue_full=2)),
                 pool("unknown", (), listed=False)),
                mode=Mode.SUPERFAST, dispatched=155, queue_depth_multiplier=2.5, wait_p95_s=0.25,
            ),
            AROUND,
        )
    )  # fmt: skip
    assert state["routing_mode"] == "superfast"
    assert state["queue_depth_multiplier"] == 2.5
    assert state["queue_total_waiters"] == 6
    assert state["queue_wait_p95_sec"] == 0.25
    assert state["inflight"] == {"sim-a": 3}
    assert state["dispatch_counts"] == {"sim-a": 120}
    assert state["dispatched_total"] == 155, "what backends that left were sent counts too"
    assert state["reject_counts"]["queue_full"] == 2
    assert list(state["pools"]) == ["m"], "unlisted pools are not shown"
    m = state["pools"]["m"]
    assert (m["queue_depth"], m["oldest_wait_sec"], m["drain_rate_per_sec"]) == (6, 1.5, 41.0)
    assert m["effective_concurrency"] is None
    assert m["rejected"]["queue_full"] == 2
    sim = state["backends"]["sim-a"]
    assert (sim["health"], sim["health_detail"]) == ("suspect", "3 failures")
    assert (sim["effective_limit"], sim["failed"], sim["cancelled"]) == (None, 2, 1)


@pytest.mark.parametrize(
    ("reading", "in_flight", "queueing"),
    [
        (EngineReading(), 9, None),
        (EngineReading(waiting=0, slots=4), 9, False),
        (EngineReading(waiting=1), 0, True),
        (EngineReading(slots=4), 4, False),
        (EngineReading(slots=4), 5, True),
    ],
)
def test_queueing_inside_the_engine_is_told_or_inferred_from_its_slots(
    reading: EngineReading, in_flight: int, queueing: bool | None
) -> None:
    around = Surroundings("1", 0.0, engines={"sim-a": reading})
    state = page(state_json(view((backend(in_flight=in_flight),)), around))
    assert state["backends"]["sim-a"]["engine"]["queueing"] is queueing


def test_a_reading_shows_its_age() -> None:
    around = Surroundings("1", 0.0, engines={"sim-a": EngineReading(running=3, read_at=999.2)})
    engine = page(state_json(view(), around))["backends"]["sim-a"]["engine"]
    assert engine["age_sec"] == pytest.approx(0.8)
    assert engine["running"] == 3


def test_warnings_and_sources_stand_where_they_belong() -> None:
    around = Surroundings(
        "1",
        0.0,
        urls={"sim-a": "http://user:secret@10.0.0.1:80/v1"},
        engines={"sim-a": EngineReading(slots=4)},
        warnings=(Warned("from the settings"),),
        sources={"routing_mode": "api", "queue_enabled": "default", "queue_ttl_sec": "file"},
        backend_sources={"sim-a": {"max_concurrency": "file"}},
    )
    state = page(state_json(view(), around))
    assert state["warnings"][0] == {"backend": None, "message": "from the settings"}
    assert state["warnings"][1]["backend"] == "sim-a"
    assert state["backends"]["sim-a"]["warnings"] == [state["warnings"][1]["message"]]
    assert state["backends"]["sim-a"]["url"] == "http://10.0.0.1:80/v1"
    assert state["sources"]["routing_mode"] == "api"
    assert state["backends"]["sim-a"]["sources"] == {"max_concurrency": "file"}
    assert page(backends_json(view(), around))["backends"] == state["backends"]
    assert page(backend_json(view(), "sim-a", around)) == state["backends"]["sim-a"]
    mode = page(mode_json(view(), around.sources))
    assert (mode["mode"], mode["queue_enabled"]) == ("default", False)
    assert mode["sources"] == {"routing_mode": "api", "queue_enabled": "default"}
    assert list(mode["modes"]) == ["default", "superfast", "queue-all"]


def test_names_that_utf8_cannot_carry_do_not_break_the_page() -> None:
    """Case BUG-067."""
    bad = "\ud800"
    state = page(
        state_json(
            view((backend(bad, (bad,), health_detail=bad),), (pool(bad, (bad,)),)),
            Surroundings("1", 0.0, warnings=(Warned(bad, bad),)),
        )
    )
    assert list(state["backends"]) == list(state["pools"]) == ["?"]


def test_the_rejections_page_is_the_table_with_counts_and_times() -> None:
    rows = page(
        rejections_json(
            view(rejected=reasons(gate=3)), {Reason.GATE: 1_700_000_000.0}, reject_status=529
        )
    )
    assert rows["total"] == 3
    assert [row["reason"] for row in rows["rejections"]] == [r.value for r in REJECTIONS]
    gate = rows["rejections"][0]
    assert (gate["code"], gate["status"], gate["count"]) == (None, 529, 3)
    assert gate["last_seen"] == "2023-11-14T22:13:20.000Z"
    for row in rows["rejections"][1:]:
        assert (row["count"], row["last_seen"]) == (0, None)
        assert row["advice"] == REJECTIONS[Reason(row["reason"])].advice
