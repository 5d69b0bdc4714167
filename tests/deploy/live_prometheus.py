"""A real Prometheus on a free port, scraping a router of a test once a second."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

READY_S = 30.0


class LivePrometheus:
    """Asks it; every answer is a list of (labels, value)."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self._session = session

    async def _get(self, path: str, **params: str) -> Any:
        async with self._session.get(f"{self.url}/api/v1/{path}", params=params) as answer:
            page = json.loads(await answer.read())
        assert page["status"] == "success", f"{params}: {page.get('error')}"
        return page["data"]

    async def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Evaluate an expression now. Fails the test where it cannot be parsed."""
        data = await self._get("query", query=expression)
        return [(one["metric"], float(one["value"][1])) for one in data["result"]]

    async def values_of(self, label: str, series: str) -> list[str]:
        """Return the values of a label, as `label_values` of a dashboard does."""
        return await self._get(f"label/{label}/values", **{"match[]": series})

    async def scraped(self, times: int) -> None:
        """Wait until it has scraped the router that often."""
        async with asyncio.timeout(READY_S):
            while True:
                with contextlib.suppress(aiohttp.ClientConnectionError, json.JSONDecodeError):
                    found = await self.query('count_over_time(up{job="lifeboat"}[10m])')
                    if found and found[0][1] >= times:
                        return
                await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def live_prometheus(
    target: str, directory: Path, *rule_files: Path
) -> AsyncIterator[LivePrometheus]:
    """Run it; target: host:port of the router. Ended by its own pid."""
    binary = shutil.which("prometheus")
    assert binary, "prometheus is not installed: apt-get install prometheus"
    config = directory / "prometheus.yml"
    config.write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(path) for path in rule_files],
                "scrape_configs": [
                    {"job_name": "lifeboat", "static_configs": [{"targets": [target]}]}
                ],
            }
        )
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (directory / "prometheus.log").open("wb") as log:
        server = await asyncio.create_subprocess_exec(
            binary,
            f"--config.file={config}",
            f"--storage.tsdb.path={directory / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=log,
            stderr=log,
        )
    try:
        async with aiohttp.ClientSession() as session:
            yield LivePrometheus(f"http://127.0.0.1:{port}", session)
    finally:
        server.terminate()
        await asyncio.wait_for(server.wait(), 20)
