"""The answers in the bytes that a client was sent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: its first line, its headers, how its body is framed, the body itself.

    is_whole: False for one that was cut, or that only the end of the connection ends.
    """

    first_line: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    framing: str
    body: bytes
    is_whole: bool

    @property
    def is_final(self) -> bool:
        """It is no 1xx."""
        return not self.first_line.split(b" ")[1].startswith(b"1")


def answers_of(came: bytes, methods: list[str]) -> list[Answer]:
    """Return the answers in these bytes; only the last one may not be whole.

    methods: of the requests, in order: an answer to HEAD has no body.
    """
    found: list[Answer] = []
    left = [method == "HEAD" for method in methods]
    while came:
        head, blank, rest = came.partition(b"\r\n\r\n")
        if not blank or not head.startswith(b"HTTP/1."):
            # Also the body of a 400 to a HEAD that could not be parsed.
            return [*found, Answer(b"HTTP/1.? ? no whole head", (), "", came, is_whole=False)]
        first, *lines = head.split(b"\r\n")
        headers = tuple(_header(line) for line in lines)
        low = {name.lower(): value for name, value in headers}
        status = first.split(b" ")[1]
        is_interim = status.startswith(b"1")
        is_head = not is_interim and bool(left) and left.pop(0)
        framing, body, is_whole = "none", b"", True
        if is_interim or is_head or status in (b"204", b"304"):
            pass
        elif b"chunked" in low.get(b"transfer-encoding", b""):
            framing = "chunked"
            body, rest, is_whole = _dechunked(rest)
        elif b"content-length" in low:
            length = int(low[b"content-length"])
            is_whole = len(rest) >= length
            framing, body, rest = "length", rest[:length], rest[length:]
        else:
            framing, body, rest, is_whole = "until the end", rest, b"", False
        found.append(Answer(first, headers, framing, body, is_whole))
        came = rest
    return found


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b": ")
    return name, value


def _dechunked(data: bytes) -> tuple[bytes, bytes, bool]:
    """Return a chunked body, what follows it, and whether it is whole."""
    body = b""
    while True:
        line, end, data = data.partition(b"\r\n")
        if not end:
            return body, b"", False
        size = int(line, 16)
        body += data[:size]
        if len(data) < size + 2:
            return body, b"", False
        data = data[size + 2 :]
        if size == 0:
            return body, data, True
