"""Changing the configuration of a running router, as an operator does: the file, then a signal."""

from __future__ import annotations

import asyncio

from tests.running import Running


async def reloads(running: Running) -> tuple[int, int]:
    """Return how often the configuration was put in force again, and how often refused."""
    metrics = await running.metrics()
    good, bad = (
        metrics[f'lifeboat_config_reloads_total{{result="{result}"}}']
        for result in ("success", "failure")
    )
    return int(good), int(bad)


async def rewrite(running: Running, yaml: str) -> bool:
    """Write the file and ask for a reload; return whether it was put in force."""
    path = running.router.configuration.path
    assert path is not None
    before = await reloads(running)
    path.write_text(yaml)
    running.router.ask_to_reload()
    async with asyncio.timeout(5.0):
        while (now := await reloads(running)) == before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return now[0] > before[0]
