"""The storm itself: phases of weather, a quiet point after each, and the reckoning."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression
from typing import Any

from bench.storm.books import read_log, reckon, reckon_metrics
from bench.storm.clients import BOUND_S, MOST_BODY_BYTES, Clients, Outcome, ordinary
from bench.storm.engines import Book, Engine, Mood
from bench.storm.laws import Law, Laws
from bench.storm.observer import Observer
from bench.storm.operator import Desk, Operator, configuration
from tests.running import RouterProcess

CLIENTS = 40
PAUSE_S = 0.15
"""Mean pause of a client between two requests: the machine has other work."""
ACT_PAUSE_S = 0.25
PHASE_S = 30.0
SETTLE_S = 20.0
_ROOT = str(Path(__file__).resolve().parents[2])
MOST_GROWTH_MIB = 8.0
"""From the end of the warm-up to the end."""
ENVIRON = {
    "LIFEBOAT_LOG_FORMAT": "json",
    "LIFEBOAT_LOG_LEVEL": "info",
    "LIFEBOAT_LB_TOKENIZER": "quick",
    "LIFEBOAT_MAX_BODY_BYTES": str(MOST_BODY_BYTES),
    "LIFEBOAT_CLIENT_BODY_TIMEOUT_SEC": "3",
    "LIFEBOAT_CLIENT_WRITE_TIMEOUT_SEC": "3",
    "LIFEBOAT_LB_QUEUE_ALL_TTL_SEC": "10",
    "LIFEBOAT_SHUTDOWN_GRACE_SEC": "5",
}


@dataclass
class Storm:
    """What came of it. memory: (seconds, resident MiB) at each quiet point."""

    laws: Laws = field(default_factory=Laws)
    book: Book = field(default_factory=lambda: Book(list))
    memory: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    figures: dict[str, str] = field(default_factory=dict[str, str])


class Run:
    """One storm in progress."""

    def __init__(
        self, storm: Storm, router: RouterProcess, engines: list[Engine], desk: Desk, seed: int
    ) -> None:
        self.storm = storm
        self.router = router
        self.engines = engines
        self.observer = Observer(desk, engines, router.process.pid, storm.laws)
        path = router.log.parent / "storm.yaml"
        pid = router.process.pid
        self.operator = Operator(desk, engines[:-1], engines[-1], path, pid, seed)
        self.clients = Clients(router.port, ("m", "n"), storm.laws, seed)

    async def phase(self, seconds: float) -> None:
        """All at once for so long, then a quiet point with everything held, then none at all."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self.observer.watch(float("inf")))
            operating = tasks.create_task(self.operator.work(until, ACT_PAUSE_S))
            async with asyncio.TaskGroup() as crowd:
                self.clients.paused = False
                for _ in range(CLIENTS):
                    crowd.create_task(self.clients.live(until + 1.0, PAUSE_S))
                await operating
                await self._hold()
            watching.cancel()
        idle = await self.observer.idle(SETTLE_S)
        self.storm.laws.check(Law.IDLE, idle, "it did not become idle")
        self.storm.memory.append((loop.time(), self.observer.rss_mib()))

    async def _hold(self) -> None:
        """Hold what runs in the engines, begin nothing new, and compare the counts."""
        for engine in self.engines:
            engine.held, engine.mood = True, Mood.WELL
        await asyncio.sleep(0.5)
        self.clients.paused = True
        differs = await self.observer.agrees(SETTLE_S)
        self.storm.laws.check(Law.QUIET, not differs, differs)
        for engine in self.engines:
            engine.held = False

    async def tasks(self) -> dict[str, Any]:
        """Return what the router tells of its tasks."""
        stdout = self.router.process.stdout
        assert stdout is not None
        self.router.process.send_signal(signal.SIGUSR1)
        async with asyncio.timeout(SETTLE_S):
            while not (line := await stdout.readline()).startswith(b"{"):
                pass
        return json.loads(line)

    async def baseline(self) -> tuple[int, int]:
        """Return the fewest tasks and open files of some looks, with no idle connection kept."""
        found: list[tuple[int, int]] = []
        for _ in range(6):
            await self.observer.look()
            for engine in self.engines:
                await engine.drop_connections()
            await asyncio.sleep(0.3)
            found.append(((await self.tasks())["tasks"], self.observer.descriptors()))
        tasks, files = zip(*found, strict=True)
        return min(tasks), min(files)

    async def settled(self, tasks: int, files: int) -> None:
        """Wait until tasks and open files are back at the baseline."""
        loop = asyncio.get_running_loop()
        until = loop.time() + SETTLE_S
        while True:
            now = await self.baseline()
            if (now[0] <= tasks and now[1] <= files) or loop.time() > until:
                break
        names = (await self.tasks())["names"]
        laws, figures = self.storm.laws, self.storm.figures
        laws.check(Law.TASKS, now[0] <= tasks, f"{tasks} before, now {now[0]}: {names}")
        laws.check(Law.DESCRIPTORS, now[1] <= files, f"{files} before, now {now[1]}")
        figures["tasks, before and after"] = f"{tasks}, {now[0]}"
        figures["open files, before and after"] = f"{files}, {now[1]}"

    async def still_serves(self) -> None:
        """Ask some ordinary things: each must be answered."""
        before = len(self.clients.told)
        async with asyncio.TaskGroup() as asking:
            for _ in range(10):
                asking.create_task(self.clients.one(ordinary))
        told = self.clients.told[before:]
        good = [one for one in told if one.outcome is Outcome.ANSWERED]
        self.storm.laws.check(Law.SERVES, len(good) == len(told), told)


