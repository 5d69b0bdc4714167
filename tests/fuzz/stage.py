"""Routers that live as long as a module of tests, and clients and engines that see everything.

Hypothesis runs its examples one after the other from plain functions: the loop is ours, and stands
still between two examples. All sides run on it, so that a few turns without an event mean that
everybody waits for somebody.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
import struct
import tempfile
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import uvloop

from tests.conformance.lanes import Lane
from tests.fuzz.reading import Verdict, read_answers
from tests.peers import until
from tests.running import Running

T = TypeVar("T")
S = TypeVar("S")

STILL_TURNS = 3
STILL_S = 0.001
"""Nothing moves any more when nothing did for so many turns of this length."""
PATIENCE_S = 5.0
"""How long an answer may take."""
EXAMPLE_S = 30.0
"""Longest time of one example: what takes longer hangs."""


class Faults(logging.Handler):
    """Collects what a router must never say: errors, tracebacks, unhandled exceptions."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info:
            said = logging.Formatter().format(record)
            self.found.append(f"{record.name} ({record.levelname}): {said}")

    def unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take in what nobody caught."""
        self.found.append(f"unhandled: {context}")


class Home(Generic[T]):
    """A loop with a scene that stays on it. scene: what its context manager gave."""

    scene: T

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self.faults = Faults()
        self._stop = asyncio.Event()
        self._life: asyncio.Task[None] | None = None

    async def open(self, scene: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        """Enter a scene, in a task of its own: its cancel scopes must be left where they began."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self.faults.unhandled)
        ready = asyncio.Event()

        async def live() -> None:
            async with scene() as entered:
                self.scene = entered
                ready.set()
                await self._stop.wait()

        self._life = loop.create_task(live())
        waiting = loop.create_task(ready.wait())
        await asyncio.wait({self._life, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.is_set():
            waiting.cancel()
            await self._life

    async def close(self) -> None:
        """Leave the scene."""
        self._stop.set()
        if self._life is not None:
            await self._life

    def run(self, example: Coroutine[None, None, S]) -> S:
        """Run one example; what was logged meanwhile that must not be is its failure."""
        self.faults.found.clear()

        async def bounded() -> S:
            async with asyncio.timeout(EXAMPLE_S):
                return await example

        result = self._runner.run(bounded())
        assert not self.faults.found, "\n".join(self.faults.found)
        return result


@contextlib.contextmanager
def at_home(scene: Callable[[], AbstractAsyncContextManager[T]]) -> Iterator[Home[T]]:
    """Open a scene on a loop of its own."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        home = Home[T](runner)
        root = logging.getLogger()
        root.addHandler(home.faults)
        try:
            runner.run(home.open(scene))
            try:
                yield home
            finally:
                runner.run(home.close())
        finally:
            root.removeHandler(home.faults)


class Client(asyncio.Protocol):
    """One connection to a router. end: "" while it is open, else "closed" or "reset"."""

    def __init__(self) -> None:
        self.came = bytearray()
        self.end = ""
        self.events = 0

    @classmethod
    async def connect(cls, port: int) -> Client:
        """Connect to a port of this machine."""
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(cls, "127.0.0.1", port)
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.came += data
        self.events += 1

    def eof_received(self) -> bool:
        self.end = self.end or "closed"
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.end = self.end or ("closed" if exc is None else "reset")
        self.events += 1

    async def send(self, *pieces: bytes) -> None:
        """Send pieces so that each is read by itself, until the router has closed."""
        for piece in pieces:
            if self.end:
                return
            self.transport.write(piece)
            await turns(2)

    async def still(self) -> None:
        """Wait until nothing comes any more."""
        quiet, seen = 0, -1
        while quiet < STILL_TURNS and not self.end:
            await asyncio.sleep(STILL_S)
            quiet = quiet + 1 if self.events == seen else 0
            seen = self.events

    async def answers(self, methods: Sequence[str], count: int, *, to_end: bool = False) -> None:
        """Wait for so many answers, or the end of the connection; in vain for a while at most."""

        def is_there() -> bool:
            if self.end or to_end:
                return bool(self.end)
            found = read_answers(bytes(self.came), methods, "")
            return sum(one.verdict is not Verdict.CUT for one in found) >= count

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                seen = -1
                while self.events == seen or not is_there():
                    seen = self.events
                    await asyncio.sleep(0)

    def leave(self, *, reset: bool = False) -> None:
        """Leave, with FIN or RST."""
        if reset:
            reset_on_close(self.transport)
        else:
            self.transport.close()


def reset_on_close(transport: asyncio.Transport) -> None:
    """Close with RST."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def turns(count: int) -> None:
    """Give the loop so many turns: what was written to a socket before is read in them."""
    for _ in range(count):
        await asyncio.sleep(0)


def cut(wire: bytes, places: Iterable[int]) -> list[bytes]:
    """Cut bytes at these places."""
    at = sorted({0, len(wire), *(place for place in places if 0 < place < len(wire))})
    return [wire[a:b] for a, b in itertools.pairwise(at)]


@contextlib.asynccontextmanager
async def router_on(
    lane: str, *backends: Mapping[str, object], **environ: str
) -> AsyncIterator[Running]:
    """Run a router on a lane."""
    with tempfile.TemporaryDirectory() as path:
        async with Lane(lane, Path(path)).router(*backends, environ=environ) as running:
            yield running


async def all_given_back(running: Running) -> None:
    """Wait until nothing is held any more, by the live objects that decide."""

    def is_idle() -> bool:
        view = running.router.view()
        held = view.open_leases + view.parked + view.parked_bytes
        return not held and not any(seat.in_flight for seat in view.backends.values())

    await until(is_idle)
