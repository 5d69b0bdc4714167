"""Connections that are used again, and what is sent twice: hardly anything."""

from __future__ import annotations

import asyncio
import os
import socket
import time

import pytest

from tests.conformance.lanes import (
    SECOND,
    Engine,
    Lane,
    Stage,
    answer,
    chat,
    says_hello,
)
from tests.peers import Peer, Received
from tests.running import CHAT, backend

KEEP_S = 5 * SECOND
LATE_S = 5.0
"""The fast lane looks at its idle connections once a second, and the machine may be busy."""
PLAIN_HEAD = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


@pytest.mark.parametrize("reset", [True, False])
async def test_bug_043_a_backend_that_closes_idle_connections_loses_no_request(
    lane: Lane, reset: bool
) -> None:
    """Requests come around the instant in which the backend closes; nobody may see it."""
    closers: list[asyncio.Task[None]] = []

    async def close_later(peer: Peer) -> None:
        await asyncio.sleep(KEEP_S)
        if reset:
            peer.reset()
        else:
            peer.close()

    async def script(peer: Peer, asked: Received) -> None:
        await says_hello(peer, asked)
        closers.append(asyncio.create_task(close_later(peer)))

    async def around_the_edge(stage: Stage, offset_s: float) -> None:
        for _ in range(2):
            assert (await stage.running.ask(body=chat())).status == 200
            await asyncio.sleep(KEEP_S + offset_s)

    async with lane.facing(script) as stage:
        async with asyncio.TaskGroup() as tasks:
            for step in range(-10, 11):
                tasks.create_task(around_the_edge(stage, step * 0.001))
        metrics = await stage.running.metrics()
        for closer in closers:
            closer.cancel()
    assert len(stage.asked) == 42, "each was done once"
    assert metrics['lifeboat_lb_responses_total{backend="a",code="200"}'] == 42


BEGUN = [
    b"H", b"HTTP/1.1 200 OK\r\nCont", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\n",
]  # fmt: skip


@pytest.mark.parametrize("said", BEGUN)
@pytest.mark.parametrize("reused", [True, False])
async def test_bug_043_bug_048_a_request_is_not_repeated_once_an_answer_has_begun(
    lane: Lane, said: bytes, reused: bool
) -> None:
    """The backend read the request, began to answer and died: another would do the work twice."""

    async def script(peer: Peer, asked: Received) -> None:
        if b"second" in asked.body:
            await peer.send(said)
            await asyncio.sleep(0.05)
            peer.close()
            return
        await says_hello(peer, asked)

    async with lane.facing(script, script, script) as stage:
        if reused:
            for _ in stage.engines:
                assert (await stage.running.ask(body=chat("first"))).status == 200
        stage.engine.asked.clear()
        reply = await stage.running.ask(body=chat("second"))
        state = await stage.running.settle()
    assert (reply.status, reply.error["code"]) == (502, "backend_unreachable")
    assert "before any byte" not in reply.error["message"]
    assert sum(b"second" in received.body for received in stage.asked) == 1
    assert sum(entry["failed"] for entry in state["backends"].values()) == 1


@pytest.mark.parametrize("reset", [True, False])
async def test_bug_043_what_a_closed_connection_never_took_is_sent_once_more(
    lane: Lane, reset: bool
) -> None:
    """The backend closes as the next request comes: with no setting may a client see that."""
    broken = 0

    async def script(peer: Peer, asked: Received) -> None:
        nonlocal broken
        if len(stage.asked) > 1 and not broken:
            broken += 1
            peer.reset() if reset else peer.close()
            return
        await says_hello(peer, asked)

    async with lane.facing(script, top={"redispatch": False}) as stage:
        assert (await stage.running.ask()).status == 200
        again = await stage.running.ask()
        metrics = await stage.running.metrics()
    assert (again.status, broken, len(stage.asked)) == (200, 1, 3)
    assert again.headers["X-Lifeboat-Attempts"] == "2"
    assert metrics['lifeboat_lb_retries_total{cause="stale_connection"}'] == 1
    assert metrics['lifeboat_lb_dispatch_total{backend="a",pool="m"}'] == 2


