"""Clients that leave: the backend is told at once, the slot comes back once, nobody is blamed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import struct
from collections.abc import Callable

import pytest

from tests.conformance.lanes import (
    COMPLETION,
    LAST_CHUNK,
    SECOND,
    SSE_HEAD,
    Engine,
    Lane,
    Stage,
    answer,
    chat,
    event,
    read_chunk,
    says_hello,
)
from tests.peers import Peer, RawClient, Received, until
from tests.running import CHAT, backend

Leave = Callable[[RawClient], None]

AT_ONCE_S = 5.0
"""Within this the backend must have noticed: far below a garbage collection or a timeout."""

QUEUE = {"LIFEBOAT_LB_QUEUE_ENABLED": "true", "LIFEBOAT_LB_QUEUE_MAX_DEPTH": "100"}


def half_close(client: RawClient) -> None:
    client.writer.write_eof()


LEAVES = pytest.mark.parametrize("leave", [RawClient.reset, RawClient.close, half_close])


def then_watches(*before: bytes) -> tuple[Engine, list[Peer]]:
    """An engine that sends these bytes to its first request and waits for the router to leave."""
    first: list[Peer] = []

    async def script(peer: Peer, asked: Received) -> None:
        if first:
            await says_hello(peer, asked)
            return
        first.append(peer)
        await peer.send(*before)
        await peer.watch()

    return Engine(script), first


@LEAVES
async def test_bug_018_a_client_reset_mid_stream_aborts_the_upstream_at_once(
    lane: Lane, leave: Leave
) -> None:
    streaming: list[Peer] = []
    sent = 0

    async def script(peer: Peer, asked: Received) -> None:
        nonlocal sent
        if streaming:
            await says_hello(peer, asked)
            return
        streaming.append(peer)
        watch = asyncio.create_task(peer.watch())
        await peer.send(SSE_HEAD)
        while not peer.gone.is_set() and sent < 1000:
            sent += 1
            await peer.chunk(event(sent))
            await asyncio.sleep(0.2 * SECOND)
        await watch

    async with lane.facing(script) as stage:
        client = await stage.client()
        await client.post(CHAT, chat(stream=True))
        await client.head()
        for _ in range(3):
            await read_chunk(client)
        leave(client)
        async with asyncio.timeout(AT_ONCE_S):
            await streaming[0].gone.wait()
        assert sent < 300, "it was noticed at the end of the stream"
        state = await stage.running.settle()
        assert state["backends"]["a"]["cancelled"] == 1
        # Not returned to the pool: the next request comes on another connection.
        assert (await stage.running.ask()).status == 200
        assert streaming[0] is not stage.engine.peers[-1]
        metrics = await stage.running.metrics()
    assert metrics['lifeboat_lb_client_disconnects_total{stage="streaming"}'] == 1
    assert metrics['lifeboat_lb_inflight{backend="a"}'] == 0


@LEAVES
@pytest.mark.parametrize("before", [b"", SSE_HEAD, b"HTTP/1.1 200 OK\r\nContent-Le"])
@pytest.mark.parametrize("kind", ["openai", "vllm"])
async def test_bug_019_a_client_that_leaves_before_the_first_token_is_noticed(
    lane: Lane, kind: str, before: bytes, leave: Leave
) -> None:
    """Before any byte of the backend, within its head, and behind its head."""
    engine, first = then_watches(before)
    async with lane.facing(engine, kind=kind) as stage:
        client = await stage.client()
        await client.post(CHAT, chat(stream=True))
        await until(lambda: bool(first))
        await asyncio.sleep(0.05)
        leave(client)
        async with asyncio.timeout(AT_ONCE_S):
            await first[0].gone.wait()
        state = await stage.running.settle()
        assert state["backends"]["a"]["cancelled"] == 1
        metrics = await stage.running.metrics()
    assert metrics['lifeboat_lb_client_disconnects_total{stage="waiting"}'] == 1


@LEAVES
async def test_bug_019_a_client_that_leaves_while_its_body_is_being_sent_on_is_noticed(
    lane: Lane, leave: Leave
) -> None:
    """The backend reads nothing of a body too large for the kernel's buffers."""
    stuck: list[Peer] = []

    async def script(peer: Peer, asked: Received) -> None:
        stuck.append(peer)
        await gone.wait()
        await peer.watch()

    gone = asyncio.Event()
    async with lane.facing(Engine(script, whole=False)) as stage:
        client = await stage.client()
        await client.post(CHAT, chat("x" * 24_000_000))
        await until(lambda: bool(stuck))
        leave(client)
        await stage.running.settle()
        gone.set()
        async with asyncio.timeout(5.0):
            await stuck[0].gone.wait()


