"""Ten thousand requests wait in one process: what each holds, and that none is lost or overtaken.

One backend whose slots are taken. The queue is filled to its ceiling, a few more are refused, a few
clients leave; then the engine answers, and each that is left must get its own answer.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from pathlib import Path

from bench.connections.answers import body_pieces
from bench.connections.scene import (
    AT_ONCE,
    MOST_P99_MS,
    Prober,
    Scene,
    Watched,
    begun,
    ended,
    need_descriptors,
    router,
)
from tests.acceptance.engines import json_answer
from tests.peers import Peer, RawClient, ScriptedBackend
from tests.running import CHAT, backend, backends_yaml

PARKED = 10_000
SLOTS = 16
REFUSED, LEAVING = 0.01, 0.01
"""Shares of the parked: so many more come and are refused, so many clients leave."""
TEXT = "a" * 1000
HOLD_S = 3.0
REST_S = 120.0
MOST_KIB = 16.0
"""Of the router's memory for each (issue 4): its connection, its task, its ticket, and its body of
one KiB."""


class HeldEchoes(ScriptedBackend):
    """Answers each chat with its own number, once `open` is set. asked: numbers, in order."""

    def __init__(self) -> None:
        super().__init__(self._serve)
        self.open = asyncio.Event()
        self.asked: list[int] = []
        self.running = 0
        self.most_running = 0

    async def _serve(self, peer: Peer) -> None:
        while True:
            received = await peer.request()
            if received.method != "POST":
                await peer.send(json_answer({"object": "list", "data": [{"id": "m"}]}))
                continue
            number = json.loads(received.body)["user"]
            self.asked.append(int(number))
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            await self.open.wait()
            self.running -= 1
            await peer.send(json_answer({"choices": [], "user": number}))

    def most_overtaken(self) -> int:
        """Return by how many places the furthest request came before its turn."""
        ordered = sorted(self.asked)
        place = {number: at for at, number in enumerate(ordered)}
        return max((place[number] - at for at, number in enumerate(self.asked)), default=0)


class Waiting:
    """One client. how: what it got in the end."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.how = "nothing"

    async def run(self, port: int) -> None:
        """Ask, and wait for the answer."""
        client = await RawClient.connect(port)
        try:
            message = {"role": "user", "content": TEXT}
            # Of one length, and so of one size for the order among the parked.
            body = {"model": "m", "user": f"{self.number:06}", "messages": [message]}
            await client.post(CHAT, json.dumps(body).encode())
            raw = b"".join([piece async for piece in body_pieces(client.reader, lambda: 1 << 16)])
            mine = json.loads(raw)["user"] == f"{self.number:06}"
            self.how = "its answer" if mine else "another's answer"
        except (ValueError, ConnectionError, asyncio.IncompleteReadError) as error:
            self.how = str(error)
        except asyncio.CancelledError:
            self.how = "left"
            raise
        finally:
            client.close()


async def filled(watched: Watched, count: int) -> tuple[list[Waiting], list[asyncio.Task[None]]]:
    """Take all slots, then park this many, in order."""
    clients = [Waiting(number) for number in range(SLOTS + count)]
    tasks = await begun(client.run(watched.port) for client in clients)
    await watched.until_parked(count)
    return clients, tasks


async def run(directory: Path, scale: float) -> list[Scene]:
    """Run the scene."""
    count = max(200, round(PARKED * scale))
    more, leaving = round(REFUSED * count), round(LEAVING * count)
    need_descriptors(count + more)
    scene = Scene(f"{count:,} parked requests of 1 KiB")
    async with HeldEchoes() as engine:
        yaml = backends_yaml(
            backend(engine.url, max_concurrency=SLOTS),
            queue={"enabled": True, "max_depth": count, "ttl": "600s"},
        )
        async with router(yaml, directory) as watched:
            idle_kib, begun_at = await watched.settle(), time.monotonic()
            clients, tasks = await filled(watched, count)
            scene.tell("parked within", f"{time.monotonic() - begun_at:.1f} s")
            prober = await Prober.start(watched.port, "/health", "/api/lb/state")
            await asyncio.sleep(HOLD_S)
            held_kib = (watched.rss_kib() - idle_kib) / count

            over = [Waiting(SLOTS + count + number) for number in range(more)]
            await ended(await begun(client.run(watched.port) for client in over), REST_S)
            # None of the first crowd, any of which may run.
            first = SLOTS + AT_ONCE
            gone = range(first, SLOTS + count, (count - AT_ONCE) // leaving)[:leaving]
            for at in gone:
                tasks[at].cancel()
            await watched.until_parked(count - leaving)
            meanwhile = await prober.end()

            cpu_s, begun_at = watched.cpu_s(), time.monotonic()
            engine.open.set()
            await ended(tasks, REST_S)
            took_s, spent_s = time.monotonic() - begun_at, watched.cpu_s() - cpu_s
            state = await watched.state()
            after_kib = (watched.rss_kib() - idle_kib) / count
    served = SLOTS + count - leaving
    scene.law("router's memory over idle, per parked request", held_kib, MOST_KIB, "KiB")
    scene.tell("the same once all were answered", f"{after_kib:.1f} KiB")
    for path, answers in meanwhile.items():
        scene.tell(f"{path} meanwhile", str(answers))
        scene.law("its p99", answers.p99_ms, MOST_P99_MS, "ms")
        scene.law("refused or lost", answers.wrong, 0)
    scene.tell("hand-off", f"{served / took_s:,.0f} a second, {spent_s / served * 1e6:.0f} us each")
    ends = Counter(client.how for client in (*clients, *over))
    refused = ends["HTTP/1.1 503 Service Unavailable"]
    scene.tell("how they ended", "; ".join(f"{many:,} x {how}" for how, many in ends.items()))
    scene.law("without their own answer", abs(served - ends["its answer"]), 0)
    scene.law("above the ceiling and not refused, or the reverse", abs(more - refused), 0)
    scene.law("clients that left, and were counted otherwise", abs(leaving - ends["left"]), 0)
    scene.law("requests of clients that had left, at the engine", len(engine.asked) - served, 0)
    scene.law("most running at the engine", engine.most_running, SLOTS)
    # Those that came at once may be taken up in any order, and so may those that run at once.
    scene.law("places before its turn", engine.most_overtaken(), AT_ONCE + SLOTS)
    left = state["queue_total_waiters"] + sum(state["inflight"].values())
    scene.law("left behind in the queue or in slots", left, 0)
    return [scene]