async def test_bug_045_a_request_that_has_arrived_when_the_keep_alive_ends_is_served(
    lane: Lane,
) -> None:
    """Its bytes lie in the kernel, unread, when the timer is due; the loop was busy meanwhile.

    What no server can rule out is the crossing of a request and a FIN on the wire: that is why
    clients send such a request once more.
    """
    keep_s = 5 * SECOND
    environ = {"LIFEBOAT_CLIENT_KEEPALIVE_SEC": str(keep_s)}
    async with lane.facing(says_hello, environ=environ) as stage:
        body = chat()
        clients = [await stage.client() for _ in range(5)]
        for client in clients:
            await client.post(CHAT, chat())
        for client in clients:
            assert (await client.reply()).status == 200
        await asyncio.sleep(keep_s / 2)
        wake, waker = socket.socketpair()
        loop = asyncio.get_running_loop()

        def be_busy() -> None:
            # Within the poll for bytes: the timers come before the next one.
            loop.remove_reader(wake)
            for client in clients:
                fd = client.writer.get_extra_info("socket").fileno()
                os.write(fd, PLAIN_HEAD % (CHAT.encode(), len(body)) + body)
            # Past a look of the fast lane at its idle connections.
            time.sleep(1.1)

        with wake, waker:
            loop.add_reader(wake, be_busy)
            waker.send(b"x")
            for client in clients:
                assert (await client.reply()).status == 200


async def test_bug_045_an_idle_connection_ends_with_the_keep_alive(lane: Lane) -> None:
    environ = {"LIFEBOAT_CLIENT_KEEPALIVE_SEC": str(2 * SECOND)}
    async with lane.facing(says_hello, environ=environ) as stage:
        client = await stage.client()
        await client.post(CHAT, chat())
        assert (await client.reply()).status == 200
        async with asyncio.timeout(2 * SECOND + LATE_S):
            assert await client.reader.read() == b""


async def test_bug_045_a_head_begun_within_the_keep_alive_may_be_finished_after_it(
    lane: Lane,
) -> None:
    keep_s = 2 * SECOND
    environ = {
        "LIFEBOAT_CLIENT_KEEPALIVE_SEC": str(keep_s),
        "LIFEBOAT_CLIENT_HEAD_TIMEOUT_SEC": str(12 * SECOND),
    }
    async with lane.facing(says_hello, environ=environ) as stage:
        client = await stage.client()
        body = chat()
        whole = PLAIN_HEAD % (CHAT.encode(), len(body)) + body
        for _ in range(2):
            await client.send(whole[:20])
            await asyncio.sleep(keep_s * 1.5)
            await client.send(whole[20:])
            assert (await client.reply()).status == 200
        # But not for ever: a head has its own time.
        await client.send(whole[:20])
        async with asyncio.timeout(12 * SECOND + LATE_S):
            assert await client.reader.read() == b""


@pytest.mark.parametrize("keep_s", [2 * SECOND])
async def test_bug_045_a_request_that_is_under_way_stops_the_timer(
    lane: Lane, keep_s: float
) -> None:
    """A slow head or body begun within the keep-alive is not cut off by it."""
    environ = {"LIFEBOAT_CLIENT_KEEPALIVE_SEC": str(keep_s)}
    body = chat()
    whole = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (
        CHAT.encode(),
        len(body),
    )
    async with lane.facing(says_hello, environ=environ) as stage:
        client = await stage.client()
        for _ in range(3):
            await client.send(whole)
            await asyncio.sleep(keep_s * 1.5)
            await client.send(body)
            assert (await client.reply()).status == 200


async def test_bug_046_a_refused_body_does_not_poison_the_connection(lane: Lane) -> None:
    busy = asyncio.Event()

    async def script(peer: Peer, asked: Received) -> None:
        if b"hold" in asked.body:
            await busy.wait()
        await says_hello(peer, asked)

    environ = {"LIFEBOAT_LB_QUEUE_ENABLED": "true", "LIFEBOAT_LB_QUEUE_MAX_DEPTH": "0"}
    async with lane.facing(script, environ=environ, max_concurrency=1) as stage:
        holder = asyncio.create_task(stage.running.ask(body=chat("hold")))
        await stage.asked_for(1)
        client = await stage.client()
        await client.post(CHAT, chat("x" * 2_000_000))
        reply = await client.reply()
        assert reply.status == 503
        assert reply.values(b"x-lifeboat-reject-reason") == [b"queue_full"]
        busy.set()
        await holder
        await client.post(CHAT, chat())
        assert (await client.reply()).status == 200, "on the same connection"


