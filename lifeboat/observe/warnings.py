"""What an operator should be told without asking, as far as the live state shows it.

Source: the contract's section 7. Held by tests/observe/test_warnings.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, inf
from urllib.parse import urlsplit, urlunsplit

from lifeboat.core.capacity import MIN_SAMPLES
from lifeboat.core.limits import LimitReason
from lifeboat.core.rates import WINDOW_S
from lifeboat.core.urls import spelled_out
from lifeboat.core.view import GateView, PoolView
from lifeboat.core.vocabulary import EngineReading


@dataclass(frozen=True, slots=True)
class Warned:
    """One warning. backend: the backend it is about; None = the whole router."""

    message: str
    backend: str | None = None


NO_RATES: Mapping[str, float] = {}


def all_warnings(
    view: GateView,
    urls: Mapping[str, str],
    engines: Mapping[str, EngineReading],
    others: tuple[Warned, ...] = (),
    expected_rates: Mapping[str, float] = NO_RATES,
) -> list[Warned]:
    """Return the warnings found elsewhere, then those that follow from the live state.

    expected_rates: requests per second that a pool is known to serve at the most, before any was
        measured; by pool.
    """
    return [
        *others,
        *_beyond_slots(view, engines),
        *_queueing_inside(view, engines),
        *undrainable(view, expected_rates),
        *_after_another(view),
        *_shared_urls(urls),
    ]


def engine_is_queueing(in_flight: int, engine: EngineReading) -> bool | None:
    """Return whether requests wait inside the engine; None where nothing tells.

    A server that reports no queue but its slots gives it away: more in flight than slots.
    """
    if engine.waiting is not None:
        return engine.waiting > 0
    if engine.slots is not None:
        return in_flight > engine.slots
    return None


def _beyond_slots(view: GateView, engines: Mapping[str, EngineReading]) -> list[Warned]:
    """The slot trap: a limit above the slots moves the queue into the engine, out of sight."""
    found: list[Warned] = []
    for name, backend in view.backends.items():
        engine = engines.get(name)
        slots = None if engine is None else engine.slots
        limit = backend.configured_limit
        if slots is not None and (limit == 0 or limit > slots):
            what = "has no gate" if limit == 0 else f"is {limit}"
            found.append(
                Warned(
                    f"max_concurrency of {name} {what} but its server has {slots} slots: the rest "
                    f"waits inside the server, unseen and without a TTL; set max_concurrency to "
                    f"{slots}, or start the server with more slots",
                    name,
                )
            )
    return found


def _queueing_inside(view: GateView, engines: Mapping[str, EngineReading]) -> list[Warned]:
    found: list[Warned] = []
    for name, backend in view.backends.items():
        waiting = (engines.get(name) or EngineReading()).waiting
        if waiting:
            wait = "request waits" if waiting == 1 else "requests wait"
            found.append(
                Warned(
                    f"{waiting} {wait} inside the server of {name} (it holds {backend.in_flight} "
                    "of ours): lower its max_concurrency, or see who else uses it",
                    name,
                )
            )
    return found


CLEARLY = 1.25
"""A pool drains clearly when it would serve so many times its ceiling within the TTL. A rate that
hovers about the border would else be logged again and again."""


def undrainable(view: GateView, expected_rates: Mapping[str, float]) -> list[Warned]:
    """Return the ceilings that cannot drain within the TTL: their last are promised a timeout.

    A rate of a few requests is that of their lengths, not of the pool: it takes as many as a
    verdict on the capacity does. Until then the rate known of the engines counts.
    """
    found: list[Warned] = []
    for name, pool in _queueing(view):
        rate = pool.drain_rate_per_s
        if rate is not None and pool.drain_seen >= MIN_SAMPLES:
            if _drains(pool, rate) < _most_parked(pool):
                found.append(_drained_too_slowly(name, pool, rate))
        elif _drains(pool, expected_rates.get(name, inf)) < _most_parked(pool):
            found.append(_too_slow_by_design(name, pool, expected_rates[name]))
    return found


def lingering(view: GateView, expected_rates: Mapping[str, float]) -> list[Warned]:
    """Return what `undrainable` may have said before and is not clearly over.

    A rate that is not known any more, after a quiet time, has not become a better one.
    """
    found: list[Warned] = []
    for name, pool in _queueing(view):
        rate = pool.drain_rate_per_s or 0.0
        if _drains(pool, rate) < CLEARLY * _most_parked(pool):
            found.append(_drained_too_slowly(name, pool, rate))
        if name in expected_rates:
            found.append(_too_slow_by_design(name, pool, expected_rates[name]))
    return found


def _queueing(view: GateView) -> Iterator[tuple[str, PoolView]]:
    return ((name, pool) for name, pool in view.pools.items() if pool.queue_enabled and pool.listed)


def _most_parked(pool: PoolView) -> int:
    """The ceiling, or what the pool's rate lets in within a TTL where that is less."""
    per_minute = pool.max_requests_per_minute
    if not per_minute:
        return pool.queue_limit
    return min(pool.queue_limit, per_minute * ceil(pool.queue_ttl_s / WINDOW_S))


def _drains(pool: PoolView, rate_per_s: float) -> float:
    """How many requests are served within the TTL, in whole ones."""
    served = rate_per_s * pool.queue_ttl_s
    return served if served == inf else int(served)


_REMEDY = "lower its ceiling (queue.max_depth), raise its TTL, or add capacity"


def _drained_too_slowly(name: str, pool: PoolView, rate: float) -> Warned:
    return Warned(
        f"the queue of {name} may hold {_most_parked(pool)} requests, but of late only "
        f"{_drains(pool, rate)} would be served within its TTL of {pool.queue_ttl_s:g} s "
        f"({rate:.3g} a second): the rest would time out; {_REMEDY}"
    )


def _too_slow_by_design(name: str, pool: PoolView, rate: float) -> Warned:
    return Warned(
        f"the queue of {name} may hold {_most_parked(pool)} requests, but its simulated engines "
        f"serve {_drains(pool, rate)} of usual length within its TTL of {pool.queue_ttl_s:g} s at "
        f"the most ({rate:.3g} a second): the rest would time out; {_REMEDY}"
    )


def _after_another(view: GateView) -> list[Warned]:
    """A renamed server: what runs there under the old name leaves the new one less room."""
    return [
        Warned(
            f"{name} may hold {backend.effective_limit} instead of {backend.configured_limit}: "
            "requests of a backend that left, moved on or drains still run on its server, and the "
            "limit grows back as they end",
            name,
        )
        for name, backend in view.backends.items()
        if backend.limit_reason == LimitReason.PREDECESSOR
    ]


def _shared_urls(urls: Mapping[str, str]) -> list[Warned]:
    names_by_url: dict[str, list[str]] = {}
    for name, url in urls.items():
        names_by_url.setdefault(spelled_out(url), []).append(name)
    return [
        Warned(
            f"{', '.join(names)} have one url, {shown_url(urls[names[0]].rstrip('/'))}: each gate "
            "counts only its own requests, so the server may hold the sum of their limits"
        )
        for names in names_by_url.values()
        if len(names) > 1
    ]


def shown_url(url: str) -> str:
    """Return a url without the user and password it may carry."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
