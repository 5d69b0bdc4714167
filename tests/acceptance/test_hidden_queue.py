"""The queue inside an engine, seen through the router, and how a true limit makes it vanish."""

from __future__ import annotations

import asyncio

import pytest

from tests.running import Running, running_router

SEATS = 16
CROWD = 32
SLOW = "time_scale: 12"
"""An answer of 200 tokens then takes some 3 s: several engine readings fall into it."""


def configured(limit: int, queue: str) -> str:
    return f"""
queue: {{enabled: {queue}}}
backends:
  - name: sim
    kind: simulated
    models: [m]
    max_concurrency: {limit}
    simulate: {{model: gpt-oss-20b, hardware: b200, max_num_seqs: {SEATS}, max_waiting: 0, {SLOW}}}
"""


async def crowd(running: Running) -> list[int]:
    """Send the crowd at once; return what each was told of its wait, in milliseconds."""

    async def one() -> int:
        body = {"model": "m", "max_tokens": 200, "messages": [{"role": "user", "content": "x"}]}
        async with running.session.post(f"{running.url}/v1/chat/completions", json=body) as answer:
            await answer.read()
            assert answer.status == 200
            return int(answer.headers["X-Lifeboat-Wait-ms"])

    return await asyncio.gather(*(one() for _ in range(CROWD)))


async def seen_waiting(running: Running, done: asyncio.Future[list[int]]) -> set[int]:
    """Return every figure of `engine.waiting` that the state showed until the crowd was served."""
    seen: set[int] = set()
    while not done.done():
        engine = (await running.state())["backends"]["sim"]["engine"]
        seen.add(engine["waiting"] or 0)
        await asyncio.sleep(0.1)
    return seen


@pytest.mark.parametrize(("limit", "queue"), [(CROWD, "false"), (SEATS, "true")])
async def test_a_limit_above_the_seats_hides_a_queue_and_one_at_the_seats_shows_it(
    tmp_path, limit, queue
) -> None:
    async with running_router(configured(limit, queue), tmp_path) as running:
        served = asyncio.ensure_future(crowd(running))
        inside = await seen_waiting(running, served)
        waits_ms = await served
    if limit > SEATS:
        assert max(inside) == CROWD - SEATS, "the engine's own line is shown"
        assert waits_ms == [0] * CROWD, "the router cannot see that wait"
    else:
        assert inside == {0}
        assert sum(wait_ms > 1000 for wait_ms in waits_ms) == CROWD - SEATS
        assert sum(wait_ms == 0 for wait_ms in waits_ms) == SEATS
