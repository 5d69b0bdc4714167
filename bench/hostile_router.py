"""A live stream beside hostile bodies, through a whole router: its longest stall, its memory.

    python -m bench.hostile_router

Targets (issue 2): while a stream runs, a hostile 64 MiB body (`[],[],...`) and 32 parallel prompts
of 8 MiB keep the loop for less than 50 ms of CPU at a time, and the bodies held in memory stay
within the ledger's bound. The router is a process of its own on uvloop; stalls are CPU time of its
loop's thread (bench/measured_router.py).
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp

from bench.measured_router import MIB, MeasuredRouter
from tests.acceptance.engines import HeldEngine, event
from tests.peers import Peer, RawClient
from tests.running import CHAT, backend, backends_yaml

TARGET_STALL_MS = 50.0
BOUND_MIB = 160
"""The ledger's bound here: fewer than the 256 MiB that the 32 prompts together have."""
EVENT_PAUSE_S = 0.01

START = b'{"model": "m", "messages": [{"role": "user", "content": "'
END = b'"}]}'
WORDS = b"The quick brown fox jumps over the lazy dog. "


def prompt(size_bytes: int) -> bytes:
    """Return a chat of about this size."""
    return START + WORDS * ((size_bytes - len(START) - len(END)) // len(WORDS)) + END


def hostile(size_bytes: int, piece: bytes) -> bytes:
    """Return an object with an array of this piece, as often as it fits."""
    return b'{"model": "m", "x": [' + piece * (size_bytes // len(piece) - 20) + b"0]}"


class StreamingEngine(HeldEngine):
    """Streams an event every ten milliseconds for ever; answers everything else at once."""

    async def _answer(self, peer: Peer, received) -> bool:
        if b'"live"' not in received.body[:200]:
            return await super()._answer(peer, received)
        await peer.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        while True:
            await peer.chunk(event("tick"))
            await asyncio.sleep(EVENT_PAUSE_S)


class Live:
    """A client that reads the stream, and notes the longest pause between two pieces of it."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.pieces = 0

    async def run(self, port: int) -> None:
        client = await RawClient.connect(port)
        await client.post(CHAT, b'{"model": "m", "user": "live", "stream": true}')
        await client.head()
        loop = asyncio.get_running_loop()
        at = loop.time()
        try:
            while await client.reader.read(65536):
                now = loop.time()
                self.longest_s, at = max(self.longest_s, now - at), now
                self.pieces += 1
        finally:
            client.close()


async def post(port: int, body: bytes) -> int:
    """Send one body; return the status."""
    client = await RawClient.connect(port)
    try:
        head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
        await client.send(head % (CHAT.encode(), len(body)))
        for at in range(0, len(body), 256 * 1024):
            await client.send(body[at : at + 256 * 1024])
    except ConnectionError:
        # Refused before it was read: the answer is there nevertheless, or the connection is gone.
        pass
    try:
        async with asyncio.timeout(120):
            line = await client.reader.readline()
        return int(line.split()[1]) if line else 0
    except ConnectionError:
        return 0
    finally:
        client.close()


async def watch_ledger(url: str, seen: list[int]) -> None:
    """Note the ledger's figure, several times a second."""
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{url}/api/lb/state") as answer:
                seen.append((await answer.json())["parked_bytes"])
            await asyncio.sleep(0.05)


Attack = Callable[[int], Awaitable[list[int]]]


def one(body: bytes) -> Attack:
    async def attack(port: int) -> list[int]:
        return [await post(port, body)]

    return attack


def many(count: int, body: bytes) -> Attack:
    async def attack(port: int) -> list[int]:
        return list(await asyncio.gather(*(post(port, body) for _ in range(count))))

    return attack


def attacks() -> dict[str, Attack]:
    """The scenes, in order."""
    return {
        "the stream alone": many(50, prompt(1024)),
        "64 MiB of [],": one(hostile(64 * MIB, b"[],")),
        "64 MiB of {},": one(hostile(64 * MIB, b"{},")),
        "64 MiB of 1,": one(hostile(64 * MIB, b"1,")),
        '64 MiB of "a":': one(b'{"model": "m"' + b', "a": 1' * (8 * MIB - 8) + b"}"),
        "64 MiB of [": one(b'{"model": "m", "x": ' + b"[" * (64 * MIB - 30) + b"}"),
        "64 MiB of escapes": one(START + b"\\u0041" * (64 * MIB // 6 - 20) + END),
        "64 MiB prompt": one(prompt(64 * MIB - 1024)),
        "32 x 8 MiB prompts": many(32, prompt(8 * MIB)),
        "32 x 8 MiB of [],": many(32, hostile(8 * MIB, b"[],")),
    }


async def measure() -> int:
    worst_ms = 0.0
    with tempfile.TemporaryDirectory() as directory:
        # max_input_tokens: so that every prompt is near enough to a cap to be counted.
        async with StreamingEngine(hold_s=0.2) as engine:
            yaml = backends_yaml(
                backend(engine.url, max_concurrency=64),
                backend(engine.url, "capped", max_concurrency=64, max_input_tokens=2_000_000),
                max_parked_bytes=BOUND_MIB * MIB,
            )
            router = await MeasuredRouter.start(yaml, Path(directory))
            ledger: list[int] = []
            live = Live()
            beside = [
                asyncio.create_task(live.run(router.port)),
                asyncio.create_task(watch_ledger(router.url, ledger)),
            ]
            try:
                await asyncio.sleep(1.5)  # the tokenizer has loaded
                base = await router.report()
                print(f"{'':22}{'stall':>9}{'held':>9}{'peak':>9}{'gap':>8}{'CPU':>8}  statuses")
                for name, attack in attacks().items():
                    live.longest_s = 0.0
                    ledger.clear()
                    statuses = Counter(await attack(router.port))
                    report = await router.report()
                    worst_ms = max(worst_ms, report.stall_ms)
                    print(
                        f"{name:22}{report.stall_ms:6.1f} ms{max(ledger, default=0) / MIB:5.0f} MiB"
                        f"{report.peak_mib - base.rss_mib:5.0f} MiB{live.longest_s * 1000:5.0f} ms"
                        f"{report.cpu_s:6.2f} s  {dict(statuses)}",
                        flush=True,
                    )
                print(f"RSS at rest {base.rss_mib:.0f} MiB, at the end {report.rss_mib:.0f} MiB")
            finally:
                for task in beside:
                    task.cancel()
                await asyncio.gather(*beside, return_exceptions=True)
                await router.stop()
    print(f"longest stall {worst_ms:.1f} ms of CPU, target {TARGET_STALL_MS:g}")
    return 0 if worst_ms < TARGET_STALL_MS else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(measure()))
