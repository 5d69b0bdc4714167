"""What simulating costs: CPU per token in virtual time and over sockets, and memory over time.

Run with `python -m bench.sim [REQUESTS]`. Target: at least 50,000 tokens per CPU second on one
core in virtual time; memory flat over 100,000 requests.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from lifeboat.sim.config import EngineConfig
from lifeboat.sim.engine import Engine
from lifeboat.sim.scheduler import Sequence

PROMPT_TOKENS = 128
OUTPUT_TOKENS = 200
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def virtual_rate(batch: int, rounds: int) -> float:
    """Return tokens per CPU second of a saturated engine, without sockets and without waiting."""
    engine = Engine(EngineConfig().cost_model(), max_num_seqs=batch)
    for _ in range(2 * batch * rounds):
        engine.submit(Sequence(PROMPT_TOKENS, OUTPUT_TOKENS), 0.0)
    begun_s = time.process_time()
    engine.advance(1e9)
    return engine.scheduler.emitted_tokens / (time.process_time() - begun_s)


class Server:
    """`lifeboat sim` in a process of its own, whose CPU time and memory can be read."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-m", "lifeboat", "sim", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline().rsplit(":", 1)[1])

    def cpu_s(self) -> float:
        """CPU seconds used so far, user and system."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) * TICK_S

    def rss_mib(self) -> float:
        """Resident memory."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()


async def user(port: int, requests: int, tokens: int, *, streamed: bool) -> int:
    """Send requests one after the other on one connection; return the bytes that came back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(
        {
            "model": "gpt-oss-20b",
            "messages": [{"role": "user", "content": "How deep is the sea?"}],
            "max_tokens": tokens,
            "stream": streamed,
        }
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    received = 0
    for _ in range(requests):
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        if streamed:
            received += len(await reader.readuntil(b"0\r\n\r\n"))
        else:
            length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            received += len(await reader.readexactly(length))
    writer.close()
    return received


async def load(port: int, users: int, requests: int, tokens: int, *, streamed: bool) -> float:
    """Run users side by side; return the wall seconds it took."""
    begun_s = time.perf_counter()
    share = requests // users
    await asyncio.gather(*[user(port, share, tokens, streamed=streamed) for _ in range(users)])
    return time.perf_counter() - begun_s


def sockets(users: int) -> None:
    """Print the CPU of a streamed token over sockets."""
    server = Server()
    try:
        asyncio.run(load(server.port, users, users, OUTPUT_TOKENS, streamed=True))
        before_s = server.cpu_s()
        requests = users * 10
        wall_s = asyncio.run(load(server.port, users, requests, OUTPUT_TOKENS, streamed=True))
        cpu_s = server.cpu_s() - before_s
    finally:
        server.stop()
    tokens = requests * OUTPUT_TOKENS
    print(
        f"  {users:>4} users: {cpu_s / tokens * 1e6:6.1f} us of CPU per token"
        f" ({tokens / cpu_s:,.0f} tokens per CPU second), {wall_s / 10 * 1e3:.0f} ms per answer"
    )


def memory(requests: int) -> None:
    """Print the resident memory of a server as it answers requests."""
    server = Server("--time-scale", "0.01")
    try:
        asyncio.run(load(server.port, 16, 2_000, 4, streamed=False))
        begun_s, before = server.cpu_s(), server.rss_mib()
        print(f"  after   2,000 requests: {before:.1f} MiB")
        for part in range(1, 5):
            asyncio.run(load(server.port, 16, requests // 4, 4, streamed=part % 2 == 0))
            done = 2_000 + requests * part // 4
            print(f"  after {done:>7,} requests: {server.rss_mib():.1f} MiB")
        per_request_us = (server.cpu_s() - begun_s) / requests * 1e6
        print(f"  {per_request_us:.0f} us of CPU per request of 4 tokens")
    finally:
        server.stop()


def main() -> None:
    """Measure and print."""
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    print("virtual time, saturated, tokens per CPU second (target 50,000):")
    for batch in (1, 8, 24, 256):
        print(f"  batch {batch:>3}: {virtual_rate(batch, max(96 // batch, 2)):>12,.0f}")
    print("over sockets, 200-token streams:")
    sockets(24)
    sockets(256)
    print("memory over sockets:")
    memory(requests)


if __name__ == "__main__":
    main()
