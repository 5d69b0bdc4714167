"""What is measured at the end of requests: histograms and counters that no live object holds.

A request costs a few increments of children bound beforehand: bench/observe.py has the figure.
Held by tests/observe/test_metrics.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Counter, Histogram
from prometheus_client.metrics_core import Metric

from lifeboat.core.vocabulary import EstimateMethod, Reason
from lifeboat.observe.events import CLIENT_LEFT_STATUS, Finished, GoneAt, RetryCause
from lifeboat.observe.metric_table import METRIC_BY_NAME
from lifeboat.observe.series import OTHER, Gone

_CAUSES = frozenset(cause.value for cause in RetryCause)


def _counter(name: str) -> Counter:
    row = METRIC_BY_NAME[name]
    return Counter(row.name, row.help, row.labels, registry=None)


def _histogram(name: str) -> Histogram:
    row = METRIC_BY_NAME[name]
    return Histogram(row.name, row.help, row.labels, buckets=row.buckets, registry=None)


class BackendSeries:
    """The children of one backend's label."""

    __slots__ = ("_responses", "by_code", "label", "request", "ttfb")

    def __init__(self, label: str, responses: Counter, request: Histogram, ttfb: Histogram) -> None:
        self.label = label
        self._responses = responses
        self.request = request.labels(label)
        self.ttfb = ttfb.labels(label)
        # A backend that has answered nothing is seen all the same.
        self.by_code: dict[str, Counter] = {"200": responses.labels(label, "200")}

    def answered(self, status: int) -> Counter:
        """Return the counter of one status; what is no status of HTTP is `other`."""
        code = str(status) if 100 <= status <= 999 else OTHER
        counter = self.by_code.get(code)
        if counter is None:
            counter = self.by_code[code] = self._responses.labels(self.label, code)
        return counter


class PoolSeries:
    """The children of one pool's label."""

    __slots__ = ("tokens", "wait")

    def __init__(self, label: str, wait: Histogram, tokens: Histogram) -> None:
        self.wait = wait.labels(label)
        self.tokens = tokens.labels(label)


class Measured:
    """The metrics that `Finished` feeds."""

    def __init__(self) -> None:
        self._responses = _counter("lifeboat_lb_responses_total")
        self._request = _histogram("lifeboat_lb_request_seconds")
        self._ttfb = _histogram("lifeboat_lb_ttfb_seconds")
        self._wait = _histogram("lifeboat_lb_queue_wait_seconds")
        self._tokens = _histogram("lifeboat_lb_estimated_tokens")
        self._disconnects = _counter("lifeboat_lb_client_disconnects_total")
        self._retries = _counter("lifeboat_lb_retries_total")
        self._unknown_priority = _counter("lifeboat_lb_unknown_priority_total")
        self.backends: dict[str, BackendSeries] = {}
        self.pools: dict[str, PoolSeries] = {}
        """By name, not by label: several names may share the label `other`."""
        for stage in GoneAt:
            self._disconnects.labels(stage.value)
        for cause in RetryCause:
            self._retries.labels(cause.value)

    def record(self, event: Finished, backend: BackendSeries | None, pool: PoolSeries) -> None:
        """Count and measure one request. backend: None where no answer was relayed."""
        if backend is not None:
            backend.answered(event.status).inc()
            backend.request.observe(max(event.total_s, 0.0))
            if event.ttfb_s is not None:
                backend.ttfb.observe(max(event.ttfb_s, 0.0))
        if event.estimate_method is not EstimateMethod.NONE:
            pool.tokens.observe(max(event.estimated_tokens, 0))
        if event.wait_s > 0.0 and _was_granted_or_expired(event):
            pool.wait.observe(event.wait_s)
        if event.client_gone is not None:
            self._disconnects.labels(event.client_gone).inc()
        for cause in event.retry_causes:
            self._retries.labels(cause if cause in _CAUSES else OTHER).inc()
        if event.unknown_priority:
            self._unknown_priority.inc()

    def bind_backend(self, name: str, label: str) -> BackendSeries:
        """Make the series of a backend exist, at 0."""
        series = BackendSeries(label, self._responses, self._request, self._ttfb)
        self.backends[name] = series
        return series

    def bind_pool(self, name: str, label: str) -> PoolSeries:
        """Make the series of a pool exist, at 0."""
        series = self.pools[name] = PoolSeries(label, self._wait, self._tokens)
        return series

    def drop_backends(self, gone: Gone) -> None:
        """Drop the series of removed backends."""
        for name in gone.names:
            series = self.backends.pop(name, None)
            if series is not None and series.label in gone.labels:
                self._request.remove(series.label)
                self._ttfb.remove(series.label)
                for code in series.by_code:
                    self._responses.remove(series.label, code)

    def drop_pools(self, gone: Gone) -> None:
        """Drop the series of removed pools."""
        for name in gone.names:
            self.pools.pop(name, None)
        for label in gone.labels:
            self._wait.remove(label)
            self._tokens.remove(label)

    def collect(self) -> Iterator[tuple[str, Metric]]:
        """Yield (name in the table, metric) of each."""
        for metric in (
            self._responses, self._request, self._ttfb, self._wait, self._tokens,
            self._disconnects, self._retries, self._unknown_priority,
        ):  # fmt: skip
            for family in metric.collect():
                # When a series was created is nothing anybody asked for, at the price of a
                # second family for each of these.
                family.samples = [s for s in family.samples if not s.name.endswith("_created")]
                suffix = "_total" if family.type == "counter" else ""
                yield family.name + suffix, family


def relayed(event: Finished) -> bool:
    """Return whether the client was sent a head that a backend made."""
    return event.reason is None and event.status != CLIENT_LEFT_STATUS


def _was_granted_or_expired(event: Finished) -> bool:
    """Return whether a wait counts: as in the percentiles of the state (contract, section 7)."""
    return event.attempts > 0 or event.reason is Reason.QUEUE_TIMEOUT
