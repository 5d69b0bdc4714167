"""Clients that leave at any moment: no slot leaks, no cap breaks, nobody waits in vain."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

import pytest

from tests.acceptance.engines import HeldEngine
from tests.peers import RawClient, until
from tests.running import CHAT, Running, backend, backends_yaml, chat_body, running_router

CLIENTS = 240
CAP = 4
MOMENTS_S = 1.2
"""Clients arrive within the first half and leave at any time after."""
QUEUE_ON = {"LIFEBOAT_LB_QUEUE_ENABLED": "true", "LIFEBOAT_LB_QUEUE_MAX_DEPTH": "400"}

HEAD = (
    b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)


async def hang_up_some_time(running: Running, chance: random.Random) -> None:
    """Ask, streamed or not, and hang up at a random moment, by FIN or RST."""
    body = (
        b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "Hello"}]}'
        if chance.random() < 0.5
        else b'{"model": "m", "messages": [{"role": "user", "content": "Hello"}]}'
    )
    await asyncio.sleep(chance.random() * MOMENTS_S / 2)
    client = await RawClient.connect(running.port)
    half = chance.random() < 0.1
    await client.send(HEAD % (CHAT.encode(), len(body)) + (body[:20] if half else body))
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(chance.random() * MOMENTS_S / 2):
            while await client.reader.read(65536):
                pass
    if chance.random() < 0.5:
        client.reset()
    else:
        client.close()


@pytest.mark.parametrize("seed", [1, 2])
async def test_240_aborted_clients_leave_nothing_behind(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    async with HeldEngine(hold_s=0.02) as a, HeldEngine(hold_s=0.05) as b:
        yaml = backends_yaml(
            backend(a.url, "a", max_concurrency=CAP), backend(b.url, "b", max_concurrency=CAP)
        )
        async with running_router(yaml, tmp_path, QUEUE_ON) as running:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(CLIENTS):
                    tasks.create_task(hang_up_some_time(running, random.Random(chance.random())))
            state = await running.settle()
            await until(lambda: not a.running and not b.running)
            assert max(a.most_running, b.most_running) <= CAP
            assert a.answered + b.answered > 0, "nobody was served: the test proves nothing"
            assert a.left + b.left > 0, "nobody left while being served"
            metrics = await running.metrics()
            gone = {
                stage: metrics[f'lifeboat_lb_client_disconnects_total{{stage="{stage}"}}']
                for stage in ("parked", "waiting", "streaming")
            }
            assert min(gone.values()) > 0, gone
            # A client may leave while its connection to the backend is being made.
            dispatched = sum(state["dispatch_counts"].values())
            assert 0 <= dispatched - len(a.asked) - len(b.asked) <= 5
            assert state["parked_bytes"] == 0
            after = await running.ask()
            assert (after.status, after.wait_ms) == (200, 0)


async def test_all_that_run_are_cancelled_at_once_and_every_parked_request_completes(
    tmp_path: Path,
) -> None:
    async with HeldEngine() as engine:
        yaml = backends_yaml(backend(engine.url, max_concurrency=8))
        async with running_router(yaml, tmp_path, QUEUE_ON) as running:
            async with asyncio.TaskGroup() as tasks:
                first = [tasks.create_task(running.ask(body=chat_body(user="1"))) for _ in range(8)]
                await until(lambda: len(engine.running) == 8)
                parked = [
                    tasks.create_task(running.ask(body=chat_body(user="2", stream=bool(odd % 2))))
                    for odd in range(24)
                ]
                await running.until(lambda state: state["queue_total_waiters"] == 24)
                engine.hold_s = 0.02
                for ask in first:
                    ask.cancel()
                await asyncio.wait(parked, timeout=20.0)
            assert [ask.result().status for ask in parked] == [200] * 24
            assert min(ask.result().wait_ms for ask in parked) > 0
            assert engine.most_running == 8
            assert engine.left == 8
            state = await running.settle()
            assert state["backends"]["a"]["cancelled"] == 8
            assert state["backends"]["a"]["health"] == "up"


async def test_a_parked_client_that_left_is_never_sent_to_a_backend(tmp_path: Path) -> None:
    async with HeldEngine() as engine:
        yaml = backends_yaml(backend(engine.url, max_concurrency=1))
        async with (
            running_router(yaml, tmp_path, QUEUE_ON) as running,
            asyncio.TaskGroup() as tasks,
        ):
            run = tasks.create_task(running.ask(body=chat_body(user="run")))
            await until(lambda: len(engine.running) == 1)
            clients = [await RawClient.connect(running.port) for _ in range(3)]
            for client in clients:
                await client.post(CHAT, b'{"model": "m", "user": "gone"}')
            await running.until(lambda state: state["queue_total_waiters"] == 3)
            clients[0].close()
            clients[1].reset()
            # Half-closed: it could still read, but it counts as gone.
            clients[2].writer.write_eof()
            await running.until(lambda state: state["queue_total_waiters"] == 0)
            engine.release_all()
            await run
            clients[2].close()
            assert (await running.ask(body=chat_body(user="after"))).status == 200
        assert engine.tags() == ["run", "after"]


async def test_a_client_that_pipelined_too_much_to_be_seen_leaving_is_not_dispatched(
    tmp_path: Path,
) -> None:
    """aiohttp stops reading behind many pipelined bytes and is blind then: the guard looks."""
    async with HeldEngine() as engine:
        yaml = backends_yaml(backend(engine.url, max_concurrency=1))
        async with (
            running_router(yaml, tmp_path, QUEUE_ON) as running,
            asyncio.TaskGroup() as tasks,
        ):
            run = tasks.create_task(running.ask(body=chat_body(user="run")))
            await until(lambda: len(engine.running) == 1)
            client = await RawClient.connect(running.port)
            await client.post(CHAT, b'{"model": "m", "user": "gone"}')
            await running.until(lambda state: state["queue_total_waiters"] == 1)
            pipelined = b'{"model": "m", "user": "pipelined"}'
            for _ in range(2000):
                client.writer.write(HEAD % (CHAT.encode(), len(pipelined)) + pipelined)
            await asyncio.sleep(0.1)
            client.reset()
            await asyncio.sleep(0.1)
            engine.release_all()
            await run
            await running.settle()
            assert (await running.ask(body=chat_body(user="after"))).status == 200
        assert engine.tags() == ["run", "after"]
