"""Many deadlines of one length behind one timer.

A timer of its own for every request would cost it a microsecond to set and to cancel. Deadlines of
one length fall due in the order they were set, so the loop's timer need only know the first. Held
by tests/wire/test_deadlines.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

RESOLUTION_S = 0.01
"""The timer is not set for less: what falls due within it of the first waits for the next turn."""


class Deadlines(Generic[T]):
    """What must happen to each of several things `after_s` seconds from now, unless taken back.

    on_due: called with a thing whose time has come, in the order of the times.
    """

    __slots__ = ("_after_s", "_due_at", "_loop", "_on_due", "_timer")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, after_s: float, on_due: Callable[[T], None]
    ) -> None:
        self._loop = loop
        self._after_s = after_s
        self._on_due = on_due
        self._due_at: dict[T, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._due_at)

    def set(self, thing: T) -> None:
        """Set the deadline of a thing that has none."""
        self._due_at[thing] = self._loop.time() + self._after_s
        if self._timer is None:
            self._timer = self._loop.call_later(self._after_s, self._fire)

    def take_back(self, thing: T) -> None:
        """Let a thing have no deadline any more, if it has one."""
        self._due_at.pop(thing, None)

    def close(self) -> None:
        """Forget all of them."""
        self._due_at.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._due_at:
            thing, due_at = next(iter(self._due_at.items()))
            if due_at > now:
                wait_s = max(due_at - now, RESOLUTION_S)
                self._timer = self._loop.call_later(wait_s, self._fire)
                return
            del self._due_at[thing]
            self._on_due(thing)
