"""Running routers for tests: in this process, or as the real command in one of its own."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from lifeboat.runtime import Router
from lifeboat.settings.load import load
from lifeboat.settings.shapes import Configuration
from tests.peers import PATIENCE_S

START_S = 40.0
"""Longest wait for a router to say where it listens."""


CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Answered:
    """A whole answer as a client saw it. took_s: from sending the request to the last byte."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    took_s: float

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]

    @property
    def wait_ms(self) -> int:
        return int(self.headers["X-Lifeboat-Wait-ms"])


def backends_yaml(*backends: Mapping[str, object], **top: object) -> str:
    """Return a configuration; JSON is YAML."""
    return json.dumps({"backends": list(backends), **top})


def backend(url: str, name: str = "a", **fields: object) -> dict[str, object]:
    """Return the entry of a backend that serves the model `m`."""
    return {"name": name, "url": url, "models": ["m"], **fields}


def chat_body(text: str = "Hello", *, model: str = "m", **fields: object) -> dict[str, object]:
    """Return the body of a chat."""
    return {"model": model, "messages": [{"role": "user", "content": text}], **fields}


class Running:
    """A router in this process, with a client session of its own."""

    def __init__(self, router: Router, session: aiohttp.ClientSession, stop: asyncio.Event) -> None:
        self.router = router
        self.session = session
        self.stop = stop
        """Set it to make the router drain, as SIGTERM does."""

    @property
    def url(self) -> str:
        return self.router.addresses[0]

    @property
    def admin_url(self) -> str:
        return (self.router.admin_addresses or self.router.addresses)[0]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def ask(
        self,
        path: str = CHAT,
        body: object = None,
        *,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        url: str | None = None,
    ) -> Answered:
        """Send a request (a chat to `m` by default) and read the whole answer.

        body: bytes as they are, anything else as JSON.
        """
        if body is None and method == "POST":
            body = chat_body()
        data: Any = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        if data is not None and len(data) > 1 << 20:
            # aiohttp warns of large bodies in one piece.
            data = io.BytesIO(data)
        all_headers = {"Content-Type": "application/json", **(headers or {})}
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        async with self.session.request(
            method, f"{url or self.url}{path}", data=data, headers=all_headers
        ) as answer:
            raw = await answer.read()
            took_s = loop.time() - started_at
            return Answered(answer.status, answer.headers, raw, took_s)

    async def admin(self, method: str, path: str, body: object = None) -> Answered:
        """Send a call to an operators' path."""
        return await self.ask(f"/api/lb/{path}", body, method=method, url=self.admin_url)

    async def metrics(self) -> dict[str, float]:
        """Return every sample of the metrics page, by name and labels as they are written."""
        async with self.session.get(f"{self.admin_url}/metrics") as answer:
            text = await answer.text()
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    async def state(self) -> dict:
        async with self.session.get(f"{self.admin_url}/api/lb/state") as answer:
            return await answer.json()

    async def settle(self, seconds: float = PATIENCE_S) -> dict:
        """Wait until nothing runs or waits, and return that state."""
        async with asyncio.timeout(seconds):
            while True:
                state = await self.state()
                if not state["queue_total_waiters"] and not any(state["inflight"].values()):
                    return state
                await asyncio.sleep(0.02)

    async def until(self, holds: Callable[[dict], bool], seconds: float = PATIENCE_S) -> dict:
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
    """Run a router in this process on this configuration, on a free port.

    Its estimates are the quick ones unless `environ` says otherwise: a tokenizer takes longer to
    load than most tests to run.
    """
    path = directory / "backends.yaml"
    path.write_text(yaml)
    all_flags = {"port": "0", "config": str(path), **flags}
    variables = {"LIFEBOAT_LB_TOKENIZER": "quick", **(environ or {})}

    def read() -> Configuration:
        return load(all_flags, variables, directory)

    router = Router(read(), read)
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
                yield Running(router, session, stop)
            finally:
                stop.set()
                # What a test left running is not waited for.
                router.settings = replace(router.settings, shutdown_grace_s=0.2)
                # Closed in order, though the test failed: else its warnings hit the next ones.
                await asyncio.wait({main}, timeout=5.0)


class RouterProcess:
    """`lifeboat ARGS...` as a user runs it; ended by its own pid.

    said: the lines of its standard output so far. log: the file that its standard error goes to.
    """

    def __init__(
        self, process: asyncio.subprocess.Process, url: str, said: list[str], log: Path
    ) -> None:
        self.process = process
        self.url = url
        self.said = said
        self.log = log

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @classmethod
    async def start(
        cls,
        *args: str,
        cwd: Path,
        environ: Mapping[str, str] | None = None,
        command: tuple[str, ...] = (sys.executable, "-m", "lifeboat"),
    ) -> RouterProcess:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("LIFEBOAT_")}
        log = cwd / "router.log"
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *command, "serve", "--port", "0", *args,
                cwd=cwd, env={**clean, **(environ or {})},
                stdout=asyncio.subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        said: list[str] = []
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_S):
                while not any(" listens on " in line for line in said):
                    line = (await process.stdout.readline()).decode()
                    assert line, f"the router ended: {said} {log.read_text()}"
                    said.append(line)
        except BaseException:
            if process.returncode is None:
                process.kill()
            await process.wait()
            raise
        return cls(process, said[-1].split(" listens on ")[1].strip(), said, log)

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
