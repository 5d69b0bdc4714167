"""Servers that join while requests wait, and fall silent: the parked are served, none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.engines import HeldEngine
from tests.fleet_acceptance.processes import Process, sims
from tests.running import CHAT, Answered, Running, backend, backends_yaml, chat_body, running_router

PARKED = 30


async def register(running: Running, url: str, **fields: object) -> Answered:
    entry = {"name": "new", "url": url, "models": ["m"], **fields}
    return await running.admin("POST", "backends", entry)


def ask(running: Running, number: int) -> asyncio.Task[Answered]:
    return asyncio.create_task(running.ask(CHAT, chat_body(user=str(number))))


async def test_a_newcomer_serves_the_parked_at_once_and_leaves_without_losing_any(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    loop = asyncio.get_running_loop()
    async with HeldEngine() as old, HeldEngine(hold_s=0.02) as new:
        yaml = backends_yaml(
            backend(old.url, "old", max_concurrency=1), queue={"enabled": True, "max_depth": 100}
        )
        async with running_router(yaml, tmp_path) as running:
            first = ask(running, 0)
            await running.until(lambda state: state["inflight"]["old"] == 1)
            waiting = [ask(running, number) for number in range(PARKED)]
            await running.until(lambda state: state["queue_total_waiters"] == PARKED)

            began_at = loop.time()
            assert (await register(running, new.url, max_concurrency=4, ttl="1s")).status == 201
            answers = await asyncio.gather(*waiting)
            took_s = loop.time() - began_at
            # Eight rounds of 20 ms each; the first answer came with the registration itself.
            measured(f"{PARKED} parked served {took_s:.2f} s after the registration")
            assert {answer.status for answer in answers} == {200}
            assert {answer.headers["X-Lifeboat-Backend"] for answer in answers} == {"new"}
            assert new.most_running == 4
            assert took_s < 8.0

            # Its heartbeat stops while it runs some and others wait: it is drained, not cut.
            new.hold_s = 2.5
            running_there = [ask(running, number) for number in range(4)]
            await running.until(lambda state: state["inflight"]["new"] == 4)
            waiting = [ask(running, number) for number in range(6)]
            await running.until(
                lambda state: state["backends"].get("new", {}).get("state") != "ready", seconds=8
            )
            sent = len(new.asked)
            answers = await asyncio.gather(*running_there)
            assert [answer.status for answer in answers] == [200] * 4
            await running.until(lambda state: "new" not in state["backends"], seconds=8)
            assert len(new.asked) == sent, "a backend that leaves was sent another request"
            assert (await running.state())["queue_total_waiters"] == 6
            old.release_all()
            assert [answer.status for answer in await asyncio.gather(*waiting)] == [200] * 6
            assert (await first).status == 200
            state = await running.settle()
            assert sum(state["reject_counts"].values()) == 0


async def test_a_heartbeat_that_goes_on_keeps_a_server_in(tmp_path: Path) -> None:
    async with HeldEngine(hold_s=0.0) as new:
        async with running_router(backends_yaml(backend(new.url, "old")), tmp_path) as running:
            for _ in range(5):
                answer = await register(running, new.url, ttl="1s")
                assert answer.status in (200, 201)
                await asyncio.sleep(0.5)
            assert "new" in (await running.state())["backends"]


@pytest.mark.parametrize("end", ["kill -9", "SIGTERM"])
async def test_an_agent_that_is_killed_is_gone_after_its_ttl_and_one_that_is_told_drains(
    tmp_path: Path, end: str, measured: Callable[[str], None]
) -> None:
    loop = asyncio.get_running_loop()
    async with HeldEngine(hold_s=0.0) as old, sims(tmp_path, 1) as servers:
        yaml = backends_yaml({**backend(old.url, "old"), "models": ["other"]})
        async with running_router(yaml, tmp_path) as running:
            agent = await Process.start(
                "agent", "--router", running.url, "--server", servers[0].url, "--name", "beside",
                "--ttl", "2", log=tmp_path / "agent.log",
            )  # fmt: skip
            try:
                await running.until(
                    lambda state: "m" in state["backends"].get("beside", {}).get("models", ()),
                    seconds=15,
                )
                assert (await running.ask()).status == 200
                # Longer than the ttl: it is the heartbeat that keeps it in.
                await asyncio.sleep(2.5)
                assert "beside" in (await running.state())["backends"]
                ended_at = loop.time()
                if end == "kill -9":
                    await agent.kill()
                else:
                    assert await agent.end() == 0
                await running.until(lambda state: "beside" not in state["backends"], seconds=15)
                took_s = loop.time() - ended_at
                measured(f"{end}: gone after {took_s:.2f} s of a ttl of 2 s")
                if end == "kill -9":
                    # A heartbeat may be up to a third of the ttl old when the agent dies.
                    assert took_s > 2 * 2 / 3 - 0.2
                assert (await running.ask()).status == 503
            finally:
                await agent.kill()
