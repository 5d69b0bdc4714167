"""A connection that switched protocols: bytes pass both ways as they come.

Nothing of WebSocket is decoded but the lengths of frames, so that messages of any size, extensions,
close codes and reasons pass as they are (BUG-147, 148; RFC 6455, section 5.2). What the frames are
followed for is the end: a client whose backend vanished is told so in a close frame of its own
(1011), where one can be put; within a frame the connection is cut instead (BUG-150).

Invariants, held by tests/conformance/test_websocket.py:
- Memory is bounded in both directions: whoever is not read from is not read for (BUG-151).
- The end of one side is the end of the other; what was received whole before it still arrives.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

from aiohttp import web
from aiohttp.http import StreamWriter

from lifeboat.core.vocabulary import Verdict
from lifeboat.wire.downstream import Relayed, abort
from lifeboat.wire.stall import StallWatch
from lifeboat.wire.upstream import Switched, UpstreamError

CLOSE_WAIT_S = 5.0
"""How long a backend may keep the connection after its close frame went by: the client answers
with one of its own, then there is nothing left to say."""

GOING_AWAY = 1001
INTERNAL_ERROR = 1011
_CLOSE = 8
_MASKED = 0x80
_LENGTH_BITS = 0x7F
_EXTENDED = {126: 2, 127: 8}
"""Value of the length bits -> bytes of the length that follow."""


class FrameTrack:
    """Where one direction stands between its frames.

    closed: a close frame went by, whole.
    """

    __slots__ = ("_header", "_left", "_opcode", "closed")

    def __init__(self) -> None:
        self.closed = False
        self._header = bytearray()
        self._left = 0
        self._opcode = 0

    @property
    def between_frames(self) -> bool:
        """Whether a frame of ours could follow here."""
        return not self._header and not self._left

    def feed(self, data: bytes) -> None:
        """Follow bytes as they pass. Work is by frames, not by bytes."""
        position, end = 0, len(data)
        while position < end:
            if self._left:
                step = min(self._left, end - position)
                self._left -= step
                position += step
                if self._left:
                    return
            else:
                self._header.append(data[position])
                position += 1
                if not self._header_complete():
                    continue
            if not self._left and self._opcode == _CLOSE:
                self.closed = True

    def _header_complete(self) -> bool:
        header = self._header
        if len(header) < 2:
            return False
        short = header[1] & _LENGTH_BITS
        extended = _EXTENDED.get(short, 0)
        if len(header) < 2 + extended + (4 if header[1] & _MASKED else 0):
            return False
        self._left = int.from_bytes(header[2 : 2 + extended], "big") if extended else short
        self._opcode = header[0] & 0x0F
        header.clear()
        return True


def close_frame(code: int, reason: bytes) -> bytes:
    """Return an unmasked close frame. reason: at most 123 bytes of UTF-8."""
    payload = code.to_bytes(2, "big") + reason
    return bytes((0x80 | _CLOSE, len(payload))) + payload


class TunnelEnd(StrEnum):
    """How a tunnel ended: a closed set. A client that hangs up cancels it instead."""

    CLOSED = "closed"
    """The backend said its goodbye, or the client did and the backend then ended."""
    ENDED = "ended"
    """The router ends, and aborted the backend's side: the client is told 1001."""
    UPSTREAM_CUT = "upstream_cut"
    """The backend vanished without a close frame."""
    CLIENT_GONE = "client_gone"
    """The client's connection broke, or it took no byte for too long."""


_GOODBYES = {
    TunnelEnd.ENDED: close_frame(GOING_AWAY, b"the router ends"),
    TunnelEnd.UPSTREAM_CUT: close_frame(INTERNAL_ERROR, b"the backend's connection was lost"),
}
"""What a client is told where the backend said nothing."""


@dataclass(frozen=True, slots=True)
class Tunnelled:
    """The outcome. *_bytes: that passed in each direction. detail: what the backend did."""

    end: TunnelEnd
    response: Relayed
    client_bytes: int
    backend_bytes: int
    detail: str = ""