async def storm(seconds: float, seed: int, directory: Path) -> Storm:
    """Run one; about so long, and what the quiet points take."""
    found = Storm()
    limits = (4, 4, 4, 4, 4, 0)
    names = ("a", "b", "c", "d", "e", "guest")
    engines = [
        Engine(name, limit, found.book, found.laws, seed)
        for name, limit in zip(names, limits, strict=True)
    ]
    loop = asyncio.get_running_loop()
    begun = loop.time()
    async with _running(engines, directory, seed) as (router, desk):
        run = Run(found, router, engines, desk, seed)
        tasks, descriptors = await run.baseline()
        phases = max(2, round(seconds / PHASE_S))
        for _ in range(phases):
            await run.phase(seconds / phases)
        await run.operator.calm()
        await asyncio.sleep(1.0)
        await run.still_serves()
        found.laws.check(Law.IDLE, await run.observer.idle(SETTLE_S), "at the end")
        metrics = await run.observer.look_at_metrics()
        await run.settled(tasks, descriptors)
        took_s = loop.time() - begun
        code = await router.stop(BOUND_S)
        found.laws.check(Law.SERVES, code == 0, f"the router ended with {code}")
    lines = read_log(router.log, found.laws)
    reckon(run.clients.told, found.book, lines, found.laws)
    reckon_metrics(metrics, lines, found.book, found.laws)
    _memory(found)
    _figures(found, run, took_s)
    return found


@contextlib.asynccontextmanager
async def _running(
    engines: list[Engine], directory: Path, seed: int
) -> AsyncIterator[tuple[RouterProcess, Desk]]:
    """Run the engines and a router over them."""
    for engine in engines:
        await engine.start()
    path = directory / "storm.yaml"
    path.write_text(configuration(engines[:-1], random.Random(seed)))
    command = (sys.executable, "-m", "bench.storm.served")
    router = await RouterProcess.start(
        "--config", str(path), cwd=directory, environ={**ENVIRON, "PYTHONPATH": _ROOT},
        command=command,
    )  # fmt: skip
    desk = Desk(router.url)
    try:
        yield router, desk
    finally:
        await desk.close()
        if router.process.returncode is None:
            router.process.kill()
            await router.process.wait()
        for engine in engines:
            await engine.die()


def _memory(found: Storm) -> None:
    """Compare the end with the end of the warm-up: a quarter of the storm."""
    warm = found.memory[len(found.memory) // 4 :]
    growth = warm[-1][1] - warm[0][1]
    slope = linear_regression(*zip(*warm, strict=True)).slope
    found.laws.check(Law.MEMORY, growth <= MOST_GROWTH_MIB, f"{growth:.1f} MiB: {found.memory}")
    found.figures |= {
        "resident MiB at the quiet points": ", ".join(f"{mib:.1f}" for _, mib in found.memory),
        "growth after the warm-up": f"{growth:.1f} MiB; slope {slope * 60 * 1024:.0f} KiB a minute",
    }


def _figures(found: Storm, run: Run, took_s: float) -> None:
    told = run.clients.told
    ends = Counter(send.end for sends in found.book.values() for send in sends)
    found.figures |= {
        "seconds": f"{took_s:.0f}",
        "requests": str(len(told)),
        "states read": str(run.observer.samples),
        "deepest queue seen": str(run.observer.deepest),
        "most in an engine, by its own count": str(max(e.most_running for e in run.engines)),
        "held at the quiet points": ", ".join(map(str, run.observer.held)),
        "engines killed": str(sum(engine.deaths for engine in run.engines)),
        "operator": _listed(run.operator.done),
        "clients": _listed(run.clients.kinds),
        "outcomes": _listed(Counter(one.outcome.value for one in told)),
        "refused": _listed(Counter(one.reason for one in told if one.reason)),
        "what reached an engine, by its end": _listed(ends),
    }


def _listed(counts: Counter[Any]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.most_common())
