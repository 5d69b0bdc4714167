"""The fast lane: plain requests served straight off the connection, everything else by aiohttp.

A connection begins here. A request head that is plain HTTP/1.1 (a POST with Content-Length to a
proxied path, or a GET the lane was given) is served by the same handler as aiohttp's requests, over
an object with the same few attributes. At the first head that is anything else the connection is
handed over, with its bytes, to aiohttp's own protocol, and stays there: the lane never answers what
it does not fully understand, and never refuses a head itself.

Invariants, held by tests/wire/test_lane.py and by the conformance tests on both lanes:
- What is handed over has not been touched: aiohttp sees the connection's bytes from the head on.
- One request at a time; bytes beyond it wait in at most READ_AHEAD_BYTES and one read, then reading
  pauses. A client that takes none of its answers is asked for no more requests.
- A client that leaves cancels the task that serves it, in every phase; a task that is cancelled
  leaves no connection behind.
- A connection that is closed is gone once the client took what waits, or takes nothing any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from aiohttp import web
from aiohttp.helpers import rfc822_formatted_time

from lifeboat.wire.downstream import Relayed, has_unread_bytes
from lifeboat.wire.lane_head import HeadReader, may_begin
from lifeboat.wire.lane_request import LaneRequest, LaneWriter
from lifeboat.wire.stall import StallWatch, close_in_time

_log = logging.getLogger("lifeboat.wire")

READ_AHEAD_BYTES = 64 * 1024
"""Bytes kept of requests behind the one that is served, and of a body nobody has read yet."""
MAX_HEAD_BYTES = 64 * 1024
"""A longer head is aiohttp's to refuse."""
LINGER_S = 5.0
"""How long the rest of a refused body is read and dropped: closing on bytes that were not read
resets the connection, and the client loses its answer."""
SWEEP_S = 1.0
"""Idle and slow connections are seen this much late at the most: one timer for all of them."""

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class LaneRules:
    """head_timeout_s: for the first head, and for a later one from its first byte on.

    keepalive_s: idle between requests. write_timeout_s: longest time in which the client takes no
    byte of an answer that waits for it.
    """

    head_timeout_s: float
    keepalive_s: float
    write_timeout_s: float


class Lane:
    """All connections of one listener: what they share.

    handler: serves a request. wanted: whether the lane serves a method and path. fallback: makes
    aiohttp's protocol. tasks: owns a task for each connection that sent a request.
    """

    def __init__(
        self,
        handler: Handler,
        wanted: Callable[[str, str], bool],
        fallback: Callable[[], asyncio.Protocol],
        tasks: asyncio.TaskGroup,
        rules: LaneRules,
    ) -> None:
        self.handler = handler
        self.heads = HeadReader(wanted)
        self.fallback = fallback
        self.tasks = tasks
        self.rules = rules
        self.connections: set[LaneConnection] = set()
        self.loop = asyncio.get_running_loop()

    def __call__(self) -> LaneConnection:
        """Return the protocol of a new connection."""
        return LaneConnection(self)

    async def run(self) -> None:
        """Close idle and unbegun connections, for ever: one coarse timer for all."""
        while True:
            await asyncio.sleep(SWEEP_S)
            self.sweep()

    def sweep(self) -> None:
        """Look at every connection once."""
        now = self.loop.time()
        for connection in list(self.connections):
            connection.check(now)

    def close(self) -> None:
        """End every connection: those that serve nothing in order, the others at once."""
        for connection in list(self.connections):
            connection.end()


