"""What a parked request costs in memory through a whole router: sockets, parser, task and all.

    python -m bench.memory_router [COUNT]

COUNT (10,000) clients each hold a connection with a chat of 1 KiB that is parked; the figure is the
growth of the router's resident set over their number. Target: 16 KiB. What the kernel holds for
the sockets is in no resident set.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
from pathlib import Path

import aiohttp

from bench.hostile_router import prompt
from bench.measured_router import MeasuredRouter, Report
from lifeboat.edge.descriptors import raise_soft_limit
from tests.acceptance.engines import HeldEngine
from tests.running import CHAT, backend, backends_yaml

TARGET_KIB = 16.0
BODY_BYTES = 1024
AT_ONCE = 200
"""Connections opened between two looks at the depth, so that no listen queue overflows."""


async def depth(session: aiohttp.ClientSession, url: str) -> int:
    async with session.get(f"{url}/api/lb/state") as answer:
        return (await answer.json())["queue_total_waiters"]


async def park(router: MeasuredRouter, count: int, clients: list[socket.socket]) -> None:
    """Park this many more requests, each on a connection of its own."""
    body = prompt(BODY_BYTES)
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    request = head % CHAT.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
    async with aiohttp.ClientSession() as session:
        wanted = await depth(session, router.url)
        for at in range(0, count, AT_ONCE):
            for _ in range(min(AT_ONCE, count - at)):
                client = socket.create_connection(("127.0.0.1", router.port))
                client.sendall(request)
                clients.append(client)
            wanted += min(AT_ONCE, count - at)
            async with asyncio.timeout(60):
                while await depth(session, router.url) < wanted:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)


async def measure(count: int) -> tuple[float, Report, Report]:
    """Return KiB per parked request, and the reports before and with them."""
    raise_soft_limit()
    clients: list[socket.socket] = []
    with tempfile.TemporaryDirectory() as directory:
        async with HeldEngine() as engine:
            yaml = backends_yaml(
                backend(engine.url, max_concurrency=1),
                queue={"enabled": True, "max_depth": 2 * count, "ttl": "600s"},
            )
            router = await MeasuredRouter.start(yaml, Path(directory))
            try:
                # One that runs and some that wait first: what the first ones make is not theirs.
                async with aiohttp.ClientSession() as session:
                    busy = asyncio.create_task(
                        session.post(router.url + CHAT, data=prompt(BODY_BYTES))
                    )
                    while not engine.running:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                    await park(router, 500, clients)
                    await asyncio.sleep(1.0)
                    before = await router.report()
                    await park(router, count, clients)
                    await asyncio.sleep(1.0)
                    after = await router.report()
                    busy.cancel()
                    await asyncio.gather(busy, return_exceptions=True)
            finally:
                for client in clients:
                    client.close()
                await router.stop()
    return (after.rss_mib - before.rss_mib) * 1024 / count, before, after


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    kib, before, after = asyncio.run(measure(count))
    print(f"{count} parked requests of {BODY_BYTES} bytes")
    print(f"RSS {before.rss_mib:.1f} MiB before, {after.rss_mib:.1f} MiB with them")
    print(f"CPU of parking {after.cpu_s / count * 1e6:.0f} us each (state pages included)")
    print(f"{kib:.1f} KiB a parked request, target {TARGET_KIB:g}")
    return 0 if kib <= TARGET_KIB else 1


if __name__ == "__main__":
    sys.exit(main())