class _FromClient:
    """What aiohttp's protocol calls with the client's bytes once it has switched."""

    def __init__(self, upstream: Switched, transport: asyncio.Transport) -> None:
        self.size_bytes = 0
        self.track = FrameTrack()
        self._upstream = upstream
        self._transport = transport
        upstream.on_writable(self._writable)

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Pass bytes on in the step in which they came: a goodbye just before the end counts."""
        self.size_bytes += len(data)
        self.track.feed(data)
        self._upstream.send_more(bytes(data))
        return False, b""

    def feed_eof(self) -> None:
        """The connection is lost: aiohttp cancels the handler, which sees to the rest."""

    def _writable(self, writable: bool) -> None:
        if self._transport.is_closing():
            return
        if writable:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()


async def tunnel(
    request: web.BaseRequest, upstream: Switched, head: bytes, *, write_timeout_s: float
) -> Tunnelled:
    """Pass bytes both ways until either side ends. head: of the 101 to the client, complete.

    When the client hangs up, aiohttp cancels the handler: what it sent is still passed on, and
    CancelledError passes through. Whoever aborts `upstream` ends the tunnel.
    """
    transport = request.transport
    if transport is None:
        upstream.abort()
        return Tunnelled(TunnelEnd.CLIENT_GONE, _response(0), 0, 0)
    writer = _ClientWriter(request, transport, write_timeout_s)
    await writer.write(head)
    from_client = _FromClient(upstream, transport)
    # Anything with these two methods will do; aiohttp names its own.
    request.protocol.set_parser(from_client)  # pyright: ignore[reportArgumentType]
    track = FrameTrack()
    sent_bytes = 0
    end, detail = TunnelEnd.CLOSED, ""
    try:
        async with asyncio.timeout(None) as limit:
            while piece := await upstream.read():
                track.feed(piece)
                sent_bytes += len(piece)
                await writer.write(piece)
                if track.closed and limit.when() is None:
                    limit.reschedule(asyncio.get_running_loop().time() + CLOSE_WAIT_S)
        if not track.closed and not from_client.track.closed:
            end, detail = TunnelEnd.UPSTREAM_CUT, "it ended without a close frame"
    except TimeoutError:
        upstream.hang_up()
    except UpstreamError as error:
        if error.verdict is Verdict.ABANDONED:
            end = TunnelEnd.ENDED
        elif not track.closed:
            end, detail = TunnelEnd.UPSTREAM_CUT, error.detail
    except ConnectionError:
        end = TunnelEnd.CLIENT_GONE
        abort(request)
    except asyncio.CancelledError:
        upstream.hang_up()
        raise
    goodbye = _GOODBYES.get(end)
    if goodbye is not None and not track.closed:
        if track.between_frames:
            await writer.last(goodbye)
        else:
            abort(request)
    upstream.hang_up()
    return Tunnelled(end, _response(sent_bytes), from_client.size_bytes, sent_bytes, detail)


def _response(body_bytes: int) -> Relayed:
    return Relayed(101, body_bytes=body_bytes, keep_alive=False)


class _ClientWriter:
    """Writes to the client, and waits while it lags."""

    def __init__(
        self, request: web.BaseRequest, transport: asyncio.Transport, write_timeout_s: float
    ) -> None:
        self._request = request
        self._writer = cast("StreamWriter", request.writer)
        self._watch = StallWatch(transport, write_timeout_s)

    async def write(self, data: bytes) -> None:
        """Raises ConnectionError when the client is gone, or took nothing for too long."""
        await self._writer.write(data, drain=False)
        if not self._request.protocol.writing_paused:
            return
        try:
            with self._watch:
                await self._writer.drain()
        except asyncio.CancelledError:
            # Our own abort makes aiohttp cancel the handler: that is no wish of anybody's.
            task = asyncio.current_task()
            if not self._watch.fired or task is None or task.uncancel():
                raise
        if self._watch.fired:
            raise ConnectionResetError("the client took no byte for too long")

    async def last(self, data: bytes) -> None:
        """Write what nobody need wait for; a client that is gone needs it no more."""
        try:
            await self._writer.write(data, drain=False)
        except ConnectionError:
            return
