"""The end of a router: readiness first, then the door; what runs flows on, what waits is told."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import aiohttp

from tests.conformance.holding import Held
from tests.conformance.lanes import (
    LANES,
    LAST_CHUNK,
    SSE_HEAD,
    Engine,
    Lane,
    Stage,
    Stepped,
    chat,
    event,
    read_chunk,
    says_hello,
)
from tests.peers import PATIENCE_S, Peer, RawClient, Received, Reply, until
from tests.running import CHAT, RouterProcess, backend, backends_yaml


def ticking(count: int, pause_s: float):
    """Return a script that streams so many events, one every `pause_s`."""

    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(SSE_HEAD)
        for number in range(count):
            await peer.chunk(event(number))
            await asyncio.sleep(pause_s)
        await peer.send(LAST_CHUNK)

    return script


async def open_door(port: int) -> bool:
    """Say whether anybody still listens."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError:
        return False
    writer.close()
    return True


async def closed(port: int, patience_s: float = PATIENCE_S) -> None:
    async with asyncio.timeout(patience_s):
        while await open_door(port):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def draining(stage: Stage) -> None:
    """Tell the router to end, and wait until it has taken notice."""
    stage.running.stop.set()
    await stage.running.until(lambda state: state["draining"])


async def send(stage: Stage, *, stream: bool = False) -> RawClient:
    client = await stage.client()
    await client.post(CHAT, chat(stream=stream))
    return client


def reason(reply: Reply) -> str | None:
    return json.loads(reply.body).get("error", {}).get("code")


def says_close(reply: Reply) -> bool:
    return [value.lower() for value in reply.values(b"connection")] == [b"close"]


async def test_bug_216_bug_220_a_stream_flows_on_through_the_drain(lane: Lane) -> None:
    stream = Stepped()
    async with lane.facing(stream) as stage:
        client = await send(stage, stream=True)
        await client.head()
        stream.send(event(0))
        assert await read_chunk(client) == event(0)
        await draining(stage)
        # Each was there before the next was sent: nothing was held back while the router drained,
        # and nothing came in one lump at its end.
        for number in range(1, 25):
            stream.send(event(number))
            assert await read_chunk(client) == event(number)
        stream.end()
        assert await read_chunk(client) == b""
        await closed(stage.running.port)


async def test_bug_216_a_stream_beyond_the_grace_is_cut_and_never_ended_cleanly(
    lane: Lane,
) -> None:
    grace = {"LIFEBOAT_SHUTDOWN_GRACE_SEC": "0.4"}
    async with lane.facing(ticking(1000, 0.02), environ=grace) as stage:
        client = await send(stage, stream=True)
        await client.head()
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        stage.running.stop.set()
        try:
            # Half of what the backend would go on for.
            async with asyncio.timeout(10.0):
                while await read_chunk(client):
                    pass
            raise AssertionError("a stream that was cut looks complete")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        assert loop.time() - began_at > 0.3
        await closed(stage.running.port)


async def test_bug_217_readiness_goes_first_and_new_requests_are_told(lane: Lane) -> None:
    held = Held()
    async with lane.facing(held) as stage:
        idle = await stage.client()
        await idle.send(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await idle.reply()).status == 200
        runs = await send(stage)
        await until(lambda: held.running == 1)
        await draining(stage)

        # The door is open: whoever asks learns of it, on new and on old connections.
        ready = await stage.running.ask("/ready", method="GET")
        assert (ready.status, ready.json["status"]) == (503, "draining")
        assert (await stage.running.ask("/health", method="GET")).status == 200
        assert (await stage.running.state())["draining"] is True
        for client in (idle, await stage.client()):
            await client.post(CHAT, chat())
            reply = await client.reply()
            assert (reply.status, reason(reply)) == (503, "shutting_down")
            assert says_close(reply)
            # And the connection is closed indeed, so that the client opens its next one elsewhere.
            assert await client.reader.read() == b""
        assert held.running == 1
        held.release_all()
        last = await runs.reply()
        assert (last.status, last.clean) == (200, True)
        await closed(stage.running.port)


async def test_bug_217_whoever_keeps_sending_is_never_reset(lane: Lane) -> None:
    """Until the door closes each one is answered; afterwards it is refused, not cut off."""
    stream = Stepped()

    async def script(peer: Peer, asked: Received) -> None:
        await (stream if b'"stream": true' in asked.body else says_hello)(peer, asked)

    async with lane.facing(script) as stage:
        port = stage.running.port
        runs = await send(stage, stream=True)
        await runs.head()
        stage.running.stop.set()
        seen: list[int] = []

        async def keep_sending() -> None:
            while True:
                try:
                    client = await RawClient.connect(port)
                except ConnectionRefusedError:
                    return
                await client.post(CHAT, chat())
                reply = await client.reply()
                seen.append(reply.status)
                if seen.count(503) == 6:
                    stream.end()
                assert reply.clean
                client.close()

        async with asyncio.timeout(20.0), asyncio.TaskGroup() as tasks:
            for _ in range(4):
                tasks.create_task(keep_sending())
        # Those that got in before the flag was seen were served.
        assert set(seen) <= {200, 503}
        assert seen.count(503) > 5


