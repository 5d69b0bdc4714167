"""`/metrics`: present from the start, bounded, equal to the state, and readable by Prometheus."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from lifeboat.core.modes import Mode
from lifeboat.core.view import GateView
from lifeboat.core.vocabulary import EngineReading, EstimateMethod, Reason
from lifeboat.observe.events import GoneAt, Observers, RetryCause
from lifeboat.observe.metric_table import METRICS, MetricType
from lifeboat.observe.metrics import Metrics
from lifeboat.observe.state import Surroundings, state_json
from tests.observe.scenes import backend, finished, pool, reasons, view

HOUR_S = 3600.0


class Scene:
    """Metrics over a view that the test replaces."""

    def __init__(
        self,
        first: GateView | None = None,
        *,
        configured: Iterable[str] = ("m",),
        engines: dict[str, EngineReading] | None = None,
    ) -> None:
        self.view = view() if first is None else first
        self.configured = set(configured)
        self.engines = engines or {}
        self.metrics = Metrics(
            lambda: self.view,
            version="1.2.3",
            configured_pools=lambda: self.configured,
            engines=lambda: self.engines,
        )

    def text(self) -> str:
        return self.metrics.render(None)[0].decode()

    def samples(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for family in parse_text(self.text()):
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                assert key not in found, f"{key} twice"
                found[key] = sample.value
        return found

    def value(self, name: str, **labels: str) -> float | None:
        return self.samples().get((name, tuple(sorted(labels.items()))))

    def labels(self, name: str, label: str) -> set[str]:
        return {dict(labels)[label] for found, labels in self.samples() if found == name}


# ---- what is there ------------------------------------------------------------------------------


def test_exactly_the_metrics_of_the_table_are_rendered_with_their_types_and_labels() -> None:
    scene = Scene()
    scene.metrics.finished(finished(wait_s=1.0, client_gone=GoneAt.STREAMING))
    families = {family.name: family for family in parse_text(scene.text())}

    expected = {row.name.removesuffix("_total"): row for row in METRICS}
    assert families.keys() == expected.keys()
    for name, family in families.items():
        row = expected[name]
        assert family.type == row.type.value, name
        assert family.documentation == row.help
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == set(row.labels), name
        if row.type is MetricType.HISTOGRAM:
            bounds = {float(s.labels["le"]) for s in family.samples if "le" in s.labels}
            assert bounds == {*row.buckets, math.inf}, name


def test_every_series_of_an_idle_router_exists_at_zero() -> None:
    """Case BUG-192, BUG-193: an idle backend and a reason never given are there."""
    scene = Scene(
        view(
            (backend("sim-a"), backend("sim-b")),
            (pool("m", ("sim-a", "sim-b")),),
        ),
        configured=("m", "without-backend"),
    )
    found = scene.samples()

    def at(name: str, **labels: str) -> float:
        return found[name, tuple(sorted(labels.items()))]

    for name in ("sim-a", "sim-b"):
        assert at("lifeboat_lb_inflight", backend=name) == 0.0
        assert at("lifeboat_lb_dispatch_total", backend=name, pool="m") == 0.0
        assert at("lifeboat_lb_responses_total", backend=name, code="200") == 0.0
        assert at("lifeboat_lb_request_seconds_count", backend=name) == 0.0
        assert at("lifeboat_lb_ttfb_seconds_count", backend=name) == 0.0
        assert at("lifeboat_lb_engine_waiting", backend=name) == 0.0
    for name in ("m", "without-backend", "unknown"):
        for reason in Reason:
            assert at("lifeboat_lb_rejected_total", reason=reason.value, pool=name) == 0.0
        assert at("lifeboat_lb_queue_depth", pool=name) == 0.0
        assert at("lifeboat_lb_queue_wait_seconds_count", pool=name) == 0.0
        assert at("lifeboat_lb_estimated_tokens_count", pool=name) == 0.0
    for stage in GoneAt:
        assert at("lifeboat_lb_client_disconnects_total", stage=stage.value) == 0.0
    for cause in RetryCause:
        assert at("lifeboat_lb_retries_total", cause=cause.value) == 0.0
    assert at("lifeboat_lb_unknown_priority_total") == 0.0


def test_gauges_show_what_the_view_shows() -> None:
    scene = Scene(
        view(
            (
                backend("sim-a", in_flight=3, effective_limit=4),
                backend("sim-b", configured_limit=0, effective_limit=None, live=False),
                backend("sim-c", effective_limit=0),
            ),
            (
                pool(
                    "m", ("sim-a", "sim-b"), in_flight=3, queue_depth=6, queue_limit=128,
                    oldest_wait_s=2.5, effective_concurrency=4,
                ),
            ),
            mode=Mode.QUEUE_ALL,
            parked_bytes=777,
        ),
        engines={"sim-a": EngineReading(running=5, waiting=2)},
    )  # fmt: skip
    expected: list[tuple[str, dict[str, str], float]] = [
        ("lifeboat_lb_inflight", {"backend": "sim-a"}, 3),
        ("lifeboat_lb_limit", {"backend": "sim-a", "kind": "configured"}, 32),
        ("lifeboat_lb_limit", {"backend": "sim-a", "kind": "effective"}, 4),
        ("lifeboat_lb_limit", {"backend": "sim-b", "kind": "configured"}, math.inf),
        ("lifeboat_lb_limit", {"backend": "sim-b", "kind": "effective"}, math.inf),
        ("lifeboat_lb_limit", {"backend": "sim-c", "kind": "effective"}, 0),
        ("lifeboat_lb_backend_up", {"backend": "sim-a"}, 1),
        ("lifeboat_lb_backend_up", {"backend": "sim-b"}, 0),
        ("lifeboat_lb_engine_running", {"backend": "sim-a"}, 5),
        ("lifeboat_lb_engine_waiting", {"backend": "sim-a"}, 2),
        ("lifeboat_lb_queue_depth", {"pool": "m"}, 6),
        ("lifeboat_lb_queue_limit", {"pool": "m"}, 128),
        ("lifeboat_lb_queue_oldest_seconds", {"pool": "m"}, 2.5),
        ("lifeboat_lb_demand", {"pool": "m"}, 9),
        ("lifeboat_lb_capacity", {"pool": "m"}, 4),
        ("lifeboat_lb_utilization", {"pool": "m"}, 0.75),
        ("lifeboat_lb_desired_backends", {"pool": "m"}, 1),
        ("lifeboat_lb_mode", {"mode": "queue-all"}, 1),
        ("lifeboat_lb_mode", {"mode": "default"}, 0),
        ("lifeboat_lb_mode", {"mode": "superfast"}, 0),
        ("lifeboat_build_info", {"version": "1.2.3"}, 1),
        ("lifeboat_lb_parked_bytes", {}, 777),
    ]
    found = scene.samples()
    for name, labels, value in expected:
        assert found[name, tuple(sorted(labels.items()))] == value, (name, labels)


@pytest.mark.parametrize(
    ("in_flight", "depth", "limits", "desired"),
    [
        (0, 0, (32, 32), 0),
        (1, 0, (32, 32), 1),
        (64, 0, (32, 32), 3),
        (64, 1, (32, 32), 3),
        (4, 100, (4,), 38),
        (10, 0, (4, 16), 2),
        (40, 0, (0,), 2),
    ],
)
def test_desired_backends_are_of_the_pools_mean_size_and_seven_tenths_full(
    in_flight: int, depth: int, limits: tuple[int, ...], desired: int
) -> None:
    names = tuple(f"b{number}" for number in range(len(limits)))
    scene = Scene(
        view(
            tuple(
                backend(name, configured_limit=limit)
                for name, limit in zip(names, limits, strict=True)
            ),
            (pool("m", names, in_flight=in_flight, queue_depth=depth),),
        )
    )
    assert scene.value("lifeboat_lb_desired_backends", pool="m") == desired


@pytest.mark.parametrize(
    ("in_flight", "slots", "utilization"), [(0, 0, 0.0), (2, 0, 1.0), (5, None, 0.0), (6, 4, 1.5)]
)
def test_utilization_is_a_number_also_at_the_edges(
    in_flight: int, slots: int | None, utilization: float
) -> None:
    scene = Scene(view(pools=(pool(in_flight=in_flight, effective_concurrency=slots),)))
    assert scene.value("lifeboat_lb_utilization", pool="m") == utilization
    assert scene.value("lifeboat_lb_capacity", pool="m") == (math.inf if slots is None else slots)


# ---- what is counted ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "counted"),
    [
        (finished(), {"responses:200": 1, "request": 1, "ttfb": 1, "tokens": 1}),
        (finished(status=404, ttfb_s=None), {"responses:404": 1, "request": 1, "tokens": 1}),
        (
            finished(wait_s=2.0),
            {"responses:200": 1, "request": 1, "ttfb": 1, "tokens": 1, "wait": 1},
        ),
        # Refused by us: no answer of the backend, whatever was tried.
        (
            finished(status=502, reason=Reason.BACKEND_UNREACHABLE, ttfb_s=None),
            {"tokens": 1},
        ),
        (
            finished(
                backend=None, status=504, reason=Reason.QUEUE_TIMEOUT, wait_s=30.0, attempts=0
            ),
            {"tokens": 1, "wait": 1},
        ),
        # Left while parked: neither granted nor expired.
        (
            finished(
                backend=None, status=499, wait_s=3.0, attempts=0, client_gone=GoneAt.PARKED
            ),
            {"tokens": 1, "gone:parked": 1},
        ),
        (
            finished(status=499, ttfb_s=None, client_gone=GoneAt.WAITING),
            {"tokens": 1, "gone:waiting": 1},
        ),
        (
            finished(estimate_method=EstimateMethod.NONE, retry_causes=("refused", "refused")),
            {"responses:200": 1, "request": 1, "ttfb": 1, "retry:refused": 2},
        ),
        (
            finished(retry_causes=("made-up",), unknown_priority=True),
            {"responses:200": 1, "request": 1, "ttfb": 1, "tokens": 1, "retry:other": 1,
             "priority": 1},
        ),
        # A socket of three hours is no answer that took three hours.
        (
            finished(status=101, total_s=10_800.0, estimate_method=EstimateMethod.NONE),
            {"responses:101": 1, "ttfb": 1},
        ),
        # A clock that stepped back counts, and as nothing (case BUG-190).
        (
            finished(total_s=-1.0, ttfb_s=-2.0, wait_s=-3.0, estimated_tokens=-4),
            {"responses:200": 1, "request": 1, "ttfb": 1, "tokens": 1},
        ),
    ],
)  # fmt: skip
def test_each_end_of_a_request_counts_where_it_should_and_nowhere_else(
    event: Any, counted: dict[str, int]
) -> None:
    scene = Scene()
    scene.metrics.finished(event)
    names: dict[str, Callable[[dict[str, str]], str]] = {
        "lifeboat_lb_responses_total": lambda labels: f"responses:{labels['code']}",
        "lifeboat_lb_request_seconds_count": lambda _: "request",
        "lifeboat_lb_ttfb_seconds_count": lambda _: "ttfb",
        "lifeboat_lb_estimated_tokens_count": lambda _: "tokens",
        "lifeboat_lb_queue_wait_seconds_count": lambda _: "wait",
        "lifeboat_lb_client_disconnects_total": lambda labels: f"gone:{labels['stage']}",
        "lifeboat_lb_retries_total": lambda labels: f"retry:{labels['cause']}",
        "lifeboat_lb_unknown_priority_total": lambda _: "priority",
    }
    found = {
        names[name](dict(labels)): value
        for (name, labels), value in scene.samples().items()
        if name in names and value
    }
    assert found == counted
    assert all(value >= 0.0 for value in scene.samples().values())


def test_counters_of_the_gate_equal_the_state_after_mixed_load() -> None:
    """Case BUG-193: the same figures in both places, refusals without a pool included."""
    scene = Scene()
    scene.view = view(
        (backend("sim-a", dispatched_by_pool={"m": 7, "n": 2}), backend("sim-b")),
        (
            pool("m", ("sim-a", "sim-b"), dispatched=7, rejected=reasons(gate=3, queue_full=1)),
            pool("n", ("sim-a",), dispatched=2, rejected=reasons(gate=1)),
            pool("unknown", (), listed=False, rejected=reasons(no_backends=5)),
        ),
        rejected=reasons(gate=4, queue_full=1, no_backends=5, invalid_request=2),
    )
    state: Any = state_json(scene.view, Surroundings("1", 0.0))
    found = scene.samples()
    for name, count in state["dispatch_counts"].items():
        shown = sum(
            value
            for (metric, labels), value in found.items()
            if metric == "lifeboat_lb_dispatch_total" and dict(labels)["backend"] == name
        )
        assert shown == count
    for reason, count in state["reject_counts"].items():
        shown = sum(
            value
            for (metric, labels), value in found.items()
            if metric == "lifeboat_lb_rejected_total" and dict(labels)["reason"] == reason
        )
        assert shown == count
    assert scene.value("lifeboat_lb_rejected_total", reason="no_backends", pool="unknown") == 5
    assert scene.value("lifeboat_lb_rejected_total", reason="invalid_request", pool="unknown") == 2
    assert scene.value("lifeboat_lb_rejected_total", reason="gate", pool="unknown") == 0


def test_counters_never_fall_when_a_backend_comes_back_with_its_counts_at_zero() -> None:
    scene = Scene(view((backend(dispatched_by_pool={"m": 9}),)))
    assert scene.value("lifeboat_lb_dispatch_total", backend="sim-a", pool="m") == 9
    scene.view = view((), ())
    assert scene.value("lifeboat_lb_dispatch_total", backend="sim-a", pool="m") == 9
    scene.view = view((backend(dispatched_by_pool={"m": 2}),))
    assert scene.value("lifeboat_lb_dispatch_total", backend="sim-a", pool="m") == 11


# ---- which labels -------------------------------------------------------------------------------


def test_ten_thousand_made_up_model_names_make_no_series() -> None:
    """Case BUG-181, BUG-183: a name that only a client uses is `unknown`."""
    scene = Scene()
    before = len(scene.samples())
    for number in range(10_000):
        scene.metrics.finished(
            finished(pool=f"made-up-{number}", backend=None, status=503, reason=Reason.NO_BACKENDS)
        )
    scene.metrics.finished(finished(pool=None, model="x" * 200_000, backend=None, status=400))
    assert len(scene.samples()) == before
    assert scene.value("lifeboat_lb_estimated_tokens_count", pool="unknown") == 10_001


def test_a_discovered_model_gets_its_series_on_its_first_request() -> None:
    scene = Scene(view(pools=(pool("m"), pool("lora"))))
    assert "lora" not in scene.labels("lifeboat_lb_queue_depth", "pool")

    scene.metrics.finished(finished(pool="lora"))
    assert scene.value("lifeboat_lb_estimated_tokens_count", pool="lora") == 1
    assert scene.value("lifeboat_lb_dispatch_total", backend="sim-a", pool="lora") == 0


@pytest.mark.parametrize(
    "first", [{"queue_depth": 1}, {"in_flight": 1}, {"rejected": reasons(gate=1)}]
)
def test_a_first_request_that_is_still_parked_or_running_counts(first: dict[str, Any]) -> None:
    scene = Scene(view(pools=(pool("m"), pool("lora", **first))))
    assert "lora" in scene.labels("lifeboat_lb_queue_depth", "pool")


def test_discovered_models_beyond_two_hundred_are_summed_as_other() -> None:
    names = [f"lora-{number:04d}" for number in range(1000)]
    by_pool = dict.fromkeys(names, 1)
    scene = Scene(
        view(
            (backend(dispatched_by_pool=by_pool),),
            tuple(pool(name, dispatched=1, queue_depth=1) for name in ("m", *names)),
        )
    )
    labels = scene.labels("lifeboat_lb_queue_depth", "pool")
    assert len(labels) == 200 + len({"m", "other", "unknown"})
    assert scene.value("lifeboat_lb_queue_depth", pool="other") == 800
    assert scene.value("lifeboat_lb_dispatch_total", backend="sim-a", pool="other") == 800
    scene.metrics.finished(finished(pool="lora-0999"))
    assert scene.value("lifeboat_lb_estimated_tokens_count", pool="other") == 1


def test_configured_models_have_their_own_series_however_many_they_are() -> None:
    names = [f"model-{number}" for number in range(300)]
    scene = Scene(view(pools=tuple(pool(name) for name in names)), configured=names)
    assert set(names) <= scene.labels("lifeboat_lb_queue_depth", "pool")


def test_what_was_removed_is_dropped_after_an_hour_and_not_before() -> None:
    scene = Scene(
        view((backend("sim-a"), backend("old", dispatched_by_pool={"gone": 3, "m": 1})),
             (pool("m"), pool("gone", ("old", "sim-a"), rejected=reasons(gate=2)))),
        configured=("m", "gone"),
    )  # fmt: skip
    scene.metrics.finished(finished(backend="old", pool="gone", status=404, wait_s=1.0))
    scene.text()
    scene.configured = {"m"}
    for after_s, kept in ((0.0, True), (HOUR_S - 1.0, True), (HOUR_S, False), (2 * HOUR_S, False)):
        scene.view = view(now=1000.0 + after_s, rejected=reasons(gate=2))
        text = scene.text()
        assert ('backend="old"' in text) is kept, after_s
        assert ('pool="gone"' in text) is kept, after_s
        if kept:
            assert scene.value("lifeboat_lb_rejected_total", reason="gate", pool="gone") == 2
            assert scene.value("lifeboat_lb_inflight", backend="old") == 0
            assert scene.value("lifeboat_lb_responses_total", backend="old", code="404") == 1
        # What was refused for the pool that went is not counted again for another.
        assert scene.value("lifeboat_lb_rejected_total", reason="gate", pool="unknown") == 0


def test_a_backend_that_comes_back_within_the_hour_keeps_its_series() -> None:
    scene = Scene()
    scene.metrics.finished(finished())
    scene.view = view((), (), now=2000.0)
    scene.text()
    scene.view = view(now=2000.0 + HOUR_S - 1.0)
    scene.text()
    scene.view = view(now=2000.0 + 3 * HOUR_S)
    assert scene.value("lifeboat_lb_responses_total", backend="sim-a", code="200") == 1


NASTY = [
    'quo"te',
    "back\\slash",
    "new\nline",
    "emoji 🛟",
    "http://[::1]:8000",
    "\ud800",
    "x" * 5000,
]


def test_names_that_break_other_exporters_are_escaped_in_both_formats() -> None:
    """Case BUG-184, BUG-067: one bad label must not cost the whole scrape."""
    scene = Scene(
        view(
            tuple(backend(f"b{name}") for name in NASTY),
            tuple(pool(name, (f"b{name}",), in_flight=1) for name in NASTY),
        ),
        configured=NASTY,
    )
    labels = scene.labels("lifeboat_lb_queue_depth", "pool")
    assert set(NASTY[:5]) <= labels
    assert max(map(len, labels)) <= 200
    page, content_type = scene.metrics.render("application/openmetrics-text;version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    shown = {
        sample.labels["pool"]
        for family in parse_openmetrics(page.decode())
        if family.name == "lifeboat_lb_queue_depth"
        for sample in family.samples
    }
    assert shown == labels


def test_two_names_that_would_share_a_label_do_not_make_the_scrape_invalid() -> None:
    long = "x" * 300
    scene = Scene(view(pools=(pool(long + "a", in_flight=1), pool(long + "b", in_flight=2))))
    scene.configured = {long + "a", long + "b"}
    found = scene.labels("lifeboat_lb_queue_depth", "pool")
    assert {"x" * 200, "other"} <= found


# ---- what Prometheus says -----------------------------------------------------------------------


def test_promtool_finds_nothing_to_object_to() -> None:
    promtool = shutil.which("promtool")
    assert promtool, "promtool is not installed: it comes with the package `prometheus`"
    scene = Scene()
    scene.metrics.finished(finished(wait_s=1.0, client_gone=GoneAt.STREAMING))
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=scene.text(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_the_openmetrics_page_parses_with_the_strict_parser_and_ends() -> None:
    scene = Scene()
    scene.metrics.finished(finished(wait_s=1.0))
    page = scene.metrics.render("application/openmetrics-text")[0].decode()
    names = {family.name for family in parse_openmetrics(page)}
    assert names == {row.name.removesuffix("_total") for row in METRICS}
    assert page.endswith("# EOF\n")
    assert "_created" not in page


def test_errors_of_observers_are_shown() -> None:
    scene = Scene()

    class Broken:
        def finished(self, event: Any, /) -> None:
            raise ValueError("negative increment")

    observers = Observers((Broken(), scene.metrics), clock=lambda: 0.0)
    scene.metrics.watch(observers)
    observers.finished(finished())
    assert scene.value("lifeboat_observer_errors_total") == 1
    assert scene.value("lifeboat_lb_responses_total", backend="sim-a", code="200") == 1


def test_a_reading_may_be_rendered_while_counting_goes_on() -> None:
    scene = Scene(view((backend("sim-a", in_flight=1),)))
    reading = scene.metrics.read()
    scene.view = view((backend("sim-a", in_flight=2), backend("sim-b")))
    scene.metrics.read()
    scene.metrics.finished(finished(backend="sim-b", status=418))
    page = reading.render(None)[0].decode()
    assert 'lifeboat_lb_inflight{backend="sim-a"} 1.0' in page
    assert 'lifeboat_lb_inflight{backend="sim-b"}' not in page
