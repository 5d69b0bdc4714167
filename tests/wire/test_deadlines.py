"""Deadlines behind one timer: each thing in its time, none that was taken back, one timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lifeboat.wire.deadlines import Deadlines


class CountingLoop:
    """The running loop, with its timers counted and its clock shifted by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], object]]] = []
        self.cancelled = 0

    def time(self) -> float:
        return self.now

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> CountingLoop:
        self.timers.append((self.now + delay_s, callback))
        return self

    def cancel(self) -> None:
        self.cancelled += 1
        self.timers.clear()

    def run_until(self, now: float) -> None:
        while self.timers and min(at for at, _ in self.timers) <= now:
            at, callback = min(self.timers, key=lambda timer: timer[0])
            self.timers.remove((at, callback))
            self.now = max(self.now, at)
            callback()
        self.now = now


def made(loop: CountingLoop, after_s: float = 5.0) -> tuple[Deadlines[str], list[str]]:
    due: list[str] = []
    return Deadlines(loop, after_s, due.append), due  # type: ignore[arg-type]  # two methods of it


def test_each_falls_due_in_its_time_and_in_order() -> None:
    loop = CountingLoop()
    deadlines, due = made(loop)
    deadlines.set("a")
    loop.run_until(102.0)
    deadlines.set("b")
    loop.run_until(104.9)
    assert due == []
    loop.run_until(105.0)
    assert due == ["a"]
    loop.run_until(106.9)
    assert due == ["a"]
    loop.run_until(107.0)
    assert due == ["a", "b"]
    assert len(deadlines) == 0 and not loop.timers


def test_what_was_taken_back_is_never_due_and_what_comes_later_keeps_its_own_time() -> None:
    loop = CountingLoop()
    deadlines, due = made(loop)
    deadlines.set("a")
    deadlines.take_back("a")
    deadlines.take_back("a")
    loop.run_until(103.0)
    deadlines.set("b")
    loop.run_until(107.9)
    assert due == []
    loop.run_until(108.0)
    assert due == ["b"]


def test_a_thousand_deadlines_that_are_taken_back_cost_one_timer() -> None:
    loop = CountingLoop()
    deadlines, due = made(loop)
    for number in range(1000):
        loop.now += 0.001
        deadlines.set(str(number))
        deadlines.take_back(str(number))
    assert len(loop.timers) == 1
    loop.run_until(200.0)
    assert due == [] and not loop.timers


def test_one_that_is_set_anew_as_it_falls_due_waits_its_whole_time() -> None:
    loop = CountingLoop()
    due: list[float] = []

    def again(thing: str) -> None:
        due.append(loop.now)
        if len(due) < 3:
            deadlines.set(thing)

    deadlines: Deadlines[str] = Deadlines(loop, 5.0, again)  # type: ignore[arg-type]  # as above
    deadlines.set("a")
    loop.run_until(130.0)
    assert due == [105.0, 110.0, 115.0]


def test_closed_they_are_forgotten() -> None:
    loop = CountingLoop()
    deadlines, due = made(loop)
    deadlines.set("a")
    deadlines.close()
    assert loop.cancelled == 1
    loop.run_until(200.0)
    assert due == [] and len(deadlines) == 0


async def test_on_a_real_loop() -> None:
    due: list[str] = []
    deadlines: Deadlines[str] = Deadlines(asyncio.get_running_loop(), 0.02, due.append)
    deadlines.set("a")
    deadlines.set("b")
    deadlines.take_back("a")
    await asyncio.sleep(0.1)
    assert due == ["b"]


def test_one_soon_after_the_first_keeps_its_own_time() -> None:
    loop = CountingLoop()
    deadlines, due = made(loop)
    deadlines.set("a")
    loop.run_until(100.5)
    deadlines.set("b")
    loop.run_until(105.4)
    assert due == ["a"]
    loop.run_until(105.5)
    assert due == ["a", "b"]
