"""Plays a script (tests/conformance/lane_script.py) on one router, and notes what each side saw.

After each action the player waits until nothing moves: everything runs on one loop, so a few turns
of it without an event mean that router, engines and clients all wait for somebody. What a script
leaves open at its end is ended by the router's own timeouts, which are short here.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from tests.conformance.lane_answers import Answer, answers_of
from tests.conformance.lane_clients import KEY, MAX_BODY_BYTES, MODEL
from tests.conformance.lane_engines import COMPLETION
from tests.conformance.lane_script import (
    Action,
    After,
    Do,
    Doing,
    Meeting,
    Pause,
    Release,
    Script,
    Send,
    Setup,
)
from tests.conformance.lanes import Engine, Lane, answer, read_body
from tests.peers import Peer, Received, reset_on_close, until
from tests.running import Running, backend

TIMEOUT_S = 0.6
"""Of the router, for whatever a client or an engine does not send; and the TTL."""
END_S = 8.0
"""By then every such timeout has fired, failovers included."""
LAST_S = 2.0
"""So long is waited for the answer that shows whether a connection goes on."""
STILL_TURNS = 6
STILL_S = 0.001
"""Nothing moves any more when nothing did for so many turns of this length."""
RECEIVE_BUFFER = 16 * 1024
"""Of a client: it may stop reading, and the router must feel it."""

COUNTED = (
    "lifeboat_lb_dispatch_total",
    "lifeboat_lb_responses_total",
    "lifeboat_lb_rejected_total",
    "lifeboat_lb_client_disconnects_total",
    "lifeboat_lb_retries_total",
    "lifeboat_lb_inflight",
    "lifeboat_lb_queue_depth",
    "lifeboat_lb_queue_wait_seconds_count",
    "lifeboat_lb_request_seconds_count",
    "lifeboat_lb_ttfb_seconds_count",
    "lifeboat_lb_estimated_tokens_count",
    "lifeboat_lb_estimated_tokens_sum",
    "lifeboat_lb_unknown_priority_total",
)
"""Metrics that must agree, by name, with all their labels."""


class Stillness:
    """Counts events of all sides, to know when nothing moves."""

    def __init__(self) -> None:
        self._events = 0

    def note(self) -> None:
        """Something moved."""
        self._events += 1

    async def wait(self) -> None:
        """Wait until nothing moves."""
        turns, seen = 0, -1
        while turns < STILL_TURNS:
            await asyncio.sleep(STILL_S)
            turns = turns + 1 if self._events == seen else 0
            seen = self._events


class Client(asyncio.Protocol):
    """One connection of a client.

    came: every byte. end: how it ended, "" while it is open. methods: of the requests that were
    sent whole. is_in_step: no request on it was left unfinished. was_reset_unread: it had stopped
    reading when the router's reset came.
    """

    def __init__(self, stillness: Stillness) -> None:
        self.came = bytearray()
        self.end = ""
        self.methods: list[str] = []
        self.is_in_step = True
        self.was_reset_unread = False
        self._reads = True
        self._stillness = stillness

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.came += data
        self._stillness.note()

    def eof_received(self) -> bool:
        self.end = self.end or "closed"
        self._stillness.note()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.end:
            self.end = "closed" if exc is None else "reset"
            self.was_reset_unread = exc is not None and not self._reads
        self._stillness.note()

    async def send(self, request: Send) -> None:
        """Send a request, unless the router has closed."""
        for piece in request.pieces:
            if not self.end:
                # Whether a refusal is quicker than the next piece must not be chance.
                self.transport.write(piece)
                await self._stillness.wait()
        if request.method:
            self.methods.append(request.method)
        else:
            self.is_in_step = False

    def do(self, what: Doing) -> None:
        """Do something else, unless the router has closed."""
        if self.end:
            return
        match what:
            case Doing.STOP_READING:
                self._reads = False
                self.transport.pause_reading()
            case Doing.READ_ON:
                self.transport.resume_reading()
            case Doing.CLOSE:
                self.end = what.value
                self.transport.close()
            case Doing.HALF_CLOSE:
                self.end = what.value
                self.transport.write_eof()
            case Doing.RESET:
                self.end = what.value
                reset_on_close(self.transport)
                self.transport.abort()

    @property
    def answers(self) -> list[Answer]:
        """What came."""
        return answers_of(bytes(self.came), self.methods)

    @property
    def is_through(self) -> bool:
        """Nothing more is to come: it is closed, or every request has its answer."""
        if self.end:
            return True
        whole = sum(answer.is_whole and answer.is_final for answer in self.answers)
        return self.is_in_step and whole >= len(self.methods)


@dataclass
class Seen:
    """What each side saw of one script.

    engines: tag and bytes of each request that reached one. counters: by name and labels.
    """

    clients: dict[int, Client] = field(default_factory=dict)
    engines: list[tuple[bytes, Received]] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)


class Engines:
    """The scripts of the engines: each request is met by its tag."""

    def __init__(self, actions: tuple[Action, ...], seen: Seen, stillness: Stillness) -> None:
        self._sends = {b"%d" % one.tag: one for one in actions if isinstance(one, Send)}
        self._seen = seen
        self._stillness = stillness
        self._attempts: dict[bytes, int] = {}
        self._gates = {one.tag: asyncio.Event() for one in self._sends.values()}

    def release(self, tag: int) -> None:
        """Go on with what is held for a request, and hold nothing of it again."""
        self._gates[tag].set()

    def release_all(self) -> None:
        """Hold nothing any more."""
        for gate in self._gates.values():
            gate.set()

    async def meet(self, peer: Peer, asked: Received) -> None:
        """Answer one request as its script says."""
        self._stillness.note()
        tag = b"".join(asked.values(b"x-tag"))
        self._seen.engines.append((tag, asked))
        request = self._sends.get(tag)
        if request is None or not request.meetings:
            await read_body(peer, asked)
            await peer.send(answer(COMPLETION))
            return
        attempt = self._attempts.get(tag, 0)
        self._attempts[tag] = attempt + 1
        meeting = request.meetings[min(attempt, len(request.meetings) - 1)]
        if not meeting.is_early:
            await read_body(peer, asked)
        await self._say(peer, meeting, self._gates[request.tag])
        if meeting.is_early:
            await read_body(peer, asked)
        self._stillness.note()

    async def _say(self, peer: Peer, meeting: Meeting, gate: asyncio.Event) -> None:
        for index, piece in enumerate(meeting.pieces):
            if index:
                await asyncio.sleep(STILL_S)
            if index == meeting.held_before and not gate.is_set():
                await _held(peer, gate)
            await peer.send(piece)
            self._stillness.note()
        if meeting.after is After.HANG:
            await peer.watch()
        if meeting.after is After.RESET:
            # Not so soon that the bytes before it are lost on the way.
            await asyncio.sleep(3 * STILL_S)
            peer.reset()
        if meeting.after is not After.KEEP:
            raise ConnectionResetError


async def _held(peer: Peer, gate: asyncio.Event) -> None:
    """Wait for a gate. Raises ConnectionResetError when the router leaves before it opens."""
    gone = asyncio.create_task(peer.reader.read(1))
    opened = asyncio.create_task(gate.wait())
    try:
        await asyncio.wait({gone, opened}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            raise ConnectionResetError
    finally:
        for task in (gone, opened):
            task.cancel()
        await asyncio.gather(gone, opened, return_exceptions=True)


def environ_of(setup: Setup) -> dict[str, str]:
    """Return the router's variables for a setup."""
    variables = {
        "LIFEBOAT_MAX_BODY_BYTES": str(MAX_BODY_BYTES),
        "LIFEBOAT_CLIENT_HEAD_TIMEOUT_SEC": str(TIMEOUT_S),
        "LIFEBOAT_CLIENT_BODY_TIMEOUT_SEC": str(TIMEOUT_S),
        "LIFEBOAT_UPSTREAM_FIRST_BYTE_TIMEOUT_SEC": str(TIMEOUT_S),
        "LIFEBOAT_UPSTREAM_IDLE_TIMEOUT_SEC": str(TIMEOUT_S),
        "LIFEBOAT_LB_QUEUE_ENABLED": str(setup.queue).lower(),
        "LIFEBOAT_LB_QUEUE_TTL_SEC": str(TIMEOUT_S),
        "LIFEBOAT_LB_EARLY_REFUSAL": str(setup.early_refusal).lower(),
    }
    if setup.max_depth is not None:
        variables["LIFEBOAT_LB_QUEUE_MAX_DEPTH"] = str(setup.max_depth)
    if setup.keys:
        variables["LIFEBOAT_API_KEYS"] = KEY.decode()
    if setup.cors:
        variables["LIFEBOAT_CORS_ORIGINS"] = "http://page.test"
    return variables