async def test_bug_021_two_hundred_aborts_at_random_leak_no_slot_and_no_balance(
    lane: Lane,
) -> None:
    chance = random.Random(21)

    async def slow(peer: Peer, asked: Received) -> None:
        await asyncio.sleep(chance.random() * 0.3)
        await says_hello(peer, asked)

    async def come_and_go(stage: Stage) -> None:
        await asyncio.sleep(chance.random() * 0.5)
        client = await stage.client()
        await client.post(CHAT, chat())
        await asyncio.sleep(chance.random() * 0.3)
        client.reset()

    async with lane.facing(slow, slow, max_concurrency=300) as stage:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(200):
                tasks.create_task(come_and_go(stage))
        state = await stage.running.settle()
        assert state["inflight"] == {"a": 0, "b": 0}
        before = [len(engine.asked) for engine in stage.engines]
        for engine in stage.engines:
            engine.answering(says_hello)
        for _ in range(100):
            assert (await stage.running.ask()).status == 200
        after = [len(engine.asked) for engine in stage.engines]
    assert [then - now for then, now in zip(after, before, strict=True)] == [50, 50]


@pytest.mark.parametrize("kind", ["openai", "vllm"])
async def test_bug_022_a_slot_comes_back_when_both_sides_break_at_once(
    lane: Lane, kind: str
) -> None:
    streaming: list[Peer] = []

    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(SSE_HEAD)
        await peer.chunk(event(1))
        streaming.append(peer)
        await peer.watch()

    chance = random.Random(22)
    async with lane.facing(script, kind=kind, max_concurrency=2) as stage:
        for turn in range(60):
            client = await stage.client()
            await client.post(CHAT, chat(stream=True))
            await client.head()
            await read_chunk(client)
            ends = [client.reset, streaming[-1].reset if turn % 3 else streaming[-1].close]
            chance.shuffle(ends)
            ends[0]()
            if turn % 2:
                await asyncio.sleep(0)
            ends[1]()
        state = await stage.running.settle()
        metrics = await stage.running.metrics()
    assert state["inflight"] == {"a": 0}
    assert metrics['lifeboat_lb_inflight{backend="a"}'] == 0
    assert metrics["lifeboat_observer_errors_total"] == 0


async def test_bug_024_a_backend_removed_and_added_again_never_counts_below_zero(
    lane: Lane,
) -> None:
    may_end = asyncio.Event()

    async def script(peer: Peer, asked: Received) -> None:
        await may_end.wait()
        await says_hello(peer, asked)

    async with lane.facing(script) as stage, Engine(script) as other:
        running = stage.running
        added = backend(other.url, "b1", kind="openai")
        assert (await running.admin("POST", "backends", added)).status == 201
        asks = [asyncio.create_task(running.ask()) for _ in range(6)]
        await until(lambda: other.running == 3)
        removed = await running.admin("DELETE", "backends/b1")
        assert (removed.status, removed.json["in_flight"]) == (202, 3)
        again = await running.admin("POST", "backends", added)
        assert again.status in (200, 201)
        state = await running.state()
        assert state["inflight"]["b1"] == 3, "those that run still run there"
        elsewhere = backend("http://127.0.0.1:9", "b1", kind="openai")
        await running.admin("DELETE", "backends/b1")
        assert (await running.admin("POST", "backends", elsewhere)).status == 409
        await running.admin("POST", "backends", added)
        may_end.set()
        assert [(await ask).status for ask in asks] == [200] * 6
        state = await running.settle()
        assert state["inflight"] == {"a": 0, "b1": 0}
        assert (await running.metrics())['lifeboat_lb_inflight{backend="b1"}'] == 0


