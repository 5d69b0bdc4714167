"""File descriptors: how many the router may open, and how many its gates and queues promise.

Every request in flight holds two (client and backend), every parked one holds one. Where the limit
is lower, connections fail under load although the gates have room. Source: BUG-228, 229 of the
public cases. Held by tests/conformance/test_resources.py.
"""

from __future__ import annotations

import resource

from lifeboat.core.selection import UNGATED_COUNTS_AS
from lifeboat.core.view import GateView

OWN_DESCRIPTORS = 64
"""What the process itself holds: libraries, log, listeners, probes, a scrape or two."""


def soft_limit() -> int | None:
    """Return how many descriptors may be open, None without a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def raise_soft_limit() -> None:
    """Raise the limit to the hard one, which any process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):
            # Some systems forbid it for an infinite hard limit; the warning below tells the rest.
            return


def wanted_descriptors(view: GateView) -> int:
    """Return how many descriptors full gates and full queues take."""
    in_flight = sum(
        backend.configured_limit or UNGATED_COUNTS_AS for backend in view.backends.values()
    )
    parked = sum(
        pool.queue_limit for pool in view.pools.values() if pool.queue_enabled and pool.listed
    )
    return 2 * in_flight + parked + OWN_DESCRIPTORS


def too_few_descriptors(view: GateView, limit: int | None) -> str | None:
    """Return the warning that the limit is below what the configuration promises, else None."""
    wanted = wanted_descriptors(view)
    if limit is None or wanted <= limit:
        return None
    return (
        f"{limit} file descriptors may be open, but full gates and queues take {wanted}: raise the "
        "limit (ulimit -n, LimitNOFILE=), or lower queue.max_depth or max_concurrency"
    )