@contextlib.asynccontextmanager
async def staged(setup: Setup, lane: Lane, engines: Engines) -> AsyncIterator[Running]:
    """Run a router as a setup says, with its engines."""
    async with contextlib.AsyncExitStack() as stack:
        entries: list[dict[str, object]] = []
        for name in "ab"[: setup.engines]:
            engine = Engine(engines.meet, models=(MODEL,), whole=False)
            await stack.enter_async_context(engine)
            limits = {
                "max_concurrency": setup.max_concurrency,
                "max_input_tokens": setup.max_input_tokens,
            }
            entries.append(backend(engine.url, name, kind=setup.kind, **limits))
        models = {"alias": {"alias_of": MODEL}}
        router = lane.router(*entries, environ=environ_of(setup), models=models)
        yield await stack.enter_async_context(router)


async def play(script: Script, lane_name: str) -> Seen:
    """Play a script on a router of its own."""
    seen, stillness = Seen(), Stillness()
    engines = Engines(script.actions, seen, stillness)
    async with contextlib.AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        lane = Lane(lane_name, Path(directory))
        running = await stack.enter_async_context(staged(script.setup, lane, engines))
        player = _Player(running.port, engines, seen.clients, stillness)
        try:
            for action in script.actions:
                await player.act(action)
            await player.end()
            await running.settle(END_S)
            metrics = await running.metrics()
        finally:
            for client in seen.clients.values():
                client.end = client.end or "open"
                client.transport.abort()
    seen.counters = {
        name: value for name, value in metrics.items() if name.partition("{")[0] in COUNTED
    }
    return seen


