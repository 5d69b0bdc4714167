"""What the fast lane takes, and what it leaves to aiohttp, byte for byte."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from lifeboat.edge.server import JsonRunner
from lifeboat.wire.lane import MAX_HEAD_BYTES, READ_AHEAD_BYTES, Lane, LaneRules
from lifeboat.wire.lane_head import MOST_HEADS, HeadReader, may_begin, parse_head
from tests.peers import PATIENCE_S, RawClient, until

POST = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n"


def head(*lines: bytes, first: bytes = b"POST /x HTTP/1.1") -> bytes:
    return b"\r\n".join([first, *lines]) + b"\r\n\r\n"


PLAIN = {
    "a post": head(b"Host: h", b"Content-Length: 2"),
    "blanks around a value": head(b"Host:  h \t", b"Content-Length:2"),
    "128 headers": head(b"Host: h", b"Content-Length: 2", *[b"X: a"] * 126),
    "an empty value": head(b"Host: h", b"Content-Length: 0", b"X-Empty:"),
    "keep-alive said aloud": head(b"Host: h", b"Content-Length: 2", b"Connection: Keep-Alive"),
    "a get": head(b"Host: h", first=b"GET /v1/models HTTP/1.1"),
    "a query, undecoded": head(b"Host: h", b"Content-Length: 2", first=b"POST /x?a=%2F HTTP/1.1"),
}
ODD = {
    "chunked": head(b"Host: h", b"Transfer-Encoding: chunked"),
    "both framings": head(b"Host: h", b"Content-Length: 2", b"Transfer-Encoding: chunked"),
    "two lengths": head(b"Host: h", b"Content-Length: 2", b"Content-Length: 2"),
    "a signed length": head(b"Host: h", b"Content-Length: +2"),
    "a list of lengths": head(b"Host: h", b"Content-Length: 2, 2"),
    "no length": head(b"Host: h"),
    "a get with a body": head(b"Host: h", b"Content-Length: 2", first=b"GET /x HTTP/1.1"),
    "expect": head(b"Host: h", b"Content-Length: 2", b"Expect: 100-continue"),
    "upgrade": head(b"Host: h", b"Content-Length: 2", b"Upgrade: websocket"),
    "connection close": head(b"Host: h", b"Content-Length: 2", b"Connection: close"),
    "connection names a header": head(b"Host: h", b"Content-Length: 2", b"Connection: X-A"),
    "no host": head(b"Content-Length: 2"),
    "two hosts": head(b"Host: a", b"Host: b", b"Content-Length: 2"),
    "two types": head(b"Host: h", b"Content-Type: a/b", b"content-type: c/d", b"Content-Length: 2"),
    "http/1.0": head(b"Host: h", b"Content-Length: 2", first=b"POST /x HTTP/1.0"),
    "absolute form": head(b"Host: h", b"Content-Length: 2", first=b"POST http://o/x HTTP/1.1"),
    "another method": head(b"Host: h", b"Content-Length: 2", first=b"PUT /x HTTP/1.1"),
    "two blanks": head(b"Host: h", b"Content-Length: 2", first=b"POST  /x HTTP/1.1"),
    "a blank before the colon": head(b"Host: h", b"Content-Length : 2"),
    "a blank in the name": head(b"Host: h", b"Bad Content-Length: 2"),
    "a folded line": head(b"Host: h", b"X: a", b" b", b"Content-Length: 2"),
    "a bare line feed": head(b"Host: h\nX: a", b"Content-Length: 2"),
    "a bare carriage return": head(b"Host: h\rX: a", b"Content-Length: 2"),
    "a null byte": head(b"Host: h", b"X: a\0b", b"Content-Length: 2"),
    "a byte above ascii": head(b"Host: h", b"X: \xe9", b"Content-Length: 2"),
    "129 headers": head(b"Host: h", b"Content-Length: 2", *[b"X: a"] * 127),
    "no colon": head(b"Host: h", b"Content-Length 2", b"Content-Length: 2"),
}


@pytest.mark.parametrize("text", PLAIN.values(), ids=PLAIN)
def test_a_plain_head_is_understood(text: bytes) -> None:
    assert parse_head(text) is not None


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_anything_else_is_left_alone(text: bytes) -> None:
    assert parse_head(text) is None


@pytest.mark.parametrize(
    ("start", "waits"),
    [
        (b"P", True),
        (b"POST /x HTTP/1.1\r\nHos", True),
        (b"POST /", True),
        (b"PUT ", False),
        (b"GET v1", False),
        (b"\r\n", False),
        (b"POST /x http/1.1\r\n", False),
        (b"POST /x HTTP/1.0\r\nHost: h\r\n", False),
        (b"GET / HTTP/1.1\n", False),
    ],
)
def test_a_head_that_cannot_become_plain_is_not_waited_for(start: bytes, waits: bool) -> None:
    """Else who sent all of it (with line feeds alone) would get no answer until the timeout."""
    assert may_begin(start) is waits


def test_what_is_understood_is_what_stood_there() -> None:
    parsed = parse_head(head(b"Host: h", b"X-A:  b c ", b"Content-Length: 12"))
    assert parsed is not None
    assert (parsed.method, parsed.raw_path, parsed.length) == ("POST", "/x", 12)
    assert parsed.headers == [(b"Host", b"h"), (b"X-A", b"b c"), (b"Content-Length", b"12")]


@given(
    heads=st.lists(
        st.sampled_from(
            [
                *PLAIN.values(),
                *ODD.values(),
                head(b"Host: h", b"Content-Length: 7"),
                head(b"Content-Length: 9", b"Host: h"),
                head(b"Host: h", b"content-length:  12"),
                head(b"Host: h", b"CONTENT-LENGTH: 3"),
                head(b"Host: h", first=b"GET /x HTTP/1.1"),
                head(b"Host: h", b"Content-Length: 7", first=b"GET /x HTTP/1.1"),
                head(b"Host: h", b"Content-Length: 7", b"Content-Length: 7"),
                head(b"Host: h"),
            ]
        ),
        max_size=12,
    )
)
def test_a_head_that_comes_again_is_read_as_the_first_time(heads: list[bytes]) -> None:
    reader = HeadReader(lambda method, path: path != "/unwanted")
    for text in heads:
        found, alone = reader.read(text), parse_head(text)
        if alone is None:
            assert found is None
            continue
        assert found is not None
        known, length = found
        assert (known.method, known.raw_path) == (alone.method, alone.raw_path)
        assert (length, known.has_length) == (alone.length, alone.has_length)
        lines = [line for line in alone.headers if line[0].lower() != b"content-length"]
        assert known.headers == lines


def test_a_get_with_a_length_is_not_taken_for_its_twin_without_one() -> None:
    reader = HeadReader(lambda method, path: True)
    assert reader.read(head(b"Host: h", first=b"GET /x HTTP/1.1")) is not None
    odd = head(b"Host: h", b"Content-Length: 7", first=b"GET /x HTTP/1.1")
    assert reader.read(odd) is None
    assert reader.read(head(b"Host: h", b"Content-Length: 7")) is not None
    assert reader.read(head(b"Host: h")) is None


def test_a_head_nobody_wants_is_left_alone_and_what_is_remembered_is_bounded() -> None:
    reader = HeadReader(lambda method, path: path != "/unwanted")
    assert reader.read(head(b"Host: h", first=b"GET /unwanted HTTP/1.1")) is None
    for number in range(MOST_HEADS + 20):
        assert reader.read(head(b"Host: h", b"X: %d" % number, b"Content-Length: 2")) is not None
    assert reader.read(head(b"Host: h", b"X: " + b"y" * 5000, b"Content-Length: 2")) is not None
    assert len(reader._known) == MOST_HEADS


class Served:
    """A lane over an aiohttp application that both answer which of them served."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.is_held = asyncio.Event()
        self.clients: list[RawClient] = []
        self.release = asyncio.Event()

    async def on_lane(self, request: web.BaseRequest) -> web.StreamResponse:
        body = b""
        while not request.content.at_eof():
            body += await request.content.readany()
        await asyncio.sleep(0)
        if request.raw_path == "/slow":
            self.is_held.set()
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        return web.Response(body=b"lane:" + body)

    async def on_aiohttp(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"aiohttp:" + await request.read())


