"""Running routers for tests: in this process, or as the real command in one of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import aiohttp

from lifeboat.runtime import Router
from lifeboat.settings.load import load

START_S = 20.0
"""Longest wait for a router to say where it listens."""


class Running:
    """A router in this process, with a client session of its own."""

    def __init__(self, router: Router, session: aiohttp.ClientSession) -> None:
        self.router = router
        self.session = session

    @property
    def url(self) -> str:
        return self.router.addresses[0]

    @property
    def admin_url(self) -> str:
        return (self.router.admin_addresses or self.router.addresses)[0]

    async def state(self) -> dict:
        async with self.session.get(f"{self.admin_url}/api/lb/state") as answer:
            return await answer.json()

    async def settle(self, seconds: float = 5.0) -> dict:
        """Wait until nothing runs or waits, and return that state."""
        async with asyncio.timeout(seconds):
            while True:
                state = await self.state()
                if not state["queue_total_waiters"] and not any(state["inflight"].values()):
                    return state
                await asyncio.sleep(0.02)

    async def until(self, holds, seconds: float = 5.0) -> dict:
        """Wait until a condition on the state holds, and return that state."""
        async with asyncio.timeout(seconds):
            while True:
                state = await self.state()
                if holds(state):
                    return state
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def running_router(
    yaml: str, directory: Path, environ: Mapping[str, str] | None = None, **flags: object
) -> AsyncIterator[Running]:
    """Run a router in this process on this configuration, on a free port."""
    path = directory / "backends.yaml"
    path.write_text(yaml)
    all_flags = {"port": "0", "config": str(path), **flags}
    configuration = load(all_flags, dict(environ or {}), directory)
    router = Router(configuration)
    stop, ready = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        main = tasks.create_task(router.run(stop, lambda _: ready.set()))
        waiter = tasks.create_task(ready.wait())
        await asyncio.wait({main, waiter}, return_when=asyncio.FIRST_COMPLETED, timeout=START_S)
        if not ready.is_set():
            waiter.cancel()
            raise AssertionError("the router did not start")
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            try:
                yield Running(router, session)
            finally:
                stop.set()
                # What a test left running is not waited for.
                router.settings = replace(router.settings, shutdown_grace_s=0.2)


class RouterProcess:
    """`lifeboat ARGS...` as a user runs it; ended by its own pid."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, said: list[str]) -> None:
        self.process = process
        self.url = url
        self.said = said

    @classmethod
    async def start(
        cls, *args: str, cwd: Path, environ: Mapping[str, str] | None = None
    ) -> RouterProcess:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("LIFEBOAT_")}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "lifeboat", "serve", "--port", "0", *args,
            cwd=cwd, env={**clean, **(environ or {})},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        said: list[str] = []
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_S):
                while not any(" listens on " in line for line in said):
                    line = (await process.stdout.readline()).decode()
                    assert line, f"the router ended: {said}"
                    said.append(line)
        except BaseException:
            if process.returncode is None:
                process.kill()
            await process.wait()
            raise
        return cls(process, said[-1].split(" listens on ")[1].strip(), said)

    async def stop(self, seconds: float = 10.0, number: int = signal.SIGTERM) -> int:
        """Signal it and wait; kill it when it does not end."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        try:
            async with asyncio.timeout(seconds):
                return await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
            raise
