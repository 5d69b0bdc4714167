"""Pictures of the dashboard under load, for the docs and for eyes.

python -m tests.web.screenshots DIRECTORY [SECONDS OF LOAD BEFORE]
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
from playwright.async_api import Browser

from lifeboat.sim.config import EngineConfig
from lifeboat.sim.server import SimulatedServer
from tests.running import Running, running_router
from tests.web.browsing import NARROW, WIDE, Scheme, chromium, watching

SHOTS: list[tuple[str, tuple[int, int], Scheme]] = [
    ("dashboard", WIDE, "light"),
    ("dashboard-dark", WIDE, "dark"),
    ("dashboard-narrow", NARROW, "light"),
    ("dashboard-narrow-dark", NARROW, "dark"),
]
FULL_SECONDS = 345.0


@contextlib.asynccontextmanager
async def busy_router(directory: Path) -> AsyncIterator[Running]:
    """Two engines behind one model, and a llama.cpp server in the slot trap."""
    server = SimulatedServer(
        [
            EngineConfig.from_mapping(
                {"model": "llama-3.1-8b", "personality": "gguf", "max_num_seqs": 2}
            )
        ]
    )
    url = await server.start(host="127.0.0.1", port=0)
    yaml = f"""
queue: {{enabled: true, ttl: 60s}}
backends:
  - name: sim
    replicas: 2
    kind: simulated
    models: [gpt-oss-20b]
    max_concurrency: 8
    simulate: {{model: gpt-oss-20b, hardware: b200, max_num_seqs: 16}}
  - {{name: llama-1, kind: gguf, url: "{url}", models: [llama-3.1-8b], max_concurrency: 4,
      max_input_tokens: 8192}}
"""
    try:
        async with running_router(yaml, directory) as running:
            yield running
    finally:
        await server.close()


async def waves(running: Running) -> None:
    """Ask in waves that overrun the slots and run dry, for ever."""
    url = f"{running.url}/v1/chat/completions"

    async def one(model: str, number: int) -> None:
        words = "word " * (20 + number * 37 % 800)
        priority = ("normal", "high", "low")[number % 7 % 3]
        body = {
            "model": model,
            "messages": [{"role": "user", "content": words}],
            "max_tokens": 600 + number * 53 % 900,
        }
        with contextlib.suppress(aiohttp.ClientError):
            async with running.session.post(
                url, json=body, headers={"X-Lifeboat-Priority": priority}
            ) as answer:
                await answer.read()

    async with asyncio.TaskGroup() as tasks:
        number = 0
        for second in range(sys.maxsize):
            height = 9 + 9 * math.cos(second / 14) + (60 if second % 90 == 40 else 0)
            for _ in range(round(height)):
                number += 1
                model = "llama-3.1-8b" if number % 12 == 0 else "gpt-oss-20b"
                tasks.create_task(one("gpt-oss-20B" if number % 211 == 0 else model, number))
            await asyncio.sleep(1.0)


async def take(browser: Browser, directory: Path, seconds: float) -> list[Path]:
    """Load a router for some seconds, then take the pictures; return their paths."""
    taken: list[Path] = []
    with tempfile.TemporaryDirectory() as scratch:
        async with busy_router(Path(scratch)) as running:
            load = asyncio.get_running_loop().create_task(waves(running))
            try:
                await asyncio.sleep(seconds)
                for name, size, scheme in SHOTS:
                    taken.append(directory / f"{name}.png")
                    async with watching(browser, running.url, size, scheme) as seen:
                        await seen.page.wait_for_selector("#charts .line")
                        await seen.page.wait_for_selector("#rejections tbody tr")
                        await running.until(lambda state: state["queue_total_waiters"] > 8, 60.0)
                        await seen.page.wait_for_function("() => document.title.includes('parked')")
                        await seen.page.screenshot(path=taken[-1])
                        if name == SHOTS[0][0]:
                            taken.append(directory / "dashboard-backends.png")
                            await seen.find("#backends").screenshot(path=taken[-1])
            finally:
                load.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await load
    return taken


async def main(directory: Path, seconds: float) -> None:
    async with chromium() as browser:
        for path in await take(browser, directory, seconds):
            sys.stdout.write(f"{path}: {path.stat().st_size} bytes\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), float((sys.argv[2:] or [FULL_SECONDS])[0])))
