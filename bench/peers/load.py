"""The clients of the comparison, in a process of their own; prints one JSON line.

    python -m bench.peers.load PORT KIND CONNECTIONS SECONDS [REQUESTS_PER_SECOND]

KIND: `json` (one small chat, one small answer) or `stream` (200 events). Without a rate the loop is
closed: every connection sends its next request once the answer before is complete. With a rate,
requests are due at even steps and wait for a free connection; their latency counts from the moment
they were due, so that a late answer delays nobody's clock.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time

import uvloop

_CHAT = b'{"model":"m","messages":[{"role":"user","content":"Hello there, how are you today?"}]%b}'
_HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: router\r\nContent-Type: application/json\r\n"
    b"Accept: application/json\r\nUser-Agent: bench\r\nContent-Length: %d\r\n\r\n"
)


def request_bytes(kind: str) -> bytes:
    body = _CHAT % (b',"stream":true' if kind == "stream" else b"")
    return _HEAD % len(body) + body


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> None:
    """Send one request and read its whole answer; raises ValueError for anything but a 200."""
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if not head.startswith(b"http/1.1 200"):
        raise ValueError(f"not a 200: {head!r}")
    at = head.find(b"content-length:")
    if at >= 0:
        await reader.readexactly(int(head[at + 15 :].split(b"\r\n", 1)[0]))
        return
    while length := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        await reader.readexactly(length + 2)
    await reader.readexactly(2)


async def run(
    port: int, kind: str, connections: int, seconds: float, rate: float | None
) -> list[float]:
    """Return the latencies, in seconds."""
    request = request_bytes(kind)
    latencies: list[float] = []
    begun = time.monotonic()
    until = begun + seconds
    due = itertools.count()

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        while True:
            started = time.monotonic()
            if rate is not None:
                started = begun + next(due) / rate
                await asyncio.sleep(max(0.0, started - time.monotonic()))
            if started >= until:
                break
            await exchange(reader, writer, request)
            latencies.append(time.monotonic() - started)
        writer.close()

    await asyncio.gather(*(client() for _ in range(connections)))
    return latencies


def main() -> None:
    port, kind, connections, seconds = sys.argv[1:5]
    rate = float(sys.argv[5]) if len(sys.argv) > 5 else None
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        latencies = sorted(runner.run(run(int(port), kind, int(connections), float(seconds), rate)))
    count = len(latencies)
    page = {
        "requests": count,
        "p50_ms": latencies[count // 2] * 1000,
        "p99_ms": latencies[min(count - 1, count * 99 // 100)] * 1000,
    }
    print(json.dumps(page))


if __name__ == "__main__":
    main()
