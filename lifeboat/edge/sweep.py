"""Seeing that a client has left although nobody reads its connection.

aiohttp cancels the handler of a client that hangs up, but is blind while it has paused reading
(many pipelined bytes behind the request). Those connections alone are looked at, once a second; the
others cost nothing. Held by tests/acceptance/test_aborts.py.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from lifeboat.wire.downstream import client_gone

PERIOD_S = 1.0


class PausedSweep:
    """The requests that wait or stream now."""

    def __init__(self) -> None:
        self._served: dict[int, web.BaseRequest] = {}

    def watch(self, request: web.BaseRequest) -> None:
        """Watch a request until `forget`."""
        self._served[id(request)] = request

    def forget(self, request: web.BaseRequest) -> None:
        """Watch it no more."""
        self._served.pop(id(request), None)

    async def run(self) -> None:
        """Look for the gone for ever."""
        while True:
            await asyncio.sleep(PERIOD_S)
            self.sweep()

    def sweep(self) -> None:
        """Cancel the tasks whose client has left unseen, as aiohttp does for the others."""
        for request in list(self._served.values()):
            transport = request.transport
            unseen = transport is not None and not transport.is_reading()
            if unseen and client_gone(request):
                request.task.cancel()