class LaneConnection(asyncio.Protocol):
    """One client connection, as long as it is the lane's."""

    __slots__ = (
        "_buffer",
        "_drained",
        "_is_serving",
        "_lane",
        "_next",
        "_request",
        "_since",
        "_was_served",
        "loop",
        "reading_paused",
        "remote",
        "task",
        "transport",
        "writer",
        "writing_paused",
    )

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self.loop = lane.loop
        self.transport: asyncio.Transport | None = None
        self.remote: str | None = None
        self.writing_paused = False
        self.reading_paused = False
        self._buffer = b""
        self.writer = LaneWriter(self)
        self._request: LaneRequest | None = None
        self.task: asyncio.Task[None] | None = None
        self._next: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._is_serving = False
        self._was_served = False
        self._since = self.loop.time()

    # -- what the transport tells -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast("asyncio.Transport", transport)
        peer: object = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.remote = str(cast("tuple[object, ...]", peer)[0])
        self._lane.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client left: whoever serves it is cancelled."""
        self.transport = None
        self._lane.connections.discard(self)
        if self._drained is not None and not self._drained.done():
            self._drained.set_exception(ConnectionResetError("the client's connection was lost"))
        if self.task is not None:
            self.task.cancel()

    def eof_received(self) -> bool:
        """A half-close counts as gone, here as everywhere."""
        return False

    def pause_writing(self) -> None:
        """The client lags."""
        self.writing_paused = True

    def resume_writing(self) -> None:
        """The client caught up."""
        self.writing_paused = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Take bytes: of the body that is read, or of heads to come."""
        request = self._request
        if request is not None and request.content.left:
            data = request.content.feed(data)
            if request.content.buffered_bytes() > READ_AHEAD_BYTES:
                self.pause_reading()
            if not data:
                return
        if self._is_serving:
            self._buffer += data
            if len(self._buffer) > READ_AHEAD_BYTES:
                self.pause_reading()
            return
        self._look_for_head(self._buffer + data if self._buffer else data)

    # -- heads ----------------------------------------------------------------------------------

    def _look_for_head(self, data: bytes) -> None:
        """Begin to serve the next head, if it is complete and plain; else wait, or hand over."""
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if self._was_served and not self._buffer:
                self._since = self.loop.time()
            self._buffer = data
            # A bare line feed, or bytes that begin no request: aiohttp's parser decides.
            is_odd = not may_begin(data) or data.count(b"\n") != data.count(b"\r\n")
            if is_odd or len(data) > MAX_HEAD_BYTES:
                self._hand_over()
            return
        head = self._lane.heads.read(data[: end + 4]) if end < MAX_HEAD_BYTES else None
        if head is None:
            self._buffer = data
            self._hand_over()
            return
        self._request = request = LaneRequest(self, *head)
        rest = data[end + 4 :]
        self._buffer = request.content.feed(rest) if rest else rest
        self._is_serving = True
        if self.task is None:
            self.task = self._lane.tasks.create_task(self._serve())
        elif self._next is not None and not self._next.done():
            self._next.set_result(None)

    def _hand_over(self) -> None:
        """Give the connection to aiohttp, with every byte that was not served."""
        transport = self.transport
        if transport is None:
            return
        self._lane.connections.discard(self)
        task, self.task = self.task, None
        if task is not None:
            task.cancel()
        protocol = self._lane.fallback()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        data, self._buffer = self._buffer, b""
        self.resume_reading()
        protocol.data_received(data)

    # -- serving --------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Serve one request after the other until the connection ends or is handed over."""
        try:
            while True:
                request = self._request
                if request is None:
                    self._next = self.loop.create_future()
                    await self._next
                    continue
                response = await self._lane.handler(cast("web.BaseRequest", request))
                goes_on = self._answer(request, response)
                if self.writing_paused:
                    await self._caught_up()
                if not goes_on:
                    await self._part(request)
                    return
                if not self._go_on():
                    return
        except asyncio.CancelledError:
            # Of a client that left while it was not read from, the transport knows nothing.
            self._drop()
            raise
        except Exception:
            # The proxy answers its own faults; this is one of a page of ours.
            _log.exception("a request on the fast lane failed")
            self._drop()

    def _drop(self) -> None:
        """Abort the connection, if it is still the lane's."""
        if self.task is not None and self.transport is not None:
            self.transport.abort()

    def _answer(self, request: LaneRequest, response: web.StreamResponse) -> bool:
        """Write what is left to write; return whether the connection may go on."""
        transport = self.transport
        if transport is None or self._is_closing:
            return False
        # A body that was not read to its end leaves the connection out of step.
        goes_on = response.keep_alive is not False and not request.content.left
        if not isinstance(response, Relayed):
            transport.write(rendered(cast("web.Response", response), goes_on=goes_on))
        return goes_on

    async def _caught_up(self) -> None:
        """Wait until the client has taken enough of the answers, or is cut off."""
        with (
            suppress(ConnectionError),
            StallWatch(self.transport, self._lane.rules.write_timeout_s),
        ):
            await self.writable()

    def _go_on(self) -> bool:
        """Turn to the next request; return whether the connection is the lane's still."""
        if self._is_closing:
            return False
        self._request = None
        self._is_serving = False
        self._was_served = True
        self._since = self.loop.time()
        if self._buffer:
            self._look_for_head(self._buffer)
        self.resume_reading()
        return self.transport is not None and self.task is not None

    async def _part(self, request: LaneRequest) -> None:
        """Close the connection, once the client has sent what it is sending, or soon anyhow."""
        content = request.content
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while not (content.at_eof() or self._is_closing):
                    await content.readany()
        self._close()

    def _close(self) -> None:
        """Close the connection behind what waits to be sent."""
        if self.transport is not None:
            close_in_time(self.transport, self._lane.rules.write_timeout_s)

    @property
    def _is_closing(self) -> bool:
        return self.transport is None or self.transport.is_closing()

    async def writable(self) -> None:
        """Wait while the client lags. Raises ConnectionResetError when it is gone."""
        if self.transport is None:
            raise ConnectionResetError("the client's connection is closed")
        if not self.writing_paused:
            return
        self._drained = self.loop.create_future()
        try:
            await self._drained
        finally:
            self._drained = None

    # -- flow and time --------------------------------------------------------------------------

    def pause_reading(self) -> None:
        """Take no more bytes from the client for now."""
        if not self.reading_paused and self.transport is not None:
            self.reading_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Take bytes again, unless many wait already."""
        if len(self._buffer) > READ_AHEAD_BYTES:
            return
        if self.reading_paused and self.transport is not None:
            self.reading_paused = False
            self.transport.resume_reading()

    def check(self, now: float) -> None:
        """Close the connection if its head, or its next request, takes too long."""
        if self._is_serving or self._is_closing:
            return
        rules = self._lane.rules
        begun = bool(self._buffer) or not self._was_served
        if now - self._since <= (rules.head_timeout_s if begun else rules.keepalive_s):
            return
        if begun or not has_unread_bytes(self.transport):
            self._close()

    def end(self) -> None:
        """Close the connection; what it still serves is cancelled by its loss."""
        if self.transport is None:
            return
        if self._is_serving:
            self.transport.abort()
        else:
            self._close()


def rendered(response: web.Response, *, goes_on: bool) -> bytes:
    """Return a response of our own as bytes."""
    body = response.body
    payload = bytes(body) if isinstance(body, (bytes, bytearray, memoryview)) else b""
    lines = [f"HTTP/1.1 {response.status} {response.reason}"]
    lines += [
        f"{name}: {value}"
        for name, value in response.headers.items()
        if name.lower() not in ("content-length", "connection")
    ]
    lines.append(f"Content-Length: {len(payload)}")
    lines.append(f"Date: {rfc822_formatted_time()}")
    if not goes_on:
        lines.append("Connection: close")
    return "\r\n".join(lines).encode("utf-8") + b"\r\n\r\n" + payload
