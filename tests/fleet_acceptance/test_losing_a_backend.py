"""A backend dies by kill -9 under load and comes back: nobody who had no byte yet is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import aiohttp

from tests.fleet_acceptance.crowd import crowd
from tests.fleet_acceptance.processes import SimProcess, sims
from tests.running import Running, backend, backends_yaml, running_router

CLIENTS = 200
CAP = 8
SLOW = ("--time-scale", "8", "--max-num-seqs", "32")


class Inside:
    """Looks into a server all the while: how many it holds, by its own word."""

    def __init__(self, sim: SimProcess) -> None:
        self.sim = sim
        self.levels: list[int] = []

    async def run(self) -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                async with session.get(f"{self.sim.url}/control/capacity") as answer:
                    row = (await answer.json())[0]
                self.levels.append(row["running"] + row["waiting"])
                await asyncio.sleep(0.02)


async def first_request_at(running: Running, name: str, before: int) -> float:
    """Wait until a backend was sent another request, and return when that was seen."""
    async with asyncio.timeout(10):
        while running.router.view().backends[name].dispatched <= before:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return asyncio.get_running_loop().time()


async def test_killed_under_two_hundred_clients_and_back_within_a_second(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    loop = asyncio.get_running_loop()
    async with sims(tmp_path, 2, *SLOW) as servers:
        yaml = backends_yaml(
            backend(servers[0].url, "dies", max_concurrency=CAP),
            backend(servers[1].url, "stays", max_concurrency=CAP),
            queue={"enabled": True, "ttl": "60s", "depth_multiplier": 40},
        )
        async with (
            running_router(yaml, tmp_path) as running,
            crowd(running.url, CLIENTS) as clients,
        ):
            await clients.served(100)
            inside = Inside(servers[1])
            watching = asyncio.create_task(inside.run())
            state = await running.state()
            assert state["inflight"]["dies"] == CAP
            await servers[0].kill()
            await running.until(lambda state: state["backends"]["dies"]["health"] == "down")
            await clients.served(150)
            port = servers[0].port
            before = running.router.view().backends["dies"].dispatched
            servers[0] = await SimProcess.listening(tmp_path, *SLOW, port=port)
            back_at = loop.time()
            took_s = max(0.0, await first_request_at(running, "dies", before) - back_at)
            await clients.served(100)
            watching.cancel()
        measured(f"the first request reached it {took_s:.3f} s after its return")
        assert not clients.bad()
        # A second on a machine that is not busy; what nobody asks for is left alone for 30.
        assert took_s < 8.0
        cut = sum(not one.whole for one in clients.seen)
        assert cut <= CAP, "only what ran there can have been cut"
        measured(
            f"{len(clients.seen)} requests, {cut} cut after their first byte, survivor at most "
            f"{max(inside.levels)} of {CAP}"
        )
        assert len(inside.levels) > 20
        assert max(inside.levels) == CAP
