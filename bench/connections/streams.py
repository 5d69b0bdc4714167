"""Two thousand streams are open at once: what each holds, and that every event arrives in time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

from bench.connections.answers import Checker, body_pieces
from bench.connections.scene import (
    MOST_P99_MS,
    Prober,
    Scene,
    begun,
    ended,
    need_descriptors,
    router,
)
from tests.acceptance.engines import json_answer
from tests.peers import Peer, RawClient, ScriptedBackend
from tests.running import CHAT, backend, backends_yaml

STREAMS = 2_000
EVENTS, EVENT_PAUSE_S = 20, 1.0
REST_S = 60.0
MOST_KIB = 32.0
"""Of the router's memory for each: two connections, parsers and buffers, a task and a lease."""


def events(number: int) -> Iterator[bytes]:
    """Yield the events of a stream, which no other has."""
    for at in range(EVENTS):
        delta = {"delta": {"content": f"{number}-{at} "}}
        yield b"data: " + json.dumps({"choices": [delta]}).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


class TickingEngine(ScriptedBackend):
    """Streams to each client, once all of them are there. pause_s: between two events of one."""

    def __init__(self, count: int, pause_s: float = EVENT_PAUSE_S) -> None:
        super().__init__(self._serve)
        self._count = count
        self._pause_s = pause_s
        self.open = 0
        self.all_open = asyncio.Event()
        self.sent_at: dict[bytes, float] = {}

    async def _serve(self, peer: Peer) -> None:
        while True:
            received = await peer.request()
            if received.method != "POST":
                await peer.send(json_answer({"object": "list", "data": [{"id": "m"}]}))
                continue
            await peer.send(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            number = int(json.loads(received.body)["user"])
            self.open += 1
            if self.open == self._count:
                self.all_open.set()
            await self.all_open.wait()
            # Spread over the pause, as streams that began by themselves are.
            await asyncio.sleep(self._pause_s * number / self._count)
            for event in events(number):
                self.sent_at[event[:-2]] = time.monotonic()
                await peer.chunk(event)
                await asyncio.sleep(self._pause_s)
            await peer.send(b"0\r\n\r\n")


class Reading:
    """One client. how: how its stream ended. delays_s: of each event, from engine to client."""

    def __init__(self, number: int, engine: TickingEngine) -> None:
        self.number = number
        self.how = "did not end"
        self.delays_s: list[float] = []
        self._engine = engine

    async def run(self, port: int) -> None:
        """Ask, and read to the end."""
        client = await RawClient.connect(port)
        checker = Checker(events(self.number))
        try:
            body = {"model": "m", "user": str(self.number), "stream": True, "messages": []}
            await client.post(CHAT, json.dumps(body).encode())
            async for piece in body_pieces(client.reader, lambda: 1 << 16):
                checker.feed(piece)
                if sent_at := self._engine.sent_at.pop(piece[:-2], None):
                    self.delays_s.append(time.monotonic() - sent_at)
            self.how = "exact" if checker.is_whole() else "with other bytes"
        except (ValueError, ConnectionError, asyncio.IncompleteReadError) as error:
            self.how = f"{type(error).__name__}: {error}"
        finally:
            client.close()


async def run(directory: Path, scale: float) -> list[Scene]:
    """Run the scene."""
    count = max(10, round(STREAMS * scale))
    need_descriptors(2 * count)
    scene = Scene(f"{count:,} streams open at once, {EVENTS} events each, one a second")
    async with TickingEngine(count) as engine:
        yaml = backends_yaml(backend(engine.url, max_concurrency=count))
        async with router(yaml, directory) as watched:
            idle_kib = await watched.settle()
            watched.forget_peak()
            readers = [Reading(number, engine) for number in range(count)]
            tasks = await begun(reader.run(watched.port) for reader in readers)
            async with asyncio.timeout(REST_S):
                await engine.all_open.wait()
            prober = await Prober.start(watched.port, "/health")
            cpu_s = watched.cpu_s()
            await ended(tasks, EVENTS * EVENT_PAUSE_S + REST_S)
            spent_s = watched.cpu_s() - cpu_s
            health = (await prober.end())["/health"]
            held_kib = (watched.peak_kib() - idle_kib) / count
            state = await watched.state()
    delays = sorted(delay_s * 1000 for reader in readers for delay_s in reader.delays_s)
    scene.law("most memory over idle, per stream", held_kib, MOST_KIB, "KiB")
    scene.tell("CPU of the router, an event", f"{spent_s / (count * EVENTS) * 1e6:.0f} us")
    shown = f"p50 {delays[len(delays) // 2]:.1f}, longest {delays[-1]:.1f} ms" if delays else "-"
    scene.tell("an event on its way from engine to client", shown)
    p99_ms = delays[len(delays) * 99 // 100] if delays else float("nan")
    scene.law("p99 of that", p99_ms, MOST_P99_MS, "ms")
    scene.tell("/health meanwhile", str(health))
    scene.law("its p99", health.p99_ms, MOST_P99_MS, "ms")
    scene.law("refused or lost", health.wrong, 0)
    wrong = [reader for reader in readers if reader.how != "exact"]
    scene.law("streams lost or not exact to the byte", len(wrong), 0)
    for reader in wrong[:3]:
        scene.broken.append(f"stream {reader.number}: {reader.how}")
    scene.law("left behind in slots", sum(state["inflight"].values()), 0)
    return [scene]
