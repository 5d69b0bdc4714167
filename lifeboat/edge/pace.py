"""How slowly a client may send a body: a silence is bounded, and so is the time of the whole.

A byte now and then ends every silence. So a body must also keep a least pace on the whole: a client
that drips its body is refused about as soon as one that stops, and holds nothing meanwhile but what
it has sent. Held by tests/edge_tables/test_pace.py and tests/conformance/test_resources.py.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from lifeboat.edge.faults import SlowBodyError

LEAST_BYTES_PER_S = 240
"""Kestrel's MinRequestBodyDataRate; Apache's mod_reqtimeout asks for 500. A telephone modem sends
twenty times as much."""


class Content(Protocol):
    """The reading side of a request body."""

    def read_nowait(self) -> bytes:
        """Return what has arrived, b"" when nothing waits."""
        ...

    def at_eof(self) -> bool:
        """Whether all of it has been read."""
        ...

    async def readany(self) -> bytes:
        """Return what arrives next; b"" at the end."""
        ...


class PacedBody:
    """A body's pieces, as long as they come in time. received_bytes: read before this began."""

    __slots__ = ("_began_at", "_content", "_loop", "_received_bytes", "_silence_s")

    def __init__(self, content: Content, silence_s: float, received_bytes: int = 0) -> None:
        self._content = content
        self._silence_s = silence_s
        self._received_bytes = received_bytes
        self._loop = asyncio.get_running_loop()
        self._began_at = self._loop.time()

    async def next(self) -> bytes:
        """Return what came next, b"" at the end. Raises SlowBodyError."""
        content = self._content
        piece = content.read_nowait()
        if not piece and not content.at_eof():
            took_s = self._loop.time() - self._began_at
            wait_s = patience_s(self._silence_s, took_s, self._received_bytes)
            try:
                async with asyncio.timeout(wait_s):
                    piece = await content.readany()
            except TimeoutError:
                raise SlowBodyError(self._said(wait_s)) from None
        self._received_bytes += len(piece)
        return piece

    def _said(self, waited_s: float) -> str:
        if waited_s >= self._silence_s:
            return (
                f"the request body stopped after {self._received_bytes} bytes and nothing came for "
                f"{self._silence_s:g} s (LIFEBOAT_CLIENT_BODY_TIMEOUT_SEC): send it without pauses"
            )
        took_s = self._loop.time() - self._began_at
        return (
            f"of the request body {self._received_bytes} bytes came in {took_s:.1f} s: after "
            f"{self._silence_s:g} s (LIFEBOAT_CLIENT_BODY_TIMEOUT_SEC) it must keep "
            f"{LEAST_BYTES_PER_S} bytes a second on average"
        )


def patience_s(silence_s: float, took_s: float, received_bytes: int) -> float:
    """Return how long the next piece of a body may take; at most 0: it is late already."""
    return min(silence_s, silence_s + received_bytes / LEAST_BYTES_PER_S - took_s)
