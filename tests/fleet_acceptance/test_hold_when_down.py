"""Held while nothing is in service: as many as the configured concurrency allows, and no more."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from tests.acceptance.engines import HeldEngine
from tests.running import Answered, Running, backend, backends_yaml, running_router

CLOSED = "http://127.0.0.1:1"

BOUNDS: dict[str, tuple[dict[str, object], int]] = {
    "a server that is down": ({"backends": [backend(CLOSED, "down", max_concurrency=2)]}, 6),
    "one without a gate counts as the default": (
        {"backends": [backend(CLOSED, "down", max_concurrency=0)], "default_max_concurrency": 3}, 9,
    ),
    "a model that only has a name counts as one default server": (
        {
            "backends": [{**backend(CLOSED, "other"), "models": ["other"]}],
            "models": {"m": {"max_requests_per_minute": 100000}},
            "default_max_concurrency": 4,
        },
        12,
    ),
    "an absolute ceiling, whatever the concurrency": (
        {"backends": [backend(CLOSED, "down", max_concurrency=50)], "queue.max_depth": 5}, 5,
    ),
}  # fmt: skip


def configuration(top: dict[str, object]) -> str:
    entries = top["backends"]
    assert isinstance(entries, list)
    queue: dict[str, object] = {"enabled": True, "ttl": "60s", "depth_multiplier": 3}
    if "queue.max_depth" in top:
        queue["max_depth"] = top["queue.max_depth"]
    others = {
        key: value for key, value in top.items() if key not in ("backends", "queue.max_depth")
    }
    return backends_yaml(*entries, queue=queue, hold_when_down=True, **others)


@contextlib.asynccontextmanager
async def held(running: Running, count: int):
    """Send so many; yields them once they are parked."""
    asking = [asyncio.create_task(running.ask()) for _ in range(count)]
    try:
        await running.until(lambda state: state["queue_total_waiters"] == count)
        yield asking
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


@pytest.mark.parametrize("case", BOUNDS)
async def test_the_ceiling_holds_while_nothing_is_in_service(case: str, tmp_path: Path) -> None:
    top, most = BOUNDS[case]
    async with HeldEngine(hold_s=0.01) as engine:
        async with running_router(configuration(top), tmp_path) as running:
            async with held(running, most) as asking:
                state = await running.state()
                assert state["pools"]["m"]["queue_limit"] == most
                late: Answered = await running.ask()
                assert (late.status, late.error["code"]) == (503, "queue_full")
                assert (late.error["queue_depth"], late.error["queue_limit"]) == (most, most)
                # All that were held are served by whoever comes.
                entry = {**backend(engine.url, "comes"), "max_concurrency": 2}
                assert (await running.admin("POST", "backends", entry)).status == 201
                answers = await asyncio.gather(*asking)
            assert {answer.status for answer in answers} == {200}
            assert engine.most_running <= 2
