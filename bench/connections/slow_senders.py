"""Clients that send slowly: each is ended in time, holds little, and hinders nobody else.

What bounds them (docs/reference/settings.md): `client.head_timeout` a request head from its first
byte to its last, `client.body_timeout` a silence within a body and the time after which it must
keep its least pace (lifeboat/edge/pace.py). Here both are five seconds, so that the scene is short.
One backend with a single slot serves the ordinary requests beside them: none may be refused.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.connections.scene import (
    MOST_P99_MS,
    Prober,
    Scene,
    Watched,
    begun,
    ended,
    need_descriptors,
    router,
)
from lifeboat.wire.lane import LINGER_S
from tests.acceptance.engines import HeldEngine
from tests.peers import RawClient
from tests.running import CHAT, backend, backends_yaml

SENDERS = 500
TIMEOUT_S = 5.0
LATE_S = 3.0
"""How much later than that a connection may end: the router looks once a second, and the machine
is shared."""
BYTE_PAUSE_S = 0.25
HEAD_S, BODY_S = TIMEOUT_S, TIMEOUT_S + LINGER_S
QUIET_S = 3.0
"""How long ordinary requests are measured without the slow ones, to compare."""
MOST_KIB = 64.0
"""Of the router's memory for each: a connection, its parser and what it has sent so far."""


@dataclass(frozen=True, slots=True)
class Kind:
    """begin: sent at once. then: a byte of it every BYTE_PAUSE_S, and then silence.

    most_s: when it is ended. Behind a refusal the router still reads for LINGER_S, or the client
    would lose the answer.
    """

    name: str
    begin: bytes
    then: bytes
    most_s: float


def post(length: int) -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), length)


KINDS = (
    Kind(
        "a head byte by byte",
        b"POST ",
        CHAT.encode() + b" HTTP/1.1\r\nX-Slow: " + b"a" * 1000,
        HEAD_S,
    ),
    Kind("nothing at all", b"", b"", HEAD_S),
    Kind("a head, then no body", post(1000), b"", BODY_S),
    Kind("a body byte by byte", post(1000), b"{" + b" " * 999, BODY_S),
    Kind("64 MiB announced, byte by byte", post(64 << 20), b"{" + b" " * 999, BODY_S),
)


class SlowSender:
    """One connection. ended_s: from its first byte until the router ended it, None: it did not."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.ended_s: float | None = None
        self.answer = b""

    async def run(self, port: int) -> None:
        """Send slowly until the router has closed the connection."""
        client = await RawClient.connect(port)
        started = time.monotonic()
        # Its answer and its end are both seen here.
        reading = asyncio.create_task(client.reader.read())
        try:
            client.writer.write(self.kind.begin)
            for byte in self._bytes():
                await asyncio.wait({reading}, timeout=BYTE_PAUSE_S)
                if reading.done():
                    break
                client.writer.write(byte)
            try:
                self.answer = await reading
            except ConnectionError:
                self.answer = b""
            self.ended_s = time.monotonic() - started
        finally:
            reading.cancel()
            client.close()

    def _bytes(self) -> Iterator[bytes]:
        for at in range(len(self.kind.then)):
            yield self.kind.then[at : at + 1]

    def status(self) -> str:
        """Return what it was told, in a word or two."""
        return self.answer[9:12].decode("latin-1") or "closed without a word"


async def attacked(watched: Watched, count: int) -> tuple[list[SlowSender], float]:
    """Let them all send; return them, and KiB of the router's memory for each."""
    senders = [SlowSender(KINDS[number % len(KINDS)]) for number in range(count)]
    idle_kib = await watched.settle()
    watched.forget_peak()
    tasks = await begun(sender.run(watched.port) for sender in senders)
    await ended(tasks, TIMEOUT_S + LINGER_S + 2 * LATE_S)
    return senders, (watched.peak_kib() - idle_kib) / count


async def probed(watched: Watched, seconds: float) -> str:
    """Return how ordinary requests fare while nobody is slow."""
    prober = await Prober.start(watched.port, CHAT)
    await asyncio.sleep(seconds)
    return str((await prober.end())[CHAT])


async def run(directory: Path, scale: float) -> list[Scene]:
    """Run the scene."""
    count = max(len(KINDS), round(SENDERS * scale))
    need_descriptors(count)
    scene = Scene(f"{count} slow senders, timeouts of {TIMEOUT_S:g} s")
    environ = {
        "LIFEBOAT_CLIENT_HEAD_TIMEOUT_SEC": str(TIMEOUT_S),
        "LIFEBOAT_CLIENT_BODY_TIMEOUT_SEC": str(TIMEOUT_S),
    }
    async with HeldEngine(hold_s=0.0) as engine:
        yaml = backends_yaml(backend(engine.url, max_concurrency=1))
        async with router(yaml, directory, environ) as watched:
            quiet = await probed(watched, QUIET_S)
            prober = await Prober.start(watched.port, CHAT)
            senders, held_kib = await attacked(watched, count)
            meanwhile = (await prober.end())[CHAT]
    for kind in KINDS:
        mine = [sender for sender in senders if sender.kind is kind]
        longest = max(float("inf") if s.ended_s is None else s.ended_s for s in mine)
        told = Counter(sender.status() for sender in mine)
        words = ", ".join(f"{many} x {word}" for word, many in told.items())
        scene.law(f"{kind.name}, until it ended ({words})", longest, kind.most_s + LATE_S, "s")
    scene.law("most memory over idle, per connection", held_kib, MOST_KIB, "KiB")
    scene.tell("ordinary requests before", quiet)
    scene.tell("ordinary requests meanwhile", str(meanwhile))
    scene.law("their p99 meanwhile", meanwhile.p99_ms, MOST_P99_MS, "ms")
    scene.law("of them refused or lost", meanwhile.wrong, 0)
    return [scene]
