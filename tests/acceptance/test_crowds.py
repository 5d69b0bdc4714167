"""Crowds on one router: all that wait are answered in turn or refused, all streams arrive whole.

The small, untimed forms of `python -m bench.connections`.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from bench.connections.parked import HeldEchoes, Waiting
from bench.connections.scene import AT_ONCE, begun, ended
from bench.connections.streams import Reading, TickingEngine
from tests.running import backend, backends_yaml, running_router

PATIENCE_S = 60.0
SLOTS, PARKED, MORE, LEAVING = 4, 200, 20, 20
STREAMS = 100


async def test_a_full_queue_refuses_the_next_and_every_other_gets_its_own_answer(
    tmp_path: Path,
) -> None:
    async with HeldEchoes() as engine:
        yaml = backends_yaml(
            backend(engine.url, max_concurrency=SLOTS),
            queue={"enabled": True, "max_depth": PARKED, "ttl": "600s"},
        )
        async with running_router(yaml, tmp_path) as running:
            clients = [Waiting(number) for number in range(SLOTS + PARKED)]
            tasks = await begun(client.run(running.port) for client in clients)
            await running.until(lambda state: state["queue_total_waiters"] == PARKED, PATIENCE_S)
            over = [Waiting(SLOTS + PARKED + number) for number in range(MORE)]
            await ended(await begun(client.run(running.port) for client in over), PATIENCE_S)
            # Of the last ones, since any of the first crowd may run.
            for task in tasks[-LEAVING:]:
                task.cancel()
            await running.until(
                lambda state: state["queue_total_waiters"] == PARKED - LEAVING, PATIENCE_S
            )
            engine.open.set()
            await ended(tasks, PATIENCE_S)
            state = await running.settle(PATIENCE_S)
    ends = Counter(client.how for client in clients)
    assert ends == {"its answer": SLOTS + PARKED - LEAVING, "left": LEAVING}
    assert {client.how for client in over} == {"HTTP/1.1 503 Service Unavailable"}
    assert state["reject_counts"]["queue_full"] == MORE
    assert len(engine.asked) == SLOTS + PARKED - LEAVING
    assert engine.most_running == SLOTS
    assert engine.most_overtaken() <= AT_ONCE + SLOTS


async def test_many_streams_at_once_each_arrive_whole(tmp_path: Path) -> None:
    async with TickingEngine(STREAMS, pause_s=0.05) as engine:
        yaml = backends_yaml(backend(engine.url, max_concurrency=STREAMS))
        async with running_router(yaml, tmp_path) as running:
            readers = [Reading(number, engine) for number in range(STREAMS)]
            await ended(await begun(reader.run(running.port) for reader in readers), PATIENCE_S)
            await running.settle(PATIENCE_S)
    assert Counter(reader.how for reader in readers) == {"exact": STREAMS}
