"""Engines of the fuzzers: each request is read by the letter, then answered as the test says."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import cast

from tests.conformance.lanes import LANES
from tests.fuzz.reading import Message, Verdict, read_requests
from tests.fuzz.stage import reset_on_close, router_on
from tests.running import Running, backend


@dataclass(slots=True)
class Says:
    """What an engine says to one request. end: "" = the connection stays, "closed" or "reset"."""

    pieces: list[bytes]
    end: str = ""


def whole(page: object) -> Says:
    """An answer of JSON, in one piece."""
    body = json.dumps(page).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return Says([head % len(body) + body])


def tag_of(asked: Message) -> bytes:
    """What the client called a request."""
    return b",".join(asked.values(b"x-tag"))


def echo(asked: Message) -> Says:
    """Say what was sent."""
    return whole({"tag": tag_of(asked).decode("latin-1"), "size": len(asked.body)})


@dataclass
class Engine:
    """A model server. asked: the clients' requests; connections: the number of each one's own."""

    answer: Callable[[Message], Says] = echo
    url: str = ""
    asked: list[Message] = field(default_factory=list)
    connections: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    accepted: int = 0

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Engine]:
        """Serve on a free port."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Peer(self), "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()

    def forget(self) -> None:
        """Begin anew."""
        self.asked.clear()
        self.connections.clear()


class _Peer(asyncio.Protocol):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._engine.accepted += 1
        self._number = self._engine.accepted

    def data_received(self, data: bytes) -> None:
        """Answer a request that is whole; more than one at a time is a fault, as is an odd one."""
        self._data += data
        requests = read_requests(self._data)
        if requests[:1] and requests[0].verdict is Verdict.CUT:
            return
        self._data = b""
        if len(requests) != 1 or requests[0].verdict is not Verdict.PLAIN:
            self._engine.faults.append(f"not one plain request: {requests}")
            self._transport.abort()
            return
        asked = requests[0]
        # The router adds an id to whatever it forwards; else it asks on its own behalf.
        if asked.values(b"x-request-id"):
            self._engine.asked.append(asked)
            self._engine.connections.append(self._number)
            self._say(self._engine.answer(asked))
        else:
            self._say(whole({"object": "list", "data": [{"id": "m"}]}))

    def _say(self, says: Says) -> None:
        """Send one piece a turn of the loop: each is read by itself."""
        if self._transport.is_closing():
            return
        if says.pieces:
            self._transport.write(says.pieces[0])
            rest = Says(says.pieces[1:], says.end)
            if rest.pieces or rest.end:
                asyncio.get_running_loop().call_later(0, self._say, rest)
        elif says.end == "reset":
            reset_on_close(self._transport)
        else:
            self._transport.close()


Lanes = dict[str, tuple[Running, Engine]]


@contextlib.asynccontextmanager
async def lanes_before_engines() -> AsyncIterator[Lanes]:
    """A router on each lane, with an engine of its own behind it."""
    async with contextlib.AsyncExitStack() as stack:
        lanes: Lanes = {}
        for lane in LANES:
            engine = await stack.enter_async_context(Engine().serving())
            running = await stack.enter_async_context(router_on(lane, backend(engine.url)))
            lanes[lane] = running, engine
        yield lanes
