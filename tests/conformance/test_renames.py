"""A server that gets another name while it works keeps its cap: its engine never runs one more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.acceptance.engines import HeldEngine
from tests.conformance.lanes import Lane
from tests.conformance.reloading import rewrite
from tests.peers import until
from tests.running import CHAT, Running, backend, backends_yaml, chat_body

CAP = 3
PARKED = 7
QUEUE = {"enabled": True, "ttl": "60s", "max_depth": 100}

Rename = Callable[[Running, HeldEngine], Awaitable[None]]


def configured(engine: HeldEngine, name: str) -> str:
    return backends_yaml(backend(engine.url, name, max_concurrency=CAP), queue=QUEUE)


async def by_the_file(running: Running, engine: HeldEngine) -> None:
    assert await rewrite(running, configured(engine, "b"))


async def by_registration(running: Running, engine: HeldEngine) -> None:
    entry = {"name": "b", "url": engine.url, "models": ["m"], "max_concurrency": CAP}
    drained = await running.admin("PATCH", "backends/a", {"state": "drain"})
    assert drained.status == 200, drained.body
    joined = await running.admin("POST", "backends", entry)
    assert joined.status == 201, joined.body


async def by_moving_away(running: Running, engine: HeldEngine) -> None:
    """Point the old name elsewhere and give its server a new one, in one reload."""
    moved = {**backend("http://127.0.0.1:9", "a", max_concurrency=CAP), "models": ["other"]}
    entry = backend(engine.url, "b", max_concurrency=CAP)
    assert await rewrite(running, backends_yaml(moved, entry, queue=QUEUE))


@pytest.mark.parametrize("rename", [by_the_file, by_registration, by_moving_away])
async def test_an_engine_that_is_renamed_under_load_never_runs_more_than_its_cap(
    lane: Lane, rename: Rename
) -> None:
    async with HeldEngine() as engine:
        entry = backend(engine.url, "a", max_concurrency=CAP)
        async with lane.router(entry, queue=QUEUE) as running:
            asks = [
                asyncio.create_task(running.ask(CHAT, chat_body(user=str(number))))
                for number in range(CAP + PARKED)
            ]
            await running.until(lambda state: state["queue_total_waiters"] == PARKED)
            await until(lambda: len(engine.running) == CAP)
            await rename(running, engine)
            state = await running.state()
            newcomer = state["backends"]["b"]
            assert (newcomer["effective_limit"], newcomer["limit_reason"]) == (0, "predecessor")
            assert state["queue_total_waiters"] == PARKED

            for ended in range(1, len(asks) + 1):
                engine.release()
                await until(lambda ended=ended: len(engine.asked) == min(ended + CAP, len(asks)))
                assert len(engine.running) <= CAP
            answers = await asyncio.gather(*asks)
            assert [answer.status for answer in answers] == [200] * len(asks)
            assert engine.most_running == CAP
            newcomer = (await running.settle())["backends"]["b"]
            assert (newcomer["effective_limit"], newcomer["limit_reason"]) == (CAP, "configured")
            assert sorted(engine.tags(), key=int) == [str(number) for number in range(len(asks))]
