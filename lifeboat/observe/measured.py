"""What is measured at the end of requests: histograms and counters that no live object holds.

A request costs a few additions in the event loop's thread: bench/observe.py has the figure. The
library's own counters would cost ten times that, for locks that one thread does not need; it
renders what is read here. Held by tests/observe/test_metrics.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString  # pyright: ignore[reportUnknownVariableType]

from lifeboat.core.vocabulary import EstimateMethod, Reason
from lifeboat.observe.events import CLIENT_LEFT_STATUS, Finished, GoneAt, RetryCause
from lifeboat.observe.metric_table import METRIC_BY_NAME
from lifeboat.observe.series import OTHER, Gone

SWITCHED = 101
"""The status of a socket. It is open for as long as its client likes: a life of hours among the
times of answers would say nothing of either. In flight and the log tell of it."""

_CAUSES = frozenset(cause.value for cause in RetryCause)

RESPONSES = "lifeboat_lb_responses_total"
REQUEST_SECONDS = "lifeboat_lb_request_seconds"
TTFB_SECONDS = "lifeboat_lb_ttfb_seconds"
WAIT_SECONDS = "lifeboat_lb_queue_wait_seconds"
ESTIMATED_TOKENS = "lifeboat_lb_estimated_tokens"
DISCONNECTS = "lifeboat_lb_client_disconnects_total"
RETRIES = "lifeboat_lb_retries_total"
UNKNOWN_PRIORITY = "lifeboat_lb_unknown_priority_total"


class Distribution:
    """One series of a histogram: how many values fell below each bound, and their sum."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """bounds: upper ones, ascending, each included; one without a bound follows."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Take in a value; a negative one (a clock that stepped back) counts as 0."""
        value = value if value > 0.0 else 0.0
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def read(self) -> tuple[tuple[int, ...], float]:
        """Return how many values lie at or below each bound, all of them last; and their sum."""
        return tuple(accumulate(self._counts)), self._sum


Distributions = dict[str, Distribution]
"""By label: several names may share the label `other`."""


@dataclass(slots=True)
class BackendSeries:
    """What one backend adds to. by_code: its key in the responses, by status."""

    label: str
    request: Distribution
    ttfb: Distribution
    by_code: dict[int, tuple[str, str]]

    def key_of(self, status: int) -> tuple[str, str]:
        """Return the labels of one status; what is no status of HTTP is `other`."""
        key = self.by_code.get(status)
        if key is None:
            known = 100 <= status <= 999
            key = (self.label, str(status) if known else OTHER)
            if known:
                self.by_code[status] = key
        return key


@dataclass(slots=True)
class PoolSeries:
    """What one pool adds to."""

    wait: Distribution
    tokens: Distribution


@dataclass(frozen=True, slots=True)
class Figures:
    """All of it at one moment: any thread may make a page of it."""

    counters: Mapping[str, Mapping[tuple[str, ...], int]]
    histograms: Mapping[str, Mapping[str, tuple[tuple[int, ...], float]]]

    def collect(self) -> Iterator[tuple[str, Metric]]:
        """Yield (name in the table, metric) of each."""
        for name, values in self.counters.items():
            row = METRIC_BY_NAME[name]
            counter = CounterMetricFamily(row.name, row.help, labels=row.labels)
            for labels, count in values.items():
                counter.add_metric(labels, float(count))
            yield name, counter
        for name, series in self.histograms.items():
            row = METRIC_BY_NAME[name]
            histogram = HistogramMetricFamily(row.name, row.help, labels=row.labels)
            bounds = [floatToGoString(bound) for bound in (*row.buckets, inf)]
            for label, (counts, total) in series.items():
                buckets = list(zip(bounds, map(float, counts), strict=True))
                histogram.add_metric((label,), buckets, total)
            yield name, histogram


