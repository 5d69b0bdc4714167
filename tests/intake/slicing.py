"""A turn of the loop that measures the CPU between turns."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Look for no rubbish within a block whose CPU time is measured.

    Python looks when it likes, and in the process of a whole suite that takes tens of milliseconds,
    which are the suite's and not those of the code.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Turns:
    """Counts the turns given to the loop, and the longest CPU time between two."""

    def __init__(self) -> None:
        self.count = 0
        self.longest_s = 0.0
        self._last = time.thread_time()

    async def __call__(self) -> None:
        self.count += 1
        self.stop()

    def stop(self) -> None:
        now = time.thread_time()
        self.longest_s = max(self.longest_s, now - self._last)
        self._last = now


async def no_turn() -> None:
    """For tests in which time plays no part."""
