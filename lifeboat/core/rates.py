"""A requests-per-minute limit over a sliding window that cannot be doubled at a boundary.

Source: the contract's `max_requests_per_minute`. Held by tests/core/test_rates.py.
"""

from __future__ import annotations

from collections import deque

WINDOW_S = 60.0


class RateWindow:
    """The times of the requests of the last minute, exact, at most `limit` of them."""

    __slots__ = ("_times", "limit")

    def __init__(self, limit: int) -> None:
        """limit: requests in any 60 seconds, at least 1."""
        self.limit = limit
        self._times: deque[float] = deque()

    def wait_s(self, now: float) -> float:
        """Return seconds until another request fits: 0.0 when it fits now."""
        times = self._times
        while times and times[0] <= now - WINDOW_S:
            times.popleft()
        if len(times) < self.limit:
            return 0.0
        # A limit lowered at run time leaves more times than fit: wait for the one that makes room.
        return times[len(times) - self.limit] + WINDOW_S - now

    def take(self, now: float) -> None:
        """Count a request that was granted or parked at `now`."""
        self._times.append(now)

    def give_back(self, at: float) -> None:
        """Take out a request counted at `at` that was refused after all; it may be gone already."""
        if at in self._times:
            self._times.remove(at)

    def used(self, now: float) -> int:
        """Return how many requests the last minute holds."""
        self.wait_s(now)
        return len(self._times)
