"""A model server by script, and a fleet around such servers, for the tests of this folder."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiohttp import web

from lifeboat.core.gate import Gate
from lifeboat.core.vocabulary import Kind
from lifeboat.door import Door
from lifeboat.fleet import Fleet, Pace
from lifeboat.settings import BackendConfig, Configuration, ModelConfig, load

QUICK = Pace(soonest_s=0.05, longest_s=0.4, first_s=0.3)
"""The usual pace, twenty times as fast."""


class Server:
    """Answers what it is told to. asked: the paths, in order; headers: of the last request."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, object]] = {
            "/health": (200, ""),
            "/v1/models": (200, {"object": "list", "data": [{"id": "m"}]}),
        }
        self.hanging: set[str] = set()
        self.asked: list[str] = []
        self.asked_at: list[float] = []
        self.headers: Mapping[str, str] = {}
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def lists(self, *models: str | dict[str, object]) -> None:
        entries = [{"id": one} if isinstance(one, str) else one for one in models]
        self.answers["/v1/models"] = (200, {"object": "list", "data": entries})

    async def up(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    async def down(self) -> None:
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        self.asked_at.append(asyncio.get_running_loop().time())
        self.headers = dict(request.headers)
        if request.path in self.hanging:
            await asyncio.sleep(30)
        status, body = self.answers.get(request.path, (404, {"detail": "Not Found"}))
        if isinstance(body, str):
            return web.Response(status=status, text=body)
        return web.json_response(body, status=status)


@asynccontextmanager
async def serving(count: int = 1) -> AsyncIterator[list[Server]]:
    """Run some servers."""
    servers = [Server() for _ in range(count)]
    for server in servers:
        await server.up()
    try:
        yield servers
    finally:
        for server in servers:
            await server.down()


def backend(name: str, server: Server | str, kind: Kind = Kind.VLLM, **more: Any) -> BackendConfig:
    """Return a backend at a server; it lists its own models unless `models` is given."""
    return BackendConfig(name, kind, server if isinstance(server, str) else server.url, **more)


def configured(
    *backends: BackendConfig, models: tuple[ModelConfig, ...] = (), **settings: Any
) -> Configuration:
    """Return a configuration with a quick pace of probes."""
    plain = load({"backend": ["http://127.0.0.1:1"]}, {}, Path("/"))
    quick = {
        "probe_interval_s": 0.1, "probe_timeout_s": 0.5, "models_interval_s": 0.15, **settings,
    }  # fmt: skip
    return replace(
        plain,
        settings=replace(plain.settings, **quick),
        backends=tuple(one for entry in backends for one in entry.expanded()),
        models=models,
    )


class Engines:
    """Embedded engines that are only urls."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.started = 0
        self.broken = False

    async def start(self, config: BackendConfig) -> str:
        if self.broken:
            raise OSError("no port is free")
        self.started += 1
        url = f"http://127.0.0.1:1/{config.name}-{self.started}"
        self.running.append(url)
        return url

    async def stop(self, url: str) -> None:
        self.running.remove(url)


class House:
    """A fleet with its door. engines: the embedded ones."""

    def __init__(self, configuration: Configuration, pace: Pace) -> None:
        self.clock: Callable[[], float] = asyncio.get_running_loop().time
        gate = Gate(Fleet.rules(configuration), None, configuration.settings.probe_failures)
        self.door = Door(gate, self.clock)
        self.engines = Engines()
        self.fleet = Fleet(
            configuration, self.door,
            embedded=self.engines.start, stop_embedded=self.engines.stop,
            clock=self.clock, rng=random.Random(7), wall=time.time, pace=pace,
        )  # fmt: skip
        self.gate = gate

    def health(self, name: str) -> str:
        return self.door.view().backends[name].health.value

    def models(self, name: str) -> set[str] | None:
        models = self.door.view().backends[name].spec.models
        return None if models is None else set(models)


@asynccontextmanager
async def house_of(
    *backends: BackendConfig,
    models: tuple[ModelConfig, ...] = (),
    pace: Pace = QUICK,
    **settings: Any,
) -> AsyncIterator[House]:
    """Start a fleet, and end it."""
    async with running(House(configured(*backends, models=models, **settings), pace)) as house:
        yield house


@asynccontextmanager
async def running(house: House) -> AsyncIterator[House]:
    """Start a fleet, and end it."""
    async with asyncio.TaskGroup() as tasks:
        await house.fleet.start(tasks)
        try:
            yield house
        finally:
            await house.fleet.close()
    house.door.stop()


async def until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    """Wait until a condition holds; fail when it does not in time."""
    async with asyncio.timeout(within_s):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)
