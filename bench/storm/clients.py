"""Clients of every kind, and what each was told.

A kind is a coroutine function over a `Client`; a client runs one after another, chosen by weight.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from bench.storm.engines import MARK, Plan
from bench.storm.laws import Law, Laws
from lifeboat.core.rejections import REJECTIONS, status_of
from tests.peers import RawClient, Reply
from tests.running import CHAT

BOUND_S = 60.0
"""Nothing takes longer: the longest TTL, answer and hold, and as much again."""
MOST_BODY_BYTES = 1 << 20
REASONS = {row.wire_reason or "gate": row for row in REJECTIONS.values()}


class Outcome(StrEnum):
    """How a request ended for its client."""

    ANSWERED = "answered"
    REFUSED = "refused"
    RELAYED = "an engine's own error"
    CUT = "cut"
    LEFT = "left"
    UNREAD = "behind an end"
    """Pipelined behind a request whose end closed the connection."""
    NO_HTTP = "no HTTP"
    """Answered with 400 as no request at all."""
    WRONG = "wrong"


STAYED = frozenset({Outcome.ANSWERED, Outcome.REFUSED, Outcome.RELAYED, Outcome.CUT})
"""Outcomes whose terminal event must say the same as the client."""


@dataclass(slots=True)
class Told:
    """One request as its client saw it. slow: its client took or sent nothing for long."""

    request_id: str
    kind: str
    outcome: Outcome
    ended_at: float
    status: int | None = None
    reason: str | None = None
    body_bytes: int = 0
    slow: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to send. chunked: its body comes in chunks, which the fast lane does not take."""

    request_id: str
    model: str
    plan: Plan
    chunked: bool = False

    def wire(self) -> tuple[bytes, bytes]:
        """Return its head and its body as they are sent."""
        page = {
            "model": self.model,
            "messages": [{"role": "user", "content": "storm " * 20}],
            "stream": self.plan.stream,
            "plan": asdict(self.plan),
        }
        body = json.dumps(page).encode()
        if self.chunked:
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
            return head(self.request_id, b"Transfer-Encoding: chunked"), body
        return head(self.request_id, b"Content-Length: %d" % len(body)), body


def head(request_id: str, *lines: bytes, path: str = CHAT) -> bytes:
    """Return the head of a POST."""
    first = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Request-ID: {request_id}\r\n"
    return first.encode() + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


class Slowly:
    """A reader that takes little at a time."""

    def __init__(self, reader: asyncio.StreamReader, pause_s: float) -> None:
        self._reader = reader
        self._pause_s = pause_s

    async def read(self, size: int) -> bytes:
        await asyncio.sleep(self._pause_s)
        return await self._reader.read(min(size, 8192))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


class Clients:
    """What they share. paused: while set they begin nothing new. told: all they were told."""

    def __init__(self, port: int, models: tuple[str, ...], laws: Laws, seed: int) -> None:
        self.told: list[Told] = []
        self.kinds: Counter[str] = Counter()
        self.paused = False
        self._port = port
        self._models = models
        self._laws = laws
        self._chance = random.Random(f"{seed} clients")
        self._numbers = itertools.count()

    def new_id(self) -> str:
        return f"storm-{next(self._numbers)}"

    def ask(self, plan: Plan | None = None) -> Ask:
        """Return a request of any ordinary shape."""
        chance = self._chance
        if plan is None:
            stream = chance.random() < 0.5
            plan = Plan(
                stream, chance.randint(1, 30 if stream else 3), chance.choice((10, 400, 4000))
            )
        return Ask(self.new_id(), chance.choice(self._models), plan, chance.random() < 0.2)

    async def live(self, until: float, pause_s: float) -> None:
        """Ask again and again until then."""
        loop = asyncio.get_running_loop()
        kinds, weights = zip(*KINDS.items(), strict=True)
        while loop.time() < until:
            if not self.paused:
                await self.one(self._chance.choices(kinds, weights)[0])
            await asyncio.sleep(self._chance.uniform(0, 2 * pause_s))

    async def one(self, kind: Kind) -> None:
        """Let one client of this kind come and go."""
        name = kind.__name__.replace("_", " ")
        self.kinds[name] += 1
        client = await RawClient.connect(self._port, receive_buffer=8192 if kind in SLOW else None)
        client.patience_s = BOUND_S
        try:
            async with asyncio.timeout(BOUND_S):
                await kind(self, client, name)
            self._laws.check(Law.BOUND, True)
        except TimeoutError:
            self._laws.check(Law.BOUND, False, f"{name}: nothing within {BOUND_S:g} s")
        finally:
            client.close()
            with suppress(ConnectionError):
                await client.writer.wait_closed()

    def note(
        self, request_id: str, kind: str, outcome: Outcome, reply: Reply | None = None
    ) -> Told:
        """Keep what a client was told, and hold it to the documented outcomes."""
        told = Told(request_id, kind, outcome, asyncio.get_running_loop().time())
        if reply is not None:
            told.status, told.body_bytes = reply.status, len(reply.body)
            told.reason = reason_of(reply) if outcome is Outcome.REFUSED else None
        self.told.append(told)
        detail = (
            f"{kind} {request_id}: {reply.first_line if reply else 'no answer'!r} {told.reason}"
        )
        self._laws.check(Law.DOCUMENTED, outcome is not Outcome.WRONG, detail)
        return told

    async def hear(self, client: RawClient, ask: Ask, kind: str) -> Told:
        """Read an answer and judge it."""
        try:
            reply = await client.reply()
        except (asyncio.IncompleteReadError, ConnectionError):
            return self.note(ask.request_id, kind, Outcome.WRONG)
        outcome = judged(reply)
        if outcome is Outcome.ANSWERED:
            expected = b"".join(ask.plan.answer(ask.request_id))
            detail = f"{kind} {ask.request_id}: {len(reply.body)} bytes of {len(expected)}"
            self._laws.check(Law.EXACT, reply.body == expected, detail)
        return self.note(ask.request_id, kind, outcome, reply)


