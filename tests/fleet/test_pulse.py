"""What the fleet's second hand logs: each warning once, and again only when it was really gone."""

from __future__ import annotations

import logging
from pathlib import Path

import aiohttp
import pytest

from lifeboat.fleet.pulse import BEATS_PER_LOG, LOOKS_TO_FORGET
from lifeboat.observe.warnings import Warned, lingering, undrainable
from tests.fleet.scripted import house_of
from tests.observe.scenes import pool, view
from tests.peers import until
from tests.running import RouterProcess

CEILING = 60
SLOW, BORDER, WELL = 1.03, 1.99, 2.6
"""Requests per second; 2 are needed for the ceiling within 30 s, 2.5 to be clear of it."""


async def test_a_slow_queue_is_logged_once_and_again_only_after_it_was_clearly_well(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rates: list[float | None] = [
        None, SLOW, BORDER, 1.1e-05, 1.0, SLOW, 2.2, SLOW, None, SLOW, WELL, BORDER,
        *[2.2] * LOOKS_TO_FORGET, BORDER, *[WELL] * LOOKS_TO_FORGET, BORDER, WELL,
    ]  # fmt: skip
    logged: list[int] = []
    async with house_of() as house:
        pulse = house.fleet._pulse  # pyright: ignore[reportPrivateUsage]
        for rate in rates:
            seen = view(
                pools=(pool(queue_enabled=True, queue_limit=CEILING, drain_rate_per_s=rate),)
            )

            def stands(seen=seen) -> list[Warned]:
                return undrainable(seen, {})

            def lingers(seen=seen) -> list[Warned]:
                return lingering(seen, {})

            pulse._warnings, pulse._lingering = stands, lingers  # pyright: ignore[reportPrivateUsage]
            caplog.clear()
            with caplog.at_level(logging.WARNING, logger="lifeboat.fleet.pulse"):
                for _ in range(BEATS_PER_LOG):
                    await pulse.beat()
            logged.append(len(caplog.records))
    assert [at for at, times in enumerate(logged) if times] == [1, len(rates) - 2]
    assert sum(logged) == 2


async def test_a_router_says_at_its_start_that_its_queue_cannot_drain(tmp_path: Path) -> None:
    (tmp_path / "backends.yaml").write_text(
        "queue: {enabled: true, ttl: 20s, max_depth: 7}\nbackends:\n  - {name: s, kind: simulated, "
        "models: [m], max_concurrency: 4, simulate: {time_scale: 150}}\n"
    )
    router = await RouterProcess.start(cwd=tmp_path, environ={"LIFEBOAT_LOG_FORMAT": "text"})
    try:
        said = "the queue of m may hold 7 requests, but its simulated engines serve 6 "
        await until(lambda: said in router.log.read_text())
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{router.url}/api/lb/state") as answer,
        ):
            state = await answer.json()
    finally:
        await router.stop()
    assert router.log.read_text().count(said) == 1
    assert [said in one["message"] for one in state["warnings"]] == [True]
