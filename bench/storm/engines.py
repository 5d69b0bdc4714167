"""Engines whose mood changes, which count what runs in them and book what reached them.

An answer follows from the request's id and its `plan` alone, so that a client knows it beforehand.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from bench.storm.laws import Allowed, Law, Laws
from tests.acceptance.engines import closed_by_peer, error_answer, json_answer
from tests.peers import parse_head, read_chunked, reset_on_close

SEEN_WITHIN_S = 5.0
"""A request that was granted reaches its engine in this time, on a machine as busy as it may be."""
MARK = b"x-engine"
"""A header of the errors that an engine made itself."""


class Mood(StrEnum):
    """What an engine does with most requests."""

    WELL = "well"
    SLOW = "slow"
    FULL = "full"
    BUSY = "busy"
    REFUSING = "refusing"
    FAILING = "failing"
    CUTTING = "cutting"
    LOSING = "losing"
    CLOSING = "closing"
    """Closes its connection after each answer without having said so."""


class End(StrEnum):
    """How a send ended for its engine."""

    RUNNING = "running"
    ANSWERED = "answered"
    REFUSED = "refused"
    """For load, before any work."""
    FAILED = "failed"
    """A plain 503."""
    LOST = "lost"
    """The connection was broken without a byte."""
    RESET = "reset"
    """Broken by RST after bytes that may never have been seen."""
    CUT = "cut"
    LEFT = "left"
    """The router closed the connection."""


GOES_ON = frozenset({End.REFUSED, End.FAILED, End.LOST, End.RESET})
"""Ends after which the request may be sent again."""


@dataclass(slots=True)
class Send:
    """One request as it reached one engine. status: of an error that the engine answered."""

    engine: str
    at: float
    end: End = End.RUNNING
    began: bool = False
    status: int = 200


Book = defaultdict[str, list[Send]]
"""By request id, in order of arrival."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The shape of an answer."""

    stream: bool
    pieces: int
    piece_bytes: int

    def answer(self, request_id: str) -> list[bytes]:
        """Return the body, in the pieces in which it is sent."""
        text = (request_id + ".") * (self.piece_bytes // (len(request_id) + 1) + 1)
        if not self.stream:
            return [json.dumps({"id": request_id, "pieces": [text] * self.pieces}).encode()]
        events = [f"data: {index} {text}\n\n".encode() for index in range(self.pieces)]
        return [*events, f"data: end of {request_id}\n\ndata: [DONE]\n\n".encode()]


_OVERLOADED = {"error": {"type": "overloaded_error", "message": "no room", "code": None}}
_PLAIN = {"error": {"type": "api_error", "message": "not now", "code": None}}
_LAST_CHUNK = b"0\r\n\r\n"
_FIRST_EVENT = b'data: {"error": {"message": "no room", "type": "overloaded", "code": 503}}\n\n'
_REFUSED_STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Engine: yes\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(_FIRST_EVENT), _FIRST_EVENT)
) + _LAST_CHUNK
_ERRORS: dict[Mood, tuple[End, int, bytes]] = {
    Mood.FULL: (End.REFUSED, 529, error_answer(b"529 Overloaded", _OVERLOADED)),
    Mood.BUSY: (End.REFUSED, 503, error_answer(b"503 Busy", _OVERLOADED)),
    Mood.REFUSING: (End.FAILED, 503, error_answer(b"503 No", _PLAIN)),
    Mood.FAILING: (End.ANSWERED, 500, error_answer(b"500 Oh", _PLAIN)),
}


