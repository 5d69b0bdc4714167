"""A real Prometheus scrapes the page and knows the series."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from lifeboat.core.vocabulary import EngineReading
from lifeboat.observe.metric_table import METRICS
from lifeboat.observe.metrics import Metrics
from tests.observe.scenes import finished, view

CONFIG = """
global: {scrape_interval: 1s}
scrape_configs:
  - job_name: lifeboat
    static_configs: [{targets: ["127.0.0.1:%d"]}]
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
async def page_port() -> AsyncIterator[int]:
    metrics = Metrics(
        view,
        version="1.2.3",
        configured_pools=lambda: ["m"],
        engines=dict[str, EngineReading],
    )
    metrics.finished(finished(wait_s=1.0))

    async def show(request: web.Request) -> web.Response:
        body, content_type = metrics.render(request.headers.get("Accept"))
        return web.Response(body=body, headers={"Content-Type": content_type})

    app = web.Application()
    app.router.add_get("/metrics", show)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


@pytest.mark.real
async def test_prometheus_scrapes_every_metric_of_the_table(page_port: int, tmp_path: Path) -> None:
    assert not await missing_after_a_scrape(page_port, tmp_path)


async def missing_after_a_scrape(port: int, directory: Path) -> set[str]:
    """Have a real Prometheus scrape a page; return the metrics of the table that it lacks then."""
    binary = shutil.which("prometheus")
    assert binary, "prometheus is not installed: apt-get install prometheus"
    config = directory / "prometheus.yml"
    config.write_text(CONFIG % port)
    own = free_port()
    with (directory / "log").open("wb") as log:
        server = await asyncio.create_subprocess_exec(
            binary,
            f"--config.file={config}",
            f"--storage.tsdb.path={directory / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{own}",
            stdout=log,
            stderr=log,
        )
    try:
        names = await _scraped_names(f"http://127.0.0.1:{own}")
    finally:
        server.terminate()
        await asyncio.wait_for(server.wait(), 20)
    return {row.name for row in METRICS} - {name.removesuffix("_bucket") for name in names}


async def _scraped_names(url: str) -> set[str]:
    """Return the names of our series, as soon as there are any; at most 30 s."""
    query = {"match[]": '{job="lifeboat",__name__=~"lifeboat_.*"}'}
    async with aiohttp.ClientSession() as session, asyncio.timeout(30):
        while True:
            try:
                async with session.get(f"{url}/api/v1/series", params=query) as answer:
                    found = json.loads(await answer.read()).get("data")
                    if found:
                        return {series["__name__"] for series in found}
            except (aiohttp.ClientConnectionError, json.JSONDecodeError):
                pass
            await asyncio.sleep(0.2)
