"""A hostile body beside a live stream; bench/hostile_router.py measures many more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench.hostile_router import TARGET_STALL_MS, Live, StreamingEngine, hostile, post, prompt
from bench.measured_router import MIB, MeasuredRouter
from tests.running import backend, backends_yaml


@pytest.mark.slow
async def test_a_hostile_64_mib_body_neither_stalls_a_stream_nor_is_held_twice(
    tmp_path: Path,
) -> None:
    async with StreamingEngine(hold_s=0.0) as engine:
        router = await MeasuredRouter.start(
            backends_yaml(backend(engine.url)), tmp_path, {"LIFEBOAT_LB_TOKENIZER": "quick"}
        )
        live = Live()
        streaming = asyncio.create_task(live.run(router.port))
        try:
            await asyncio.sleep(0.3)
            rest = await router.report()
            assert await post(router.port, hostile(64 * MIB - MIB, b"1,")) == 400
            attacked = await router.report()
            seen = live.pieces
            assert await post(router.port, prompt(32 * MIB)) == 200
            served = await router.report()
            await asyncio.sleep(0.2)
            assert live.pieces > seen
        finally:
            streaming.cancel()
            await asyncio.gather(streaming, return_exceptions=True)
            await router.stop()
    assert max(attacked.stall_ms, served.stall_ms) < TARGET_STALL_MS
    assert attacked.peak_mib - rest.rss_mib < 100
    assert served.peak_mib - rest.rss_mib < 100
