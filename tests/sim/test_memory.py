"""Memory stays flat: nothing of a request remains once it is answered or withdrawn."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

from lifeboat.sim.driver import EngineDriver, Reply
from lifeboat.sim.scheduler import Sequence
from tests.sim.serving import CHAT, chat, serving
from tests.sim.virtual import engine


class _Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def test_a_hundred_thousand_requests_leave_nothing_behind() -> None:
    """Answered, withdrawn while running, withdrawn while waiting, refused: in equal parts."""
    clock = _Clock()
    driver = EngineDriver(engine(max_num_seqs=64, max_waiting=40), clock=clock)

    def serve(count: int) -> int:
        refused = 0
        held: list[Reply] = []
        for number in range(count):
            reply = driver.admit([Sequence(8, 4)])
            if not isinstance(reply, Reply):
                refused += 1
            elif number % 3 == 0:
                held.append(reply)
            if len(held) > 20:
                driver.withdraw(held.pop(0))
            clock.now_s += 0.00002
        clock.now_s += 10.0
        while driver.look():
            pass
        for reply in held:
            driver.withdraw(reply)
        return refused

    serve(5_000)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    refused = serve(100_000)
    gc.collect()
    grown_bytes = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert 10_000 < refused < 90_000
    assert driver.engine.in_flight == 0
    assert driver.engine.scheduler.kv.free == driver.engine.scheduler.kv.total
    assert grown_bytes < 20_000


async def test_a_server_that_was_left_by_many_clients_holds_nothing() -> None:
    async with serving(max_num_seqs=8) as client:
        for _ in range(10):
            tasks = [
                asyncio.create_task(client.post(CHAT, chat(500, stream=True))) for _ in range(20)
            ]
            await asyncio.sleep(0.03)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await client.until(running=0, waiting=0)
        model = client.server.models[0]
        assert model.kv_usage == 0.0
        assert model.drivers[0].engine.in_flight == 0