@pytest.fixture
async def served():
    state = Served()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", state.on_aiohttp)
    runner = JsonRunner(app)
    await runner.setup()
    async with asyncio.TaskGroup() as tasks:
        rules = LaneRules(head_timeout_s=0.2, keepalive_s=0.4, write_timeout_s=0.4)
        wanted = lambda method, path: path in ("/x", "/slow")  # noqa: E731
        lane = Lane(state.on_lane, wanted, runner.server, tasks, rules)
        server = await asyncio.get_running_loop().create_server(lane, "127.0.0.1", 0)
        state.lane = lane
        state.port = server.sockets[0].getsockname()[1]
        yield state
        for client in state.clients:
            client.close()
        server.close()
        lane.close()
        await runner.cleanup()


async def connected(served) -> RawClient:
    client = await RawClient.connect(served.port)
    served.clients.append(client)
    return client


async def read_answer(client: RawClient) -> bytes:
    async with asyncio.timeout(5):
        text = await client.reader.readuntil(b"\r\n\r\n")
        length = int(text.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        return await client.reader.readexactly(length)


async def test_plain_requests_stay_on_the_lane_one_after_the_other(served) -> None:
    client = await connected(served)
    for _ in range(3):
        await client.send(POST + b"ab")
        assert await read_answer(client) == b"lane:ab"


async def test_pipelined_requests_are_answered_in_order_and_an_odd_one_ends_the_lane(
    served,
) -> None:
    client = await connected(served)
    odd = head(b"Host: h", b"Transfer-Encoding: chunked") + b"1\r\nq\r\n0\r\n\r\n"
    await client.send(POST + b"ab" + POST + b"cd" + odd + POST + b"ef")
    assert [await read_answer(client) for _ in range(4)] == [
        b"lane:ab",
        b"lane:cd",
        b"aiohttp:q",
        b"aiohttp:ef",
    ]


async def test_a_head_cut_anywhere_is_the_same_head(served) -> None:
    text = POST + b"ab"
    for cut in range(1, len(text)):
        client = await connected(served)
        await client.send(text[:cut])
        await asyncio.sleep(0)
        await client.send(text[cut:])
        assert await read_answer(client) == b"lane:ab"


async def test_a_head_that_never_ends_is_aiohttps_to_refuse(served) -> None:
    client = await connected(served)
    await client.send(b"POST /x HTTP/1.1\r\nHost: h\r\nX: " + b"a" * (MAX_HEAD_BYTES + 10))
    async with asyncio.timeout(5):
        assert b" 400 " in await client.reader.readline()


async def test_a_client_that_leaves_cancels_what_serves_it(served) -> None:
    client = await connected(served)
    await client.send(head(b"Host: h", b"Content-Length: 0", first=b"POST /slow HTTP/1.1"))
    await until(served.is_held.is_set)
    client.writer.transport.abort()
    async with asyncio.timeout(5):
        await served.cancelled.wait()


async def test_heads_that_do_not_come_and_idle_connections_are_closed(served) -> None:
    slow, idle = await connected(served), await connected(served)
    await slow.send(b"POST /x HT")
    await idle.send(POST + b"ab")
    assert await read_answer(idle) == b"lane:ab"
    await asyncio.sleep(0.5)
    served.lane.sweep()
    async with asyncio.timeout(5):
        assert await slow.reader.read() == b""
        assert await idle.reader.read() == b""


async def test_a_later_head_has_its_time_from_its_first_byte_on(served) -> None:
    """Though the connection was idle for longer than a head may take."""
    client = await connected(served)
    await client.send(POST + b"ab")
    assert await read_answer(client) == b"lane:ab"
    (connection,) = served.lane.connections
    await asyncio.sleep(0.3)
    before = asyncio.get_running_loop().time()
    for part in (POST[:10], POST[10:20]):
        await client.send(part)
        await asyncio.sleep(0.05)
        connection.check(before)
    await client.send(POST[20:] + b"cd")
    assert await read_answer(client) == b"lane:cd"
    await client.send(POST[:10])
    await asyncio.sleep(0.05)
    connection.check(asyncio.get_running_loop().time() + 0.3)
    async with asyncio.timeout(5):
        assert await client.reader.read() == b""


async def test_a_request_that_came_as_the_idle_time_ended_is_served(served) -> None:
    """It lies in the kernel when the clock looks: closing now would reset it (aiohttp#9138)."""
    client = await connected(served)
    await client.send(POST + b"ab")
    assert await read_answer(client) == b"lane:ab"
    (connection,) = served.lane.connections
    # Written in this step: it is there, and the loop has had no turn to read it.
    client.writer.write(POST + b"cd")
    connection.check(asyncio.get_running_loop().time() + 1.0)
    assert await read_answer(client) == b"lane:cd"


async def test_reading_pauses_behind_a_request_that_is_served(served) -> None:
    client = await connected(served)
    await client.send(head(b"Host: h", b"Content-Length: 0", first=b"POST /slow HTTP/1.1"))
    await client.send((POST + b"ab") * 5000)
    await until(lambda: len(served.lane.connections) == 1)
    (connection,) = served.lane.connections
    await until(lambda: connection.reading_paused)
    served.release.set()
    assert await read_answer(client) == b"lane:"
    for _ in range(5000):
        assert await read_answer(client) == b"lane:ab"


ONE_READ_BYTES = 256 * 1024
"""As much as either loop reads at once."""


async def test_what_is_pipelined_waits_in_bounds_while_it_is_answered(served) -> None:
    """Each answer lets the lane read on: that must not be more than the answer made room for."""
    client = await connected(served)
    requests = 15_000
    sending = asyncio.create_task(client.send((POST + b"ab") * requests))
    most = 0
    for number in range(requests):
        assert await read_answer(client) == b"lane:ab"
        if number % 100 == 0:
            (connection,) = served.lane.connections
            most = max(most, len(connection._buffer))
    await sending
    assert most <= READ_AHEAD_BYTES + ONE_READ_BYTES


async def test_a_client_that_takes_no_answers_is_asked_for_no_more_and_then_cut_off(
    served,
) -> None:
    client = await RawClient.connect(served.port, receive_buffer=4096)
    served.clients.append(client)
    client.reader._transport.pause_reading()
    await until(lambda: len(served.lane.connections) == 1)
    (connection,) = served.lane.connections
    transport = connection.transport
    size = 20_000
    ask = head(b"Host: h", b"Content-Length: %d" % size) + b"a" * size
    sending = asyncio.create_task(client.send(ask * 2000))
    most = 0

    def cut_off() -> bool:
        nonlocal most
        most = max(most, transport.get_write_buffer_size())
        return not served.lane.connections

    await until(cut_off)
    assert 0 < most < 10 * size
    await asyncio.wait([sending], timeout=PATIENCE_S)
    assert sending.done()
    sending.exception()


async def test_a_task_cancelled_for_a_client_that_left_unseen_leaves_no_connection(served) -> None:
    """Behind many pipelined bytes nobody reads, and nobody would ever hear of the client's end."""
    client = await connected(served)
    await client.send(head(b"Host: h", b"Content-Length: 0", first=b"POST /slow HTTP/1.1"))
    await client.send((POST + b"ab") * 5000)
    await until(lambda: len(served.lane.connections) == 1)
    (connection,) = served.lane.connections
    await until(lambda: connection.reading_paused)
    client.reset()
    connection.task.cancel()
    await until(lambda: not served.lane.connections)
    assert connection.transport is None
