"""Clients that take a large answer slowly: the router holds little of it, and the engine waits.

Each reads a kilobyte now and then, for a while in which everything would have arrived at a client
that reads; then it reads on to the end, and every byte is compared. The sockets of both ends are
small, so that what lies between them lies in the router, or in the kernel's buffers of its sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.connections.answers import (
    PIECE_BYTES,
    Checker,
    body_pieces,
    event_pieces,
    json_pieces,
)
from bench.connections.scene import (
    MOST_P99_MS,
    Prober,
    Scene,
    begun,
    ended,
    kernel_kib,
    need_descriptors,
    router,
)
from tests.acceptance.engines import completion, json_answer
from tests.peers import Peer, RawClient, ScriptedBackend
from tests.running import CHAT, backend, backends_yaml

READERS = 500
ANSWER_BYTES = 10 << 20
SOCKET_BYTES = 64 * 1024
HOLD_S = 8.0
SIP_BYTES, SIP_PAUSE_S = 1024, 0.5
REST_S = 300.0
"""Longest time for the answers to arrive, once they are read."""

MOST_KIB = 1024.0
"""Of the router's memory for each reader. It stops reading from a backend at 128 KiB, and feeding a
lagging client's transport at 64 KiB; each is passed by the last read of up to 256 KiB, and the
allocator keeps as much again. The answer is ten times as large: a router that took it all in would
show."""
MOST_KERNEL_KIB = 2048.0
"""Of the kernel's memory for each. The router holds the socket towards the client down: without
that it is twice as much. The one towards the engine gets what net.ipv4.tcp_rmem allows."""
MOST_PUSHED_MIB = 3.0
"""Of an answer that the engine got rid of, on average: what router and kernel hold of it."""

Pieces = Callable[[int, int], Iterator[bytes]]


class LargeEngine(ScriptedBackend):
    """Answers each chat with the pieces that belong to its number. pushed: bytes, by number."""

    def __init__(self, pieces: Pieces, size_bytes: int) -> None:
        super().__init__(self._serve)
        self._pieces = pieces
        self._size_bytes = size_bytes
        self._sent: dict[int, tuple[Peer, int]] = {}

    async def __aenter__(self) -> LargeEngine:
        await super().__aenter__()
        for listening in self._server.sockets:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        return self

    def pushed_bytes(self) -> list[int]:
        """Return what has left this process of each answer."""
        return [
            sent - peer.writer.transport.get_write_buffer_size()
            for peer, sent in self._sent.values()
        ]

    async def _serve(self, peer: Peer) -> None:
        while True:
            received = await peer.request()
            if received.method != "POST":
                await peer.send(json_answer({"object": "list", "data": [{"id": "m"}]}))
                continue
            asked = json.loads(received.body)
            if "user" not in asked:
                await peer.send(json_answer(completion()))
                continue
            await self._answer(peer, int(asked["user"]), streamed=asked["stream"])

    async def _answer(self, peer: Peer, number: int, *, streamed: bool) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        if streamed:
            head = (
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
        else:
            head %= sum(map(len, self._pieces(number, self._size_bytes)))
        await peer.send(head)
        sent = 0
        for piece in self._pieces(number, self._size_bytes):
            sent += len(piece)
            self._sent[number] = (peer, sent)
            await (peer.chunk(piece) if streamed else peer.send(piece))
        if streamed:
            await peer.send(b"0\r\n\r\n")


class SlowReader:
    """One client. how: how its answer ended, once it did."""

    def __init__(self, number: int, pieces: Iterator[bytes], *, streamed: bool) -> None:
        self.number = number
        self.checker = Checker(pieces)
        self.how = "did not end"
        self._streamed = streamed

    async def run(self, port: int, on: asyncio.Event) -> None:
        """Ask, sip until `on` is set, then read to the end."""
        client = await RawClient.connect(port, receive_buffer=SOCKET_BYTES)
        try:
            body = {"model": "m", "user": str(self.number), "stream": self._streamed}
            await client.post(CHAT, json.dumps({**body, "messages": []}).encode())
            most = lambda: PIECE_BYTES if on.is_set() else SIP_BYTES  # noqa: E731
            async for piece in body_pieces(client.reader, most):
                self.checker.feed(piece)
                if not on.is_set():
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(SIP_PAUSE_S):
                            await on.wait()
            self.how = "exact" if self.checker.is_whole() else "with other bytes"
        except (ValueError, ConnectionError, asyncio.IncompleteReadError) as error:
            self.how = f"{type(error).__name__}: {error}"
        finally:
            client.close()


async def one_kind(
    name: str, pieces: Pieces, directory: Path, count: int, *, streamed: bool
) -> Scene:
    """Run the scene with one kind of answer."""
    scene = Scene(f"{count} slow readers of {ANSWER_BYTES >> 20} MiB {name}")
    async with LargeEngine(pieces, ANSWER_BYTES) as engine:
        yaml = backends_yaml(backend(engine.url, max_concurrency=count + 1))
        async with router(yaml, directory) as watched:
            readers = [
                SlowReader(number, pieces(number, ANSWER_BYTES), streamed=streamed)
                for number in range(count)
            ]
            idle_kib = await watched.settle()
            watched.forget_peak()
            kernel_idle_kib = kernel_kib()
            on = asyncio.Event()
            prober = await Prober.start(watched.port, CHAT, "/health")
            tasks = await begun(reader.run(watched.port, on) for reader in readers)
            await asyncio.sleep(HOLD_S)
            in_kernel_kib = (kernel_kib() - kernel_idle_kib) / count
            pushed = engine.pushed_bytes()
            held_kib = (watched.peak_kib() - idle_kib) / count
            beside = await prober.end()
            taken = sum(reader.checker.taken_bytes for reader in readers)
            on.set()
            await ended(tasks, REST_S)
            whole_kib = (watched.peak_kib() - idle_kib) / count
    scene.tell("router's memory when idle", f"{idle_kib / 1024:.0f} MiB")
    scene.law("most memory over idle, per reader, while they sip", held_kib, MOST_KIB, "KiB")
    scene.law(
        "held by the kernel for the sockets of both ends", in_kernel_kib, MOST_KERNEL_KIB, "KiB"
    )
    scene.law("router's, until the last byte", whole_kib, MOST_KIB, "KiB")
    scene.tell("taken by a client meanwhile, on average", f"{taken / count / 1024:.0f} KiB")
    mean_mib, most_mib = sum(pushed) / count / (1 << 20), max(pushed) / (1 << 20)
    scene.law("sent by the engine meanwhile, on average", mean_mib, MOST_PUSHED_MIB, "MiB")
    scene.tell("and the most of one answer", f"{most_mib:.2f} MiB")
    for path, answers in beside.items():
        scene.tell(f"{path} for others, to the end", str(answers))
        scene.law("of them refused or lost", answers.wrong, 0)
    # A chat also waits for the engine, which shares its process with all the clients.
    scene.law("p99 of /health", beside["/health"].p99_ms, MOST_P99_MS, "ms")
    wrong = [reader for reader in readers if reader.how != "exact"]
    scene.law("answers lost or not exact to the byte", len(wrong), 0)
    for reader in wrong[:3]:
        scene.broken.append(f"answer {reader.number}: {reader.how}")
    return scene


async def run(directory: Path, scale: float) -> list[Scene]:
    """Run both kinds."""
    count = max(1, round(READERS * scale))
    need_descriptors(2 * count)
    return [
        await one_kind("JSON bodies", json_pieces, directory, count, streamed=False),
        await one_kind("streams", event_pieces, directory, count, streamed=True),
    ]