class Engine:
    """A server that dies and comes back on its port. running: what its own count says."""

    def __init__(self, name: str, limit: int, book: Book, laws: Laws, seed: int) -> None:
        self.name = name
        self.kind = "vllm" if name == "a" else "openai"
        self.mood = Mood.WELL
        self.held = False
        """While set nothing ends here by itself."""
        self.allowed = Allowed(limit)
        self.most_running = 0
        self.port = 0
        self.deaths = 0
        self._running: dict[asyncio.StreamWriter, Send] = {}
        self._open: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}
        self._book = book
        self._laws = laws
        self._chance = random.Random(f"{seed} {name}")
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        return self._server is not None

    @property
    def running(self) -> int:
        """Return how many run, without those whose connection the router has closed."""
        for writer in list(self._running):
            if closed_by_peer(writer):
                send = self._running.pop(writer)
                send.end = End.LEFT
        return len(self._running)

    async def start(self) -> None:
        """Listen; again on the same port after a death."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def die(self) -> None:
        """Refuse connections and break those that are open: an idle one by FIN, others by RST."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        self.deaths += 1
        await self.drop_connections()

    async def drop_connections(self) -> None:
        """Break the open connections, and wait until they have ended."""
        tasks = [task for task in self._open.values() if task is not None]
        for writer in list(self._open):
            send = self._running.get(writer)
            if send is None:
                writer.close()
                continue
            send.end = End.RESET if send.began else End.LOST
            reset_on_close(writer)
            writer.transport.abort()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = asyncio.current_task()
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            send = self._running.pop(writer, None)
            if send is not None and send.end is End.RUNNING:
                send.end = End.LEFT
            del self._open[writer]
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; return whether the connection stays open."""
        first, lines = parse_head(await reader.readuntil(b"\r\n\r\n"))
        headers = {name.lower(): value for name, value in lines}
        body = bytearray()
        if b"transfer-encoding" in headers:
            await read_chunked(reader, body)
        else:
            body += await reader.readexactly(int(headers.get(b"content-length", b"0")))
        if not first.startswith(b"POST"):
            writer.write(json_answer({"object": "list", "data": [{"id": "m"}]}))
            await writer.drain()
            return True
        request_id = headers[b"x-request-id"].decode()
        send = Send(self.name, asyncio.get_running_loop().time())
        self._book[request_id].append(send)
        self._running[writer] = send
        self._count(send)
        plan = Plan(**json.loads(body)["plan"])
        return await self._meet(reader, writer, send, plan.answer(request_id), plan.stream)

    def _count(self, send: Send) -> None:
        running = self.running
        self.most_running = max(self.most_running, running)
        most = self.allowed.most(send.at - SEEN_WITHIN_S)
        ages = [f"{send.at - other.at:.4f}" for other in self._running.values()]
        detail = f"{self.name}: {running} ran, allowed {most}; seconds since each came: {ages}"
        self._laws.check(Law.ENGINE_CAP, running <= most, detail)

    async def _meet(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        send: Send,
        pieces: list[bytes],
        stream: bool,
    ) -> bool:
        chance, mood = self._chance, self.mood if self._chance.random() < 0.7 else Mood.WELL
        if mood is Mood.BUSY and stream and self.kind == "vllm":
            # vLLM's way to refuse a stream: with a 200, as its first event.
            return await self._finish(writer, send, End.REFUSED, _REFUSED_STREAM)
        if mood in _ERRORS:
            end, send.status, answer = _ERRORS[mood]
            return await self._finish(writer, send, end, answer)
        pause_s = chance.uniform(0.01, 0.1) * (6 if mood is Mood.SLOW else 1)
        if not await self._stays(reader, pause_s):
            return False
        if mood is Mood.LOSING:
            return self._break(writer, send, End.LOST)
        cut_at = chance.randrange(len(pieces)) if mood is Mood.CUTTING else None
        send.began = True
        writer.write(_head(pieces, stream))
        for index, piece in enumerate(pieces[:-1]):
            if index == cut_at:
                return self._break(writer, send, End.CUT)
            writer.write(_framed(piece, stream))
            await writer.drain()
            if not await self._stays(reader, pause_s / 10):
                return False
        if not await self._stays(reader, pause_s / 10):
            return False
        if cut_at is not None:
            writer.write(_framed(pieces[-1], stream)[: len(pieces[-1]) // 2])
            return self._break(writer, send, End.CUT)
        last = _framed(pieces[-1], stream) + (_LAST_CHUNK if stream else b"")
        stays = await self._finish(writer, send, End.ANSWERED, last)
        return stays and mood is not Mood.CLOSING

    async def _finish(
        self, writer: asyncio.StreamWriter, send: Send, end: End, last: bytes
    ) -> bool:
        # Not running any more from the moment its last bytes go out.
        self._end(writer, send, end)
        writer.write(last)
        await writer.drain()
        return True

    def _end(self, writer: asyncio.StreamWriter, send: Send, end: End) -> None:
        if send.end is not End.RUNNING:
            raise ConnectionResetError("this engine died, or the router left, a moment ago")
        self._running.pop(writer, None)
        send.end = end

    def _break(self, writer: asyncio.StreamWriter, send: Send, end: End) -> bool:
        """Close in the middle, by RST where nothing was sent that it could destroy."""
        self._end(writer, send, end)
        if end is End.LOST and self._chance.random() < 0.5:
            reset_on_close(writer)
        return False

    async def _stays(self, reader: asyncio.StreamReader, seconds: float) -> bool:
        """Work for so long, and while the engine is held; return whether the router stayed."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while self.held or loop.time() < until:
            left_s = 0.05 if self.held else until - loop.time()
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.read(1), max(left_s, 0.001))
                return False
        return True


def _head(pieces: list[bytes], stream: bool) -> bytes:
    if stream:
        kind, framing = b"text/event-stream", b"Transfer-Encoding: chunked"
    else:
        kind, framing = b"application/json", b"Content-Length: %d" % sum(map(len, pieces))
    return b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n%b\r\n\r\n" % (kind, framing)


def _framed(piece: bytes, stream: bool) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece) if stream else piece
