"""The client's connection under aiohttp's server: is the client there, cut it off, pass it bytes.

The relay writes the response head and the chunk framing itself, through `request.writer`: aiohttp
would add Date, Server and Content-Type, and drop header bytes that are no UTF-8. What it returns to
aiohttp is a `Relayed` response, which has nothing left to send.

Invariants (I11), held by tests/wire/test_relay.py:
- Body bytes out = body bytes in, each piece as it came, constant work a piece.
- A body cut upstream never ends cleanly: no last chunk, no full Content-Length, and a reset where
  the end of the connection is the end of the body.
- `on_upstream_end` runs in the step in which the backend's body ended, though a slow client may
  still be reading the tail.
- Memory is bounded by the answer's own bound, one piece and the transport's buffer.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import sys
import termios
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, cast

from aiohttp import HttpVersion10, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import StreamWriter

from lifeboat.core.vocabulary import Verdict
from lifeboat.wire.answer_head import BODILESS_STATUSES
from lifeboat.wire.headers import RawHeaders, header_block
from lifeboat.wire.stall import StallWatch
from lifeboat.wire.upstream import Answer, UpstreamError

_TCP_ESTABLISHED = 1
"""First byte of Linux's struct tcp_info while neither side has closed (net/tcp_states.h)."""
_LINGER_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER on, zero seconds: closing sends a reset."""


def client_gone(request: web.BaseRequest) -> bool:
    """Say whether the client has left, as far as anybody can know now.

    On Linux the kernel's own state is asked, which sees a FIN or RST even while aiohttp has paused
    reading because of pipelined bytes. A half-closed connection counts as gone (documented): a
    client that wants an answer keeps its side open.
    """
    transport = request.transport
    if transport is None or transport.is_closing():
        return True
    sock = transport.get_extra_info("socket")
    if sock is None or not sys.platform.startswith("linux"):
        return False
    try:
        tcp_info: bytes = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    except OSError:
        # Not TCP (a Unix socket), or the descriptor is closed: the transport will tell.
        return False
    return tcp_info[0] != _TCP_ESTABLISHED


def has_unread_bytes(transport: asyncio.Transport | None) -> bool:
    """Say whether bytes of the peer wait in the kernel, while we read at all.

    Timers run before the loop reads: to close an idle connection then resets the request that has
    just come (aiohttp#9138). So may a request be sent on a connection before that.
    """
    if transport is None or not transport.is_reading():
        return False
    sock = transport.get_extra_info("socket")
    if sock is None:
        return False
    try:
        count = fcntl.ioctl(sock.fileno(), termios.FIONREAD, b"\0\0\0\0")
    except OSError:
        return False
    return any(count)


def abort(request: web.BaseRequest, *, reset: bool = True) -> None:
    """Close the client's connection at once, so that what was sent can never look complete.

    reset: send RST, needed where the end of the connection would be the end of the body. Without
    it, bytes that the kernel already holds are still delivered.
    """
    transport = request.transport
    if transport is None:
        return
    sock = transport.get_extra_info("socket") if reset else None
    if sock is not None:
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
        except OSError:
            # The socket is closed already: there is nobody left to mislead.
            pass
    transport.abort()


class Ended(StrEnum):
    """How a relay ended: a closed set."""

    COMPLETED = "completed"
    """The whole answer was passed on."""
    CLIENT_GONE = "client_gone"
    CLIENT_TOO_SLOW = "client_too_slow"
    """The client took no byte for the write timeout, and was cut off."""
    UPSTREAM_CUT = "upstream_cut"
    UPSTREAM_IDLE = "upstream_idle"
    """The backend went silent within its answer."""


class Relayed(web.StreamResponse):
    """A response whose bytes are on the wire already: what the handler returns to aiohttp."""

    def __init__(self, status: int, *, body_bytes: int, keep_alive: bool) -> None:
        super().__init__(status=status)
        self._sent_bytes = body_bytes
        self._goes_on = keep_alive

    @property
    def keep_alive(self) -> bool | None:
        """Whether the connection may serve another request."""
        return self._goes_on

    @property
    def prepared(self) -> bool:
        """It is sent."""
        return True

    @property
    def body_length(self) -> int:
        """Body bytes that were passed on."""
        return self._sent_bytes

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Nothing is left to prepare."""
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to write."""


class ClientLines(NamedTuple):
    """Header lines for a client, each with its line end. has_length: Content-Length is one."""

    block: bytes
    has_length: bool

    @classmethod
    def of(cls, headers: RawHeaders) -> ClientLines:
        """Write these lines."""
        has_length = any(name.lower() == b"content-length" for name, _ in headers)
        return cls(header_block(headers), has_length)


@dataclass(slots=True)
class RelayEnd:
    """The outcome of a relay.

    response: return it from the handler, without awaiting anything first unless `ended` is
        COMPLETED: aiohttp cancels the handler of a connection that was cut.
    body_bytes: passed to the client's transport. error: what the backend did, for the two upstream
        outcomes.
    """

    ended: Ended
    response: Relayed
    body_bytes: int
    error: UpstreamError | None = None


def _nothing() -> None:
    """The default of the callbacks."""


async def relay(
    request: web.BaseRequest,
    answer: Answer,
    status: int,
    reason: bytes,
    lines: ClientLines,
    *,
    first: bytes = b"",
    write_timeout_s: float,
    close: bool = False,
    on_first_byte: Callable[[], None] = _nothing,
    on_upstream_end: Callable[[], None] = _nothing,
) -> RelayEnd:
    """Pass one answer on to the client and say how it ended.

    lines: the complete end-to-end headers for the client (edge.headers made them); only framing
        and Connection are added here.
    first: body bytes that were read before the head was committed.
    write_timeout_s: longest time in which the client takes no byte that waits for it.
    close: say Connection: close and close after the answer (the router drains).
    on_first_byte: called once, before the first body byte is written (never for an empty body).
    on_upstream_end: called once, the moment the backend's body ended cleanly; not on a cut.

    When the client hangs up, aiohttp cancels the handler: the answer is aborted and CancelledError
    passes through.
    """
    framing = _Framing.choose(request, status, lines.has_length, close=close)
    stream = _ClientStream(request, framing, write_timeout_s, on_first_byte)
    answer.when_ended(on_upstream_end)
    error: UpstreamError | None = None
    try:
        stream.start(_response_head(request, status, reason, lines.block, framing))
        await stream.pass_on(first or answer.take_ready())
        # A small answer came whole with its head: then there is nothing to wait for.
        while piece := answer.take_ready() if answer.ended else await answer.read(stream):
            await stream.pass_on(piece)
        if framing.chunked or request.protocol.writing_paused:
            await stream.finish()
        ended = Ended.COMPLETED
    except UpstreamError as cut:
        error = cut
        idle = cut.verdict is Verdict.IDLE_TIMEOUT
        ended = Ended.UPSTREAM_IDLE if idle else Ended.UPSTREAM_CUT
        await stream.cut_off()
    except ConnectionError:
        ended = Ended.CLIENT_GONE
        abort(request)
        if stream.stalled:
            ended = Ended.CLIENT_TOO_SLOW
    finally:
        # After a clean end this does nothing.
        answer.release()
    goes_on = ended is Ended.COMPLETED and framing.keep_alive
    response = Relayed(status, body_bytes=stream.body_bytes, keep_alive=goes_on)
    return RelayEnd(ended, response, stream.body_bytes, error)


class _Framing(NamedTuple):
    """How the body is delimited towards this client (HEAD, 204 and 304 have none)."""

    chunked: bool
    until_close: bool
    keep_alive: bool

    @classmethod
    def choose(
        cls, request: web.BaseRequest, status: int, has_length: bool, *, close: bool
    ) -> _Framing:
        has_body = request.method != "HEAD" and status not in BODILESS_STATUSES
        delimited = has_length or not has_body
        old_client = request.version <= HttpVersion10
        until_close = not delimited and old_client
        return cls(
            chunked=not delimited and not old_client,
            until_close=until_close,
            keep_alive=request.keep_alive and not until_close and not close,
        )


def _response_head(
    request: web.BaseRequest, status: int, reason: bytes, block: bytes, framing: _Framing
) -> bytes:
    is_old = request.version <= HttpVersion10
    coding = b"Transfer-Encoding: chunked\r\n" if framing.chunked else b""
    connection = b""
    if not framing.keep_alive:
        connection = b"Connection: close\r\n"
    elif is_old:
        connection = b"Connection: keep-alive\r\n"
    version = b"1.0" if is_old else b"1.1"
    return b"HTTP/%b %d %b\r\n%b%b%b\r\n" % (version, status, reason, block, coding, connection)


class _ClientStream:
    """The writing half of one relay."""

    __slots__ = (
        "_chunked",
        "_connection",
        "_head",
        "_on_first_byte",
        "_request",
        "_until_close",
        "_watch",
        "_write_timeout_s",
        "_writer",
        "body_bytes",
    )

    def __init__(
        self,
        request: web.BaseRequest,
        framing: _Framing,
        write_timeout_s: float,
        on_first_byte: Callable[[], None],
    ) -> None:
        self.body_bytes = 0
        self._request = request
        self._connection = request.protocol
        # The concrete writer: only it can write without waiting, so that all waiting is watched.
        self._writer = cast("StreamWriter", request.writer)
        self._chunked = framing.chunked
        self._until_close = framing.until_close
        self._on_first_byte = on_first_byte
        self._write_timeout_s = write_timeout_s
        self._watch: StallWatch | None = None
        self._head = b""

    @property
    def stalled(self) -> bool:
        """The watch cut the client off."""
        return self._watch is not None and self._watch.fired

    def start(self, head: bytes) -> None:
        """Hold the head back until `pass_on` or `finish` of the same step, to save a packet."""
        self._head = head

    async def pass_on(self, piece: bytes) -> None:
        """Write a piece, with the head if it is still to go, and wait while the client lags.

        Raises ConnectionError when the client is gone.
        """
        out = self._framed(piece)
        if out:
            await self._writer.write(out, drain=False)
            if self._connection.writing_paused:
                await self._drain()

    def pass_straight(self, piece: bytes) -> bool:
        """Write a piece at once; False, with nothing done, when the client lags or is gone."""
        connection = self._connection
        transport = connection.transport
        if transport is None or transport.is_closing() or connection.writing_paused:
            return False
        transport.write(self._framed(piece))
        return True

    def pass_chunks(self, chunks: bytes, size: int) -> bool:
        """Write whole chunks as they came; False, with nothing done, where they may not go so."""
        if not self._chunked or self._head or not self.body_bytes:
            return False
        connection = self._connection
        transport = connection.transport
        if transport is None or transport.is_closing() or connection.writing_paused:
            return False
        self.body_bytes += size
        transport.write(chunks)
        return True

    def _framed(self, piece: bytes) -> bytes:
        """Return a piece as it goes on the wire, behind the head if that is still to go."""
        out, self._head = self._head, b""
        if piece:
            if not self.body_bytes:
                self._on_first_byte()
            self.body_bytes += len(piece)
            if self._chunked:
                out = b"%b%x\r\n%b\r\n" % (out, len(piece), piece)
            else:
                out = out + piece if out else piece
        return out

    async def finish(self) -> None:
        """End the body cleanly."""
        if self._chunked:
            await self._writer.write(b"0\r\n\r\n", drain=False)
        if self._request.protocol.writing_paused:
            await self._drain()

    async def cut_off(self) -> None:
        """End the connection so that the client sees the cut, after what it can still be given."""
        if not self._until_close:
            try:
                # A length or a last chunk is missing: what was received whole may still arrive.
                if self._request.protocol.writing_paused:
                    await self._drain()
            except ConnectionError:
                return
        abort(self._request, reset=self._until_close)

    async def _drain(self) -> None:
        """Wait while the client lags. Raises ConnectionError when it is gone, or cut off by us."""
        watch = self._watch
        if watch is None:
            watch = self._watch = StallWatch(self._request.transport, self._write_timeout_s)
        try:
            with watch:
                await self._writer.drain()
        except asyncio.CancelledError:
            # Our own abort makes aiohttp cancel the handler: that is no wish of anybody's.
            task = asyncio.current_task()
            if not watch.fired or task is None or task.uncancel():
                raise
        if watch.fired:
            raise ConnectionResetError("the client took no byte for too long")
