"""Twenty reloads under a hundred clients, limits and members changing each time: nobody notices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from tests.acceptance.engines import HeldEngine
from tests.conformance.reloading import reloads, rewrite
from tests.fleet_acceptance.crowd import crowd
from tests.running import backend, backends_yaml, running_router

CLIENTS = 100
RELOADS = 20


class Figures:
    """What the state showed, sample by sample; every sample must agree with itself."""

    def __init__(self) -> None:
        self.samples = 0

    def look(self, state: dict) -> None:
        self.samples += 1
        backends = state["backends"]
        assert state["inflight"] == {name: one["in_flight"] for name, one in backends.items()}
        assert min(state["inflight"].values()) >= 0
        pools = state["pools"].values()
        assert sum(state["inflight"].values()) == sum(pool["in_flight"] for pool in pools)
        assert state["queue_total_waiters"] == sum(pool["queue_depth"] for pool in pools)


def configuration(engines: list[HeldEngine], round_: int) -> str:
    """Return another one each time: who is in, at what limit, in what mode."""
    present = [0, 1 + round_ % 3] if round_ % 2 else [0, 1, 2, 3]
    entries = [
        backend(engines[at].url, "abcd"[at], max_concurrency=4 + (round_ * 3 + at) % 9)
        for at in present
    ]
    mode = ("default", "superfast", "queue-all")[round_ % 3]
    queue = {"enabled": True, "ttl": "60s", "max_depth": 500}
    return backends_yaml(*entries, mode=mode, queue=queue)


async def test_twenty_reloads_under_a_hundred_clients_fail_nobody(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    engines = [HeldEngine(hold_s=0.03) for _ in range(4)]
    async with engines[0], engines[1], engines[2], engines[3]:
        async with running_router(configuration(engines, 0), tmp_path) as running:
            figures = Figures()

            async def sample() -> None:
                while True:
                    figures.look(await running.state())
                    await asyncio.sleep(0.02)

            sampling = asyncio.create_task(sample())
            async with crowd(running.url, CLIENTS, pause_s=0.1) as clients:
                for round_ in range(1, RELOADS + 1):
                    assert await rewrite(running, configuration(engines, round_))
                    await asyncio.sleep(0.1)
                await clients.served(50)
            assert not sampling.done(), sampling.exception()
            sampling.cancel()
            assert not clients.bad()
            assert all(one.good for one in clients.seen)
            assert await reloads(running) == (RELOADS, 0)

            # Consistent: what was sent, what was answered and what was asked are one number.
            state = await running.settle()
            asked = len(clients.seen)
            assert sum(len(engine.asked) for engine in engines) == asked
            metrics = await running.metrics()
            counted = {
                name: value
                for name, value in metrics.items()
                if name.startswith("lifeboat_lb_dispatch_total{")
            }
            assert sum(counted.values()) == asked
            assert sum(state["reject_counts"].values()) == 0
            assert state["pools"]["m"]["dispatched"] == asked
            measured(f"{asked} requests, {RELOADS} reloads, {figures.samples} samples agree")
