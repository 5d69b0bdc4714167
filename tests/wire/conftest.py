"""Everything on the wire is tested under both event loops that the router may run on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from lifeboat.wire.pool import PooledUpstream


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def upstream() -> AsyncIterator[PooledUpstream]:
    pool = PooledUpstream()
    yield pool
    await pool.close()
