"""A router in a process of its own that reports on itself: its loop's stalls, its memory.

    router = await MeasuredRouter.start(yaml, directory)
    await router.report()      # since the report before: the longest stall, and the memory
    await router.stop()

Run as a program it is that process. A stall is CPU time of the loop's own thread between two
firings of a timer of 1 ms: what one turn of the loop takes, whatever else the machine does.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TICK_S = 0.001
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Report:
    """stall_ms: the longest. rss_mib: now. peak_mib: the most since the report before.
    cpu_s: of the whole process since then.
    """

    stall_ms: float
    rss_mib: float
    peak_mib: float
    cpu_s: float


class MeasuredRouter:
    """The parent's end."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process = process
        self.url = url
        self.port = int(url.rpartition(":")[2])

    @classmethod
    async def start(
        cls, yaml: str, directory: Path, environ: Mapping[str, str] | None = None
    ) -> MeasuredRouter:
        """Start a router on this configuration, and wait until it is ready."""
        path = directory / "backends.yaml"
        path.write_text(yaml)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.measured_router", str(path),
            env={**os.environ, "LIFEBOAT_LOG_LEVEL": "error", **(environ or {})},
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 30)
        return cls(process, json.loads(line)["url"])

    async def report(self) -> Report:
        """Return what was measured since the last call."""
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGUSR1)
        return Report(**json.loads(await self.process.stdout.readline()))

    async def stop(self) -> None:
        """End it."""
        if self.process.returncode is None:
            self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), 10)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


# -- the process ------------------------------------------------------------------------------


class Stalls:
    """A timer that measures the loop it runs on."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.longest_s = 0.0
        self._at = time.thread_time()
        loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        now = time.thread_time()
        self.longest_s = max(self.longest_s, now - self._at)
        self._at = now
        self._loop.call_later(TICK_S, self._tick)


def memory_mib(key: str) -> float:
    """Return VmRSS or VmHWM of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"{key} is not in /proc/self/status")


async def serve(path: str) -> None:
    from lifeboat.edge.descriptors import raise_soft_limit
    from lifeboat.runtime import Router
    from lifeboat.settings.load import load

    raise_soft_limit()
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    stalls = Stalls(loop)
    cpu_at = time.process_time()

    def report() -> None:
        nonlocal cpu_at
        cpu_s = time.process_time() - cpu_at
        stall_ms = stalls.longest_s * 1000
        # Only a collection shows what is really held.
        gc.collect()
        page = {
            "stall_ms": stall_ms,
            "rss_mib": memory_mib("VmRSS"),
            "peak_mib": memory_mib("VmHWM"),
            "cpu_s": cpu_s,
        }
        print(json.dumps(page), flush=True)
        Path("/proc/self/clear_refs").write_text("5")
        cpu_at = time.process_time()
        loop.call_soon(forget)

    def forget() -> None:
        stalls._at = time.thread_time()
        stalls.longest_s = 0.0

    loop.add_signal_handler(signal.SIGUSR1, report)
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    flags = {"port": "0", "config": path, "shutdown_grace_s": "1"}
    configuration = load(flags, dict(os.environ), Path(path).parent)
    router = Router(configuration)
    await router.run(stop, lambda ready: print(json.dumps({"url": ready.addresses[0]}), flush=True))


def main() -> None:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(sys.argv[1]))


if __name__ == "__main__":
    main()
