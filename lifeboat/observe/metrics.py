"""`/metrics`: what the gate knows is read off its view at the scrape, the rest off `Finished`.

Invariants, held by tests/observe/test_metrics.py: every metric of the table and nothing else is
rendered; all series of known backends, pools and reasons exist from the start at 0; a label value
never comes from a request alone; what is rendered parses, and is what its Content-Type says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from lifeboat.core.capacity import FullScale
from lifeboat.core.view import GateView
from lifeboat.core.vocabulary import UNKNOWN_POOL, EngineReading, Reason
from lifeboat.observe.events import Finished, Observers
from lifeboat.observe.exposition import render
from lifeboat.observe.gauges import Values, backend_gauges, pool_gauges, router_gauges
from lifeboat.observe.measured import BackendSeries, Figures, Measured, PoolSeries, relayed
from lifeboat.observe.metric_table import METRICS, MetricRow, MetricType
from lifeboat.observe.series import DISCOVERED_LIMIT, Labels, Totals

_POOL_POSITION = 1
"""Where the pool stands among the labels of the two counters that are read off the gate."""


class Reading(Collector):
    """One scrape: values already read, so that any thread may make the page of them.

    With hundreds of pools a page takes tens of milliseconds to write, which the event loop does
    not have: take the reading there, and render it elsewhere.
    """

    def __init__(self, values: dict[str, Values], measured: Figures) -> None:
        self._values = values
        self._measured = measured

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of the table, in its order (the protocol of prometheus_client)."""
        measured = dict(self._measured.collect())
        for row in METRICS:
            found = measured.get(row.name)
            yield _family(row, self._values[row.name]) if found is None else found

    def render(self, accept: str | None) -> tuple[bytes, str]:
        """Return the page and its Content-Type, in the format that an `Accept` header prefers."""
        return render(self, accept)


