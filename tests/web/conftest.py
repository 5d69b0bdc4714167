"""A router with backends that answer when they are told to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.acceptance.engines import HeldEngine
from tests.running import Running, running_router

HOSTILE = "<img src=x onerror=alert(1)>"
"""A model name that would run if any part of the page took it for markup."""
SLOTS = 2
CEILING = 8


class Scene:
    """A router over two held backends, and the requests that a test has under way."""

    def __init__(self, running: Running, engines: tuple[HeldEngine, ...]) -> None:
        self.running = running
        self.engines = engines
        self._asked: list[asyncio.Task[int]] = []

    @property
    def url(self) -> str:
        return self.running.url

    def ask(self, count: int, model: str = "m", **headers: str) -> list[asyncio.Task[int]]:
        """Send requests; each task ends with the status of its answer."""

        async def one() -> int:
            body = {"model": model, "messages": [{"role": "user", "content": "SECRET-CONTENT"}]}
            url = f"{self.url}/v1/chat/completions"
            async with self.running.session.post(url, json=body, headers=headers) as answer:
                await answer.read()
                return answer.status

        tasks = [asyncio.get_running_loop().create_task(one()) for _ in range(count)]
        self._asked += tasks
        return tasks

    async def close(self) -> None:
        for engine in self.engines:
            engine.release_all()
        for task in self._asked:
            task.cancel()
        await asyncio.gather(*self._asked, return_exceptions=True)


@contextlib.asynccontextmanager
async def scene_in(directory: Path, **environ: str) -> AsyncIterator[Scene]:
    async with HeldEngine() as one, HeldEngine() as two:
        yaml = f"""
queue: {{enabled: true, ttl: 60s, max_depth: {CEILING}}}
backends:
  - {{name: a, kind: openai, url: "{one.url}", models: [m], max_concurrency: {SLOTS}}}
  - {{name: b, kind: openai, url: "{two.url}", models: ["{HOSTILE}"], max_concurrency: 1,
      max_input_tokens: 64}}
"""
        async with running_router(yaml, directory, environ) as running:
            scene = Scene(running, (one, two))
            try:
                yield scene
            finally:
                await scene.close()


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene_in(tmp_path) as found:
        yield found
