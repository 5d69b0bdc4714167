"""The slot trap at a real llama.cpp server: eight let in, four slots, the rest waits inside."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.acceptance.test_real_llama import MODEL, SLOTS, install, llama, sample
from tests.running import CHAT, Running, backends_yaml, chat_body, running_router

LIMIT = 8

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


@contextlib.asynccontextmanager
async def streams(running: Running, count: int) -> AsyncIterator[None]:
    """Keep so many long answers running; their clients leave at the end."""

    async def one(number: int) -> None:
        body = chat_body(
            f"Tell me {number} tales.", model=MODEL, stream=True, max_tokens=700, ignore_eos=True
        )
        async with running.session.post(f"{running.url}{CHAT}", json=body) as answer:
            await answer.read()

    asking = [asyncio.create_task(one(number)) for number in range(count)]
    try:
        yield
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def own_figures(running: Running, url: str) -> tuple[int, int]:
    """Return what the server itself says that it runs and defers."""
    async with running.session.get(f"{url}/metrics") as answer:
        page = await answer.text()
    return sample("llamacpp:requests_processing", page), sample("llamacpp:requests_deferred", page)


async def test_a_limit_above_the_slots_of_a_real_server_is_shown_wherever_one_looks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.to_thread(install)
    async with llama(tmp_path) as url:
        entry = {"name": "gguf-1", "kind": "gguf", "url": url}
        trapped = backends_yaml({**entry, "max_concurrency": LIMIT}, queue={"enabled": True})
        async with running_router(backends_yaml(entry), tmp_path) as running:
            state = await running.until(
                lambda state: state["backends"]["gguf-1"]["engine"]["slots"] is not None
            )
            shown = state["backends"]["gguf-1"]
            learned = (shown["engine"]["slots"], shown["effective_limit"], shown["limit_reason"])
            assert learned == (SLOTS, SLOTS, "engine_slots")
            assert not shown["warnings"]

        caplog.clear()
        with caplog.at_level(logging.WARNING):
            async with running_router(trapped, tmp_path) as running:
                async with streams(running, LIMIT):
                    state = await running.until(
                        lambda state: state["backends"]["gguf-1"]["engine"]["queueing"], seconds=30
                    )
                    await agrees(running, url)
                await running.settle(30)
        words = f"max_concurrency of gguf-1 is {LIMIT} but its server has {SLOTS} slots"
        assert any(words in record.getMessage() for record in caplog.records)


async def agrees(running: Running, url: str) -> None:
    """Eight run: the state, the metrics and the server itself say the same of them.

    How many of the four without a slot it counts as deferred is the server's affair: those that
    wait for one of its HTTP threads it does not count.
    """
    async with asyncio.timeout(20):
        while True:
            own = await own_figures(running, url)
            # Figures that have stood for longer than the router's reading of them is old.
            await asyncio.sleep(1.2)
            metrics = await running.metrics()
            state = await running.state()
            if own[1] and own == await own_figures(running, url):
                break
    deferred = own[1]
    assert own[0] == SLOTS
    shown = state["backends"]["gguf-1"]
    assert shown["in_flight"] == LIMIT
    assert (shown["effective_limit"], shown["limit_reason"]) == (LIMIT, "configured")
    engine = shown["engine"]
    assert (engine["running"], engine["waiting"], engine["slots"]) == (SLOTS, deferred, SLOTS)
    assert metrics['lifeboat_lb_engine_waiting{backend="gguf-1"}'] == deferred
    assert metrics['lifeboat_lb_engine_running{backend="gguf-1"}'] == SLOTS
    told = " ".join(shown["warnings"])
    assert f"has {SLOTS} slots" in told
    assert f"{deferred} requests wait inside the server" in told


async def test_the_border_is_exact_by_a_real_servers_own_tokenizer(tmp_path: Path) -> None:
    """What it says of a prompt's size beforehand is what it then reports to have read."""
    await asyncio.to_thread(install)
    body = chat_body("Ünïcode, code() and prose: the quick brown fox. " * 12, model=MODEL)
    async with llama(tmp_path) as url:
        entry = {"name": "gguf-1", "kind": "gguf", "url": url, "exact_border": True}
        async with running_router(backends_yaml(entry), tmp_path) as running:
            answer = await running.ask(CHAT, {**body, "max_tokens": 1})
            read = answer.json["usage"]["prompt_tokens"]
            for cap, status in ((read - 1, 413), (read, 200)):
                change = {"max_input_tokens": cap}
                assert (await running.admin("PATCH", "backends/gguf-1", change)).status == 200
                told = await running.admin("POST", "explain", {"path": CHAT, "body": body})
                assert told.json["estimate"]["method"] == "engine", told.json
                assert told.json["estimate"]["tokens"] == read
                assert (await running.ask(CHAT, {**body, "max_tokens": 1})).status == status