class Metrics:
    """An observer of `Finished`, and the metrics of the live gate."""

    def __init__(
        self,
        view: Callable[[], GateView],
        *,
        version: str,
        configured_pools: Callable[[], Collection[str]],
        engines: Callable[[], Mapping[str, EngineReading]],
        reloads: Callable[[], tuple[int, int]] = lambda: (0, 0),
        scales: Callable[[], Mapping[str, FullScale]] = lambda: {},
    ) -> None:
        """view: takes a snapshot of the gate. configured_pools: the model names that stand in the
        configuration (not those discovered). engines: last readings by backend name.
        reloads: of the configuration so far, the good and the failed ones.
        scales: what autoscaling may make of the pools that have it.
        """
        self._view = view
        self._version = version
        self._configured_pools = configured_pools
        self._engines = engines
        self._reloads = reloads
        self._scales = scales
        self._observers: Observers | None = None
        self._backends = Labels()
        self._pools = Labels(DISCOVERED_LIMIT)
        self._measured = Measured()
        self._dispatched = Totals()
        self._rejected = Totals()
        self._departed: frozenset[str] = frozenset()
        self._refused_seen = dict.fromkeys(Reason, 0)
        self._admit_pool(UNKNOWN_POOL, configured=True)
        self._refresh(view())

    def watch(self, observers: Observers) -> None:
        """Show the errors of these observers in `lifeboat_observer_errors_total`."""
        self._observers = observers

    def finished(self, event: Finished, /) -> None:
        """Count and measure one request."""
        measured = self._measured
        name = event.backend
        backend = None
        if name is not None and relayed(event):
            # Names of backends come from configuration and registration, never from a request.
            backend = measured.backends.get(name) or self._admit_backend(name)
        pool_name = event.pool or UNKNOWN_POOL
        pool = measured.pools.get(pool_name) or self._find_pool(pool_name)
        measured.record(event, backend, pool)

    def render(self, accept: str | None) -> tuple[bytes, str]:
        """Read and render in one step, for those with time to spare."""
        return self.read().render(accept)

    def read(self) -> Reading:
        """Read everything off the live objects, at once: where the gate lives, and quickly."""
        view = self._view()
        self._refresh(view)
        errors = self._observers.errors if self._observers else 0
        reloaded, failed = self._reloads()
        values: dict[str, Values] = {
            **backend_gauges(view, self._engines(), self._backends),
            **pool_gauges(view, self._pools, self._scales()),
            **router_gauges(view, self._version),
            "lifeboat_lb_dispatch_total": dict(self._dispatched.values),
            "lifeboat_lb_rejected_total": dict(self._rejected.values),
            "lifeboat_config_reloads_total": {
                ("success",): float(reloaded),
                ("failure",): float(failed),
            },
            "lifeboat_observer_errors_total": {(): float(errors)},
        }
        return Reading(values, self._measured.read())

    # ---- which series there are ----------------------------------------------------------------

    def _admit_backend(self, name: str) -> BackendSeries:
        return self._measured.bind_backend(name, self._backends.admit(name, configured=True))

    def _admit_pool(self, name: str, configured: bool) -> PoolSeries:
        return self._measured.bind_pool(name, self._pools.admit(name, configured))

    def _find_pool(self, name: str) -> PoolSeries:
        """Return the series of a pool without any yet; `unknown` unless the pool really exists."""
        configured = name in self._configured_pools()
        if configured or name in self._view().pools:
            return self._admit_pool(name, configured)
        return self._measured.pools[UNKNOWN_POOL]

    def _refresh(self, view: GateView) -> None:
        """Admit what is new, read the counters of the gate, drop what has been gone for an hour."""
        for name in view.backends:
            if name not in self._backends:
                self._admit_backend(name)
        for name, sent in view.departed.items():
            # One that came and went between two scrapes: what it was sent still counts.
            if sent and name not in self._backends and name not in self._departed:
                self._admit_backend(name)
        self._departed = frozenset(view.departed)
        configured = set(self._configured_pools())
        for name in configured:
            if name not in self._measured.pools:
                self._admit_pool(name, configured=True)
            else:
                self._pools.admit(name, configured=True)
        for name, pool in view.pools.items():
            asked = pool.dispatched or pool.in_flight or pool.queue_depth
            if name not in self._pools and (asked or any(pool.rejected.values())):
                self._admit_pool(name, configured=False)
        self._read_dispatched(view)
        self._read_rejected(view)
        backends = self._backends.forget_missing(view.backends, view.now)
        self._measured.drop_backends(backends)
        self._dispatched.drop(0, backends)
        pools = self._pools.forget_missing({*view.pools, *configured, UNKNOWN_POOL}, view.now)
        self._measured.drop_pools(pools)
        self._dispatched.drop(_POOL_POSITION, pools)
        self._rejected.drop(_POOL_POSITION, pools)

    def _read_dispatched(self, view: GateView) -> None:
        for name, pool in view.pools.items():
            label = self._pools.get(name)
            if label is not None:
                for member in pool.members:
                    if member in self._backends:
                        self._dispatched.ensure((self._backends[member], label))
        sent = {name: backend.dispatched_by_pool for name, backend in view.backends.items()}
        for name, by_pool in {**view.departed, **sent}.items():
            if name not in self._backends:
                continue
            for pool_name, count in by_pool.items():
                label = self._pools.get(pool_name)
                if label is not None:
                    self._dispatched.read((name, pool_name), count, (self._backends[name], label))

    def _read_rejected(self, view: GateView) -> None:
        """Take the refusals of each pool; what belongs to none of them counts as `unknown`."""
        for label in self._pools.all():
            for reason in Reason:
                self._rejected.ensure((reason.value, label))
        of_pools = dict.fromkeys(Reason, 0.0)
        for name, pool in view.pools.items():
            label = self._pools.get(name)
            if label is None or name == UNKNOWN_POOL:
                continue
            for reason, count in pool.rejected.items():
                series = (reason.value, label)
                of_pools[reason] += self._rejected.read((reason.value, name), count, series)
        for reason, count in view.rejected.items():
            growth = count - self._refused_seen[reason]
            self._refused_seen[reason] = count
            self._rejected.add((reason.value, UNKNOWN_POOL), growth - of_pools[reason])


def _family(row: MetricRow, values: Values) -> Metric:
    """Return a metric of the table with the values read for it."""
    is_counter = row.type is MetricType.COUNTER
    family_type = CounterMetricFamily if is_counter else GaugeMetricFamily
    family = family_type(row.name, row.help, labels=row.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family
