"""Backends that fail: the client is told the truth, once, and only what it can rely on."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.conformance.lanes import (
    LAST_CHUNK,
    SECOND,
    SSE_HEAD,
    Lane,
    answer,
    chat,
    event,
    says_hello,
)
from tests.peers import Peer, Received, until
from tests.running import CHAT

STREAMED = chat(stream=True)
BOTH = pytest.mark.parametrize("kind", ["openai", "vllm"])


@BOTH
@pytest.mark.parametrize("status", [b"400 Bad Request", b"404 Not Found", b"422 Nope", b"500 No"])
async def test_bug_033_an_error_answer_to_a_stream_keeps_its_status_and_body(
    lane: Lane, status: bytes, kind: str
) -> None:
    body = b'{"error": {"message": "no", "code": null}, "object": "error"}'

    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(answer(body, status))

    async with lane.facing(script, script, kind=kind) as stage:
        client = await stage.client()
        await client.post(CHAT, STREAMED)
        reply = await client.reply()
    assert reply.first_line == b"HTTP/1.1 " + status
    assert (reply.body, reply.values(b"content-type")) == (body, [b"application/json"])
    assert len(stage.asked) == 1


@BOTH
@pytest.mark.parametrize("status", [b"429 Too Many Requests", b"529 Site is overloaded"])
async def test_bug_034_a_429_keeps_its_status_retry_after_and_body(
    lane: Lane, status: bytes, kind: str
) -> None:
    body = b'{"error": {"message": "slow down"}}'

    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(answer(body, status, b"Retry-After: 7"))

    async with lane.facing(script, kind=kind) as stage:
        client = await stage.client()
        await client.post(CHAT, STREAMED)
        reply = await client.reply()
    assert reply.first_line == b"HTTP/1.1 " + status
    assert reply.values(b"retry-after") == [b"7"]
    assert reply.body == body
    assert reply.values(b"x-lifeboat-reject-reason") == [], "the backend said it, not the router"


END_HEADS = {
    "chunked": SSE_HEAD,
    "length": b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9999\r\n\r\n",
    "no framing": b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n",
}


@BOTH
@pytest.mark.parametrize(
    ("framing", "reset"),
    # The end of a connection without framing is the end of the body: nothing died.
    [(framing, True) for framing in END_HEADS] + [("chunked", False), ("length", False)],
)
@pytest.mark.parametrize("events", [0, 2])
async def test_bug_036_bug_037_a_stream_that_dies_is_cut_and_never_begun_again(
    lane: Lane, events: int, framing: str, reset: bool, kind: str
) -> None:
    async def dies(peer: Peer, asked: Received) -> None:
        await peer.send(END_HEADS[framing])
        for number in range(events):
            if framing == "chunked":
                await peer.chunk(event(number))
            else:
                await peer.send(event(number))
        await asyncio.sleep(0.05)
        if reset:
            peer.reset()
        else:
            peer.close()

    async with lane.facing(dies, dies, kind=kind) as stage:
        client = await stage.client()
        await client.post(CHAT, STREAMED)
        head, headers = await client.head()
        assert head == b"HTTP/1.1 200 OK"
        clean = False
        try:
            rest = await client.reader.read(-1)
            lengths = [int(value) for name, value in headers if name == b"Content-Length"]
            chunked = any(name.lower() == b"transfer-encoding" for name, _ in headers)
            clean = rest.endswith(LAST_CHUNK) if chunked else lengths == [len(rest)]
            # Without framing an orderly end of the connection says that all is there.
            clean = clean or not (chunked or lengths)
        except ConnectionError:
            rest = b""
        assert not clean, rest
        await stage.running.settle()
        assert len(stage.asked) == 1, "one generation"
        for engine in stage.engines:
            engine.answering(says_hello)
        assert {(await stage.running.ask()).status for _ in range(4)} == {200}
        state = await stage.running.state()
    assert state["inflight"] == {"a": 0, "b": 0}
    assert sum(entry["failed"] for entry in state["backends"].values()) == 1


async def test_bug_037_an_old_client_sees_a_reset_not_an_end(lane: Lane) -> None:
    """HTTP/1.0 has no chunks: an orderly close would make the cut answer look whole."""

    async def dies(peer: Peer, asked: Received) -> None:
        await peer.send(SSE_HEAD)
        await peer.chunk(event(1))
        await asyncio.sleep(0.05)
        peer.reset()

    async with lane.facing(dies) as stage:
        client = await stage.client()
        await client.send(b"POST %b HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (
            CHAT.encode(), len(STREAMED), STREAMED,
        ))  # fmt: skip
        await client.head()
        with pytest.raises(ConnectionResetError):
            await client.reader.read(-1)


async def test_bug_039_a_backend_that_hangs_does_not_block_the_healthy_one(lane: Lane) -> None:
    async def hangs(peer: Peer, asked: Received) -> None:
        await peer.watch()

    environ = {"LIFEBOAT_UPSTREAM_FIRST_BYTE_TIMEOUT_SEC": str(40 * SECOND)}
    async with lane.facing(hangs, says_hello, environ=environ, max_concurrency=4) as stage:
        statuses: list[int] = []

        async def ask() -> None:
            statuses.append((await stage.running.ask()).status)

        pending: list[asyncio.Task[None]] = []
        for _ in range(50):
            pending.append(asyncio.create_task(ask()))
            await asyncio.sleep(0.005)
        state = await stage.running.state()
        assert state["inflight"]["a"] <= 4, "what hangs is bounded by the limit"
        await asyncio.gather(*pending)
        state = await stage.running.settle()
    hung = statuses.count(504)
    assert statuses.count(200) >= 45
    assert statuses.count(200) + hung == 50
    assert 1 <= hung <= 5
    assert statuses == sorted(statuses), "one had to wait until what hangs was given up"
    assert state["inflight"] == {"a": 0, "b": 0}


async def test_bug_039_a_backend_that_takes_no_connection_is_left_within_its_timeout(
    lane: Lane,
) -> None:
    """Its backlog is full: the kernel answers no SYN, as a host behind a dead link does."""
    import socket

    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
            fillers.append(filler)
        environ = {
            # Far below the default, which it is told from.
            "LIFEBOAT_UPSTREAM_CONNECT_TIMEOUT_SEC": str(3 * SECOND),
            "LIFEBOAT_PROBE_TIMEOUT_SEC": "60",
        }
        async with lane.facing(says_hello, environ=environ) as stage:
            dead = {"name": "dead", "url": f"http://127.0.0.1:{port}", "models": ["m"]}
            await stage.running.admin("POST", "backends", dead)
            answers = [await stage.running.ask() for _ in range(6)]
        for filler in fillers:
            filler.close()
    assert {reply.status for reply in answers} == {200}
    assert max(reply.took_s for reply in answers) < 4.5


@BOTH
@pytest.mark.parametrize(
    "error",
    [
        b'data: {"object":"error","message":"it broke","code":400}\n\n',
        b'data: {"error":{"message":"it broke","type":"BadRequestError","code":400}}\n\n',
        b'event: error\ndata: {"type":"error"}\n\n',
    ],
)
async def test_bug_040_an_error_object_within_a_stream_is_relayed_untouched(
    lane: Lane, error: bytes, kind: str
) -> None:
    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(SSE_HEAD)
        await peer.chunk(error)
        await peer.send(LAST_CHUNK)

    async with lane.facing(script, script, kind=kind) as stage:
        client = await stage.client()
        await client.post(CHAT, STREAMED)
        reply = await client.reply()
        state = await stage.running.settle()
    assert (reply.status, reply.body, reply.clean) == (200, error, True)
    assert len(stage.asked) == 1
    assert sum(entry["failed"] for entry in state["backends"].values()) == 0


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 200 OK\r\nContent-Type: te", b"HTTP/1.1 100 C\r\n\r\n"]
)
async def test_bug_042_a_backend_beyond_its_timeout_is_a_504_of_its_own(
    lane: Lane, said: bytes
) -> None:
    async def hangs(peer: Peer, asked: Received) -> None:
        await peer.send(said)
        await peer.watch()

    environ = {"LIFEBOAT_UPSTREAM_FIRST_BYTE_TIMEOUT_SEC": str(5 * SECOND)}
    async with lane.facing(hangs, hangs, environ=environ) as stage:
        reply = await stage.running.ask()
        state = await stage.running.settle()
        assert await stage.rejected("backend_timeout") == 1
    assert (reply.status, reply.error["code"]) == (504, "backend_timeout")
    assert reply.headers["X-Lifeboat-Reject-Reason"] == "backend_timeout"
    assert reply.headers["x-should-retry"] == "false"
    assert len(stage.asked) == 1, "it may be at work: it is not asked of another"
    assert state["inflight"] == {"a": 0, "b": 0}


async def test_bug_042_a_backend_that_breaks_before_its_head_is_a_502(lane: Lane) -> None:
    async def breaks(peer: Peer, asked: Received) -> None:
        peer.reset()

    async with lane.facing(breaks) as stage:
        reply = await stage.running.ask()
        await until(lambda: not stage.engine.running)
    assert (reply.status, reply.error["code"]) == (502, "backend_unreachable")
    assert [attempt["backend"] for attempt in reply.error["attempts"]] == ["a"]
    assert json.loads(reply.body)["error"]["type"] == "api_error"


@pytest.mark.parametrize(
    "nonsense", [b"SSH-2.0-OpenSSH_9.6\r\n\r\n", b"\x00" * 64 + b"\n\n", b"\n\n"]
)
async def test_bug_042_a_backend_that_speaks_no_http_is_a_502(lane: Lane, nonsense: bytes) -> None:
    async def babbles(peer: Peer, asked: Received) -> None:
        await peer.send(nonsense)
        peer.close()

    async with lane.facing(babbles) as stage:
        reply = await stage.running.ask()
    assert (reply.status, reply.error["code"]) == (502, "backend_unreachable")
