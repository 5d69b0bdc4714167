"""`/v1/realtime`: a WebSocket passes as it is, and holds one slot for its life."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import WSMsgType, web

from lifeboat.wire.tunnel import FrameTrack, close_frame
from tests.conformance.lanes import Engine, Lane, answer
from tests.peers import PATIENCE_S, Peer, RawClient, Received, reset_on_close, until
from tests.running import Running, backend

PATH = "/v1/realtime?model=m"
Talk = Callable[[web.WebSocketResponse], Awaitable[None]]


@dataclass
class RealtimeEngine:
    """A WebSocket server that runs `talk` on each connection, over the real protocol."""

    talk: Talk
    protocols: tuple[str, ...] = ()
    compress: bool = False
    url: str = ""
    requests: list[web.Request] = field(default_factory=list)
    open: int = 0
    most_open: int = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path != "/v1/realtime":
            return web.json_response({"data": [{"id": "m"}]})
        self.requests.append(request)
        socket = web.WebSocketResponse(
            protocols=self.protocols, max_msg_size=0, compress=self.compress
        )
        await socket.prepare(request)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            await self.talk(socket)
        finally:
            self.open -= 1
        return socket

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[RealtimeEngine]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.5, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site.port}"
        try:
            yield self
        finally:
            await runner.cleanup()


async def echo(socket: web.WebSocketResponse) -> None:
    async for message in socket:
        if message.type is WSMsgType.TEXT:
            await socket.send_str(message.data)
        elif message.type is WSMsgType.BINARY:
            await socket.send_bytes(message.data)


@contextlib.asynccontextmanager
async def realtime(
    lane: Lane,
    talk: Talk = echo,
    *,
    protocols: tuple[str, ...] = (),
    environ: Mapping[str, str] | None = None,
    top: Mapping[str, object] | None = None,
    **fields: object,
) -> AsyncIterator[tuple[Running, RealtimeEngine]]:
    async with RealtimeEngine(talk, protocols).serving() as engine:
        entry = backend(engine.url, **fields)
        async with lane.router(entry, environ=environ, **(top or {})) as running:
            yield running, engine


def connected(running: Running, path: str = PATH, **more: object):
    return running.session.ws_connect(running.url + path, max_msg_size=0, **more)


# ---- 147: close codes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "reason"),
    [(4404, b"gone"), (1000, b""), (1001, b"bye"), (1011, b"x" * 123), (3000, "ř".encode())],
)
async def test_bug_147_a_close_of_the_backend_reaches_the_client_as_it_is(
    lane: Lane, code: int, reason: bytes
) -> None:
    async def talk(socket: web.WebSocketResponse) -> None:
        await socket.receive()
        await socket.close(code=code, message=reason)

    async with realtime(lane, talk) as (running, _):
        async with connected(running) as socket:
            await socket.send_str("hello")
            message = await socket.receive()
            assert message.type is WSMsgType.CLOSE
            assert (message.data, (message.extra or "").encode()) == (code, reason)
        state = await running.settle()
        assert state["backends"]["a"]["failed"] == 0
        assert state["backends"]["a"]["health"] == "up"


@pytest.mark.parametrize(("code", "reason"), [(4001, b"mine"), (1000, b""), (1001, b"leaving")])
async def test_bug_147_a_close_of_the_client_reaches_the_backend_as_it_is(
    lane: Lane, code: int, reason: bytes
) -> None:
    seen: list[tuple[object, object]] = []

    async def talk(socket: web.WebSocketResponse) -> None:
        message = await socket.receive()
        seen.append((message.data, message.extra))

    async with realtime(lane, talk) as (running, _):
        async with connected(running) as socket:
            await socket.close(code=code, message=reason)
        await until(lambda: bool(seen))
        await running.settle()
    assert seen == [(code, reason.decode())]


async def test_a_sockets_life_is_told_where_sockets_are_and_not_among_answers(lane: Lane) -> None:
    async with realtime(lane) as (running, _):
        async with connected(running) as socket:
            await socket.send_str("hello")
            assert (await socket.receive()).data == "hello"
            assert (await running.metrics())['lifeboat_lb_inflight{backend="a"}'] == 1
        ended = 'lifeboat_lb_responses_total{backend="a",code="101"}'
        async with asyncio.timeout(10.0):
            while (metrics := await running.metrics()).get(ended) != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert metrics['lifeboat_lb_ttfb_seconds_count{backend="a"}'] == 1
        assert metrics['lifeboat_lb_request_seconds_count{backend="a"}'] == 0


HANDSHAKE = (
    b"GET /v1/realtime?model=m HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
SWITCHED = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
)


async def test_bug_147_a_close_without_a_code_stays_without_one(lane: Lane) -> None:
    """1005 stands for that and is never on the wire; nor are 1006 and 1015."""
    bare = b"\x88\x00"

    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(SWITCHED, b"\x81\x02hi", bare)
        assert await peer.reader.readexactly(6) == b"\x88\x80abcd"
        peer.close()

    async with lane.facing(script) as stage:
        client = await stage.client()
        await client.send(HANDSHAKE)
        first, headers = await client.head()
        assert first == b"HTTP/1.1 101 Switching Protocols"
        assert (b"Upgrade", b"websocket") in headers
        assert await client.reader.readexactly(6) == b"\x81\x02hi" + bare
        await client.send(b"\x88\x80abcd")
        assert await client.reader.read() == b"", "nothing is added to a goodbye"
        await stage.running.settle()
    assert stage.asked[0].values(b"upgrade") == [b"websocket"]
    assert stage.asked[0].values(b"connection") == [b"Upgrade"]
    assert stage.asked[0].values(b"sec-websocket-key") == [b"dGhlIHNhbXBsZSBub25jZQ=="]


async def test_bug_147_a_goodbye_right_before_the_end_still_arrives(lane: Lane) -> None:
    got: list[bytes] = []

    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(SWITCHED)
        # Too slow for what comes: the last of it waits in the router when the client ends.
        peer.writer.transport.pause_reading()
        await asyncio.sleep(0.2)
        peer.writer.transport.resume_reading()
        got.append(await peer.reader.read(-1))

    async with lane.facing(script) as stage:
        client = await stage.client()
        await client.send(HANDSHAKE)
        await client.head()
        goodbye = b"\x88\x86abcd" + bytes(
            a ^ b for a, b in zip(b"\x0f\xa1mine", b"abcdab", strict=True)
        )
        frames = (b"\x82\xfe\xff\xffabcd" + bytes(65535)) * 200
        client.writer.write(frames + goodbye)
        client.close()
        await until(lambda: bool(got))
        await stage.running.settle()
    assert got == [frames + goodbye]


# ---- 148: large messages, subprotocols -----------------------------------------------------------


@pytest.mark.parametrize("compress", [0, 15])
async def test_bug_148_large_messages_pass_both_ways(lane: Lane, compress: int) -> None:
    text = "t" * 1_500_000
    binary = bytes(range(256)) * 20_000
    async with realtime(lane) as (running, _):
        async with connected(running, compress=compress) as socket:
            await socket.send_str(text)
            assert await socket.receive_str() == text
            await socket.send_bytes(binary)
            assert await socket.receive_bytes() == binary
            for size in (0, 1, 125, 126, 127, 65535, 65536, 65537):
                await socket.send_bytes(binary[:size])
                assert await socket.receive_bytes() == binary[:size]
            await socket.ping(b"are you there")
        await running.settle()


async def test_bug_148_the_backend_chooses_the_subprotocol(lane: Lane) -> None:
    async with realtime(lane, protocols=("openai-beta.v1", "realtime")) as (running, engine):
        offered = ("realtime", "openai-beta.v1")
        async with connected(running, protocols=offered) as socket:
            assert socket.protocol in offered
            chosen = socket.protocol
        async with connected(running, protocols=("unknown",)) as socket:
            assert socket.protocol is None
        sent = [request.headers["Sec-WebSocket-Protocol"] for request in engine.requests]
        assert [token.strip() for token in sent[0].split(",")] == list(offered)
        assert chosen == "realtime"


# ---- 150: a backend that vanishes ----------------------------------------------------------------


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("said", [b"", b"\x81\x02hi", b"\x82\x7e\x01\x00" + bytes(256)])
async def test_bug_150_a_backend_lost_between_frames_is_told_as_1011(
    lane: Lane, said: bytes, reset: bool
) -> None:
    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(SWITCHED, said)
        # A reset overtakes what was not read yet.
        await arrived.wait()
        if reset:
            peer.reset()
        else:
            peer.close()

    arrived = asyncio.Event()
    async with lane.facing(script) as stage:
        client = await stage.client()
        await client.send(HANDSHAKE)
        await client.head()
        assert await client.reader.readexactly(len(said)) == said
        arrived.set()
        frame = await client.reader.read()
        assert frame[:1] == b"\x88"
        assert int.from_bytes(frame[2:4], "big") == 1011
        assert len(frame) == 2 + frame[1]
        state = await stage.running.settle()
        assert state["inflight"] == {"a": 0}
        assert state["backends"]["a"]["failed"] == 1


async def test_bug_150_within_a_frame_the_connection_is_cut(lane: Lane) -> None:
    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(SWITCHED, b"\x82\x7e\x01\x00" + bytes(100))
        await arrived.wait()
        peer.reset()

    arrived = asyncio.Event()
    async with lane.facing(script) as stage:
        client = await stage.client()
        await client.send(HANDSHAKE)
        await client.head()
        await client.reader.readexactly(104)
        arrived.set()
        with pytest.raises(ConnectionResetError):
            await client.reader.read()
        assert (await stage.running.settle())["inflight"] == {"a": 0}


@pytest.mark.parametrize("reset", [True, False])
async def test_bug_150_a_client_that_vanishes_frees_the_slot_and_the_backend(
    lane: Lane, reset: bool
) -> None:
    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(SWITCHED, b"\x81\x02hi")
        await peer.watch()

    async with lane.facing(script) as stage:
        client = await stage.client()
        await client.send(HANDSHAKE)
        await client.head()
        await client.reader.readexactly(4)
        if reset:
            reset_on_close(client.writer)
        client.close()
        async with asyncio.timeout(PATIENCE_S):
            await next(peer for peer in reversed(stage.engine.peers)).gone.wait()
        state = await stage.running.settle()
        assert state["backends"]["a"]["failed"] == 0
        assert state["backends"]["a"]["cancelled"] == 1
        metrics = await stage.running.metrics()
    assert metrics['lifeboat_lb_client_disconnects_total{stage="streaming"}'] == 1


# ---- 151: backpressure ---------------------------------------------------------------------------

PUSHED = 200_000_000
HELD_BYTES = 16_000_000
"""More than all kernel buffers and marks on the way together, far less than what is pushed."""


async def test_bug_151_a_client_that_does_not_read_costs_bounded_memory(lane: Lane) -> None:
    pushed = 0

    async def script(peer: Peer, asked: Received) -> None:
        nonlocal pushed
        await peer.send(SWITCHED)
        frame = b"\x82\x7f" + (100_000).to_bytes(8, "big") + bytes(100_000)
        while pushed < PUSHED:
            await peer.send(frame)
            pushed += len(frame)

    async with lane.facing(script) as stage:
        client = await stage.client(receive_buffer=65536)
        await client.send(HANDSHAKE)
        await client.head()
        client.writer.transport.pause_reading()
        last = -1
        while pushed != last:
            last = pushed
            await asyncio.sleep(0.3)
        assert 0 < pushed < HELD_BYTES
        # It is only held up: once the client reads, all goes on.
        client.writer.transport.resume_reading()
        await client.reader.readexactly(3_000_000)
        await until(lambda: pushed > last)


async def test_bug_151_a_backend_that_does_not_read_costs_bounded_memory(lane: Lane) -> None:
    may_read = asyncio.Event()
    read = 0

    async def script(peer: Peer, asked: Received) -> None:
        nonlocal read
        peer.writer.transport.pause_reading()
        await peer.send(SWITCHED)
        await may_read.wait()
        peer.writer.transport.resume_reading()
        while piece := await peer.reader.read(1 << 20):
            read += len(piece)

    async with lane.facing(script) as stage:
        client = await stage.client()
        await client.send(HANDSHAKE)
        await client.head()
        pushed = 0

        async def push() -> None:
            nonlocal pushed
            frame = b"\x82\xff" + (100_000).to_bytes(8, "big") + b"abcd" + bytes(100_000)
            while pushed < PUSHED / 4:
                await client.send(frame)
                pushed += len(frame)

        pushing = asyncio.create_task(push())
        last = -1
        while pushed != last:
            last = pushed
            await asyncio.sleep(0.3)
        assert 0 < pushed < HELD_BYTES
        may_read.set()
        await pushing
        await until(lambda: read == pushed)


async def test_bug_151_a_client_that_takes_nothing_for_too_long_is_cut_off(lane: Lane) -> None:
    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(SWITCHED)
        with contextlib.suppress(ConnectionError):
            while True:
                await peer.send(b"\x82\x7e\xff\xff" + bytes(65535))

    environ = {"LIFEBOAT_CLIENT_WRITE_TIMEOUT_SEC": "0.3"}
    async with lane.facing(script, environ=environ) as stage:
        client = await stage.client(receive_buffer=65536)
        await client.send(HANDSHAKE)
        await client.head()
        client.writer.transport.pause_reading()
        state = await stage.running.settle(5.0)
        assert state["backends"]["a"]["failed"] == 0


# ---- 153: slots ----------------------------------------------------------------------------------


async def test_bug_153_each_open_socket_holds_one_slot_and_a_refusal_is_plain_http(
    lane: Lane,
) -> None:
    async with realtime(lane, max_concurrency=4) as (running, engine):
        held = [await connected(running) for _ in range(4)]
        assert (await running.state())["inflight"] == {"a": 4}
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await connected(running)
        assert refused.value.status == 503
        assert refused.value.headers is not None
        assert refused.value.headers["X-Lifeboat-Wait-ms"] == "0"
        for socket in held:
            await socket.close()
        await running.settle()
        for _ in range(25):
            sockets = [await connected(running) for _ in range(4)]
            await asyncio.gather(*(socket.send_str("x") for socket in sockets))
            await asyncio.gather(*(socket.receive_str() for socket in sockets))
            await asyncio.gather(*(socket.close() for socket in sockets))
            await running.settle()
        state = await running.settle()
        metrics = await running.metrics()
    assert state["inflight"] == {"a": 0}
    assert engine.most_open <= 4
    assert state["dispatch_counts"] == {"a": 104}
    assert metrics['lifeboat_lb_responses_total{backend="a",code="101"}'] == 104
    gate = [
        value
        for name, value in metrics.items()
        if name.startswith("lifeboat_lb_rejected_total{") and 'reason="gate"' in name
    ]
    assert sum(gate) == 1


async def test_bug_153_a_parked_socket_waits_for_a_slot_up_to_the_ttl(lane: Lane) -> None:
    environ = {"LIFEBOAT_LB_QUEUE_ENABLED": "true", "LIFEBOAT_LB_QUEUE_TTL_SEC": "0.5"}
    async with realtime(lane, environ=environ, max_concurrency=1) as (running, _):
        first = await connected(running)
        with pytest.raises(aiohttp.WSServerHandshakeError) as expired:
            await connected(running)
        assert expired.value.status == 504
        assert expired.value.headers is not None
        assert expired.value.headers["X-Lifeboat-Reject-Reason"] == "queue_timeout"
        second = asyncio.create_task(connect_later(running))
        await running.until(lambda state: state["queue_total_waiters"] == 1)
        await first.close()
        socket = await second
        assert int(socket._response.headers["X-Lifeboat-Wait-ms"]) > 0
        await socket.close()
        await running.settle()


async def connect_later(running: Running) -> aiohttp.ClientWebSocketResponse:
    return await connected(running)


async def test_bug_153_a_backend_that_declines_is_heard_and_its_slot_freed(lane: Lane) -> None:
    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(answer({"error": {"message": "no beta"}}, b"403 Forbidden", b"X-Why: 1"))

    async with lane.facing(script) as stage:
        client = await stage.client()
        await client.send(HANDSHAKE)
        reply = await client.reply()
        assert (reply.status, reply.values(b"x-why")) == (403, [b"1"])
        assert json.loads(reply.body)["error"]["message"] == "no beta"
        state = await stage.running.settle()
        assert state["backends"]["a"]["failed"] == 0


async def test_bug_153_a_full_backend_is_left_for_one_with_room(lane: Lane) -> None:
    async def full(peer: Peer, asked: Received) -> None:
        body = {"error": {"type": "overloaded_error", "message": "full"}}
        await peer.send(answer(body, b"529 Full"))

    async def well(peer: Peer, asked: Received) -> None:
        await peer.send(SWITCHED, b"\x88\x00")
        peer.close()

    async with lane.facing(full, well) as stage:
        for _ in range(3):
            client = await stage.client()
            await client.send(HANDSHAKE)
            assert (await client.head())[0].startswith(b"HTTP/1.1 101")


# ---- around it -----------------------------------------------------------------------------------


async def test_bug_153_what_is_no_websocket_is_told_so(lane: Lane) -> None:
    async with lane.facing(Engine(never)) as stage:
        client = await stage.client()
        for request, status in (
            (HANDSHAKE.replace(b"Upgrade: websocket\r\n", b""), 426),
            (HANDSHAKE.replace(b"Connection: Upgrade\r\n", b""), 426),
            (HANDSHAKE.replace(b"websocket\r\n", b"h2c\r\n"), 426),
            (HANDSHAKE.replace(b"GET", b"POST").replace(b"HTTP/1.1\r\n",
                                                        b"HTTP/1.1\r\nContent-Length: 0\r\n"), 405),
            (HANDSHAKE.replace(b"model=m", b"model=none"), 503),
            (HANDSHAKE.replace(b"model=m", b"model=%ff"), 503),
        ):  # fmt: skip
            client = await stage.client()
            await client.send(request)
            reply = await client.reply()
            assert reply.status == status, request
            assert json.loads(reply.body)["error"]["message"]
        assert stage.asked == []


async def never(peer: Peer, asked: Received) -> None:
    raise AssertionError("nobody should be asked")


async def test_bug_153_the_model_comes_from_the_query_and_an_alias_is_written_there(
    lane: Lane,
) -> None:
    models = {"gpt-realtime": {"alias_of": "m"}}
    async with realtime(lane, top={"models": models}) as (running, engine):
        for query, sent in (
            ("?model=m&x=%2B+1", "?model=m&x=%2B+1"),
            ("?a&model=gpt%2Drealtime&b=", "?a&model=m&b="),
            ("?intent=transcription", "?intent=transcription"),
            ("", ""),
        ):
            async with connected(running, "/v1/realtime" + query) as socket:
                await socket.send_str("x")
                assert await socket.receive_str() == "x"
            assert engine.requests[-1].raw_path == "/v1/realtime" + sent
        await running.settle()


async def test_bug_153_a_key_may_come_as_a_subprotocol_and_goes_no_further(lane: Lane) -> None:
    environ = {"LIFEBOAT_API_KEYS": "router-key"}
    async with realtime(lane, environ=environ, protocols=("realtime",), api_key="backend-key") as (
        running,
        engine,
    ):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await connected(running)
        assert refused.value.status == 401
        offered = ("realtime", "openai-insecure-api-key.router-key", "openai-beta.v1")
        async with connected(running, protocols=offered) as socket:
            assert socket.protocol == "realtime"
        [request] = engine.requests
        assert "router-key" not in str(request.headers)
        assert request.headers["Sec-WebSocket-Protocol"] == "realtime, openai-beta.v1"
        assert request.headers["Authorization"] == "Bearer backend-key"


async def test_bug_153_shutting_down_says_goodbye_to_an_open_socket(lane: Lane) -> None:
    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(SWITCHED, b"\x81\x02hi")
        await peer.watch()

    async with Engine(script) as engine:
        async with lane.router(backend(engine.url)) as running:
            client = await RawClient.connect(running.port)
            await client.send(HANDSHAKE)
            await client.head()
        rest = await client.reader.read()
        client.close()
        await engine.peers[-1].gone.wait()
    assert rest == b"\x81\x02hi" + close_frame(1001, b"the router ends")


def test_bug_150_frames_are_followed_however_they_are_cut() -> None:
    frames = (
        b"\x81\x00", b"\x82\x05hello", b"\x82\x7e\x01\x00" + bytes(256),
        b"\x82\x7f" + (70_000).to_bytes(8, "big") + bytes(70_000), b"\x81\x83abcdxyz",
        close_frame(1000, b"bye"),
    )  # fmt: skip
    ends = set()
    at = 0
    for frame in frames:
        at += len(frame)
        ends.add(at)
    whole = b"".join(frames)
    for step in (1, 2, 3, 7, 1000, len(whole)):
        track = FrameTrack()
        assert track.between_frames
        for start in range(0, len(whole), step):
            assert not track.closed
            piece = whole[start : start + step]
            track.feed(piece)
            assert track.between_frames == (start + len(piece) in ends)
        assert track.closed