async def test_bug_025_what_an_engine_reports_never_touches_the_count(lane: Lane) -> None:
    """A report of 0 busy slots while two of ours run there, and reports of nonsense."""
    may_end = asyncio.Event()

    async def script(peer: Peer, asked: Received) -> None:
        await may_end.wait()
        await says_hello(peer, asked)

    pages = {
        "/health": answer({"status": "ok"}),
        "/props": answer({"total_slots": 4, "default_generation_settings": {"n_ctx": 8192}}),
        "/slots": answer([{"id": 0, "is_processing": False}]),
        "/metrics": answer(
            b"llamacpp:requests_processing 0\nllamacpp:requests_deferred -7\n", b"200 OK"
        ),
    }
    environ = {"LIFEBOAT_PROBE_INTERVAL_SEC": "0.05"}
    engine = Engine(script, pages=pages)
    async with lane.facing(engine, environ=environ, kind="gguf", max_concurrency=2) as stage:
        running = stage.running
        asks = [asyncio.create_task(running.ask()) for _ in range(2)]
        await until(lambda: engine.running == 2)
        probes = len(engine.probes)
        await until(lambda: len(engine.probes) > probes + 6)
        state = await running.state()
        assert state["backends"]["a"]["in_flight"] == state["inflight"]["a"] == 2
        assert (await running.ask()).status == 503, "the cap counts ours, not the report"
        engine.pages["/metrics"] = answer(b"llamacpp:requests_processing 18446744073709551615\n")
        probes = len(engine.probes)
        await until(lambda: len(engine.probes) > probes + 6)
        state, metrics = await running.state(), await running.metrics()
        assert state["inflight"]["a"] == 2
        reading = state["backends"]["a"]["engine"] or {}
        assert all(0 <= (reading.get(key) or 0) < 1e9 for key in ("running", "waiting", "slots"))
        assert min(metrics.values()) >= 0
        assert metrics['lifeboat_lb_engine_running{backend="a"}'] < 1e9
        may_end.set()
        assert [(await ask).status for ask in asks] == [200, 200]
        assert (await running.settle())["inflight"]["a"] == 0


@LEAVES
async def test_bug_027_requests_abandoned_while_parked_leave_the_queue_at_once(
    lane: Lane, leave: Leave
) -> None:
    may_end = asyncio.Event()

    async def script(peer: Peer, asked: Received) -> None:
        if not may_end.is_set():
            await may_end.wait()
        await says_hello(peer, asked)

    async with lane.facing(script, environ=QUEUE, max_concurrency=1) as stage:
        running = stage.running
        busy = asyncio.create_task(running.ask(body=chat("busy")))
        await stage.asked_for(1)
        clients = [await stage.client() for _ in range(5)]
        for client in clients:
            await client.post(CHAT, chat("abandoned"))
        await running.until(lambda state: state["queue_total_waiters"] == 5)
        for client in clients:
            leave(client)
        await running.until(lambda state: state["queue_total_waiters"] == 0, AT_ONCE_S)
        sixth = asyncio.create_task(running.ask(body=chat("sixth")))
        await running.until(lambda state: state["queue_total_waiters"] == 1)
        may_end.set()
        assert ((await busy).status, (await sixth).status) == (200, 200)
        metrics = await running.metrics()
    assert [b"abandoned" in received.body for received in stage.asked] == [False, False]
    assert metrics['lifeboat_lb_client_disconnects_total{stage="parked"}'] == 5


RACES = 500
RESET_AT_CLOSE = struct.pack("ii", 1, 0)


async def soon(condition: Callable[[], bool]) -> None:
    """Wait for a condition, looking at every step of the loop."""
    async with asyncio.timeout(10.0):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


def leaving(port: int, name: str) -> socket.socket:
    """Connect a client that no loop knows, ask by it, and return it: it leaves when it is told."""
    leaver = socket.create_connection(("127.0.0.1", port))
    body = chat(name)
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    leaver.sendall(head % (CHAT.encode(), len(body)) + body)
    leaver.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
    return leaver


async def test_bug_028_a_slot_granted_to_a_client_that_left_goes_to_the_next(
    lane: Lane,
) -> None:
    """The first parked client leaves as the slot is freed, five hundred times.

    Both are done to the kernel in one step, so that the loop learns of both in one step, in either
    order; or with a few steps between them.
    """
    holding: list[tuple[Peer, asyncio.Event]] = []
    chance = random.Random(28)
    loop = asyncio.get_running_loop()
    wake, waker = socket.socketpair()

    async def script(peer: Peer, asked: Received) -> None:
        if b"holder" not in asked.body:
            await says_hello(peer, asked)
            return
        # Streamed: the slot is freed in the very step in which the last byte is read.
        await peer.send(SSE_HEAD, b"2\r\nhi\r\n")
        holding.append((peer, asyncio.Event()))
        await holding[-1][1].wait()

    def answer_holder() -> None:
        peer, answered = holding[-1]
        os.write(peer.writer.get_extra_info("socket").fileno(), LAST_CHUNK)
        answered.set()

    with wake, waker:
        async with lane.facing(script, environ=QUEUE, max_concurrency=1) as stage:
            view = stage.running.router.view
            holder, third = await stage.client(), await stage.client()
            for turn in range(RACES):
                await holder.post(CHAT, chat("holder"))
                await soon(lambda turn=turn: len(holding) == turn + 1)
                at_once = bool(turn % 5)
                leaver = leaving(stage.running.port, "at once" if at_once else "leaver")
                await soon(lambda: view().parked == 1)
                await third.post(CHAT, chat("third"))
                await soon(lambda: view().parked == 2)
                moves: list[Callable[[], object]] = [leaver.close, answer_holder]
                chance.shuffle(moves)
                if at_once:
                    # Within one look for bytes: the next one finds both.
                    def both(moves: list[Callable[[], object]] = moves) -> None:
                        loop.remove_reader(wake)
                        wake.recv(1)
                        for move in moves:
                            move()

                    loop.add_reader(wake, both)
                    waker.send(b"x")
                else:
                    moves[0]()
                    for _ in range(turn % 25):
                        await asyncio.sleep(0)
                    moves[1]()
                assert (await holder.reply()).status == 200
                assert (await third.reply()).status == 200, "the slot went to who had left"
            state = await stage.running.settle()
            metrics = await stage.running.metrics()
    assert state["inflight"] == {"a": 0}
    assert metrics['lifeboat_lb_inflight{backend="a"}'] == 0
    assert not [received for received in stage.asked if b"at once" in received.body], (
        "the kernel knew before the slot was granted that nobody was left"
    )
    served = sum(b"leaver" in received.body for received in stage.asked)
    assert 0 < served < RACES, "the race was always won by the same side"


