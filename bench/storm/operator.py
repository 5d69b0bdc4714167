"""What is done to the router and to its engines while it serves, at random.

Every limit that the operator sets is noted with the engine, so that each may judge by it.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from bench.storm.engines import Engine, Mood
from tests.running import backends_yaml

SUPERFAST_CAP = 4
MOST_LIMIT = 6
MODES = ("default", "queue-all", "superfast")


class Desk:
    """Calls to the router's own paths, each on a connection of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        connector = aiohttp.TCPConnector(force_close=True)
        self._session = aiohttp.ClientSession(connector=connector)

    async def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Return status and page of a call below /api/lb/."""
        async with self._session.request(method, f"{self._url}/api/lb/{path}", json=body) as answer:
            return answer.status, None if answer.status == 204 else await answer.json()

    async def metrics(self) -> dict[str, float]:
        """Return every sample, by name and labels as they are written."""
        async with self._session.get(f"{self._url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    async def close(self) -> None:
        await self._session.close()


class Operator:
    """Turns every knob. engines: those of the file; guest: the one that registers and leaves."""

    def __init__(
        self, desk: Desk, engines: list[Engine], guest: Engine, path: Path, pid: int, seed: int
    ) -> None:
        self.done: Counter[str] = Counter()
        self._desk = desk
        self._engines = engines
        self._steady = engines[:-1]
        """Those that are always in the file, and so may be called by name."""
        self._guest = guest
        self._path = path
        self._pid = pid
        self._chance = random.Random(f"{seed} operator")
        self._mode = "default"
        self._limits = {engine.name: engine.allowed.limit for engine in (*engines, guest)}
        self._states = dict.fromkeys(self._limits, "ready")
        self._guest_names: set[str] = set()

    # ---- what is allowed -----------------------------------------------------------------------

    def _bound(self, engine: Engine) -> int:
        if self._states[engine.name] != "ready":
            return 0
        limit = self._limits[engine.name]
        return min(limit, SUPERFAST_CAP) if self._mode == "superfast" else limit

    async def _change(self, call: Awaitable[None], apply: Callable[[], None]) -> None:
        """Allow the higher of both while the change is under way, the new one alone after it."""
        everyone = (*self._engines, self._guest)
        before = {engine.name: self._bound(engine) for engine in everyone}
        apply()
        loop = asyncio.get_running_loop()
        for engine in everyone:
            engine.allowed.note(max(before[engine.name], self._bound(engine)), loop.time())
        await call
        for engine in everyone:
            engine.allowed.note(self._bound(engine), loop.time())

    async def _call(self, method: str, path: str, body: object, *statuses: int) -> None:
        status, page = await self._desk.call(method, path, body)
        if status not in statuses:
            raise RuntimeError(f"{method} {path} {body}: {status} {page}")

    # ---- the acts ------------------------------------------------------------------------------

    async def mode(self, mode: str | None = None) -> None:
        mode = mode or self._chance.choice(MODES)
        call = self._call("PUT", "mode", {"mode": mode}, 200)

        def apply() -> None:
            self._mode = mode

        await self._change(call, apply)

    async def queue(self) -> None:
        enabled = self._chance.random() < 0.7
        await self._call("PUT", "mode", {"queue_enabled": enabled}, 200)

    async def retune(self) -> None:
        engine, limit = self._chance.choice(self._steady), self._chance.randint(1, MOST_LIMIT)
        call = self._call("PATCH", f"backends/{engine.name}", {"max_concurrency": limit}, 200)
        await self._change(call, lambda: self._limits.update({engine.name: limit}))

    async def drain_or_open(self) -> None:
        engine = self._chance.choice(self._steady)
        closed = self._states[engine.name] != "ready"
        await self._set_state(
            engine, "ready" if closed else self._chance.choice(("drain", "maint"))
        )

    async def _set_state(self, engine: Engine, state: str) -> None:
        call = self._call("PATCH", f"backends/{engine.name}", {"state": state}, 200)
        await self._change(call, lambda: self._states.update({engine.name: state}))

    async def reload(self) -> None:
        """Write the file anew and send SIGHUP: other queues, at times without the last member."""
        await self._put_in_force(self._engines[: None if self._chance.random() < 0.7 else -1])

    async def _put_in_force(self, members: list[Engine]) -> None:
        before = await self._reloads()
        self._path.write_text(configuration(members, self._chance))
        os.kill(self._pid, signal.SIGHUP)
        async with asyncio.timeout(20):
            while await self._reloads() == before:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def _reloads(self) -> float:
        metrics = await self._desk.metrics()
        return sum(v for name, v in metrics.items() if "config_reloads_total" in name)

    async def register(self) -> None:
        """Let the guest in, under one of two names: its server keeps its cap under either."""
        limit = self._chance.randint(1, MOST_LIMIT)
        name = self._chance.choice(("guest", "guest-again"))
        if self._guest_names - {name}:
            await self.remove()
        entry = {
            "name": name, "url": self._guest.url, "kind": "openai", "models": ["m", "n"],
            "max_concurrency": limit,
        }  # fmt: skip
        call = self._call("POST", "backends", entry, 200, 201)
        await self._change(call, lambda: self._limits.update({self._guest.name: limit}))
        self._guest_names.add(name)

    async def remove(self) -> None:
        for name in sorted(self._guest_names):
            await self._call("DELETE", f"backends/{name}", None, 202, 204)
        self._guest_names.clear()

    async def kill(self) -> None:
        """End an engine, and the one that ended before it comes back."""
        everyone = (*self._engines, self._guest)
        dead = [engine for engine in everyone if not engine.alive]
        if dead:
            await self._chance.choice(dead).start()
        if len(dead) < 2:
            await self._chance.choice([engine for engine in everyone if engine.alive]).die()

    async def mood(self) -> None:
        """Change the mood of two engines: most are in some mood, and most of all well."""
        for engine in self._chance.sample((*self._engines, self._guest), 2):
            engine.mood = self._chance.choice((*Mood, Mood.WELL, Mood.WELL, Mood.SLOW))

    # ---- all together --------------------------------------------------------------------------

    async def work(self, until: float, pause_s: float) -> None:
        """Do one thing after another until then."""
        loop = asyncio.get_running_loop()
        acts: dict[Callable[[], Awaitable[None]], int] = {
            self.mode: 3, self.queue: 2, self.retune: 5, self.drain_or_open: 4, self.reload: 2,
            self.register: 2, self.remove: 1, self.kill: 4, self.mood: 8,
        }  # fmt: skip
        while loop.time() < until:
            act = self._chance.choices(list(acts), list(acts.values()))[0]
            await act()
            self.done[act.__name__] += 1
            await asyncio.sleep(self._chance.uniform(0, 2 * pause_s))

    async def calm(self) -> None:
        """Let every engine be well and alive, every backend ready, the guest gone."""
        for engine in (*self._engines, self._guest):
            engine.mood = Mood.WELL
            if not engine.alive:
                await engine.start()
        await self._put_in_force(self._engines)
        for engine in self._engines:
            if self._states[engine.name] != "ready":
                await self._set_state(engine, "ready")
        await self.remove()
        await self.mode("default")


def configuration(engines: list[Engine], chance: random.Random) -> str:
    """Return a file with these members, and a queue of some size."""
    entries = [
        {
            "name": engine.name, "url": engine.url, "kind": engine.kind,
            "models": ["m"] if index < 2 else ["m", "n"], "max_concurrency": 4,
        }
        for index, engine in enumerate(engines)
    ]  # fmt: skip
    queue = {
        "enabled": True, "ttl": f"{chance.randint(3, 6)}s", "boost": "1s",
        "depth_multiplier": chance.choice((1, 2, 4)),
    }  # fmt: skip
    return backends_yaml(*entries, queue=queue)
