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
from collections.abc import Callable, Iterable
from dataclasses import dataclass

RawHeaders = list[tuple[bytes, bytes]]
"""Header lines in their order, names and values as they stood on the wire (outer blanks cut)."""

MAX_HEAD_BYTES = 256 * 1024
"""A response head larger than this is a broken peer: real ones stay below 16 KiB."""
MAX_LINE_BYTES = 8 * 1024
"""A chunk-size line with its extensions."""
MAX_TRAILER_BYTES = 64 * 1024

BODILESS_STATUSES = frozenset({204, 304})
"""Answers that have no body whatever their headers say (RFC 9112 section 6.3)."""

_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) +([1-9][0-9]{2})(?: (.*))?")
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_PLAIN_LINE = re.compile(rb"^([!#$%&'*+\-.^_`|~0-9A-Za-z]++):([^\r\n\0]*+)\r?\n", re.MULTILINE)
"""A header line as nearly all are: no blank before the colon, no folding."""
_DIGITS = re.compile(rb"[0-9]{1,18}")
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15}+)[ \t]*+(?:;[^\n]*+)?\r?\n")
_HEAD_END = re.compile(rb"\n\r?\n")


class BadAnswerError(Exception):
    """The peer's bytes are no HTTP/1.1 response, or the response was cut."""


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """Status line and headers. `keep_alive`: the peer allows another request after this one."""

    status: int
    reason: bytes
    headers: RawHeaders
    keep_alive: bool


class Headers(list[tuple[bytes, bytes]]):
    """Header lines that are looked at often: the lower-case names are made once.

    Not to be changed after the first look. facts: what a reader found out about them, kept with
    them: heads that come again and again need no second look.
    """

    __slots__ = ("_by_name", "_lower_names", "facts")

    def __init__(self, lines: Iterable[tuple[bytes, bytes]]) -> None:
        super().__init__(lines)
        self._lower_names: list[bytes] | None = None
        self._by_name: dict[bytes, list[bytes]] | None = None
        self.facts: object = None

    @classmethod
    def of(cls, lines: Iterable[tuple[bytes, bytes]]) -> Headers:
        """Return these lines as Headers, themselves if they are."""
        return lines if isinstance(lines, Headers) else cls(lines)

    @property
    def lower_names(self) -> list[bytes]:
        """The name of each line in lower case."""
        names = self._lower_names
        if names is None:
            names = self._lower_names = [name.lower() for name, _ in self]
        return names

    def values(self, lower_name: bytes) -> list[bytes]:
        """Return all values of a header, in order; the list is not to be changed."""
        by_name = self._by_name
        if by_name is None:
            by_name = self._by_name = {}
            for lower, (_, value) in zip(self.lower_names, self, strict=True):
                by_name.setdefault(lower, []).append(value)
        return by_name.get(lower_name, _NO_VALUES)


_NO_VALUES: list[bytes] = []


def header_values(headers: RawHeaders, lower_name: bytes) -> list[bytes]:
    """Return all values of a header, in order."""
    if isinstance(headers, Headers):
        return headers.values(lower_name)
    return [value for name, value in headers if name.lower() == lower_name]


def tokens_of(headers: RawHeaders, lower_name: bytes) -> list[bytes]:
    """Return the comma-separated tokens of all lines of a header, in lower case."""
    values = header_values(headers, lower_name)
    if not values:
        return []
    joined = b",".join(values)
    return [token for part in joined.split(b",") if (token := part.strip().lower())]


class ResponseReader:
    """The response to one request, fed as the bytes come.

    head: None until the final (not 1xx) head is complete. done: the message ended. excess: bytes
    came after its end, so the connection is out of step. buffered_bytes: body bytes
    waiting in the pieces.
    """

    __slots__ = (
        "_carry",
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
        head = _parse_head(data[position : match.start()])
        if head.status == 101:
            if not self._upgrade:
                raise BadAnswerError("the backend switched protocols unasked")
            # What follows is the other protocol's, to the end of the connection.
            self.head = head
            self._until_close = True
            self._state = self._read_until_close
            return match.end()
        if head.status >= 200:
            self.head = head
            self._start_body(head)
        return match.end()

    def _start_body(self, head: ResponseHead) -> None:
        """Choose the framing: RFC 9112 section 6.3, rules 1, 3, 4, 5, 6 and 8."""
        if self._is_head or head.status in BODILESS_STATUSES:
            self.done = True
            return
        codings = tokens_of(head.headers, b"transfer-encoding")
        if codings:
            if codings != [b"chunked"]:
                raise BadAnswerError("the backend used a transfer coding other than chunked")
            self._state = self._read_chunk_size
            return
        lengths = set(tokens_of(head.headers, b"content-length"))
        if not lengths:
            self._until_close = True
            self._state = self._read_until_close
            return
        length = lengths.pop()
        if lengths or _DIGITS.fullmatch(length) is None:
            raise BadAnswerError("the backend sent an invalid or ambiguous Content-Length")
        self._left = int(length)
        self.done = self._left == 0
        self._state = self._read_length

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
        self._state = self._read_chunk_size
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


def _parse_head(block: bytes) -> ResponseHead:
    status_line, _, rest = block.partition(b"\n")
    # A stray line end before the status line is tolerated (RFC 9112 section 2.2).
    while rest and status_line in (b"", b"\r"):
        status_line, _, rest = rest.partition(b"\n")
    match = _STATUS_LINE.fullmatch(status_line.removesuffix(b"\r"))
    if match is None:
        raise BadAnswerError("the backend does not speak HTTP/1.1")
    headers = Headers(_parse_headers(rest + b"\n" if rest else b""))
    connection = tokens_of(headers, b"connection")
    if match.group(1) == b"1":
        keep_alive = b"close" not in connection
    else:
        keep_alive = b"keep-alive" in connection
    return ResponseHead(int(match.group(2)), match.group(3) or b"", headers, keep_alive)


def _parse_headers(block: bytes) -> RawHeaders:
    """Parse whole header lines. Raises BadAnswerError."""
    plain = _PLAIN_LINE.findall(block)
    if len(plain) == block.count(b"\n"):
        return [(name, value.strip(b" \t")) for name, value in plain]
    return _parse_odd_headers(block.removesuffix(b"\n").split(b"\n"))


def _parse_odd_headers(lines: list[bytes]) -> RawHeaders:
    headers: RawHeaders = []
    for raw in lines:
        line = raw.removesuffix(b"\r")
        if b"\r" in line or b"\0" in line:
            raise BadAnswerError("a response header holds a forbidden character")
        if line[:1] in (b" ", b"\t") and headers:
            # Obsolete line folding becomes one blank (RFC 9112 section 5.2).
            name, value = headers[-1]
            headers[-1] = (name, value + b" " + line.strip(b" \t"))
            continue
        name, colon, value = line.partition(b":")
        name = name.rstrip(b" \t")
        if not colon or _TOKEN.fullmatch(name) is None:
            raise BadAnswerError("a response header line is malformed")
        headers.append((name, value.strip(b" \t")))
    return headers
