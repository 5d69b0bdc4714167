"""A request on the fast lane, in the shape that the edge knows from aiohttp's requests.

Only what the edge reads of a request is here: its line and headers, its body piece by piece, and
the writing side that the relay uses. Held by tests/wire/test_lane.py.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from aiohttp import HttpVersion11

from lifeboat.wire.headers import Headers
from lifeboat.wire.lane_head import Head


class Connection(Protocol):
    """What a request needs of the connection it came on."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport | None
    remote: str | None
    task: asyncio.Task[None] | None
    writer: LaneWriter
    writing_paused: bool

    def resume_reading(self) -> None:
        """Take bytes from the client again."""
        ...

    async def writable(self) -> None:
        """Wait while the client lags. Raises ConnectionResetError when it is gone."""
        ...


class LaneBody:
    """A request body as intake reads it: the part of aiohttp's StreamReader that it uses."""

    __slots__ = ("_connection", "_left", "_pieces", "_waiter")

    def __init__(self, connection: Connection, length: int) -> None:
        self._connection = connection
        self._left = length
        self._pieces: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None

    @property
    def left(self) -> int:
        """Bytes that have not arrived."""
        return self._left

    def feed(self, data: bytes) -> bytes:
        """Take what belongs to this body; return what does not."""
        mine = data if len(data) <= self._left else data[: self._left]
        if mine:
            self._left -= len(mine)
            self._pieces.append(mine)
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)
        return data[len(mine) :]

    def buffered_bytes(self) -> int:
        """Bytes that arrived and were not read."""
        return sum(map(len, self._pieces))

    def read_nowait(self) -> bytes:
        """Return what has arrived, b"" when nothing waits."""
        pieces = self._pieces
        if not pieces:
            return b""
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._connection.resume_reading()
        return data

    def at_eof(self) -> bool:
        """Whether all of it has been read."""
        return not self._left and not self._pieces

    async def readany(self) -> bytes:
        """Return what arrives next; b"" at the end."""
        if not self._pieces and self._left:
            self._waiter = self._connection.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self.read_nowait()


class LaneWriter:
    """The client side of an answer: the part of aiohttp's StreamWriter that the relay uses."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def write(self, data: bytes, *, drain: bool = True) -> None:
        """Write bytes. Raises ConnectionResetError when the client is gone."""
        transport = self._connection.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client's connection is closed")
        transport.write(data)
        if drain and self._connection.writing_paused:
            await self.drain()

    async def drain(self) -> None:
        """Wait until the client took enough. Raises ConnectionResetError when it is gone."""
        await self._connection.writable()


class LaneRequest:
    """One request on the lane, in the shape that the edge knows from aiohttp."""

    __slots__ = ("_connection", "content", "head", "length", "method", "raw_headers", "raw_path")

    version = HttpVersion11
    scheme = "http"

    def __init__(self, connection: Connection, head: Head, length: int) -> None:
        """length: of the body, as this request declared it."""
        self._connection = connection
        self.head = head
        self.length = length
        self.method = head.method
        self.raw_path = head.raw_path
        self.raw_headers: Headers = head.headers
        self.content = LaneBody(connection, length)

    @property
    def writer(self) -> LaneWriter:
        """The writing side."""
        return self._connection.writer

    @property
    def content_length(self) -> int | None:
        """The declared length, None without one."""
        return self.length if self.head.has_length else None

    @property
    def body_exists(self) -> bool:
        """Whether a body comes."""
        return self.head.has_length

    @property
    def remote(self) -> str | None:
        """The client's address."""
        return self._connection.remote

    @property
    def transport(self) -> asyncio.Transport | None:
        """The connection, None once it is lost."""
        return self._connection.transport

    @property
    def task(self) -> asyncio.Task[None]:
        """The task that serves it. Raises RuntimeError where none does any more."""
        task = self._connection.task
        if task is None:
            raise RuntimeError("the connection serves nothing")
        return task

    @property
    def protocol(self) -> Connection:
        """Where `writing_paused` is found."""
        return self._connection

    @property
    def keep_alive(self) -> bool:
        """The client did not ask to close: such a request is not plain."""
        return True