def reason_of(reply: Reply) -> str:
    """Return why the router refused, in the words of the metrics."""
    return next(iter(reply.values(b"x-lifeboat-reject-reason")), b"gate").decode()


def judged(reply: Reply) -> Outcome:
    """Return what an answer is; WRONG for what no page documents."""
    if not reply.clean:
        return Outcome.CUT
    if reply.values(MARK):
        return Outcome.RELAYED
    if reply.status == 200:
        return Outcome.ANSWERED
    row = REASONS.get(reason_of(reply))
    refused = row is not None and reply.status == status_of(row.reason, 503)
    return Outcome.REFUSED if refused else Outcome.WRONG


# ---- the kinds -----------------------------------------------------------------------------------

Kind = Callable[[Clients, RawClient, str], Awaitable[object]]


async def ordinary(clients: Clients, client: RawClient, kind: str) -> None:
    """One to three requests in turn on one connection."""
    for _ in range(clients._chance.randint(1, 3)):
        ask = clients.ask()
        await client.send(b"".join(ask.wire()))
        told = await clients.hear(client, ask, kind)
        if told.outcome in (Outcome.CUT, Outcome.WRONG):
            return


async def pipelining(clients: Clients, client: RawClient, kind: str) -> None:
    """Some requests at once; after one that ended the connection the rest has no answer."""
    asks = [clients.ask() for _ in range(clients._chance.randint(2, 4))]
    await client.send(b"".join(part for ask in asks for part in ask.wire()))
    for index, ask in enumerate(asks):
        told = await clients.hear(client, ask, kind)
        if told.outcome in (Outcome.CUT, Outcome.WRONG):
            for behind in asks[index + 1 :]:
                clients.note(behind.request_id, kind, Outcome.UNREAD)
            return


async def leaving(clients: Clients, client: RawClient, kind: str) -> None:
    """Go at any moment: while it is sent, parked, waiting, or within the answer."""
    ask = clients.ask(Plan(True, 30, 400)) if clients._chance.random() < 0.5 else clients.ask()
    await client.send(b"".join(ask.wire()))
    with suppress(TimeoutError, asyncio.IncompleteReadError, ConnectionError):
        async with asyncio.timeout(clients._chance.expovariate(2)):
            await client.reader.read()
    _go(clients, client, ask, kind)


async def leaving_midway(clients: Clients, client: RawClient, kind: str) -> None:
    """Go in the middle of a stream's bytes."""
    ask = clients.ask(Plan(True, 40, 4000))
    await client.send(b"".join(ask.wire()))
    with suppress(TimeoutError, asyncio.IncompleteReadError, ConnectionError):
        # A refusal has fewer bytes than that.
        async with asyncio.timeout(8.0):
            await client.reader.readexactly(clients._chance.randint(1, 60_000))
    _go(clients, client, ask, kind)


