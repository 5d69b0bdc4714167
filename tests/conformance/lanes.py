"""Routers on a lane, and the engines behind them: the stage of every conformance case.

    async def script(peer, asked):
        await peer.send(answer({"ok": True}))

    async with lane.facing(script, max_concurrency=4) as stage:
        client = await stage.client()
        await client.post(CHAT, chat(stream=True))

A second of a case lasts SECOND seconds here, so that a suite of slow peers stays short; figures
that a router setting bounds (timeouts, TTLs) are scaled by the same factor.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tests.peers import PATIENCE_S, Peer, RawClient, Received, ScriptedBackend, until
from tests.running import Running, backend, backends_yaml, running_router

LANES: dict[str, dict[str, str]] = {
    "aiohttp": {"LIFEBOAT_FAST_LANE": "false"},
    "fast": {"LIFEBOAT_FAST_LANE": "true"},
}
"""The ways bytes can take on the client's side, and the environment that chooses each."""

SECOND = float(os.environ.get("CONFORMANCE_SECOND", "0.1"))
"""Seconds that one second of a case takes."""

Script = Callable[[Peer, Received], Awaitable[None]]
"""Answers one request. It may close or reset the connection; else that serves the next request."""


class Engine(ScriptedBackend):
    """A model server that runs its script for every request of a client.

    What the router asks on its own behalf (health, models, metrics) is answered by the engine and
    reaches no script. asked: the clients' requests, in order of arrival.
    models: what it lists. pages: what it answers to the router's own GETs, by path.
    whole: False = the script is called at the head and reads the body itself.
    """

    def __init__(
        self,
        script: Script,
        *,
        models: tuple[str, ...] = ("m",),
        pages: Mapping[str, bytes] | None = None,
        whole: bool = True,
    ) -> None:
        super().__init__(self._serve)
        self.pages = dict(pages or {})
        self.asked: list[Received] = []
        self.probes: list[Received] = []
        self.models = models
        self.running = 0
        self._answer = script
        self._whole = whole

    def answering(self, script: Script) -> None:
        """Run another script from now on."""
        self._answer = script

    async def _serve(self, peer: Peer) -> None:
        while not peer.writer.is_closing():
            received = await peer.head()
            if not received.values(b"x-request-id"):
                # The router adds an id to whatever it forwards.
                self.probes.append(received)
                await self.answer_probe(peer, received)
                continue
            if self._whole:
                await read_body(peer, received)
            self.asked.append(received)
            self.running += 1
            try:
                await self._answer(peer, received)
            finally:
                self.running -= 1

    async def answer_probe(self, peer: Peer, received: Received) -> None:
        """Answer what the router asks on its own behalf."""
        listing = {"object": "list", "data": [{"id": name} for name in self.models]}
        await peer.send(self.pages.get(received.target) or answer(listing))


async def read_body(peer: Peer, received: Received) -> None:
    """Read the body of a request whose head was read."""
    if lengths := received.values(b"content-length"):
        received.body = await peer.reader.readexactly(int(lengths[0]))


@dataclass
class Stage:
    """A running router and the engines `a`, `b`, ... behind it."""

    running: Running
    engines: list[Engine]
    clients: list[RawClient] = field(default_factory=list)

    @property
    def engine(self) -> Engine:
        return self.engines[0]

    @property
    def asked(self) -> list[Received]:
        """The requests that reached any engine."""
        return [received for engine in self.engines for received in engine.asked]

    async def client(self, *, receive_buffer: int | None = None) -> RawClient:
        """Connect a raw client; it is closed with the stage."""
        client = await RawClient.connect(self.running.port, receive_buffer=receive_buffer)
        self.clients.append(client)
        return client

    async def exchange(self, data: bytes) -> bytes:
        """Send these bytes on a new connection and return all that comes back, to its end."""
        client = await self.client()
        await client.send(data)
        return await everything(client)

    async def asked_for(self, count: int, patience_s: float = PATIENCE_S) -> None:
        """Wait until so many requests have reached the engines."""
        await until(lambda: len(self.asked) >= count, patience_s)

    async def rejected(self, reason: str) -> float:
        """Return how often a reason was given, over all pools."""
        metrics = await self.running.metrics()
        return sum(
            value
            for name, value in metrics.items()
            if name.startswith("lifeboat_lb_rejected_total{") and f'reason="{reason}"' in name
        )

    async def __aenter__(self) -> Stage:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for client in self.clients:
            client.writer.transport.abort()


