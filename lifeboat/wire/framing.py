"""Reading an HTTP/1.1 response without any I/O: bytes in, a head and body pieces out.

Source: RFC 9112 (message framing) and RFC 9110 (header semantics). Written here, not taken from
aiohttp's client, because the relay must hand on header bytes exactly as they came (aiohttp's writer
drops bytes that are no UTF-8) and must know the instant a body ended.

Invariants, held by tests/wire/test_framing.py:
- The pieces and the head are the same however the bytes were cut into reads.
- `done` is True only after the body's own framing (or, for a body that lasts until the connection
  closes, an orderly close) said so: a cut answer never ends cleanly.
- Memory for a line or a head that never ends is bounded.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable

from lifeboat.wire.answer_head import BadAnswerError, BodyEnd, ResponseHead, parse_head

__all__ = ["BadAnswerError", "ResponseHead", "ResponseReader"]

MAX_HEAD_BYTES = 256 * 1024
"""A response head larger than this is a broken peer: real ones stay below 16 KiB."""
MAX_LINE_BYTES = 8 * 1024
"""A chunk-size line with its extensions."""
MAX_TRAILER_BYTES = 64 * 1024

_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15}+)[ \t]*+(?:;[^\r\n\0]*+)?\r?\n")
_PLAIN_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")
_HEAD_END = re.compile(rb"\n\r?\n")


def _one_chunk(read_bytes: int) -> tuple[int, bytes]:
    """Return the size of the piece in a chunk of so many bytes in all, and how the chunk begins.

    A read of that length which so begins, and ends with a line end, is that chunk and no other.
    """
    for digits in (1, 2, 3):
        size = read_bytes - digits - 4
        if size > 0 and len(b"%x" % size) == digits:
            return size, b"%x\r\n" % size
    # No chunk has this length: nothing begins like this.
    return 0, b"\0"


MOST_KNOWN_BYTES = 2048
_ONE_CHUNK = tuple(_one_chunk(read_bytes) for read_bytes in range(MOST_KNOWN_BYTES))
"""By the length of a read. Events of a stream are small, and mostly come one a read."""


class ResponseReader:
    """The response to one request, fed as the bytes come.

    head: None until the final (not 1xx) head is complete. done: the message ended. excess: bytes
    came after its end, so the connection is out of step. buffered_bytes: body bytes
    waiting in the pieces.
    """

    __slots__ = (
        "_carry",
        "_chunk_start",
        "_is_head",
        "_left",
        "_state",
        "_trailer_bytes",
        "_until_close",
        "_upgrade",
        "buffered_bytes",
        "done",
        "excess",
        "head",
        "pieces",
    )

    def __init__(self, *, is_head: bool = False, upgrade: bool = False) -> None:
        self.head: ResponseHead | None = None
        self.pieces: deque[bytes] = deque()
        self.buffered_bytes = 0
        self.done = False
        self.excess = False
        self._is_head = is_head
        self._carry = b""
        self._left = 0
        self._trailer_bytes = 0
        self._until_close = False
        self._upgrade = upgrade
        # The state is the method that reads the next part; it returns the new position, or -1 when
        # the part is not complete yet.
        self._state: Callable[[bytes, int], int] = self._read_head
        self._chunk_start: Callable[[bytes, int], int] | None = None

    def feed(self, data: bytes) -> None:
        """Take bytes as they came. Raises BadAnswerError when they are no valid response."""
        if self._carry:
            data = self._carry + data
            self._carry = b""
        position, end = 0, len(data)
        while position < end:
            if self.done:
                self.excess = True
                return
            after = self._state(data, position)
            if after < 0:
                self._carry = data[position:]
                return
            position = after

    def whole_chunks(self, data: bytes) -> int:
        """Return the size of the pieces in a read that is whole, plain chunks and nothing else.

        0 for any other, and while pieces wait: then `feed` it. Such a read may be passed on as it
        came, and leaves the reader as it was.
        """
        if self._state is not self._chunk_start or self._carry or self.pieces:
            return 0
        end = len(data)
        if end < MOST_KNOWN_BYTES:
            size, start = _ONE_CHUNK[end]
            if data.startswith(start) and data.endswith(b"\r\n"):
                return size
        at = total = 0
        while at < end:
            match = _PLAIN_CHUNK.match(data, at)
            if match is None:
                return 0
            size = int(match.group(1), 16)
            at = match.end() + size + 2
            if not size or at > end or data[at - 2 : at] != b"\r\n":
                return 0
            total += size
        return total

    def feed_eof(self) -> None:
        """The peer closed in order. Raises BadAnswerError unless that completes the answer."""
        if self.done:
            return
        if self.head is None:
            raise BadAnswerError("the connection was closed before an answer came")
        if not self._until_close:
            raise BadAnswerError("the connection was closed in the middle of the answer")
        self.done = True

    def take(self, most_bytes: int) -> bytes:
        """Return waiting body bytes: the next piece, with those after it while they fit."""
        pieces = self.pieces
        if not pieces:
            return b""
        first = pieces.popleft()
        if pieces and len(first) < most_bytes:
            parts, size = [first], len(first)
            while pieces and size + len(pieces[0]) <= most_bytes:
                part = pieces.popleft()
                parts.append(part)
                size += len(part)
            first = b"".join(parts)
        self.buffered_bytes -= len(first)
        return first

    def put_back(self, piece: bytes) -> None:
        """Let a piece that was taken be the next one again."""
        self.pieces.appendleft(piece)
        self.buffered_bytes += len(piece)

    # ---- the parts of a message, in their order ----------------------------------------------

    def _read_head(self, data: bytes, position: int) -> int:
        match = _HEAD_END.search(data, position)
        if match is None or match.end() - position > MAX_HEAD_BYTES:
            if len(data) - position > MAX_HEAD_BYTES:
                raise BadAnswerError(f"the response head is larger than {MAX_HEAD_BYTES} bytes")
            return -1
        head = parse_head(data[position : match.start()])
        if head.status == 101:
            if not self._upgrade:
                raise BadAnswerError("the backend switched protocols unasked")
            # What follows is the other protocol's, to the end of the connection.
            self.head = head
            self._until_close = True
            self._state = self._read_until_close
            return match.end()
        if head.status >= 200:
            # First, for it may raise: a head whose body cannot be found is none to pass on.
            self._start_body(head)
            self.head = head
        return match.end()

    def _start_body(self, head: ResponseHead) -> None:
        """Choose the framing by the head, and by what the request was (RFC 9112 section 6.3)."""
        end, length = (BodyEnd.NOTHING, 0) if self._is_head else head.body()
        match end:
            case BodyEnd.NOTHING:
                self.done = True
            case BodyEnd.CHUNKED:
                self._state = self._chunk_start = self._read_chunk_size
            case BodyEnd.LENGTH:
                self._left = length
                self.done = length == 0
                self._state = self._read_length
            case BodyEnd.CLOSE:
                self._until_close = True
                self._state = self._read_until_close

    def _append(self, piece: bytes) -> None:
        self.pieces.append(piece)
        self.buffered_bytes += len(piece)

    def _read_length(self, data: bytes, position: int) -> int:
        end = min(position + self._left, len(data))
        self._append(data[position:end])
        self._left -= end - position
        self.done = self._left == 0
        return end

    def _read_until_close(self, data: bytes, position: int) -> int:
        self._append(data[position:])
        return len(data)

    def _line(self, data: bytes, position: int) -> int:
        """Return the index of the next LF, -1 when it has not come."""
        end = data.find(b"\n", position)
        if (end if end >= 0 else len(data)) - position > MAX_LINE_BYTES:
            raise BadAnswerError("a line of the chunked framing is too long")
        return end

    def _read_chunk_size(self, data: bytes, position: int) -> int:
        match = _CHUNK_LINE.match(data, position)
        if match is None or match.end() - position > MAX_LINE_BYTES + 1:
            if self._line(data, position) < 0:
                return -1
            raise BadAnswerError("the chunked framing is broken: no chunk size")
        size, start = int(match.group(1), 16), match.end()
        if size and data[start + size : start + size + 2] == b"\r\n":
            # Whole in this read, as the events of a stream nearly always are.
            self._append(data[start : start + size])
            return start + size + 2
        self._left = size
        self._state = self._read_chunk if size else self._read_trailer
        return start

    def _read_chunk(self, data: bytes, position: int) -> int:
        end = min(position + self._left, len(data))
        self._append(data[position:end])
        self._left -= end - position
        if self._left == 0:
            self._state = self._read_chunk_end
        return end

    def _read_chunk_end(self, data: bytes, position: int) -> int:
        end = self._line(data, position)
        if end < 0:
            return -1
        if data[position:end] not in (b"", b"\r"):
            raise BadAnswerError("the chunked framing is broken: no line end after a chunk")
        self._state = self._chunk_start or self._read_chunk_size
        return end + 1

    def _read_trailer(self, data: bytes, position: int) -> int:
        """Trailers are read and dropped: no client of ours asked for them (no TE goes upstream)."""
        end = self._line(data, position)
        if end < 0:
            return -1
        self._trailer_bytes += end - position
        if self._trailer_bytes > MAX_TRAILER_BYTES:
            raise BadAnswerError("the trailers are too large")
        if data[position:end] in (b"", b"\r"):
            self.done = True
        return end + 1
