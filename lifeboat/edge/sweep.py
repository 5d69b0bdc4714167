"""Seeing that a client has left although nobody reads its connection.

aiohttp cancels the handler of a client that hangs up, but is blind while it has paused reading
(many pipelined bytes behind the request). Those connections alone are looked at, once a second; the
others cost nothing. Held by tests/edge/test_sweep.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from aiohttp import web

from lifeboat.wire.downstream import client_gone

PERIOD_S = 1.0


class PausedSweep:
    """The requests that wait or stream now, and the tasks that serve them."""

    def __init__(self) -> None:
        self._served: dict[int, tuple[web.BaseRequest, asyncio.Task[object] | None]] = {}

    @contextmanager
    def watching(self, request: web.BaseRequest) -> Generator[None]:
        """Watch a request for the length of a block, run in the task that serves it."""
        self._served[id(request)] = (request, asyncio.current_task())
        try:
            yield
        finally:
            del self._served[id(request)]

    async def run(self) -> None:
        """Look for the gone for ever."""
        while True:
            await asyncio.sleep(PERIOD_S)
            self.sweep()

    def sweep(self) -> None:
        """Cancel the tasks whose client has left unseen, as aiohttp does for the others."""
        for request, task in list(self._served.values()):
            transport = request.transport
            unseen = transport is not None and not transport.is_reading()
            if unseen and task is not None and client_gone(request):
                task.cancel()
