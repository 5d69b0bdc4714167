"""An answer kept whole while its request is tried elsewhere: relayed if nothing better comes."""

from __future__ import annotations

from collections.abc import Callable

from lifeboat.wire.upstream import Answer, Straight


class HeldAnswer:
    """A complete answer in memory, in the shape of a live one. Small: refusals of backends."""

    fresh_retry = False
    ended = True

    def __init__(self, answer: Answer, body: bytes, backend: str) -> None:
        """answer: one that has ended. body: all of its bytes."""
        self.status = answer.status
        self.reason = answer.reason
        self.head = answer.head
        self.backend = backend
        self._body = body

    def when_ended(self, callback: Callable[[], None]) -> None:
        """It has ended already."""
        callback()

    def take_ready(self) -> bytes:
        """Return the body, once."""
        body, self._body = self._body, b""
        return body

    async def read(self, straight: Straight | None = None) -> bytes:
        """Return what is left."""
        return self.take_ready()

    def abort(self) -> None:
        """Nothing is open."""

    def release(self) -> None:
        """Nothing is open."""
