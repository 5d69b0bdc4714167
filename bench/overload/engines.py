"""Simulated engines that keep a book of what reached them.

    python -m bench.overload.engines BOOK PORT...

One engine a port, in one process. On SIGTERM it writes BOOK: a JSON list with one row for each
generating request, [engine, number, arrived, ended, whole], clock seconds of the machine's
monotonic clock. `number` is the client's, read from its prompt; `whole`: the answer was complete.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
import time
from pathlib import Path

import uvloop
from aiohttp import web

from lifeboat.sim.config import EngineConfig
from lifeboat.sim.server import SimulatedServer

SEATS = 4
"""Sequences an engine runs at once: the cap that the proxies are told to keep."""
TIME_SCALE = 20.0
"""A modelled B200 is too fast for a proxy on two cores to be anything but the bottleneck."""
_NUMBER = re.compile(rb'"\[(\d+)\] ')

Row = tuple[int, int, float, float, bool]


class BookedServer(SimulatedServer):
    """A simulated server that books each chat."""

    def __init__(self, index: int, book: list[Row]) -> None:
        super().__init__(
            [EngineConfig(served_names=("m",), max_num_seqs=SEATS, time_scale=TIME_SCALE)]
        )
        self._index = index
        self._book = book

    def _application(self) -> web.Application:
        app = super()._application()
        app.middlewares.insert(0, self._booked)
        return app

    @web.middleware
    async def _booked(self, request: web.Request, handler: web.Handler) -> web.StreamResponse:
        if request.method != "POST":
            return await handler(request)
        arrived, whole = time.monotonic(), False
        try:
            response = await handler(request)
            whole = True
            return response
        finally:
            # The server has read the body by now, or never will.
            body = request._read_bytes or b""
            found = _NUMBER.search(body)
            number = int(found[1]) if found else -1
            self._book.append((self._index, number, arrived, time.monotonic(), whole))


async def serve(ports: list[int]) -> list[Row]:
    """Serve until SIGTERM; return the book."""
    book: list[Row] = []
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    servers = [BookedServer(index, book) for index in range(len(ports))]
    for server, port in zip(servers, ports, strict=True):
        await server.start(port=port)
    await stop.wait()
    for server in servers:
        await server.close()
    return book


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rows = runner.run(serve([int(port) for port in sys.argv[2:]]))
    Path(sys.argv[1]).write_text(json.dumps(rows))
