"""A plain reverse proxy as one would write it with aiohttp, on uvloop: no gate, no metrics.

python -m bench.peers.plain_proxy PORT BACKEND_URL
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp
import uvloop
from aiohttp import web

HOP_BY_HOP = {
    "connection", "content-length", "host", "keep-alive", "te", "transfer-encoding", "upgrade",
}  # fmt: skip


def kept(headers: aiohttp.typedefs.LooseHeaders) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers.items() if name.lower() not in HOP_BY_HOP]


async def serve(port: int, backend: str) -> None:
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)

    async def handle(request: web.Request) -> web.StreamResponse:
        async with session.request(
            request.method, backend + request.path_qs, data=await request.read(),
            headers=kept(request.headers),
        ) as upstream:  # fmt: skip
            answer = web.StreamResponse(status=upstream.status, headers=kept(upstream.headers))
            if upstream.content_length is not None:
                answer.content_length = upstream.content_length
            await answer.prepare(request)
            async for piece in upstream.content.iter_any():
                await answer.write(piece)
            await answer.write_eof()
            return answer

    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, auto_decompress=False
    ) as session:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner_:
        runner_.run(serve(int(sys.argv[1]), sys.argv[2]))