def _go(clients: Clients, client: RawClient, ask: Ask, kind: str) -> None:
    if clients._chance.random() < 0.5:
        client.reset()
    else:
        client.close()
    clients.note(ask.request_id, kind, Outcome.LEFT)


async def slow_reading(clients: Clients, client: RawClient, kind: str) -> None:
    """Take a long answer in small bites, from a small buffer."""
    ask = clients.ask(Plan(True, 40, 12_000))
    await client.send(b"".join(ask.wire()))
    await asyncio.sleep(clients._chance.uniform(0, 1.5))
    client.reader = Slowly(client.reader, clients._chance.uniform(0, 0.03))  # type: ignore[assignment]  # its readers, slowed
    (await clients.hear(client, ask, kind)).slow = True


async def not_reading(clients: Clients, client: RawClient, kind: str) -> None:
    """Take nothing for longer than the router's patience."""
    ask = clients.ask(Plan(True, 60, 100_000))
    await client.send(b"".join(ask.wire()))
    await asyncio.sleep(6.0)
    (await clients.hear(client, ask, kind)).slow = True


async def slow_sending(clients: Clients, client: RawClient, kind: str) -> None:
    """Send a body in pieces; some go before its end, some fall silent."""
    chance, ask = clients._chance, clients.ask()
    first, body = ask.wire()
    await client.send(first)
    pieces = chance.randint(2, 6)
    stops = chance.choice((None, None, "goes", "falls silent"))
    step = len(body) // pieces + 1
    sent = body if stops is None else body[: step * (pieces - 1)]
    for at in range(0, len(sent), step):
        await asyncio.sleep(chance.uniform(0, 0.4))
        await client.send(sent[at : at + step])
    if stops == "goes":
        _go(clients, client, ask, kind)
    else:
        await clients.hear(client, ask, kind)


async def oversized(clients: Clients, client: RawClient, kind: str) -> None:
    """More than the router takes, announced or not; the refusal comes before the end is sent."""
    ask = clients.ask()
    size = MOST_BODY_BYTES + 200_000
    if clients._chance.random() < 0.5:
        wire = head(ask.request_id, b"Content-Length: %d" % size) + b" " * size
    else:
        chunks = b"%x\r\n%b\r\n" % (size, b" " * size)
        wire = head(ask.request_id, b"Transfer-Encoding: chunked") + chunks + b"0\r\n\r\n"
    with suppress(ConnectionError):
        await client.send(wire)
    await clients.hear(client, ask, kind)


_NONSENSE: tuple[tuple[str, bytes], ...] = (
    (CHAT, b"not JSON"),
    (CHAT, b'{"model": "m"'),
    (CHAT, b'{"messages": []}'),
    (CHAT, b'{"model": 7, "messages": []}'),
    (CHAT, b'{"model": "nobody has it", "messages": []}'),
    (CHAT, b"[" * 5000),
    ("/v1/embeddings", b'{"model": "m", "input": "x"}'),
    ("/v1/images/generations", b'{"model": "m", "prompt": "x"}'),
    ("/rerank", b'{"model": "m", "query": "x", "documents": ["y"]}'),
)
_NO_HTTP = (b"\x16\x03\x01\x02\x00", b"POST /v1 chat HTTP/1.1 x\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n")


async def nonsense(clients: Clients, client: RawClient, kind: str) -> None:
    """What is no request that any backend could serve."""
    path, body = clients._chance.choice(_NONSENSE)
    ask = clients.ask()
    await client.send(head(ask.request_id, b"Content-Length: %d" % len(body), path=path) + body)
    await clients.hear(client, ask, kind)


async def no_http(clients: Clients, client: RawClient, kind: str) -> None:
    """Bytes that are no request; a 400 or a closed connection is the answer."""
    await client.send(clients._chance.choice(_NO_HTTP))
    client.writer.write_eof()
    try:
        reply = await client.reply()
    except (asyncio.IncompleteReadError, ConnectionError):
        clients.note("", kind, Outcome.NO_HTTP)
        return
    outcome = Outcome.NO_HTTP if reply.status in (400, 505) else Outcome.WRONG
    clients.note("", kind, outcome, reply)


KINDS: dict[Kind, int] = {
    ordinary: 34, pipelining: 8, leaving: 20, leaving_midway: 10, slow_reading: 6, not_reading: 1,
    slow_sending: 8, oversized: 3, nonsense: 8, no_http: 2,
}  # fmt: skip
"""How often each comes."""
SLOW = frozenset({slow_reading, not_reading})
