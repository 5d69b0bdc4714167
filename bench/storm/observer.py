"""Looks at the router all along, from outside: its state, its metrics, its memory."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from typing import Any

from bench.storm.engines import Engine
from bench.storm.laws import Law, Laws
from bench.storm.operator import Desk

LONGEST_TTL_S = 12.0
"""The parked keep their place above a smaller new ceiling for no longer than this."""
_COUNTERS = ("_total", "_count", "_sum", "_bucket")


class Observer:
    """Samples the router. engines: all that it may know. samples: how many states were read."""

    def __init__(self, desk: Desk, engines: list[Engine], pid: int, laws: Laws) -> None:
        self.samples = 0
        self.deepest = 0
        self.held: list[int] = []
        """What ran at each quiet point."""
        self._desk = desk
        self._engines = {engine.url: engine for engine in engines}
        self._pid = pid
        self._laws = laws
        self._at = 0.0
        self._in_flight: dict[str, int] = {}
        self._ceilings: dict[str, deque[tuple[float, int]]] = {}
        self._metrics: dict[str, float] = {}
        self._looking = asyncio.Lock()

    async def watch(self, until: float) -> None:
        """Look four times a second until then."""
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            await self.look()
            await self.look_at_metrics()
            await asyncio.sleep(0.25)

    async def look(self) -> dict[str, Any]:
        """Read the state once and hold it to its laws; return it."""
        # One at a time: each sample is compared with the one before.
        async with self._looking:
            now = asyncio.get_running_loop().time()
            _, state = await self._desk.call("GET", "state")
            self.samples += 1
            self._sums(state)
            self._caps(state)
            for name, pool in state["pools"].items():
                self._ceiling(name, pool, state, now)
            self._at = now
        return state

    def in_flight(self, state: dict[str, Any]) -> dict[str, int]:
        """Return what runs on each engine's server, under whatever names."""
        found = dict.fromkeys(self._engines, 0)
        for backend in state["backends"].values():
            found[backend["url"]] += backend["in_flight"]
        return found

    def _sums(self, state: dict[str, Any]) -> None:
        backends, pools = state["backends"], state["pools"].values()
        counts = {name: backend["in_flight"] for name, backend in backends.items()}
        negative = [name for name, count in counts.items() if count < 0]
        self._laws.check(Law.NOT_NEGATIVE, not negative, negative)
        agree = (
            counts == state["inflight"]
            and sum(counts.values()) == sum(pool["in_flight"] for pool in pools)
            and state["queue_total_waiters"] == sum(pool["queue_depth"] for pool in pools)
        )
        shown = {key: state[key] for key in ("inflight", "queue_total_waiters", "pools")}
        self._laws.check(Law.SUMS, agree, f"{counts} {shown}")

    def _caps(self, state: dict[str, Any]) -> None:
        found = self.in_flight(state)
        for url, count in found.items():
            engine = self._engines[url]
            most = max(self._in_flight.get(url, 0), engine.allowed.most(self._at))
            detail = f"{engine.name}: {count} in flight, was {self._in_flight.get(url)}, {most}"
            self._laws.check(Law.STATE_CAP, count <= most, detail)
        self._in_flight = found

    def _ceiling(self, name: str, pool: dict[str, Any], state: dict[str, Any], now: float) -> None:
        recent = self._ceilings.setdefault(name, deque())
        recent.append((now, pool["queue_limit"]))
        while recent[0][0] < now - LONGEST_TTL_S:
            recent.popleft()
        # Who is parked again after a failed attempt is not refused by the ceiling: at most as many
        # as ran at once.
        slots = sum(engine.allowed.most(now - LONGEST_TTL_S) for engine in self._engines.values())
        most = max(ceiling for _, ceiling in recent) + slots
        self.deepest = max(self.deepest, pool["queue_depth"])
        detail = f"{name}: {pool['queue_depth']} parked, {most} allowed, {state['routing_mode']}"
        self._laws.check(Law.CEILING, pool["queue_depth"] <= most, detail)

    async def look_at_metrics(self) -> dict[str, float]:
        """Read the metrics once and hold them to their laws; return them."""
        metrics = await self._desk.metrics()
        negative = {name: value for name, value in metrics.items() if value < 0}
        self._laws.check(Law.NOT_NEGATIVE, not negative, negative)
        back = {
            name: (value, metrics.get(name))
            for name, value in self._metrics.items()
            if name.partition("{")[0].endswith(_COUNTERS) and metrics.get(name, -1.0) < value
        }
        self._laws.check(Law.MONOTONE, not back, back)
        self._metrics = metrics
        return metrics

    async def idle(self, patience_s: float) -> bool:
        """Wait until nothing runs and nothing waits, here and in the engines."""
        loop = asyncio.get_running_loop()
        until = loop.time() + patience_s
        while loop.time() < until:
            state = await self.look()
            running = sum(engine.running for engine in self._engines.values())
            if not (running or any(state["inflight"].values()) or state["queue_total_waiters"]):
                return True
            await asyncio.sleep(0.1)
        return False

    async def agrees(self, patience_s: float) -> str:
        """Wait until in-flight is each engine's own count; return what differs, "" for nothing."""
        loop = asyncio.get_running_loop()
        until = loop.time() + patience_s
        while True:
            found = self.in_flight(await self.look())
            own = {url: engine.running for url, engine in self._engines.items()}
            if found == own:
                self.held.append(sum(own.values()))
                return ""
            if loop.time() > until:
                names = {url: engine.name for url, engine in self._engines.items()}
                shown = {names[url]: (count, own[url]) for url, count in found.items()}
                return f"the router's count and the engine's own: {shown}"
            await asyncio.sleep(0.1)

    # ---- the process ---------------------------------------------------------------------------

    def rss_mib(self) -> float:
        """Return the resident set of the router."""
        lines = Path(f"/proc/{self._pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))

    def descriptors(self) -> int:
        """Return how many files the router has open."""
        return len(list(Path(f"/proc/{self._pid}/fd").iterdir()))
