"""Every case runs on every lane, and on the event loop that the command runs on."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop

from lifeboat.edge import entrance
from tests.conformance.lanes import LANES, Lane


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


DEADLINE_S = 45.0
"""A case that waits for something that never comes ends here: uvloop swallows what the signal
handler of pytest-timeout raises."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give every case its deadline."""
    if not isinstance(item, pytest.Function):
        return
    test = item.obj
    if not inspect.iscoroutinefunction(test):
        return

    @functools.wraps(test)
    async def with_deadline(*args: Any, **kwargs: Any) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await test(*args, **kwargs)

    item.obj = with_deadline


@pytest.fixture(params=LANES)
def lane(request: pytest.FixtureRequest, tmp_path: Path) -> Lane:
    """Starts routers whose client side is this lane."""
    return Lane(request.param, tmp_path)


@pytest.fixture(autouse=True)
def _a_short_end(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Close routers quickly: their last looks at open connections are test_shutdown's matter."""
    if "test_shutdown" not in request.node.nodeid:
        monkeypatch.setattr(entrance, "LAST_READ_S", 0.002)
