"""Steps of concurrency against a server: closed loops, bounded in time and in count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import median

from lifeboat.tune.asking import OVERLOAD, Asked, Asker
from lifeboat.tune.knee import Step, between, flat, ladder

REFUSED_PAUSE_S = 0.1
"""A worker that was refused asks again after this, so that refusals do not become a flood."""

FEWEST_ANSWERS = 3
LONGEST_WINDOW = 4
"""A window is stretched, up to 4 times, until there are 3 answers and one for each worker: a slow
server would else be judged by the accident of which of its answers ended within it."""


class _Tally:
    """What a step saw in its window."""

    def __init__(self, workers: int) -> None:
        self.counting = False
        self.chunks = 0
        self.done: list[Asked] = []
        self.warm = asyncio.Event()
        self.enough = asyncio.Event()
        self._to_begin = workers
        self._to_end = max(workers, FEWEST_ANSWERS)

    def began(self) -> None:
        """A request has its first token."""
        self._to_begin -= 1
        if self._to_begin <= 0:
            self.warm.set()

    def ended(self, asked: Asked) -> None:
        """A request is over; what ends in the window is kept."""
        if self.counting:
            self.done.append(asked)
            self._to_end -= 1
            if self._to_end <= 0:
                self.enough.set()

    def token(self) -> None:
        self.chunks += self.counting


class Measuring:
    """Runs steps. step_s: the window of one, after a warm-up of at most as long.

    A step takes at most five times step_s.
    """

    def __init__(self, asker: Asker, clock: Callable[[], float], step_s: float) -> None:
        self._asker = asker
        self._clock = clock
        self._step_s = step_s

    async def climb(
        self,
        most: int,
        refinements: int,
        budget_s: float,
        on_step: Callable[[Step], None],
        chosen: Sequence[int] = (),
    ) -> list[Step]:
        """Measure the ladder up to its plateau, then the places where the knee may hide.

        chosen: these steps and no others. Ends when the budget does, with what there is.
        """
        ends_at = self._clock() + budget_s
        steps: list[Step] = []

        async def measure(concurrency: int) -> None:
            steps.append(await self.step(concurrency))
            on_step(steps[-1])

        for concurrency in chosen or ladder(most):
            if self._clock() >= ends_at or (not chosen and flat(steps)):
                break
            await measure(concurrency)
        for _ in range(0 if chosen else refinements):
            concurrency = between(steps)
            if concurrency is None or self._clock() >= ends_at:
                break
            await measure(concurrency)
        return sorted(steps, key=lambda step: step.concurrency)

    async def step(self, concurrency: int) -> Step:
        """Keep `concurrency` requests in flight and measure a window of it."""
        tally = _Tally(concurrency)
        async with asyncio.TaskGroup() as tasks:
            workers = [tasks.create_task(self._work(tally)) for _ in range(concurrency)]
            await self._warm_up(tally)
            tally.counting = True
            began_at = self._clock()
            await asyncio.sleep(self._step_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._step_s * (LONGEST_WINDOW - 1)):
                    await tally.enough.wait()
            tally.counting = False
            window_s = self._clock() - began_at
            for worker in workers:
                worker.cancel()
        return _step(concurrency, tally, began_at, window_s)

    async def _warm_up(self, tally: _Tally) -> None:
        """Wait until as many requests as there are workers have begun to answer."""
        await asyncio.sleep(self._step_s / 4)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._step_s * 3 / 4):
                await tally.warm.wait()

    async def _work(self, tally: _Tally) -> None:
        while True:
            began = False

            def token() -> None:
                nonlocal began
                if not began:
                    began = True
                    tally.began()
                tally.token()

            asked = await self._asker.ask(token)
            tally.ended(asked)
            if asked.status != 200:
                await asyncio.sleep(REFUSED_PAUSE_S)


def _step(concurrency: int, tally: _Tally, began_at: float, window_s: float) -> Step:
    answered = [asked for asked in tally.done if asked.status == 200]
    # A chunk may carry several tokens: the servers' own counts say how many.
    chunks = sum(asked.chunks for asked in answered)
    per_chunk = sum(asked.tokens for asked in answered) / chunks if chunks else 1.0
    waits = sorted(
        asked.first_token_at - asked.at for asked in answered if asked.first_token_at is not None
    )
    gaps = [asked.gap_s for asked in answered if asked.gap_s is not None]
    return Step(
        concurrency=concurrency,
        tokens_per_s=tally.chunks * per_chunk / window_s,
        answers_per_s=len(answered) / window_s,
        first_token_s=median(waits) if waits else None,
        first_token_p95_s=waits[int(0.95 * (len(waits) - 1))] if waits else None,
        gap_s=median(gaps) if gaps else None,
        answers=len(answered),
        refused=sum(asked.status in OVERLOAD for asked in tally.done),
        failed=sum(asked.status not in OVERLOAD and asked.status != 200 for asked in tally.done),
    )
