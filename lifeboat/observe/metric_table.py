"""The metrics, as one table: `/metrics`, the docs and the tests read it.

Source: the contract's section 9; the rows after `lifeboat_build_info` are ours. Held by
tests/observe/test_metrics.py, which compares it with what is rendered.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MetricType(StrEnum):
    """The types of Prometheus that are used here."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric: its full name as scraped (with `_total`), labels in order, and help.

    buckets: upper bounds, in the unit of the name, `+Inf` not included; only for histograms.
    """

    name: str
    type: MetricType
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()


WAIT_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
TTFB_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
REQUEST_BUCKETS = (
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0,
)  # fmt: skip
TOKEN_BUCKETS = (
    16.0, 64.0, 256.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131072.0,
    262144.0, 1048576.0,
)  # fmt: skip
"""Context sizes that servers are started with, so that a cap falls on a bound."""

_G, _C, _H = MetricType.GAUGE, MetricType.COUNTER, MetricType.HISTOGRAM

METRICS: tuple[MetricRow, ...] = (
    MetricRow(
        "lifeboat_lb_inflight", _G, ("backend",),
        "Leases held on the backend right now.",
    ),
    MetricRow(
        "lifeboat_lb_limit", _G, ("backend", "kind"),
        "Requests the backend may hold: kind configured, or effective (in force now); "
        "+Inf without a gate, 0 closed.",
    ),
    MetricRow(
        "lifeboat_lb_dispatch_total", _C, ("backend", "pool"),
        "Requests sent to the backend.",
    ),
    MetricRow(
        "lifeboat_lb_responses_total", _C, ("backend", "code"),
        "Answers of the backend that were relayed, by exact status.",
    ),
    MetricRow(
        "lifeboat_lb_rejected_total", _C, ("reason", "pool"),
        "Requests that the router itself refused.",
    ),
    MetricRow(
        "lifeboat_lb_queue_depth", _G, ("pool",),
        "Requests parked right now.",
    ),
    MetricRow(
        "lifeboat_lb_queue_limit", _G, ("pool",),
        "Most requests that may be parked.",
    ),
    MetricRow(
        "lifeboat_lb_queue_oldest_seconds", _G, ("pool",),
        "How long the oldest parked request has been waiting.",
    ),
    MetricRow(
        "lifeboat_lb_queue_wait_seconds", _H, ("pool",),
        "Time spent parked, of requests that were parked and then granted or expired.",
        WAIT_BUCKETS,
    ),
    MetricRow(
        "lifeboat_lb_request_seconds", _H, ("backend",),
        "Time from a request's head to its end, waiting included, of requests answered; without "
        "sockets.",
        REQUEST_BUCKETS,
    ),
    MetricRow(
        "lifeboat_lb_ttfb_seconds", _H, ("backend",),
        "Time from the dispatch to the first byte of the answer, waiting not included.",
        TTFB_BUCKETS,
    ),
    MetricRow(
        "lifeboat_lb_estimated_tokens", _H, ("pool",),
        "Estimated input tokens of requests.",
        TOKEN_BUCKETS,
    ),
    MetricRow(
        "lifeboat_lb_client_disconnects_total", _C, ("stage",),
        "Clients that left, by what their request was doing.",
    ),
    MetricRow(
        "lifeboat_lb_retries_total", _C, ("cause",),
        "Sends beyond a request's first, by what made them necessary.",
    ),
    MetricRow(
        "lifeboat_lb_demand", _G, ("pool",),
        "Slots wanted: in flight, queued, and refused per second by the mean service time.",
    ),
    MetricRow(
        "lifeboat_lb_capacity", _G, ("pool",),
        "Slots of the live, ready backends of the pool; +Inf with one that has no gate.",
    ),
    MetricRow(
        "lifeboat_lb_utilization", _G, ("pool",),
        "In flight by capacity, 0 to 1 (above 1 while a lowered limit drains).",
    ),
    MetricRow(
        "lifeboat_lb_desired_backends", _G, ("pool",),
        "Backends of the pool's mean size that carry the demand at the target utilization.",
    ),
    MetricRow(
        "lifeboat_lb_backend_up", _G, ("backend",),
        "1 while the backend counts as live, whatever the operator wants of it.",
    ),
    MetricRow(
        "lifeboat_lb_engine_running", _G, ("backend",),
        "Requests running in the engine as it last reported; 0 where it does not tell.",
    ),
    MetricRow(
        "lifeboat_lb_engine_waiting", _G, ("backend",),
        "Requests waiting inside the engine as it last reported; 0 where it does not tell.",
    ),
    MetricRow(
        "lifeboat_lb_mode", _G, ("mode",),
        "1 for the routing mode in force.",
    ),
    MetricRow(
        "lifeboat_build_info", _G, ("version",),
        "Always 1; the version is in the label.",
    ),
    MetricRow(
        "lifeboat_lb_queue_ttl_seconds", _G, ("pool",),
        "How long a request that parks now may stay parked.",
    ),
    MetricRow(
        "lifeboat_lb_parked_bytes", _G, (),
        "Request bodies held in memory: being read, parked, or sent and not yet answered.",
    ),
    MetricRow(
        "lifeboat_lb_unknown_priority_total", _C, (),
        "Requests whose X-Lifeboat-Priority was none of high, normal and low.",
    ),
    MetricRow(
        "lifeboat_config_reloads_total", _C, ("result",),
        "Times the configuration was read again: result success, or failure (nothing changed).",
    ),
    MetricRow(
        "lifeboat_observer_errors_total", _C, (),
        "Errors of metrics and logs, kept away from traffic. Anything above 0 is a bug.",
    ),
)  # fmt: skip

METRIC_BY_NAME: dict[str, MetricRow] = {row.name: row for row in METRICS}
