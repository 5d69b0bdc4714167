"""Scripted peers over raw sockets: a backend that says exactly these bytes, a client that sees.

A script is a coroutine function over a `Peer`, run once for each connection:

    async def script(peer):
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nhi")

    async with ScriptedBackend(script) as backend:
        ...  # backend.url, backend.requests, backend.connections
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from aiohttp import web

from lifeboat.edge.server import JsonRunner

PATIENCE_S = 10.0
"""Longest wait for a peer before a test fails."""


def reset_on_close(writer: asyncio.StreamWriter | asyncio.BaseTransport) -> None:
    """Make the next close or abort send RST."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@dataclass
class Received:
    """One request as it arrived."""

    head: bytes
    body: bytes
    method: str = ""
    target: str = ""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name.lower()]


def parse_head(head: bytes) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """Split a head into its first line and its headers, untouched."""
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    headers = []
    for line in lines:
        name, _, value = line.partition(b": ")
        headers.append((name, value))
    return first, headers


async def read_chunked(reader: asyncio.StreamReader, body: bytearray) -> None:
    """Append a chunked body, to its end; IncompleteReadError when it was cut."""
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        await read_length(reader, size, body)
        assert await reader.readexactly(2) == b"\r\n"
        if size == 0:
            return


async def read_length(reader: asyncio.StreamReader, size: int, body: bytearray) -> None:
    """Append so many bytes as they come; IncompleteReadError when there are fewer."""
    while size:
        piece = await reader.read(size)
        if not piece:
            raise asyncio.IncompleteReadError(b"", size)
        body += piece
        size -= len(piece)


class Peer:
    """One accepted connection of a scripted backend."""

    def __init__(
        self,
        backend: ScriptedBackend,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        number: int,
    ) -> None:
        self.backend = backend
        self.reader = reader
        self.writer = writer
        self.number = number
        self.gone = asyncio.Event()
        """Set once the router's end of the connection was seen by `watch`."""

    async def head(self) -> Received:
        """Read a request head only."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        first, headers = parse_head(head)
        method, target, _ = first.decode("latin-1").split(" ")
        received = Received(head, b"", method, target, headers)
        self.backend.requests.append(received)
        return received

    async def request(self) -> Received:
        """Read a whole request."""
        received = await self.head()
        if received.values(b"transfer-encoding"):
            body = bytearray()
            await read_chunked(self.reader, body)
            received.body = bytes(body)
        elif lengths := received.values(b"content-length"):
            received.body = await self.reader.readexactly(int(lengths[0]))
        return received

    async def send(self, *pieces: bytes, pause_s: float = 0.0) -> None:
        """Send pieces, each in a write of its own."""
        for index, piece in enumerate(pieces):
            if index and pause_s:
                await asyncio.sleep(pause_s)
            self.writer.write(piece)
            await self.writer.drain()

    async def chunk(self, *pieces: bytes) -> None:
        """Send pieces as chunks."""
        for piece in pieces:
            await self.send(b"%x\r\n%b\r\n" % (len(piece), piece))

    async def watch(self) -> None:
        """Wait until the router closes or resets the connection."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass
        self.gone.set()

    def reset(self) -> None:
        """Close with RST."""
        reset_on_close(self.writer)
        self.writer.transport.abort()

    def close(self) -> None:
        """Close with FIN."""
        self.writer.close()


Script = Callable[[Peer], Awaitable[None]]


class ScriptedBackend:
    """A server on a free port that runs its script for each connection, then closes it.

    errors: what scripts raised other than the peer's leaving; leaving the context raises the first.
    """

    def __init__(self, script: Script, *, host: str = "127.0.0.1", ssl: Any = None) -> None:
        self.script = script
        self.requests: list[Received] = []
        self.peers: list[Peer] = []
        self.errors: list[BaseException] = []
        self._host = host
        self._ssl = ssl
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def connections(self) -> int:
        return len(self.peers)

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._ssl else 'http'}://{host}:{self.port}"

    async def __aenter__(self) -> ScriptedBackend:
        self._server = await asyncio.start_server(
            self._accept, self._host, 0, ssl=self._ssl, limit=1 << 20
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(self, reader, writer, len(self.peers))
        self.peers.append(peer)
        task = asyncio.get_running_loop().create_task(self._run(peer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, peer: Peer) -> None:
        try:
            await self.script(peer)
        except (ConnectionError, asyncio.IncompleteReadError):
            peer.gone.set()
        except Exception as error:
            self.errors.append(error)
        finally:
            peer.writer.close()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer in self.peers:
            # Closed while bytes waited, and done since: asyncio's transport then has no loop left.
            with suppress(AttributeError):
                peer.writer.transport.abort()
        await asyncio.sleep(0)
        if error is None and self.errors:
            raise self.errors[0]


@dataclass
class Reply:
    """One response as a raw client saw it. clean: its own framing said that it is complete."""

    status: int
    first_line: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    clean: bool

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name.lower()]


class RawClient:
    """A client over a raw socket. patience_s: longest wait for a head, and for a body."""

    patience_s = PATIENCE_S

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int, *, receive_buffer: int | None = None) -> RawClient:
        sock = socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        except OSError:
            sock.close()
            raise
        limit = 65536 if receive_buffer is None else receive_buffer
        return cls(*await asyncio.open_connection(sock=sock, limit=limit))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def post(self, path: str, body: bytes = b"{}", *headers: bytes) -> None:
        """Send a POST, with extra header lines."""
        lines = [
            b"POST %b HTTP/1.1" % path.encode("latin-1"),
            b"Host: router.test",
            *headers,
            b"Content-Length: %d" % len(body),
        ]
        await self.send(b"\r\n".join(lines) + b"\r\n\r\n" + body)

    async def head(self) -> tuple[bytes, list[tuple[bytes, bytes]]]:
        async with asyncio.timeout(self.patience_s):
            return parse_head(await self.reader.readuntil(b"\r\n\r\n"))

    async def reply(self, *, bodiless: bool = False) -> Reply:
        """Read one response by its own framing; of one that is cut, what came before."""
        first, headers = await self.head()
        reply = Reply(int(first.split(b" ")[1]), first, headers, b"", clean=True)
        if bodiless:
            return reply
        body = bytearray()
        async with asyncio.timeout(self.patience_s):
            try:
                if reply.values(b"transfer-encoding"):
                    await read_chunked(self.reader, body)
                elif lengths := reply.values(b"content-length"):
                    await read_length(self.reader, int(lengths[0]), body)
                else:
                    while piece := await self.reader.read(65536):
                        body += piece
            except (asyncio.IncompleteReadError, ConnectionError):
                reply.clean = False
        reply.body = bytes(body)
        return reply

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Leave with RST."""
        reset_on_close(self.writer)
        self.writer.transport.abort()


@contextlib.asynccontextmanager
async def serving(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]], **runner_args: Any
) -> AsyncIterator[int]:
    """Serve a handler for every path on a free port by the real runner; yields the port."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    async with serving_app(app, **runner_args) as port:
        yield port


@contextlib.asynccontextmanager
async def serving_app(app: web.Application, **runner_args: Any) -> AsyncIterator[int]:
    """Serve an application on a free port by the real runner; yields the port."""
    runner = JsonRunner(app, shutdown_timeout=1.0, **runner_args)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield site.port
    finally:
        await runner.cleanup()


async def until(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Wait until a condition holds; fails the test when it does not in time."""
    async with asyncio.timeout(patience_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
