"""Which request heads are plain enough for the fast lane; everything else is aiohttp's to judge.

Held by tests/wire/test_lane.py, which lists what is plain and what is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from lifeboat.wire.headers import Headers

_REQUEST_LINE = re.compile(rb"(POST|GET) (/[!-~]*) HTTP/1\.1\r\n")
_HEADER_LINE = re.compile(
    rb"(?<=\r\n)([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*((?:[!-~]+(?:[ \t]+[!-~]+)*)?)[ \t]*\r\n"
)
MOST_HEADERS = 128
"""In a head, on both lanes. Many servers behind take no more either (aiohttp, Node.js)."""
_LENGTH = re.compile(rb"[0-9]{1,15}")
_BEGINS = re.compile(rb"P(?:O(?:S(?:T(?: (?:/.*)?)?)?)?)?|G(?:E(?:T(?: (?:/.*)?)?)?)?", re.DOTALL)
"""What a request of the lane begins with, however little of it has come."""

_NOT_PLAIN = frozenset(
    {
        b"transfer-encoding",
        b"expect",
        b"upgrade",
        b"proxy-connection",
        b"http2-settings",
        b"te",
        b"trailer",
    }
)
"""Headers that make a request aiohttp's. `Connection` does too, unless it says keep-alive."""


@dataclass(slots=True)
class Head:
    """A plain request head. length: of its body, 0 without one; has_length: it was declared.

    headers: a HeadReader leaves Content-Length out, for heads that differ in nothing else are one
        to it.
    """

    method: str
    raw_path: str
    headers: Headers
    length: int
    has_length: bool


def parse_head(head: bytes) -> Head | None:
    """Return a head, given with its blank line; None if it is not plain.

    Plain: POST with one Content-Length, or GET without a body; one Host, one type; printable ASCII
    in every value; no header that changes framing or the protocol.
    """
    line = _REQUEST_LINE.match(head)
    if line is None:
        return None
    fields = _HEADER_LINE.findall(head, line.end(), len(head) - 2)
    # What the pattern did not take (blanks around values aside) is no header it understands.
    if head.count(b"\r\n", line.end()) != len(fields) + 1 or len(fields) > MOST_HEADERS:
        return None
    headers = Headers(fields)
    names = headers.lower_names
    if not _NOT_PLAIN.isdisjoint(names) or names.count(b"host") != 1:
        return None
    if names.count(b"content-type") > 1:
        return None
    if any(value.lower() != b"keep-alive" for value in headers.values(b"connection")):
        return None
    lengths = headers.values(b"content-length")
    is_post = line.group(1) == b"POST"
    if len(lengths) != is_post or (is_post and _LENGTH.fullmatch(lengths[0]) is None):
        return None
    length = int(lengths[0]) if is_post else 0
    method = "POST" if is_post else "GET"
    return Head(method, line.group(2).decode("ascii"), headers, length, is_post)


_LENGTH_LINE = re.compile(rb"\r\n[Cc]ontent-[Ll]ength:[ \t]*([0-9]{1,15})[ \t]*(?=\r\n)")
MOST_HEADS = 256
MOST_HEAD_BYTES = 4096
"""What a reader remembers: so many heads, none larger; 3 MB with all that is known of them for one
backend (edge/headers.py keeps the lines for each)."""


class HeadReader:
    """Reads heads, and remembers the plain ones of late with all that was found out about them.

    A client sends one head again and again, but for the Content-Length. Two heads are the same
    when all their other bytes are; being plain (one Content-Length, of digits) is then the same
    too, so a head that is remembered needs no second look.

    wanted: whether heads of this method and path are to be served; others are read as None.
    """

    __slots__ = ("_known", "_wanted")

    def __init__(self, wanted: Callable[[str, str], bool]) -> None:
        self._wanted = wanted
        self._known: dict[bytes, Head] = {}

    def read(self, head: bytes) -> tuple[Head, int] | None:
        """Return a head, given with its blank line, and the length of the body behind it.

        None if it is not plain, or not wanted. Its own `length` is that of its first twin.
        """
        found = _LENGTH_LINE.search(head)
        if found is None:
            key, length = head, 0
        else:
            start, end = found.span()
            key, length = head[:start] + head[end:], int(found.group(1))
        known = self._known.get(key)
        # A GET with a length is the twin of one without: but it is not plain.
        if known is not None and known.has_length is (found is not None):
            return known, length
        parsed = parse_head(head)
        if parsed is None or not self._wanted(parsed.method, parsed.raw_path):
            return None
        parsed.headers = Headers(
            line for line in parsed.headers if line[0].lower() != b"content-length"
        )
        if parsed.has_length is (found is not None) and len(key) <= MOST_HEAD_BYTES:
            if len(self._known) >= MOST_HEADS:
                del self._known[next(iter(self._known))]
            self._known[key] = parsed
        return parsed, parsed.length


def may_begin(start: bytes | bytearray) -> bool:
    """Say whether these bytes may become a plain head: no use in waiting for more if not."""
    if b"\n" in start:
        return _REQUEST_LINE.match(start) is not None
    return _BEGINS.fullmatch(start[:8]) is not None
