"""The last quarter of an hour, kept by the router so that the dashboard opens with a past.

Views are folded into bins of five seconds: the most in flight and parked that was seen in a bin,
its longest p95 wait, and the refusals that came in it. A gauge read once in five seconds would
miss a burst; its peak does not. Memory is bounded whatever the load: bins x pools of a bin.
Held by tests/web/test_history.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from lifeboat.core.view import GateView, PoolView
from lifeboat.core.vocabulary import Reason
from lifeboat.observe.printable import encodable

Json = dict[str, object]

PERIOD_S = 5.0
"""Length of a bin."""
SAMPLE_S = 1.0
"""How often the runtime looks. A view costs microseconds a backend and pool."""
WINDOW_S = 900.0
"""How far back it reaches."""
MOST_POOLS = 64
"""Pools of one bin: beyond them a chart per pool helps nobody. The busiest stay."""

NO_COUNTS: Mapping[Reason, int] = {}


@dataclass(slots=True)
class Bin:
    """One pool, or the whole router, in one bin.

    in_flight, queue_depth, wait_p95_s: the largest seen. rejected: refusals that came in it, by
    reason, without zeros.
    """

    in_flight: int = 0
    queue_depth: int = 0
    wait_p95_s: float = 0.0
    rejected: dict[Reason, int] = field(default_factory=dict[Reason, int])

    @property
    def weight(self) -> int:
        """How much there is to see in it."""
        return self.in_flight + self.queue_depth + sum(self.rejected.values())

    def add(
        self, in_flight: int, queue_depth: int, wait_p95_s: float, came: Mapping[Reason, int]
    ) -> None:
        """Fold one view into it."""
        self.in_flight = max(self.in_flight, in_flight)
        self.queue_depth = max(self.queue_depth, queue_depth)
        self.wait_p95_s = max(self.wait_p95_s, wait_p95_s)
        for reason, count in came.items():
            self.rejected[reason] = self.rejected.get(reason, 0) + count


@dataclass(slots=True)
class Moment:
    """One bin of time. number: whole periods since the clock's zero. pools: the busy ones."""

    number: int
    total: Bin = field(default_factory=Bin)
    pools: dict[str, Bin] = field(default_factory=dict[str, Bin])


class History:
    """The recent past of a router, made of views; it starts no clock and asks none."""

    def __init__(self) -> None:
        self._moments: deque[Moment] = deque(maxlen=int(WINDOW_S / PERIOD_S))
        self._counted: Mapping[Reason, int] = NO_COUNTS
        self._counted_by_pool: dict[str, Mapping[Reason, int]] = {}

    def sample(self, view: GateView) -> None:
        """Fold a view in; the more often, the less of a burst is missed."""
        moment = self._moment(view.now)
        pools = [pool for pool in view.pools.values() if pool.listed]
        moment.total.add(
            sum(pool.in_flight for pool in pools),
            view.parked,
            view.wait_p95_s,
            _came(view.rejected, self._counted),
        )
        self._counted = _positive(view.rejected)
        before = self._counted_by_pool
        for pool in pools:
            came = _came(pool.rejected, before.get(pool.name, NO_COUNTS))
            if pool.in_flight or pool.queue_depth or pool.wait_p95_s > 0.0 or came:
                _bin_of(moment, pool).add(pool.in_flight, pool.queue_depth, pool.wait_p95_s, came)
        # Rebuilt from what is there now: names of removed pools do not pile up.
        self._counted_by_pool = {
            pool.name: counts for pool in pools if (counts := _positive(pool.rejected))
        }
        _trim(moment)

    def _moment(self, now: float) -> Moment:
        number = int(now // PERIOD_S)
        moments = self._moments
        # A clock that steps back stays in the newest bin.
        if not moments or number > moments[-1].number:
            moments.append(Moment(number))
        return moments[-1]

    def moments(self, now: float) -> list[Moment]:
        """Return the bins of the window, oldest first."""
        oldest = int(now // PERIOD_S) - int(WINDOW_S / PERIOD_S)
        return [moment for moment in self._moments if moment.number > oldest]


def history_json(history: History, now: float) -> Json:
    """Return the page of `GET /api/lb/history`: columns of equal length, oldest bin first.

    age_sec: whole periods from a bin to the one under way, in seconds. A pool that was idle in a
    bin shows zeros; one that was idle in all of them, and a reason nobody met, is left out.
    """
    moments = history.moments(now)
    number = int(now // PERIOD_S)
    names = dict.fromkeys(name for moment in moments for name in moment.pools)
    return {
        "period_sec": PERIOD_S,
        "window_sec": WINDOW_S,
        "age_sec": [max(number - moment.number, 0) * PERIOD_S for moment in moments],
        "total": _columns([moment.total for moment in moments]),
        "pools": {
            encodable(name): _columns([moment.pools.get(name, _IDLE) for moment in moments])
            for name in names
        },
    }


_IDLE = Bin()


def _columns(bins: list[Bin]) -> Json:
    met = [reason for reason in Reason if any(reason in one.rejected for one in bins)]
    return {
        "in_flight": [one.in_flight for one in bins],
        "queue_depth": [one.queue_depth for one in bins],
        "wait_p95_sec": [round(one.wait_p95_s, 6) for one in bins],
        "rejected": {reason.value: [one.rejected.get(reason, 0) for one in bins] for reason in met},
    }


def _bin_of(moment: Moment, pool: PoolView) -> Bin:
    return moment.pools.setdefault(pool.name, Bin())


def _trim(moment: Moment) -> None:
    """Keep the busiest pools of a bin."""
    if len(moment.pools) > MOST_POOLS:
        busiest = sorted(moment.pools.items(), key=lambda item: -item[1].weight)
        moment.pools = dict(busiest[:MOST_POOLS])


def _positive(counts: Mapping[Reason, int]) -> dict[Reason, int]:
    return {reason: count for reason, count in counts.items() if count}


def _came(counts: Mapping[Reason, int], before: Mapping[Reason, int]) -> dict[Reason, int]:
    """Return what was counted since; counters that began anew count from zero."""
    return {
        reason: count - earlier if count >= earlier else count
        for reason, count in counts.items()
        if count != (earlier := before.get(reason, 0)) and count
    }
