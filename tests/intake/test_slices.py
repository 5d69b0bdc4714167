"""One slice an iteration, in order, and nobody left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from lifeboat.edge import slices
from lifeboat.edge.slices import Turnstile, last_of


async def test_many_readers_get_one_turn_an_iteration_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    turnstile = Turnstile()
    log: list[tuple[int, int]] = []
    iteration = 0

    def steps(reader: int) -> Iterator[int | None]:
        for _ in range(5):
            log.append((iteration, reader))
            yield None
        yield reader

    async def count() -> None:
        nonlocal iteration
        while len(log) < 50:
            iteration += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(count())
        readers = [group.create_task(last_of(steps(n), turnstile.turn)) for n in range(10)]
    assert [reader.result() for reader in readers] == list(range(10))
    iterations = [when for when, _ in log]
    assert len(set(iterations)) == len(iterations) == 50
    assert [reader for _, reader in log[:20]] == [*range(10), *range(10)]


async def test_a_cancelled_waiter_holds_nobody_up() -> None:
    turnstile = Turnstile()
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(turnstile.turn()) for _ in range(6)]
    await asyncio.sleep(0)
    for task in tasks[:5:2]:
        task.cancel()
    async with asyncio.timeout(5):
        done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(result, asyncio.CancelledError) for result in done] == [
        True, False, True, False, True, False,
    ]  # fmt: skip
    async with asyncio.timeout(5):
        await turnstile.turn()


async def test_work_without_steps_has_no_value() -> None:
    assert await last_of(iter(()), Turnstile().turn) is None