class Measured:
    """The metrics that `Finished` feeds. For one thread alone."""

    def __init__(self) -> None:
        self._responses: dict[tuple[str, ...], int] = {}
        self._request: Distributions = {}
        self._ttfb: Distributions = {}
        self._wait: Distributions = {}
        self._tokens: Distributions = {}
        self._disconnects = dict.fromkeys(GoneAt, 0)
        self._retries = {cause.value: 0 for cause in RetryCause}
        self._unknown_priority = 0
        self.backends: dict[str, BackendSeries] = {}
        self.pools: dict[str, PoolSeries] = {}
        """By name, not by label: several names may share the label `other`."""

    def record(self, event: Finished, backend: BackendSeries | None, pool: PoolSeries) -> None:
        """Count and measure one request. backend: None where no answer was relayed."""
        if backend is not None:
            key = backend.by_code.get(event.status) or backend.key_of(event.status)
            self._responses[key] = self._responses.get(key, 0) + 1
            if event.status != SWITCHED:
                backend.request.add(event.total_s)
            if event.ttfb_s is not None:
                backend.ttfb.add(event.ttfb_s)
        if event.estimate_method is not EstimateMethod.NONE:
            pool.tokens.add(event.estimated_tokens)
        if event.wait_s > 0.0 and _was_granted_or_expired(event):
            pool.wait.add(event.wait_s)
        if event.client_gone is not None:
            self._disconnects[event.client_gone] += 1
        for cause in event.retry_causes:
            cause = cause if cause in _CAUSES else OTHER
            self._retries[cause] = self._retries.get(cause, 0) + 1
        if event.unknown_priority:
            self._unknown_priority += 1

    def bind_backend(self, name: str, label: str) -> BackendSeries:
        """Make the series of a backend exist, at 0."""
        series = BackendSeries(
            label,
            _at(self._request, label, REQUEST_SECONDS),
            _at(self._ttfb, label, TTFB_SECONDS),
            {},
        )
        # A backend that has answered nothing is seen all the same.
        self._responses.setdefault(series.key_of(200), 0)
        self.backends[name] = series
        return series

    def bind_pool(self, name: str, label: str) -> PoolSeries:
        """Make the series of a pool exist, at 0."""
        series = self.pools[name] = PoolSeries(
            _at(self._wait, label, WAIT_SECONDS), _at(self._tokens, label, ESTIMATED_TOKENS)
        )
        return series

    def drop_backends(self, gone: Gone) -> None:
        """Drop the series of removed backends."""
        for name in gone.names:
            self.backends.pop(name, None)
        for label in gone.labels:
            self._request.pop(label, None)
            self._ttfb.pop(label, None)
        for key in [key for key in self._responses if key[0] in gone.labels]:
            del self._responses[key]

    def drop_pools(self, gone: Gone) -> None:
        """Drop the series of removed pools."""
        for name in gone.names:
            self.pools.pop(name, None)
        for label in gone.labels:
            self._wait.pop(label, None)
            self._tokens.pop(label, None)

    def read(self) -> Figures:
        """Return all figures as they are now."""
        return Figures(
            {
                RESPONSES: dict(self._responses),
                DISCONNECTS: {(stage.value,): n for stage, n in self._disconnects.items()},
                RETRIES: {(cause,): n for cause, n in self._retries.items()},
                UNKNOWN_PRIORITY: {(): self._unknown_priority},
            },
            {
                REQUEST_SECONDS: _read(self._request),
                TTFB_SECONDS: _read(self._ttfb),
                WAIT_SECONDS: _read(self._wait),
                ESTIMATED_TOKENS: _read(self._tokens),
            },
        )


def _at(distributions: Distributions, label: str, name: str) -> Distribution:
    """Return the series of a label, made where there is none."""
    found = distributions.get(label)
    if found is None:
        found = distributions[label] = Distribution(METRIC_BY_NAME[name].buckets)
    return found


def _read(distributions: Distributions) -> dict[str, tuple[tuple[int, ...], float]]:
    return {label: distribution.read() for label, distribution in distributions.items()}


def relayed(event: Finished) -> bool:
    """Return whether the client was sent a head that a backend made."""
    return event.reason is None and event.status != CLIENT_LEFT_STATUS


def _was_granted_or_expired(event: Finished) -> bool:
    """Return whether a wait counts: as in the percentiles of the state (contract, section 7)."""
    return event.attempts > 0 or event.reason is Reason.QUEUE_TIMEOUT
