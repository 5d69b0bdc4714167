"""A turn of the loop that measures the CPU between turns."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

STALL_S = 0.050
"""The issue's bound for one stall of the loop, in CPU seconds."""


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


async def calmest(run: Callable[[Turns], Awaitable[T]], bound_s: float) -> tuple[T, Turns]:
    """Run until no step takes longer than a bound, three times at the most; return the last run.

    A step that is too long is so each time. What the machine does to one (caches, pages that
    another process took) is not.
    """
    for _ in range(3):
        turns = Turns()
        found = await run(turns)
        turns.stop()
        if turns.longest_s < bound_s:
            break
    return found, turns


async def no_turn() -> None:
    """For tests in which time plays no part."""
