"""A broken file under load changes nothing, and is complained of where an operator looks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.engines import HeldEngine
from tests.conformance.reloading import reloads, rewrite
from tests.fleet_acceptance.crowd import crowd
from tests.running import backend, backends_yaml, running_router

BROKEN = {
    "no YAML": "backends: [",
    "a bad limit": "backends: [{url: 'http://127.0.0.1:9', max_concurrency: -1}]",
    "no url": "backends: [{name: a, kind: vllm}]",
    "an empty file": "",
}


@pytest.mark.provokes_errors
@pytest.mark.parametrize("fault", BROKEN)
async def test_a_broken_file_under_load_changes_nothing(fault: str, tmp_path: Path) -> None:
    async with HeldEngine(hold_s=0.02) as engine:
        yaml = backends_yaml(backend(engine.url, max_concurrency=4), queue={"enabled": True})
        async with running_router(yaml, tmp_path) as running:
            before = await running.state()
            async with crowd(running.url, 12) as clients:
                await clients.served(20)
                assert not await rewrite(running, BROKEN[fault])
                await clients.served(20)
            assert not clients.bad()
            after = await running.settle()
            for key in ("routing_mode", "queue_enabled", "queue_ttl_sec", "sources"):
                assert after[key] == before[key]
            shown = after["backends"]["a"]
            assert shown["max_concurrency"] == 4
            assert list(after["backends"]) == ["a"]
            assert any("not reloaded" in warning["message"] for warning in after["warnings"])
            assert await reloads(running) == (0, 1)
