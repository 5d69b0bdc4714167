"""What every scene needs: a router process to look at, laws to hold it to, a table to tell it in.

The router is `lifeboat serve` as a user runs it; its memory and its CPU time are read from /proc
(Linux), those of its descendants included.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bench.peers.processes import tree_cpu_s
from bench.peers.results import table
from lifeboat.edge.descriptors import raise_soft_limit
from tests.running import RouterProcess

SPARE_DESCRIPTORS = 200
ENVIRON = {"LIFEBOAT_LOG_LEVEL": "error", "LIFEBOAT_SHUTDOWN_GRACE_SEC": "1"}
AT_ONCE = 50
"""Clients that connect between two pauses, so that no listen queue overflows."""
STILL_S, STILL_KIB = 1.0, 256.0
MOST_P99_MS = 250.0
"""Of answers to others meanwhile: hardly noticed by a person, and no noise of a shared machine."""


@dataclass
class Scene:
    """The figures of one scene. broken: the laws that did not hold, in words."""

    title: str
    rows: list[list[str]] = field(default_factory=list[list[str]])
    broken: list[str] = field(default_factory=list[str])

    def tell(self, what: str, figure: str) -> None:
        """Note a figure that no law binds."""
        self.rows.append([what, figure, ""])

    def law(self, what: str, figure: float, most: float, unit: str = "") -> None:
        """Note a figure that must be at most this."""
        shown, bound = (f"{value:,.4g} {unit}".strip() for value in (figure, most))
        self.rows.append([what, shown, f"at most {bound}" if most else "none"])
        # Not `figure > most`: what is no number keeps no law.
        if not figure <= most:
            self.broken.append(f"{what}: {shown}, and the law is at most {bound}")

    def text(self) -> str:
        """Return its part of bench/RESULTS.md."""
        verdict = "\n".join(f"- BROKEN: {line}" for line in self.broken)
        parts = (f"**{self.title}**", table(["", "measured", "law"], self.rows), verdict)
        return "\n\n".join(part for part in parts if part)


class Watched:
    """A running router, seen from outside."""

    def __init__(self, process: RouterProcess) -> None:
        self._pid = process.process.pid
        self.port = process.port
        self.url = process.url

    def _memory_kib(self, key: str) -> float:
        status = Path(f"/proc/{self._pid}/status").read_text().splitlines()
        return next(float(line.split()[1]) for line in status if line.startswith(key))

    async def state(self) -> dict[str, Any]:
        """Return /api/lb/state."""
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{self.url}/api/lb/state") as answer:
                return await answer.json()

    async def until_parked(self, count: int, patience_s: float = 60.0) -> None:
        """Wait until exactly so many requests are parked. Raises TimeoutError."""
        async with asyncio.timeout(patience_s):
            while (await self.state())["queue_total_waiters"] != count:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def settle(self) -> float:
        """Wait until its memory stands still; return its resident set in KiB.

        The encoding loads in the background, and the pages it serves take memory once.
        """
        still_since, before = time.monotonic(), 0.0
        while time.monotonic() - still_since < STILL_S:
            await self.state()
            await asyncio.sleep(0.1)
            now_kib = self.rss_kib()
            if now_kib - before > STILL_KIB:
                still_since, before = time.monotonic(), now_kib
        return self.rss_kib()

    def rss_kib(self) -> float:
        """Return the resident set as it is."""
        return self._memory_kib("VmRSS")

    def forget_peak(self) -> None:
        """Make the present resident set the peak."""
        Path(f"/proc/{self._pid}/clear_refs").write_text("5")

    def peak_kib(self) -> float:
        """Return the largest resident set since `forget_peak`."""
        return self._memory_kib("VmHWM")

    def cpu_s(self) -> float:
        """Return the CPU seconds used so far."""
        return tree_cpu_s(self._pid)


@contextlib.asynccontextmanager
async def router(
    yaml: str, directory: Path, environ: Mapping[str, str] | None = None
) -> AsyncIterator[Watched]:
    """Run `lifeboat serve` on this configuration."""
    path = directory / "connections.yaml"
    path.write_text(yaml)
    process = await RouterProcess.start(
        "--config", str(path), cwd=directory,
        environ={**ENVIRON, **(environ or {})},
    )  # fmt: skip
    try:
        yield Watched(process)
    finally:
        await process.stop()


def kernel_kib() -> float:
    """Return what the kernel holds for all TCP sockets of this machine."""
    lines = Path("/proc/net/sockstat").read_text().splitlines()
    words = next(line for line in lines if line.startswith("TCP:")).split()
    return int(words[words.index("mem") + 1]) * resource.getpagesize() / 1024


def need_descriptors(count: int) -> None:
    """Make room for so many sockets in this process and its children, or say what to do."""
    raise_soft_limit()
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + SPARE_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        sys.exit(
            f"this scene opens {wanted} files and only {soft} may be open: raise the hard limit "
            f"(ulimit -Hn {wanted}, as root), or take a smaller --scale"
        )


async def begun(clients: Iterable[Coroutine[None, None, None]]) -> list[asyncio.Task[None]]:
    """Start a task for each client, a crowd at a time."""
    tasks: list[asyncio.Task[None]] = []
    for client in clients:
        tasks.append(asyncio.create_task(client))
        if len(tasks) % AT_ONCE == 0:
            await asyncio.sleep(0.05)
    return tasks


async def ended(tasks: list[asyncio.Task[None]], patience_s: float) -> None:
    """Wait for them all; cancel those that take longer. Raises what one of them raised."""
    _, late = await asyncio.wait(tasks, timeout=patience_s)
    for task in late:
        task.cancel()
    for found in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(found, Exception):
            raise found


class Prober:
    """Ordinary requests in turn, by a client of its own process (bench/connections/prober.py)."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, port: int, *paths: str) -> Prober:
        """Begin to ask for these paths."""
        command = [sys.executable, "-m", "bench.connections.prober", str(port), *paths]
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        return cls(process)

    async def end(self) -> dict[str, Answers]:
        """Stop asking; return what came, by path."""
        output, _ = await self._process.communicate(b"")
        return {path: Answers(**page) for path, page in json.loads(output).items()}


@dataclass(frozen=True, slots=True)
class Answers:
    """wrong: requests that did not end in a 200."""

    count: int
    wrong: int
    p50_ms: float
    p99_ms: float
    most_ms: float

    def __str__(self) -> str:
        times = f"p50 {self.p50_ms:.1f}, p99 {self.p99_ms:.1f}, longest {self.most_ms:.1f} ms"
        return f"{times} of {self.count}"
