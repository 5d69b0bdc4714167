"""A model server that answers when it is told to, and counts what really runs in it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable

from tests.peers import Peer, Received, ScriptedBackend

MODEL = "m"


class HeldEngine(ScriptedBackend):
    """Holds every POST until it is released (or for `hold_s`), streamed or not.

    running: requests whose client is still there. most_running: the highest it was when counted
    strictly: a request whose connection the router has closed does not count, even when this
    engine has not been told of it yet.
    """

    def __init__(self, *, hold_s: float | None = None, models: tuple[str, ...] = (MODEL,)) -> None:
        super().__init__(self._serve)
        self.hold_s = hold_s
        self.models = models
        self.asked: list[Received] = []
        """Every POST, in order of arrival."""
        self.running: dict[Peer, Received] = {}
        self.most_running = 0
        self.left = 0
        """Requests whose connection the router closed before their answer ended."""
        self.answered = 0
        self._held: deque[asyncio.Event] = deque()

    def release(self, count: int = 1) -> None:
        """Let the oldest held requests finish."""
        while count and self._held:
            event = self._held.popleft()
            if not event.is_set():
                event.set()
                count -= 1

    def release_all(self) -> None:
        """Let all that are held finish, and hold none from now on."""
        self.hold_s = 0.0
        for event in self._held:
            event.set()
        self._held.clear()

    def tags(self) -> list[str]:
        """Return the `user` field of every request, in order of arrival."""
        return [json.loads(received.body)["user"] for received in self.asked]

    async def _serve(self, peer: Peer) -> None:
        while True:
            received = await peer.request()
            if received.method != "POST":
                listing = {"object": "list", "data": [{"id": name} for name in self.models]}
                await peer.send(json_answer(listing))
                continue
            self.asked.append(received)
            self.running[peer] = received
            if len(self.running) > self.most_running:
                self._count()
            try:
                stayed = await self._answer(peer, received)
            finally:
                self.running.pop(peer, None)
            if not stayed:
                self.left += 1
                return
            self.answered += 1

    def _count(self) -> None:
        """Count what runs, without those whose client's FIN or RST lies in the kernel unread."""
        for peer in list(self.running):
            if closed_by_peer(peer.writer):
                del self.running[peer]
        self.most_running = max(self.most_running, len(self.running))

    async def _answer(self, peer: Peer, received: Received) -> bool:
        """Answer; return False when the router went away meanwhile."""
        streamed = b'"stream": true' in received.body or b'"stream":true' in received.body
        if streamed:
            await peer.send(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            await peer.chunk(event("Hel"))
        if not await self._stay(peer):
            return False
        # Not running any more from the moment its last bytes go out.
        self.running.pop(peer, None)
        if streamed:
            await peer.chunk(event("lo"), b"data: [DONE]\n\n")
            await peer.send(b"0\r\n\r\n")
        else:
            await peer.send(json_answer(completion()))
        return True

    async def _stay(self, peer: Peer) -> bool:
        loop = asyncio.get_running_loop()
        gone = loop.create_task(peer.reader.read(1))
        if self.hold_s is None:
            event = asyncio.Event()
            self._held.append(event)
            held = loop.create_task(event.wait())
        else:
            held = loop.create_task(asyncio.sleep(self.hold_s))
        try:
            await asyncio.wait({gone, held}, return_when=asyncio.FIRST_COMPLETED)
            return not gone.done()
        finally:
            for task in (gone, held):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                    await task


def closed_by_peer(writer: asyncio.StreamWriter) -> bool:
    """Say whether the other end has closed the connection, unread bytes and all."""
    sock = writer.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return True
    with socket.socket(fileno=os.dup(sock.fileno())) as twin:
        try:
            return twin.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True


def json_answer(page: object, status: bytes = b"200 OK", *headers: bytes) -> bytes:
    """Return a whole response of JSON."""
    body = json.dumps(page).encode()
    lines = [b"HTTP/1.1 " + status, b"Content-Type: application/json", *headers]
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(body)]) + b"\r\n\r\n" + body


def completion(text: str = "Hello") -> dict:
    """Return a chat completion."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def event(text: str) -> bytes:
    """Return one event of a chat stream."""
    page = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": MODEL,
        "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}],
    }
    return b"data: " + json.dumps(page).encode() + b"\n\n"


Move = bytes | Callable[[Peer, Received], Awaitable[None]]


class SayingEngine(ScriptedBackend):
    """Meets each POST with its next move: bytes to send, or a coroutine function to run.

    The last move repeats. A coroutine function that returns leaves the connection open. GETs (the
    router's own probes) get the model list, or `probe` where it is set.
    """

    def __init__(self, *moves: Move, probe: bytes | None = None) -> None:
        super().__init__(self._serve)
        self.moves = list(moves)
        self.probe = probe
        self.asked: list[Received] = []

    async def _serve(self, peer: Peer) -> None:
        while True:
            received = await peer.request()
            if received.method != "POST":
                listing = {"object": "list", "data": [{"id": MODEL}]}
                await peer.send(self.probe or json_answer(listing))
                continue
            move = self.moves[min(len(self.asked), len(self.moves) - 1)]
            self.asked.append(received)
            if isinstance(move, bytes):
                await peer.send(move)
            else:
                await move(peer, received)


async def lose(peer: Peer, received: Received) -> None:
    """Break the connection without a byte of an answer."""
    peer.reset()
    raise ConnectionResetError


async def hang_up(peer: Peer, received: Received) -> None:
    """Close the connection without a byte of an answer."""
    peer.close()
    raise ConnectionResetError


OK = json_answer(completion())


def error_answer(status: bytes, body: object, *headers: bytes) -> bytes:
    """Return a backend's error, with a header that shows whether it was relayed whole."""
    return json_answer(body, status, b"X-Engine: yes", *headers)
