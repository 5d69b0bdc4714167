"""The router's own pages."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp

from tests.acceptance.engines import HeldEngine
from tests.peers import RawClient, until
from tests.running import backend, backends_yaml, running_router

NOBODY = "http://127.0.0.1:9"


async def test_health_and_ready_never_wait(tmp_path: Path) -> None:
    async with HeldEngine() as engine:
        yaml = backends_yaml(backend(engine.url, max_concurrency=1), queue={"enabled": True})
        async with running_router(yaml, tmp_path) as running:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(5):
                    tasks.create_task(running.ask())
                await running.until(lambda state: state["queue_total_waiters"] == 4)
                for path in ("/health", "/ready", "/metrics", "/v1/models", "/"):
                    answer = await running.ask(path, method="GET")
                    assert answer.status == 200
                    head = await running.ask(path, method="HEAD")
                    assert (head.status, head.body) == (200, b"")
                # None of them can have waited for a slot.
                assert (await running.state())["queue_total_waiters"] == 4
                engine.release_all()


async def test_models_with_slashes_and_odd_names_can_be_read_one_by_one(tmp_path: Path) -> None:
    names = ["org/model:7b", "sp ace", "per%cent", "\u00fcber", "plain"]
    async with running_router(backends_yaml(backend(NOBODY, models=names)), tmp_path) as running:
        listed = (await running.ask("/v1/models", method="GET")).json
        assert listed["object"] == "list"
        assert {entry["id"] for entry in listed["data"]} == set(names)
        for encoded in ("org/model:7b", "org%2Fmodel%3A7b"):
            client = await RawClient.connect(running.port)
            await client.send(b"GET /v1/models/%b HTTP/1.1\r\nHost: x\r\n\r\n" % encoded.encode())
            reply = await client.reply()
            client.close()
            assert json.loads(reply.body)["id"] == "org/model:7b"
        for name, encoded in (("per%cent", "per%25cent"), ("\u00fcber", "%C3%BCber")):
            client = await RawClient.connect(running.port)
            await client.send(b"GET /v1/models/%b HTTP/1.1\r\nHost: x\r\n\r\n" % encoded.encode())
            reply = await client.reply()
            client.close()
            assert json.loads(reply.body)["id"] == name


async def test_the_state_streams_every_second_and_on_change(tmp_path: Path) -> None:
    async with HeldEngine() as engine:
        async with running_router(backends_yaml(backend(engine.url)), tmp_path) as running:
            url = f"{running.url}/api/lb/state/stream"
            async with running.session.get(url) as stream:
                assert stream.content_type == "text/event-stream"
                loop = asyncio.get_running_loop()
                assert (await next_state(stream))["inflight"] == {"a": 0}
                told_s: list[float] = []
                for _ in range(4):
                    # Just after one: the next by the clock alone is a second away.
                    await next_state(stream)
                    started = loop.time()
                    ask = asyncio.create_task(running.ask())
                    while (await next_state(stream))["inflight"] != {"a": 1}:
                        pass
                    told_s.append(loop.time() - started)
                    engine.release(1)
                    await ask
                    while (await next_state(stream))["inflight"] != {"a": 0}:
                        pass
                # A busy machine makes some of them late, never all.
                assert min(told_s) < 0.7
                started = loop.time()
                await next_state(stream)
                await next_state(stream)
                assert loop.time() - started < 10.0
            # Who leaves is not missed: nothing holds the router's end up.
            async with running.session.get(url) as stream:
                await next_state(stream)
                running.stop.set()
                while await stream.content.readany():
                    pass


async def test_the_capacity_comes_with_the_state_of_the_same_moment(tmp_path: Path) -> None:
    async with HeldEngine() as engine:
        yaml = backends_yaml(backend(engine.url, max_concurrency=2), queue={"enabled": True})
        async with running_router(yaml, tmp_path) as running:
            async with (
                running.session.get(f"{running.url}/api/lb/state/stream?capacity") as stream,
                asyncio.TaskGroup() as tasks,
            ):
                for _ in range(5):
                    tasks.create_task(running.ask())
                seen: set[float] = set()
                while 5 not in seen:
                    line = b""
                    while line != b"event: capacity\n":
                        line = await stream.content.readline()
                        assert line, "the stream ended"
                    capacity = (await next_state(stream))["pools"]["m"]
                    pool = (await next_state(stream))["pools"]["m"]
                    assert capacity["demand"] == pool["in_flight"] + pool["queue_depth"]
                    seen.add(capacity["demand"])
                engine.release_all()


async def next_state(stream: aiohttp.ClientResponse) -> dict:
    async with asyncio.timeout(5):
        while True:
            line = await stream.content.readline()
            assert line, "the stream ended"
            if line.startswith(b"data: "):
                return json.loads(line[6:])


async def test_state_is_read_while_a_thousand_wait(tmp_path: Path) -> None:
    async with HeldEngine() as engine:
        yaml = backends_yaml(
            backend(engine.url, max_concurrency=1), queue={"enabled": True, "max_depth": 2000}
        )
        async with running_router(yaml, tmp_path) as running:
            async with asyncio.TaskGroup() as tasks:
                asks = [tasks.create_task(running.ask()) for _ in range(600)]
                await running.until(lambda state: state["queue_total_waiters"] == 599, 15.0)
                state = await running.state()
                assert state["pools"]["m"]["queue_depth"] == 599
                engine.hold_s = 0.0
                await running.admin("PATCH", "backends/a", {"max_concurrency": 50})
                engine.release_all()
            assert {ask.result().status for ask in asks} == {200}
            await until(lambda: not engine.running)
            assert engine.most_running <= 50
