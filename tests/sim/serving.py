"""Simulated servers for tests, and a small client that shows what a plain client sees."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from lifeboat.sim.config import EngineConfig
from lifeboat.sim.server import SimulatedServer

MODEL = "gpt-oss-20b"
CHAT = "/v1/chat/completions"


def chat(tokens: int = 5, **fields: Any) -> dict[str, Any]:
    """Return the body of a short chat."""
    messages = [{"role": "user", "content": "How deep is the sea?"}]
    return {"model": MODEL, "messages": messages, "max_tokens": tokens, **fields}


@dataclass(slots=True)
class Seen:
    """An answer as a client saw it; `broken` names the error that ended it early."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    raw: bytes = b""
    broken: str | None = None

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def is_stream(self) -> bool:
        return self.headers.get("Content-Type", "").startswith("text/event-stream")

    @property
    def events(self) -> list[Any]:
        """The data of every complete event, parsed; [DONE] stays text."""
        found: list[Any] = []
        for block in self.raw.split(b"\n\n")[:-1]:
            data = block.split(b"data: ", 1)[1]
            found.append("[DONE]" if data == b"[DONE]" else json.loads(data))
        return found


@dataclass(slots=True)
class Client:
    """A client of one server."""

    server: SimulatedServer
    url: str
    session: aiohttp.ClientSession

    async def post(
        self, path: str, body: object, *, fault: str | None = None, raw: bytes | None = None
    ) -> Seen:
        """Send a JSON body and read what comes back to its end, clean or not."""
        seen = Seen()
        data = json.dumps(body).encode() if raw is None else raw
        headers = {"content-type": "application/json"}
        if fault is not None:
            headers["x-sim-fault"] = fault
        try:
            async with self.session.post(self.url + path, data=data, headers=headers) as answer:
                seen.status, seen.headers = answer.status, answer.headers
                async for chunk in answer.content.iter_any():
                    seen.raw += chunk
        except (aiohttp.ClientError, ConnectionError) as error:
            seen.broken = type(error).__name__
        return seen

    async def get(self, path: str) -> Seen:
        async with self.session.get(self.url + path) as answer:
            return Seen(answer.status, answer.headers, await answer.read())

    async def capacity(self) -> dict[str, Any]:
        """The capacity row of the only model."""
        (row,) = (await self.get("/control/capacity")).json
        return row

    async def until(self, **wanted: int) -> dict[str, Any]:
        """Wait until the capacity row has these figures; return it."""
        row: dict[str, Any] = {}
        for _ in range(500):
            row = await self.capacity()
            if all(row[key] == value for key, value in wanted.items()):
                return row
            await asyncio.sleep(0.01)
        raise AssertionError(f"never {wanted}: {row}")


async def drop(*tasks: asyncio.Task[Any]) -> None:
    """Let clients hang up."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def serving(*configs: EngineConfig, **options: Any) -> AsyncIterator[Client]:
    """Start a server (of one engine with `options`, where no configs are given) and a client."""
    server = SimulatedServer(list(configs) or [EngineConfig(**options)])
    url = await server.start()
    connector = aiohttp.TCPConnector(limit=0)
    try:
        async with aiohttp.ClientSession(connector=connector) as session:
            yield Client(server, url, session)
    finally:
        await server.close()