class Lane:
    """Starts routers on one lane."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self._directory = directory
        self._started = 0

    @contextlib.asynccontextmanager
    async def router(
        self,
        *backends: Mapping[str, object],
        environ: Mapping[str, str] | None = None,
        **top: object,
    ) -> AsyncIterator[Running]:
        """Run a router; backends, top: of its configuration."""
        directory = self._directory / str(self._started)
        directory.mkdir()
        self._started += 1
        everything = {**LANES[self.name], **(environ or {})}
        async with running_router(
            backends_yaml(*backends, **top), directory, everything
        ) as running:
            yield running

    @contextlib.asynccontextmanager
    async def facing(
        self,
        *scripts: Script | Engine,
        environ: Mapping[str, str] | None = None,
        top: Mapping[str, object] | None = None,
        **fields: object,
    ) -> AsyncIterator[Stage]:
        """Run a router before one engine a script, named a, b, ...; fields: of each backend."""
        async with contextlib.AsyncExitStack() as stack:
            engines = [
                await stack.enter_async_context(
                    script if isinstance(script, Engine) else Engine(script)
                )
                for script in scripts
            ]
            entries = [
                backend(engine.url, "abcdefghij"[index], **fields)
                for index, engine in enumerate(engines)
            ]
            running = await stack.enter_async_context(
                self.router(*entries, environ=environ, **(top or {}))
            )
            yield await stack.enter_async_context(Stage(running, engines))


# ---- bytes ---------------------------------------------------------------------------------------


def chat(text: str = "x", *, model: str = "m", **more: object) -> bytes:
    """Return the body of a chat."""
    page = {"model": model, "messages": [{"role": "user", "content": text}], **more}
    return json.dumps(page).encode()


def answer(page: object, status: bytes = b"200 OK", *headers: bytes) -> bytes:
    """Return a whole response of JSON."""
    body = page if isinstance(page, bytes) else json.dumps(page).encode()
    lines = [b"HTTP/1.1 " + status, b"Content-Type: application/json", *headers]
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(body)]) + b"\r\n\r\n" + body


COMPLETION = {"id": "chatcmpl-1", "choices": [{"message": {"content": "hello"}}]}

SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"


def event(text: object) -> bytes:
    """Return one server-sent event."""
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n"


class Stepped:
    """The script of a stream that goes one step further whenever it is told.

    Whoever tells it only when the step before has arrived proves, on a machine of any speed, that
    nothing waits on the way for what comes behind it.
    """

    def __init__(self) -> None:
        self._steps: asyncio.Queue[bytes] = asyncio.Queue()

    def send(self, data: bytes) -> None:
        self._steps.put_nowait(data)

    def end(self) -> None:
        self._steps.put_nowait(b"")

    async def __call__(self, peer: Peer, asked: Received) -> None:
        await peer.send(SSE_HEAD)
        while data := await self._steps.get():
            await peer.chunk(data)
        await peer.send(LAST_CHUNK)


async def says_hello(peer: Peer, asked: Received) -> None:
    """The script of an engine that is well."""
    await peer.send(answer(COMPLETION))


async def read_chunk(client: RawClient) -> bytes:
    """Read one chunk of a chunked body; b"" is the last one."""
    size = int((await client.reader.readuntil(b"\r\n")).split(b";")[0], 16)
    data = await client.reader.readexactly(size)
    assert await client.reader.readexactly(2) == b"\r\n"
    return data


async def everything(client: RawClient) -> bytes:
    """Read until the connection ends, however it ends."""
    out = bytearray()
    with contextlib.suppress(ConnectionError):
        while piece := await client.reader.read(65536):
            out += piece
    return bytes(out)
