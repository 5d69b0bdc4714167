"""A turn of the loop that measures the CPU between turns."""

from __future__ import annotations

import time


class Turns:
    """Counts the turns given to the loop, and the longest CPU time between two."""

    def __init__(self) -> None:
        self.count = 0
        self.longest_s = 0.0
        self._last = time.process_time()

    async def __call__(self) -> None:
        self.count += 1
        self.stop()

    def stop(self) -> None:
        now = time.process_time()
        self.longest_s = max(self.longest_s, now - self._last)
        self._last = now


async def no_turn() -> None:
    """For tests in which time plays no part."""
