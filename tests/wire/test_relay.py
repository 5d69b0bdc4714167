"""The relay over real sockets: bytes out = bytes in, at once; a cut is a cut; clients leave."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from lifeboat.core.vocabulary import Verdict
from lifeboat.edge.headers import client_headers
from lifeboat.wire.commit import error_body, first_event
from lifeboat.wire.downstream import ClientLines, Ended, RelayEnd, abort, client_gone, relay
from lifeboat.wire.pool import PooledUpstream
from lifeboat.wire.upstream import Target
from tests.peers import PATIENCE_S, Peer, RawClient, Script, ScriptedBackend, serving, until

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


@dataclass
class Front:
    """A minimal router: one backend, no gate. It notes what the relay reported."""

    port: int = 0
    backend: ScriptedBackend = field(init=False)
    upstream: PooledUpstream = field(init=False)
    ends: list[RelayEnd] = field(default_factory=list)
    upstream_ended_at: list[float] = field(default_factory=list)
    first_bytes: int = 0
    cancelled: int = 0

    async def ended(self) -> RelayEnd:
        await until(lambda: bool(self.ends))
        return self.ends[-1]


@contextlib.asynccontextmanager
async def front(
    script: Script, *, write_timeout_s: float = 30.0, idle_timeout_s: float = 30.0, **runner: Any
) -> AsyncIterator[Front]:
    this = Front()

    async def handler(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        there = Target("b", this.backend.url, idle_timeout_s=idle_timeout_s)
        headers = [(b"Host", b"b"), (b"Content-Length", b"%d" % len(body))]
        answer = await this.upstream.send(there, request.method, request.raw_path, headers, body)

        def first_byte() -> None:
            this.first_bytes += 1

        def upstream_end() -> None:
            this.upstream_ended_at.append(asyncio.get_running_loop().time())

        try:
            end = await relay(
                request,
                answer,
                answer.status,
                answer.reason,
                ClientLines.of(
                    client_headers(
                        answer.head.headers, wait_ms=0, backend="b", attempts=1, request_id="r-1"
                    )
                ),
                write_timeout_s=write_timeout_s,
                on_first_byte=first_byte,
                on_upstream_end=upstream_end,
            )
        except asyncio.CancelledError:
            this.cancelled += 1
            raise
        this.ends.append(end)
        return end.response

    this.upstream = PooledUpstream()
    async with ScriptedBackend(script) as this.backend, serving(handler, **runner) as this.port:
        yield this
    await this.upstream.close()


def answering(*pieces: bytes) -> Script:
    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(*pieces, pause_s=0.01)

    return script


async def test_only_hop_by_hop_headers_and_ours_differ_from_a_direct_answer() -> None:
    answer = (
        b"HTTP/1.1 201 Tr\xe8s bien\r\nX-One: \xe9\xff\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\n"
        b"Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n"
        b"Content-Length: 2\r\nX-Lifeboat-Wait-ms: 999\r\n\r\nhi"
    )
    async with front(answering(answer)) as this:
        client = await RawClient.connect(this.port)
        await client.post("/v1/x")
        reply = await client.reply()
        assert reply.first_line == b"HTTP/1.1 201 Tr\xe8s bien"
        assert reply.headers == [
            (b"X-One", b"\xe9\xff"),
            (b"Set-Cookie", b"a=1"),
            (b"set-cookie", b"b=2"),
            (b"Content-Length", b"2"),
            (b"X-Lifeboat-Wait-ms", b"0"),
            (b"X-Lifeboat-Backend", b"b"),
            (b"X-Lifeboat-Attempts", b"1"),
            (b"X-Request-ID", b"r-1"),
        ]
        assert reply.body == b"hi"
        assert (await this.ended()).ended is Ended.COMPLETED
        # The connection goes on.
        await client.post("/v1/x")
        assert (await client.reply()).body == b"hi"
        client.close()


async def test_the_head_and_each_event_arrive_when_they_were_sent() -> None:
    """BUG-001, BUG-016: nothing is held back."""
    steps = [asyncio.Event() for _ in range(3)]

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        for number, step in enumerate(steps):
            await step.wait()
            await peer.chunk(b"data: %d\n\n" % number)
        await peer.send(b"0\r\n\r\n")

    async with front(script) as this:
        client = await RawClient.connect(this.port)
        await client.post("/v1/x")
        first, _ = await client.head()
        assert first == b"HTTP/1.1 200 OK"
        assert this.first_bytes == 0
        for number, step in enumerate(steps):
            step.set()
            event = b"data: %d\n\n" % number
            async with asyncio.timeout(PATIENCE_S):
                got = await client.reader.readexactly(len(event) + 5)
            assert got == b"9\r\n" + event + b"\r\n"
        assert await client.reader.readexactly(5) == b"0\r\n\r\n"
        assert this.first_bytes == 1
        client.close()


BODIES = {
    "one line of 700 KiB": b"data: " + b"x" * (700 * 1024) + b"\n\n",
    "CRLF events and no blank after data": b"data:x\r\n\r\ndata:[DONE]\r\n\r\n",
    "comments": b": PROCESSING\n\n: PROCESSING\n\ndata: {}\n\n",
    "gzip": gzip.compress(b"data: {}\n\n" * 100),
    "random": random.Random(1).randbytes(300_000),
}


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
@pytest.mark.parametrize("name", BODIES)
async def test_bytes_out_are_bytes_in(name: str, framing: str) -> None:
    """BUG-003, BUG-004, BUG-006, BUG-007, BUG-010, BUG-012, BUG-013."""
    body = BODIES[name]

    async def script(peer: Peer) -> None:
        await peer.request()
        extra = b"Content-Encoding: gzip\r\n" if name == "gzip" else b""
        if framing == "length":
            extra += b"Content-Length: %d\r\n" % len(body)
        elif framing == "chunked":
            extra += b"Transfer-Encoding: chunked\r\n"
        await peer.send(b"HTTP/1.1 200 OK\r\n" + extra + b"\r\n")
        # Pieces that cut events, and CRLF pairs, in the middle.
        size = max(len(body) // 7, 3)
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        if framing == "chunked":
            # The last event shares its segment with the last chunk.
            framed = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
            framed[-1] += b"0\r\n\r\n"
            pieces = framed
        await peer.send(*pieces, pause_s=0.002)

    async with front(script) as this:
        client = await RawClient.connect(this.port)
        await client.post("/v1/x")
        reply = await client.reply()
        assert reply.clean
        assert hashlib.sha256(reply.body).digest() == hashlib.sha256(body).digest()
        assert reply.values(b"content-encoding") == ([b"gzip"] if name == "gzip" else [])
        assert (await this.ended()).body_bytes == len(body)
        client.close()


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
@pytest.mark.parametrize("framing", ["chunked", "length"])
async def test_a_cut_upstream_never_ends_cleanly(framing: str, version: bytes, reset: bool) -> None:
    """BUG-036, BUG-037: what came is passed on, then the client sees that it was cut."""

    async def script(peer: Peer) -> None:
        await peer.request()
        if framing == "chunked":
            await peer.send(CHUNKED)
            await peer.chunk(b"data: 1\n\n", b"data: 2\n\n")
        else:
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\ndata: 1\n\ndata: 2\n\n")
        await asyncio.sleep(0.05)
        if reset:
            peer.reset()

    async with front(script) as this:
        client = await RawClient.connect(this.port)
        await client.send(b"POST /v1/x HTTP/%b\r\nHost: r\r\nContent-Length: 0\r\n\r\n" % version)
        reply = await client.reply()
        assert not reply.clean
        end = await this.ended()
        assert end.ended is Ended.UPSTREAM_CUT
        assert end.error is not None and end.error.verdict is Verdict.RESET
        assert end.body_bytes == 18
        assert not this.upstream_ended_at
        assert this.backend.connections == 1
        client.close()


async def test_what_came_before_a_cut_reaches_the_client() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        await peer.chunk(b"data: 1\n\n")
        peer.reset()

    async with front(script) as this:
        client = await RawClient.connect(this.port)
        await client.post("/v1/x")
        await client.head()
        async with asyncio.timeout(PATIENCE_S):
            rest = await client.reader.read()
        assert rest in (b"9\r\ndata: 1\n\n\r\n", b"")
        assert (await this.ended()).ended is Ended.UPSTREAM_CUT
        client.close()


async def test_a_silent_upstream_is_cut_and_told() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        await peer.chunk(b"data: 1\n\n")
        await peer.watch()

    async with front(script, idle_timeout_s=0.1) as this:
        client = await RawClient.connect(this.port)
        await client.post("/v1/x")
        assert not (await client.reply()).clean
        assert (await this.ended()).ended is Ended.UPSTREAM_IDLE
        await asyncio.wait_for(this.backend.peers[0].gone.wait(), 5)
        client.close()


@pytest.mark.parametrize("leave", ["fin", "reset"])
@pytest.mark.parametrize("when", ["before the head", "after the head", "within the body"])
async def test_a_client_that_leaves_closes_the_upstream_at_once(when: str, leave: str) -> None:
    """BUG-018, BUG-019: in every window."""

    async def script(peer: Peer) -> None:
        await peer.request()
        if when != "before the head":
            await peer.send(CHUNKED)
        if when == "within the body":
            await peer.chunk(b"data: 1\n\n")
        await peer.watch()

    async with front(script) as this:
        client = await RawClient.connect(this.port)
        await client.post("/v1/x")
        await until(lambda: bool(this.backend.requests))
        if when != "before the head":
            await client.head()
        await asyncio.sleep(0.02)
        if leave == "fin":
            client.close()
        else:
            client.reset()
        await asyncio.wait_for(this.backend.peers[0].gone.wait(), 5)
        await until(lambda: this.upstream.open_connections == 0)
        assert not this.ends
        assert not this.upstream_ended_at


async def test_both_ends_may_break_at_the_same_moment() -> None:
    """BUG-022: the cleanup of one must not skip that of the other."""
    clients: list[RawClient] = []

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        await peer.chunk(b"data: 1\n\n")
        await asyncio.sleep(0.02)
        clients[-1].reset()
        peer.reset()

    async with front(script) as this:
        for number in range(20):
            clients.append(await RawClient.connect(this.port))
            await clients[-1].post("/v1/x")
            await until(lambda expected=number: len(this.ends) + this.cancelled > expected)
        await until(lambda: this.upstream.open_connections == 0)


async def test_the_end_of_the_upstream_is_told_while_a_slow_client_still_reads() -> None:
    body = b"x" * 100_000

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (8 << 20))
        await peer.send(b"y" * ((8 << 20) - len(body)))
        await peer.send(body)
        await peer.watch()

    async with front(script) as this:
        client = await RawClient.connect(this.port, receive_buffer=4096)
        await client.post("/v1/x")
        await client.head()
        loop = asyncio.get_running_loop()
        while not this.upstream_ended_at:
            async with asyncio.timeout(PATIENCE_S):
                await client.reader.read(65536)
        ended_at = loop.time()
        assert not this.ends, "the relay was over before the client had read the tail"
        async with asyncio.timeout(PATIENCE_S):
            while not this.ends:
                await client.reader.read(65536)
        assert (await this.ended()).ended is Ended.COMPLETED
        assert this.upstream_ended_at[0] <= ended_at
        client.close()


@pytest.mark.parametrize("piece_bytes", [65536, 4096])
async def test_a_client_that_takes_nothing_is_cut_off_and_the_upstream_closed(
    piece_bytes: int,
) -> None:
    """BUG-226: and meanwhile the backend is held back, not buffered."""
    sent = 0

    async def script(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(CHUNKED)
        while True:
            await peer.chunk(b"x" * piece_bytes)
            sent += piece_bytes
            if piece_bytes < 65536:
                # So that pieces come one by one, as the events of a stream do.
                await asyncio.sleep(0.0002)

    async with front(script, write_timeout_s=0.4) as this:
        client = await RawClient.connect(this.port, receive_buffer=4096)
        await client.post("/v1/x")
        end = await this.ended()
        assert end.ended is Ended.CLIENT_TOO_SLOW
        assert sent < 32 << 20
        await until(lambda: this.upstream.open_connections == 0)
        client.close()


async def test_a_client_that_reads_a_little_now_and_then_is_not_cut_off() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (16 << 20))
        await peer.send(b"x" * (16 << 20))
        await peer.watch()

    async with front(script, write_timeout_s=1.0) as this:
        client = await RawClient.connect(this.port, receive_buffer=32768)
        await client.post("/v1/x")
        await client.head()
        for _ in range(10):
            await asyncio.sleep(0.15)
            await client.reader.read(20000)
        assert not this.ends
        client.close()


async def test_head_keeps_the_length_and_has_no_body() -> None:
    """BUG-138: also behind a backend that sends a body to HEAD."""

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")

    async with front(script) as this:
        client = await RawClient.connect(this.port)
        for _ in range(2):
            await client.send(b"HEAD /v1/x HTTP/1.1\r\nHost: r\r\n\r\n")
            reply = await client.reply(bodiless=True)
            assert reply.values(b"content-length") == [b"5"]
            assert not reply.values(b"transfer-encoding")
        await client.post("/v1/x")
        assert (await client.reply()).body == b"hello"
        client.close()


@pytest.mark.parametrize("status", [204, 304])
async def test_a_status_without_a_body_gets_no_framing(status: int) -> None:
    async with front(answering(b"HTTP/1.1 %d X\r\nETag: x\r\n\r\n" % status)) as this:
        client = await RawClient.connect(this.port)
        for _ in range(2):
            await client.post("/v1/x")
            reply = await client.reply(bodiless=True)
            assert reply.status == status
            assert not reply.values(b"transfer-encoding") + reply.values(b"content-length")
        client.close()


async def test_an_old_client_gets_a_body_that_ends_with_the_connection() -> None:
    """BUG-135, BUG-136: HTTP/1.0 knows no chunks."""
    answer = CHUNKED + b"5\r\nhello\r\n0\r\n\r\n"
    async with front(answering(answer)) as this:
        client = await RawClient.connect(this.port)
        await client.send(
            b"POST /v1/x HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n"
        )
        reply = await client.reply()
        assert reply.first_line.startswith(b"HTTP/1.0 200")
        assert reply.values(b"connection") == [b"close"]
        assert not reply.values(b"transfer-encoding")
        assert reply.body == b"hello" and reply.clean
        client.close()


async def test_an_old_client_may_keep_its_connection_where_the_length_is_known() -> None:
    async with front(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")) as this:
        client = await RawClient.connect(this.port)
        for _ in range(2):
            await client.send(
                b"POST /v1/x HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n"
            )
            reply = await client.reply()
            assert reply.values(b"connection") == [b"keep-alive"]
            assert reply.body == b"hi"
        client.close()


async def test_a_client_that_wants_to_close_is_closed() -> None:
    async with front(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")) as this:
        client = await RawClient.connect(this.port)
        await client.post("/v1/x", b"", b"Connection: close")
        reply = await client.reply()
        assert reply.values(b"connection") == [b"close"]
        async with asyncio.timeout(PATIENCE_S):
            assert await client.reader.read() == b""
        client.close()


async def test_an_empty_body_has_no_first_byte_and_a_clean_end() -> None:
    async with front(answering(CHUNKED + b"0\r\n\r\n")) as this:
        client = await RawClient.connect(this.port)
        await client.post("/v1/x")
        reply = await client.reply()
        assert reply.clean and reply.body == b""
        assert this.first_bytes == 0
        assert len(this.upstream_ended_at) == 1
        client.close()


# ---- is the client there? -------------------------------------------------------------------


@pytest.mark.parametrize("leave", ["fin", "reset", "half"])
@pytest.mark.parametrize("pipelined", [0, 200])
async def test_a_client_that_left_is_seen_even_behind_pipelined_requests(
    leave: str, pipelined: int
) -> None:
    """With many requests waiting, aiohttp stops reading and cannot see the end by itself."""
    seen: list[bool] = []
    go_on = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        if not seen:
            seen.append(client_gone(request))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(go_on.wait(), 5)
            seen.append(client_gone(request))
        return web.Response()

    async with serving(handler, handler_cancellation=False) as port:
        client = await RawClient.connect(port)
        await client.send(b"GET / HTTP/1.1\r\nHost: r\r\n\r\n" * (1 + pipelined))
        await until(lambda: bool(seen))
        if leave == "fin":
            client.close()
        elif leave == "half":
            client.writer.write_eof()
        else:
            client.reset()
        await asyncio.sleep(0.1)
        go_on.set()
        await until(lambda: len(seen) == 2)
        assert seen == [False, True]
        client.close()


async def test_abort_resets_the_client() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half")
        abort(request)
        return response

    async with serving(handler) as port:
        client = await RawClient.connect(port)
        await client.send(b"GET / HTTP/1.0\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            while await client.reader.read(100):
                pass
        client.close()


# ---- the first bytes, before the head is committed ------------------------------------------

REFUSAL = b'data: {"error": {"message": "busy", "type": "x", "code": 503}}\n\ndata: [DONE]\n\n'


async def first_of(
    *pieces: bytes, pause_s: float = 0.0, **bounds: Any
) -> tuple[bytes, bool, bytes]:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        for index, piece in enumerate(pieces):
            if index:
                await asyncio.sleep(pause_s)
            await peer.chunk(piece)
        await peer.send(b"0\r\n\r\n")

    upstream = PooledUpstream()
    async with ScriptedBackend(script) as backend:
        answer = await upstream.send(Target("b", backend.url), "GET", "/", [(b"Host", b"b")], None)
        start, refused = await first_event(answer, **bounds)
        rest = bytearray()
        while piece := await answer.read():
            rest += piece
    await upstream.close()
    return start, refused, bytes(rest)


async def test_a_refusal_in_a_stream_is_seen_and_nothing_is_lost() -> None:
    start, refused, rest = await first_of(REFUSAL[:20], REFUSAL[20:], pause_s=0.02)
    assert refused
    assert start + rest == REFUSAL


async def test_an_ordinary_first_event_commits_the_head() -> None:
    event = b": ping\n\ndata: {}\n\n"
    start, refused, rest = await first_of(event, b"data: more\n\n", pause_s=0.05)
    assert (start, refused, rest) == (event, False, b"data: more\n\n")


async def test_the_wait_for_the_first_event_is_bounded_in_time_and_bytes() -> None:
    start, refused, rest = await first_of(b"data: ha", b"lf\n\n", pause_s=0.3, most_s=0.05)
    assert (start, refused, rest) == (b"data: ha", False, b"lf\n\n")
    big = b"data: " + b"x" * 50_000
    start, refused, rest = await first_of(big, big, big, big + b"\n\n", most_bytes=64 * 1024)
    assert not refused and 64 * 1024 <= len(start) <= 128 * 1024
    assert start + rest == big * 4 + b"\n\n"


async def test_a_stream_cut_in_its_first_event_is_left_to_the_relay() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        await peer.chunk(b"data: ha")

    upstream = PooledUpstream()
    async with ScriptedBackend(script) as backend:
        answer = await upstream.send(Target("b", backend.url), "GET", "/", [(b"Host", b"b")], None)
        assert await first_event(answer) == (b"data: ha", False)
        assert not answer.ended
    await upstream.close()


async def test_an_error_body_is_read_whole_when_it_comes_in_time() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 503 X\r\nContent-Length: 4\r\n\r\n", b"ab", b"cd", pause_s=0.02)
        await peer.watch()

    upstream = PooledUpstream()
    async with ScriptedBackend(script) as backend:
        answer = await upstream.send(Target("b", backend.url), "GET", "/", [(b"Host", b"b")], None)
        assert await error_body(answer) == b"abcd"
        assert answer.ended
    await upstream.close()