async def test_bug_219_the_parked_are_told_at_once_and_the_running_drain(lane: Lane) -> None:
    held = Held(streamed=True)
    async with lane.facing(held, max_concurrency=2, top={"mode": "queue-all"}) as stage:
        running = [await send(stage, stream=True) for _ in range(2)]
        await until(lambda: held.running == 2)
        parked = [await send(stage) for _ in range(5)]
        await stage.running.until(lambda state: state["queue_total_waiters"] == 5)
        stage.running.stop.set()
        # At once: while those that run are held, and long before the grace is over.
        for client in parked:
            reply = await client.reply()
            assert (reply.status, reason(reply)) == (503, "shutting_down")
            assert says_close(reply)
            assert int(reply.values(b"X-Lifeboat-Wait-ms")[0]) > 0
        assert held.running == 2
        held.release_all()
        for client in running:
            reply = await client.reply()
            assert (reply.clean, reply.body.endswith(b"data: [DONE]\n\n")) == (True, True)
        assert len(stage.asked) == 2
        await closed(stage.running.port)


async def test_bug_219_or_the_parked_are_served_where_that_is_wanted(lane: Lane) -> None:
    held = Held()
    environ = {"LIFEBOAT_SHUTDOWN_SERVE_PARKED": "true"}
    top = {"mode": "queue-all"}
    async with lane.facing(held, max_concurrency=1, top=top, environ=environ) as stage:
        clients = [await send(stage) for _ in range(4)]
        await stage.running.until(lambda state: state["queue_total_waiters"] == 3)
        await draining(stage)
        late = await stage.running.ask()
        assert (late.status, late.error["code"]) == (503, "shutting_down")
        for count in range(1, 5):
            await until(lambda count=count: len(stage.asked) == count)
            held.release()
        assert [(await client.reply()).status for client in clients] == [200] * 4
        assert held.most_running == 1
        await closed(stage.running.port)


async def test_bug_219_idle_and_watching_connections_do_not_hold_up_the_end(lane: Lane) -> None:
    async with lane.facing(says_hello) as stage:
        idle = [await stage.client() for _ in range(5)]
        for client in idle[:3]:
            await client.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await client.reply()).status == 200
        await idle[3].send(b"GET /health HT")
        watcher = await stage.client()
        await watcher.send(b"GET /api/lb/state/stream HTTP/1.1\r\nHost: x\r\n\r\n")
        await watcher.head()
        stage.running.stop.set()
        # Neither for the 30 s of a head, nor for the 75 s of an idle connection.
        async with asyncio.timeout(15.0):
            await closed(stage.running.port)
            for client in (*idle, watcher):
                while await client.reader.read(65536):
                    pass


async def test_bug_219_a_slow_sender_and_a_slow_reader_do_not_hold_it_up_either(
    lane: Lane,
) -> None:
    grace = {"LIFEBOAT_SHUTDOWN_GRACE_SEC": "0.5"}

    async def floods(peer: Peer, asked: Received) -> None:
        await peer.send(SSE_HEAD)
        while True:
            await peer.chunk(b"x" * 65536)

    async with lane.facing(floods, environ=grace) as stage:
        reader = await stage.client(receive_buffer=4096)
        await reader.post(CHAT, chat(stream=True))
        await reader.head()
        sender = await stage.client()
        await sender.send(b"POST %b HTTP/1.1\r\nHost: x\r\n" % CHAT.encode())
        await sender.send(b"Content-Length: 1000\r\n\r\n{")
        await asyncio.sleep(0.1)
        stage.running.stop.set()
        # Their own limits are a minute each.
        await closed(stage.running.port, 15.0)
        await until(lambda: stage.engine.running == 0)


async def parked_at(router: RouterProcess, count: int) -> None:
    """Wait until so many requests are parked in a router of its own process."""
    async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{router.url}/api/lb/state") as answered:
                if (await answered.json())["queue_total_waiters"] == count:
                    return
            await asyncio.sleep(0.02)


async def test_bug_216_bug_219_the_real_command_ends_with_0_and_says_what_it_waits_for(
    lane: Lane, tmp_path: Path
) -> None:
    held = Held(streamed=True)
    async with Engine(held) as engine:
        entry = backend(engine.url, max_concurrency=1)
        (tmp_path / "backends.yaml").write_text(backends_yaml(entry, mode="queue-all"))
        router = await RouterProcess.start(cwd=tmp_path, environ=LANES[lane.name])
        try:
            runs = await RawClient.connect(router.port)
            await runs.post(CHAT, chat(stream=True))
            await until(lambda: held.running == 1)
            parked = await RawClient.connect(router.port)
            await parked.post(CHAT, chat())
            await parked_at(router, 1)
            router.process.send_signal(signal.SIGTERM)
            reply = await parked.reply()
            assert (reply.status, reason(reply)) == (503, "shutting_down")
            await until(lambda: "draining: 1 requests run" in router.log.read_text())
            held.release_all()
            assert (await runs.reply()).clean
            assert await asyncio.wait_for(router.process.wait(), 20.0) == 0
            runs.close()
            parked.close()
        finally:
            await router.stop()
