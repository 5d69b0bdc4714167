"""The learned limit once over sockets: a router, a simulated engine, streaming clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from lifeboat.sim.config import EngineConfig
from lifeboat.sim.server import SimulatedServer
from tests.running import CHAT, Running, backend, backends_yaml, running_router

USERS = 48
SEATS, FEWER = 16, 4
TIME_SCALE = 8.0
"""Slow enough that 48 streams cost this machine little: an answer takes about a second."""


class Crowd:
    """Clients that each ask again as soon as they are answered."""

    def __init__(self, router: Running) -> None:
        self._router = router
        self._rng = random.Random(2026)
        self.statuses: Counter[int] = Counter()

    async def user(self) -> None:
        while True:
            body = {
                "model": "m",
                "messages": [{"role": "user", "content": "row " * self._rng.randint(20, 60)}],
                "max_tokens": self._rng.randint(30, 60),
                "stream": True,
            }
            answer = await self._router.ask(CHAT, body)
            self.statuses[answer.status] += 1


async def limits(router: Running, seconds: float) -> list[int]:
    found: list[int] = []
    for _ in range(int(seconds / 0.25)):
        await asyncio.sleep(0.25)
        state = await router.state()
        found.append(state["backends"]["a"]["effective_limit"])
    return found


@contextlib.asynccontextmanager
async def crowded(directory: Path, **options: Any) -> AsyncIterator[tuple[Crowd, Running, str]]:
    """Run an engine, a router that learns its limit, and users; yields the engine's url, too."""
    config = EngineConfig(served_names=("m",), time_scale=TIME_SCALE, **options)
    engine = SimulatedServer([config])
    url = await engine.start("127.0.0.1", 0)
    entry = backend(url, kind="simulated", max_concurrency=64, adaptive=True)
    yaml = backends_yaml(entry, queue={"enabled": True, "ttl": "60s", "max_depth": USERS})
    try:
        async with running_router(yaml, directory) as router:
            crowd = Crowd(router)
            users = [asyncio.ensure_future(crowd.user()) for _ in range(USERS)]
            try:
                yield crowd, router, url
            finally:
                for user in users:
                    user.cancel()
                await asyncio.gather(*users, return_exceptions=True)
    finally:
        await engine.close()


@pytest.mark.slow
async def test_it_follows_an_engine_down_and_up_and_clients_see_no_529(tmp_path: Path) -> None:
    async with crowded(tmp_path, max_num_seqs=SEATS, max_waiting=4) as (crowd, router, url):
        await limits(router, 4.0)
        before = await limits(router, 2.0)
        await retune(router, url, FEWER)
        await limits(router, 4.0)
        low = await limits(router, 2.0)
        await retune(router, url, SEATS)
        await limits(router, 6.0)
        after = await limits(router, 2.0)
        reason = (await router.state())["backends"]["a"]["limit_reason"]
    assert 0.75 * SEATS <= mean(before) <= 1.25 * SEATS, before
    assert mean(low) <= FEWER + 4, low
    assert 0.75 * SEATS <= mean(after) <= 1.25 * SEATS, after
    assert set(crowd.statuses) == {200}
    assert reason in {"adaptive", "saturated"}


@pytest.mark.slow
async def test_an_engine_that_never_refuses_is_found_by_its_first_tokens(tmp_path: Path) -> None:
    async with crowded(tmp_path, max_num_seqs=8) as (_, router, _):
        await limits(router, 7.0)
        settled = await limits(router, 2.0)
    assert 0.75 * 8 <= mean(settled) <= 1.5 * 8, settled


async def retune(router: Running, url: str, seats: int) -> None:
    change = json.dumps({"max_num_seqs": seats})
    answer = await router.ask("/control/capacity", change.encode(), url=url)
    assert answer.status == 200, answer.body
