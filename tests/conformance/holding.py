"""Engines that answer when they are told to."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from tests.conformance.lanes import COMPLETION, LAST_CHUNK, SSE_HEAD, answer, event
from tests.peers import Peer, Received


class Held:
    """A script that keeps each request until it is released, or until the router goes.

    running, most_running: requests inside now, and the highest that was. left: those whose
    connection the router closed before their answer.
    """

    def __init__(self, *, streamed: bool = False) -> None:
        self.streamed = streamed
        self.running = 0
        self.most_running = 0
        self.left = 0
        self.open = False
        self._held: deque[asyncio.Event] = deque()

    async def __call__(self, peer: Peer, asked: Received) -> None:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if self.streamed:
                await peer.send(SSE_HEAD)
                await peer.chunk(event("first"))
            stayed = self.open or await self._stay(peer)
        finally:
            self.running -= 1
        if not stayed:
            self.left += 1
            peer.close()
        elif self.streamed:
            await peer.chunk(event("last"), b"data: [DONE]\n\n")
            await peer.send(LAST_CHUNK)
        else:
            await peer.send(answer(COMPLETION))

    async def _stay(self, peer: Peer) -> bool:
        """Wait for the release; return False when the router has gone first."""
        release = asyncio.Event()
        self._held.append(release)
        gone = asyncio.create_task(peer.reader.read(1))
        released = asyncio.create_task(release.wait())
        try:
            await asyncio.wait({gone, released}, return_when=asyncio.FIRST_COMPLETED)
            return release.is_set()
        finally:
            if release in self._held:
                self._held.remove(release)
            for task in (gone, released):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                    await task

    def release(self, count: int = 1) -> None:
        """Let the oldest ones that are held be answered."""
        for _ in range(min(count, len(self._held))):
            self._held.popleft().set()

    def release_all(self) -> None:
        """Answer all, and whatever comes later at once."""
        self.open = True
        self.release(len(self._held))
