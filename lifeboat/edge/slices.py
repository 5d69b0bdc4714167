"""Long work cut into slices, with a turn of the event loop between them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from time import perf_counter
from typing import TypeVar

SLICE_S = 0.004
"""Longest slice of work between two turns of the event loop."""

YieldNow = Callable[[], Awaitable[object]]
"""Gives the event loop a turn, as `asyncio.sleep(0)` does."""

T = TypeVar("T")


async def last_of(steps: Iterator[T | None], yield_now: YieldNow) -> T | None:
    """Run a pausing generator to its end, a turn of the loop per SLICE_S; return its last value."""
    last: T | None = None
    deadline = perf_counter() + SLICE_S
    for value in steps:
        last = value
        if perf_counter() >= deadline:
            await yield_now()
            deadline = perf_counter() + SLICE_S
    return last
