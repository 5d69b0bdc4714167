"""Long work cut into slices, with a turn of the event loop between them.

Invariant, held by tests/intake/test_slices.py: however many long bodies are read at once, a loop
iteration does at most one slice of them, so that its longest stall is one slice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from time import perf_counter
from typing import TypeVar

SLICE_S = 0.004
"""Longest slice of work between two turns of the event loop."""

YieldNow = Callable[[], Awaitable[object]]
"""Gives the event loop a turn: `Turnstile.turn`, or `asyncio.sleep(0)` where nothing else reads."""

T = TypeVar("T")


class Turnstile:
    """Lets one waiter through per iteration of the loop, first come first served.

    One for all readers of a loop. With `asyncio.sleep(0)` in its place, 32 bodies read at once do
    32 slices an iteration: stalls of 110 to 122 ms where this has 5 (bench/hostile_body.py).
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_set = False

    async def turn(self) -> None:
        """Return in an iteration of the loop that is this caller's."""
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[None] = loop.create_future()
        self._waiting.append(mine)
        if not self._is_set:
            self._is_set = True
            loop.call_soon(self._let_through, loop)
        await mine

    def _let_through(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():  # else its reader was cancelled while it waited
                first.set_result(None)
                break
        self._is_set = bool(self._waiting)
        if self._is_set:
            loop.call_soon(self._let_through, loop)


async def last_of(steps: Iterator[T | None], yield_now: YieldNow) -> T | None:
    """Run a pausing generator to its end, a turn of the loop per SLICE_S; return its last value."""
    last: T | None = None
    await yield_now()
    deadline = perf_counter() + SLICE_S
    for value in steps:
        last = value
        if perf_counter() >= deadline:
            await yield_now()
            deadline = perf_counter() + SLICE_S
    return last