async def test_bug_046_nor_do_bodies_of_any_size_that_nobody_wants(lane: Lane) -> None:
    environ = {"LIFEBOAT_MAX_BODY_BYTES": "100000", "LIFEBOAT_API_KEYS": "key"}
    key = b"Authorization: Bearer key"
    async with lane.facing(says_hello, environ=environ, max_concurrency=1) as stage:
        for refused in (chat("x" * 99_000), chat("x" * 200_000), chat("x" * 3_000_000)):
            # Without the key the body is refused unread; with it, for its size or served.
            client = await stage.client()
            await client.post(CHAT, refused)
            reply = await client.reply()
            assert (reply.status, reply.clean) == (401, True)
            client = await stage.client()
            await client.post(CHAT, refused, key)
            reply = await client.reply()
            assert reply.clean
            assert reply.status == (413 if len(refused) > 100_000 else 200)
            if b"close" not in b",".join(reply.values(b"connection")).lower():
                await client.post(CHAT, chat(), key)
                assert (await client.reply()).status == 200
        # Unknown paths and methods, with a body behind them.
        for line in (b"POST /nothing HTTP/1.1", b"PUT %b HTTP/1.1" % CHAT.encode()):
            client = await stage.client()
            body = b"x" * 300_000
            await client.send(line + b"\r\nHost: x\r\nContent-Length: 300000\r\n\r\n" + body)
            reply = await client.reply()
            assert (reply.status in (404, 405), reply.clean) == (True, True)
            if b"close" not in b",".join(reply.values(b"connection")).lower():
                await client.post(CHAT, chat(), key)
                assert (await client.reply()).status == 200


@pytest.mark.parametrize("size", [2, 1_000_000])
@pytest.mark.parametrize("status", [b"500 No", b"502 Bad Gateway", b"504 Gateway Timeout"])
async def test_bug_048_bug_049_a_server_error_is_relayed_and_never_repeated(
    lane: Lane, status: bytes, size: int
) -> None:
    body = b'"' + b"x" * (size - 2) + b'"'

    async def fails(peer: Peer, asked: Received) -> None:
        await peer.send(answer(body, status))

    async with lane.facing(fails, fails) as stage:
        client = await stage.client()
        await client.post(CHAT, chat("x" * 1_000_000))
        reply = await client.reply()
        await stage.running.settle()
    assert reply.first_line == b"HTTP/1.1 " + status
    assert reply.body == body
    assert len(stage.asked) == 1, "the work may have been done"


async def test_bug_048_a_plain_503_is_asked_elsewhere_as_the_contract_has_it(lane: Lane) -> None:
    """The contract differs from the case: a plain 503 says that nothing was done.

    It goes to the next candidate, and is relayed where there is none. `redispatch: false` is for
    lost connections; a status that a client retries by itself is worth one look elsewhere.
    """

    async def fails(peer: Peer, asked: Received) -> None:
        await peer.send(answer({"error": "maintenance"}, b"503 Service Unavailable"))

    async with lane.facing(fails, says_hello) as stage:
        assert {(await stage.running.ask()).status for _ in range(4)} == {200}
    async with lane.facing(fails) as stage:
        reply = await stage.running.ask()
    assert (reply.status, reply.body) == (503, b'{"error": "maintenance"}')
    assert "X-Lifeboat-Reject-Reason" not in reply.headers


async def test_bug_048_a_lost_connection_is_repeated_once_or_never(lane: Lane) -> None:
    async def breaks(peer: Peer, asked: Received) -> None:
        peer.reset()

    for redispatch, sends in ((True, 2), (False, 1)):
        top = {"redispatch": redispatch}
        async with lane.facing(breaks, breaks, breaks, top=top) as stage:
            reply = await stage.running.ask()
        assert (reply.status, reply.error["code"]) == (502, "backend_unreachable")
        assert len(stage.asked) == sends


async def test_bug_048_a_refused_connection_may_be_tried_elsewhere(lane: Lane) -> None:
    """Nothing was sent yet: that is no repetition, and no setting forbids it."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    async with Engine(says_hello) as well:
        entries = backend(url, "a"), backend(well.url, "b")
        async with lane.router(*entries, redispatch=False) as running:
            assert {(await running.ask()).status for _ in range(4)} == {200}


async def test_bug_049_a_first_answer_that_is_left_is_closed_not_stranded(lane: Lane) -> None:
    """A huge body behind a 503 that is tried elsewhere: it is passed on or closed, not kept."""
    huge = b'{"error": "' + b"x" * 8_000_000 + b'"}'

    async def fails(peer: Peer, asked: Received) -> None:
        await peer.send(answer(huge, b"503 Service Unavailable"))

    engine = Engine(fails)
    async with lane.facing(engine, says_hello) as stage:
        for _ in range(4):
            reply = await stage.running.ask()
            assert reply.status == 200 or reply.body == huge
        await stage.running.settle()
        used = [peer for peer in engine.peers if not peer.gone.is_set()]
        state = await stage.running.state()
    assert len(used) <= 2, "probe and pool; nothing else stays open"
    assert state["inflight"] == {"a": 0, "b": 0}