class _Player:
    """Plays actions on a running router."""

    def __init__(
        self, port: int, engines: Engines, clients: dict[int, Client], stillness: Stillness
    ) -> None:
        self._port = port
        self._engines = engines
        self._clients = clients
        self._stillness = stillness

    async def act(self, action: Action) -> None:
        """Do one thing and wait until nothing moves."""
        match action:
            case Send(at):
                await (await self._client(at)).send(action)
            case Do(at, what):
                (await self._client(at)).do(what)
            case Release(tag):
                self._engines.release(tag)
            case Pause(seconds):
                await asyncio.sleep(seconds)
        await self._stillness.wait()

    async def _client(self, number: int) -> Client:
        if number not in self._clients:
            loop = asyncio.get_running_loop()
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", self._port))
            _, self._clients[number] = await loop.create_connection(
                lambda: Client(self._stillness), sock=sock
            )
        return self._clients[number]

    async def end(self) -> None:
        """Let everything come to its end: by the engines, by the router's timeouts."""
        self._engines.release_all()
        for client in self._clients.values():
            client.do(Doing.READ_ON)
        await self._all_through(END_S)
        for client in self._clients.values():
            # Whether the connection goes on is seen by using it.
            if not client.end and client.is_in_step:
                last = b"GET /health HTTP/1.1\r\nHost: a\r\nX-Request-ID: last\r\n\r\n"
                await client.send(Send(0, 0, "GET", (last,)))
        await self._all_through(LAST_S)

    async def _all_through(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await until(lambda: all(one.is_through for one in self._clients.values()), seconds)
        await self._stillness.wait()
