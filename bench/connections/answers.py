"""Answers that nobody can mix up: each number has bytes of its own, made piece by piece.

The engine sends the pieces and the client makes them again to compare: so a whole answer is never
held anywhere outside the router.
"""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import AsyncIterator, Callable, Iterator

PIECE_BYTES = 16 * 1024
_STRIDE = 1009
"""Bytes from one answer's text to the next one's: prime, so that no piece of two is the same."""
_TEXT = base64.b64encode(random.Random(5).randbytes(1 << 20))


def text_pieces(number: int, size_bytes: int) -> Iterator[bytes]:
    """Yield letters and digits, in pieces, that only this number has in this order."""
    at = number * _STRIDE
    for done in range(0, size_bytes, PIECE_BYTES):
        begin = (at + done) % (len(_TEXT) - PIECE_BYTES)
        yield _TEXT[begin : begin + min(PIECE_BYTES, size_bytes - done)]


def json_pieces(number: int, size_bytes: int) -> Iterator[bytes]:
    """Yield a chat completion of about this size."""
    yield b'{"object": "chat.completion", "choices": [{"index": 0, "message": {"content": "'
    yield from text_pieces(number, size_bytes)
    yield b'"}, "finish_reason": "stop"}]}'


def event_pieces(number: int, size_bytes: int) -> Iterator[bytes]:
    """Yield the events of a streamed completion of about this size."""
    for text in text_pieces(number, size_bytes):
        yield b'data: {"choices": [{"index": 0, "delta": {"content": "%b"}}]}\n\n' % text
    yield b"data: [DONE]\n\n"


class Checker:
    """Compares bytes that arrive, however they are cut, with those that should."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._next = b""
        self.wrong = False
        self.taken_bytes = 0

    def feed(self, data: bytes) -> None:
        """Take what came next."""
        self.taken_bytes += len(data)
        while data and not self.wrong:
            self._next = self._next or next(self._pieces, b"")
            length = min(len(data), len(self._next))
            self.wrong = not length or data[:length] != self._next[:length]
            data, self._next = data[length:], self._next[length:]

    def is_whole(self) -> bool:
        """Say whether exactly the expected bytes came, to their end."""
        return not self.wrong and not self._next and next(self._pieces, None) is None


async def body_pieces(
    reader: asyncio.StreamReader, most: Callable[[], int]
) -> AsyncIterator[bytes]:
    """Yield the body of a 200 as it comes, at most so many bytes at a time.

    Raises ValueError for another status, IncompleteReadError for a body that was cut.
    """
    raw = await reader.readuntil(b"\r\n\r\n")
    if not raw.startswith(b"HTTP/1.1 200"):
        raise ValueError(raw.partition(b"\r\n")[0].decode())
    head = raw.lower()
    if b"\r\ntransfer-encoding: chunked" not in head:
        length = head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
        async for piece in _exactly(reader, int(length), most):
            yield piece
        return
    while length := int(await reader.readuntil(b"\r\n"), 16):
        async for piece in _exactly(reader, length, most):
            yield piece
        await reader.readexactly(2)
    await reader.readexactly(2)


async def _exactly(
    reader: asyncio.StreamReader, left: int, most: Callable[[], int]
) -> AsyncIterator[bytes]:
    while left:
        piece = await reader.readexactly(min(left, most()))
        left -= len(piece)
        yield piece