@LEAVES
async def test_bug_028_a_slot_is_not_used_for_one_whose_leaving_only_the_kernel_knows(
    lane: Lane, leave: Leave
) -> None:
    """What the client sent behind its request lies unread: nobody reads its end behind that."""
    may_end = asyncio.Event()

    async def script(peer: Peer, asked: Received) -> None:
        await may_end.wait()
        await says_hello(peer, asked)

    async with lane.facing(script, environ=QUEUE, max_concurrency=1) as stage:
        running = stage.running
        busy = asyncio.create_task(running.ask(body=chat("busy")))
        await stage.asked_for(1)
        client = await stage.client()
        await client.post(CHAT, chat("gone"))
        await running.until(lambda state: state["queue_total_waiters"] == 1)
        # More than the router reads while it answers nothing, less than the kernel holds.
        await client.post(CHAT, chat("behind" * 20_000))
        await until(lambda: client.writer.transport.get_write_buffer_size() == 0)
        leave(client)
        # Two steps: the client's end is closed, and no sweep has come between.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        may_end.set()
        assert (await busy).status == 200
        assert (await running.ask(body=chat("next"))).status == 200
        await running.settle()
    assert [received for received in stage.asked if b"gone" in received.body] == []


@pytest.mark.parametrize("streamed", [True, False])
async def test_bug_030_a_client_that_leaves_just_before_the_first_write_is_no_error(
    lane: Lane, streamed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    clients: list[RawClient] = []

    async def script(peer: Peer, asked: Received) -> None:
        clients[-1].reset()
        for _ in range(len(clients) % 5):
            # The reset leaves in one of the next steps, the answer in another.
            await asyncio.sleep(0)
        if streamed:
            with contextlib.suppress(ConnectionError):
                await peer.send(SSE_HEAD)
                await peer.chunk(event(1))
                await peer.send(LAST_CHUNK)
        else:
            await peer.send(answer(COMPLETION))

    async with lane.facing(script) as stage:
        for _ in range(20):
            clients.append(await stage.client())
            await clients[-1].post(CHAT, chat(stream=streamed))
            await stage.asked_for(len(clients))
        state = await stage.running.settle()
        metrics = await stage.running.metrics()
    assert state["backends"]["a"]["failed"] == 0
    assert state["backends"]["a"]["health"] == "up"
    codes = [name for name in metrics if name.startswith("lifeboat_lb_responses_total{")]
    assert not [name for name in codes if 'code="5' in name and metrics[name]]
    disconnects = [
        metrics[name] for name in metrics if name.startswith("lifeboat_lb_client_disconnects")
    ]
    assert sum(disconnects) > 0
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("before", [b"", SSE_HEAD, SSE_HEAD + b"1\r\nx\r\n"])
async def test_bug_031_twenty_aborts_in_a_row_hold_nothing_against_the_backend(
    lane: Lane, before: bytes
) -> None:
    async def script(peer: Peer, asked: Received) -> None:
        if b"leaver" not in asked.body:
            await says_hello(peer, asked)
            return
        await peer.send(before)
        await peer.watch()

    async with lane.facing(script) as stage:
        for turn in range(20):
            client = await stage.client()
            await client.post(CHAT, chat("leaver", stream=True))
            await stage.asked_for(turn + 1)
            client.reset()
        state = await stage.running.settle()
        assert state["backends"]["a"]["health"] == "up"
        assert state["backends"]["a"]["failed"] == 0
        assert (await stage.running.ask()).status == 200
