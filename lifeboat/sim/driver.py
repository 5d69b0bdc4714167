"""Virtual time against the clock: the one owner of an engine, and the only asyncio in its inside.

Invariants (tests/sim/test_driver.py): a token is never handed out before its virtual time has
come; deadlines are absolute, so lateness does not add up; the check of the line and the arrival
are one synchronous step; whatever readers do, the engine goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import inf

from lifeboat.sim.engine import Engine
from lifeboat.sim.scheduler import Sequence

logger = logging.getLogger(__name__)

GRAIN_S = 0.010
"""Tokens that fall within this much wall time reach their readers together."""
_SHORTEST_NAP_S = 0.001
"""Event loops keep time in whole milliseconds: shorter naps would turn into spinning."""
_STEPS_AT_ONCE = 64
"""Steps replayed before others on the event loop get their turn."""


class Pacing(StrEnum):
    """How virtual time is tied to the clock."""

    ANCHORED = "anchored"
    """Arrivals carry the clock's time, and an idle engine's clock jumps to the next one: every
    burst is paced."""
    EPOCH = "epoch"
    """Arrivals carry the engine's time, which stands still while it is idle: after a quiet spell it
    runs as fast as the CPU allows until it has caught up with the clock (the cold start of the
    original simulator)."""


class EngineGoneError(Exception):
    """The engine's task has ended: nothing will be computed any more."""


@dataclass(frozen=True, slots=True)
class Saturated:
    """No place in the line: the depth found and the bound."""

    waiting: int
    max_waiting: int


@dataclass(frozen=True, slots=True)
class TooManyInFlight:
    """vLLM's own bound on requests in flight (running and waiting) is reached."""

    in_flight: int
    bound: int


class Reply:
    """What the engine does for one request (one or more sequences), as its reader sees it."""

    __slots__ = ("_moved", "lost", "sequences", "watched")

    def __init__(self, sequences: list[Sequence]) -> None:
        self.sequences = sequences
        self.watched = False
        self.lost = False
        self._moved = asyncio.Event()

    async def more_than(self, seen: int) -> None:
        """Wait until there are more than `seen` tokens in all, or no more will come.

        Raises EngineGoneError when the engine went away before.
        """
        self.watched = True
        while sum(s.emitted for s in self.sequences) <= seen and not self._ended():
            await self._wait()

    async def end(self) -> None:
        """Wait until every sequence is complete; raises EngineGoneError."""
        self.watched = False
        while not self._ended():
            await self._wait()

    def poke(self) -> None:
        """Let the reader look again."""
        self._moved.set()

    def _ended(self) -> bool:
        return all(sequence.ended for sequence in self.sequences)

    async def _wait(self) -> None:
        if not self.lost:
            self._moved.clear()
            await self._moved.wait()
        if self.lost:
            raise EngineGoneError


class EngineDriver:
    """Owns an engine: paces it, hands out its tokens, takes arrivals and departures.

    time_scale: wall seconds per virtual second. max_in_flight: vLLM's bound, 0 = none.
    clock: seconds that never go back, the event loop's.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Callable[[], float],
        time_scale: float = 1.0,
        pacing: Pacing = Pacing.ANCHORED,
        max_in_flight: int = 0,
    ) -> None:
        self.engine = engine
        self.max_in_flight = max_in_flight
        self.refused = 0
        self.alive = True
        self._clock = clock
        self._scale = time_scale
        self._pacing = pacing
        self._epoch_s = clock()
        self._replies: dict[int, Reply] = {}
        self._wake = asyncio.Event()
        self._steps_told = 0
        self._preemptions_told = 0

    def admit(self, sequences: list[Sequence]) -> Reply | Saturated | TooManyInFlight:
        """Take one request (one or more sequences) into the engine, or say why not.

        One synchronous step, after the engine was brought up to the present moment. A request of
        several sequences is admitted whole when its first one has a place.
        Raises EngineGoneError.
        """
        if not self.alive:
            raise EngineGoneError
        engine = self.engine
        anchored = self._pacing is Pacing.ANCHORED
        if anchored:
            self._advance()
        if engine.saturated:
            self.refused += 1
            return Saturated(engine.depth, engine.max_waiting)
        if self.max_in_flight and engine.in_flight + len(sequences) > self.max_in_flight:
            self.refused += 1
            return TooManyInFlight(engine.in_flight, self.max_in_flight)
        at_s = self._virtual_now_s() if anchored else engine.now_s
        reply = Reply(sequences)
        for sequence in sequences:
            engine.submit(sequence, at_s)
            self._replies[id(sequence)] = reply
        self._wake.set()
        return reply

    def withdraw(self, reply: Reply) -> None:
        """The reader left, or has all it wanted. Idempotent, cannot fail."""
        for sequence in reply.sequences:
            self._replies.pop(id(sequence), None)
            self.engine.withdraw(sequence)

    async def run(self) -> None:
        """Pace the engine until cancelled; whatever ends it, readers learn that it is gone."""
        try:
            while True:
                if self._advance():
                    await asyncio.sleep(0)
                else:
                    await self._sleep()
        except Exception:
            logger.exception("the simulated engine failed")
        finally:
            self._lose_everything()

    def look(self) -> bool:
        """Bring the engine up to the present moment, so that its figures are current.

        Bounded: returns True when it lags so far behind that more calls are needed.
        """
        return self.alive and self._pacing is Pacing.ANCHORED and self._advance()

    async def _sleep(self) -> None:
        loop = asyncio.get_running_loop()
        self._wake.clear()
        deadline_s = self._next_wake_s()
        timer = None if deadline_s == inf else loop.call_at(deadline_s, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _next_wake_s(self) -> float:
        """The next boundary, or up to a grain later while only further tokens fall due."""
        engine = self.engine
        if engine.idle:
            return inf
        now_s = self._clock()
        patience_s = min(self._wall_s(engine.next_event_s), now_s + GRAIN_S)
        return max(self._wall_s(engine.step_ends_s), patience_s, now_s + _SHORTEST_NAP_S)

    def _advance(self) -> bool:
        """Replay what is due, at most `_STEPS_AT_ONCE` steps; True when more is due."""
        finished, behind = self.engine.advance(self._virtual_now_s(), _STEPS_AT_ONCE)
        for sequence in finished:
            reply = self._replies.pop(id(sequence), None)
            if reply is not None:
                reply.poke()
        if self.engine.steps != self._steps_told:
            self._steps_told = self.engine.steps
            self._poke_watchers()
        return behind

    def _poke_watchers(self) -> None:
        replies = self._replies
        for sequence in self.engine.running:
            reply = replies.get(id(sequence))
            if reply is not None and reply.watched:
                reply.poke()
        scheduler = self.engine.scheduler
        if scheduler.preemptions != self._preemptions_told:
            self._preemptions_told = scheduler.preemptions
            for sequence in scheduler.waiting():
                reply = replies.get(id(sequence))
                if reply is not None and reply.watched:
                    reply.poke()

    def _lose_everything(self) -> None:
        self.alive = False
        for reply in self._replies.values():
            reply.lost = True
            reply.poke()
        self._replies.clear()

    def _virtual_now_s(self) -> float:
        return (self._clock() - self._epoch_s) / self._scale

    def _wall_s(self, virtual_s: float) -> float:
        return self._epoch_s + virtual_s * self._scale
