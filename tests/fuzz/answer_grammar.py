"""Bytes of backends: valid answers, answers bent by hand, and both with bytes knocked out."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from tests.fuzz.request_grammar import chunks, knocked, knocks
from tests.fuzz.stage import cut

STATUSES = (b"200 OK",) * 6 + (
    b"200", b"201 Created", b"204 No Content", b"205 Reset Content", b"206 Partial",
    b"299 \xff\xe9",
    b"302 Found", b"304 Not Modified", b"400 Bad", b"404 Not Found", b"418 \t", b"422 No",
    b"500 Broken", b"502 Bad Gateway", b"504 Late", b"100 Continue", b"101 Switch", b"103 Early",
    b"999 Odd", b"600 Odd", b"099 Odd", b"20 OK", b"2000 OK", b"+200 OK", b"200OK", b"", b"OK 200",
)  # fmt: skip
VERSIONS = (b"HTTP/1.1",) * 12 + (b"HTTP/1.0", b"HTTP/1.0", b"HTTP/2", b"HTTP/1.10", b"http/1.1",
                                  b"ICY", b"HTTP/1.1 ", b"HTTP/0.9", b"\r\nHTTP/1.1", b"HTTP/2.0",
                                  b"HTTP/1.1\t", b" HTTP/1.1", b"\xef\xbb\xbfHTTP/1.1")  # fmt: skip
ENDS = (b"\r\n",) * 16 + (b"\n", b"\r", b"\r\r\n", b" \r\n")
LINES = (
    b"X-E: 1", b"X-E: 2", b"X-E:", b"x-e:\t\xff \xe9", b"X-E: a\x01b", b"X-E: a\x00b", b"X-E: a\rb",
    b"X-E : 1", b"X-E: a\r\n folded", b" folded", b"no colon", b": empty", b"X E: 1", b"X-\xe9: 1",
    b"X-Long: " + b"x" * 20_000, b"Connection: close", b"Connection: keep-alive",
    b"Connection: X-E",
    b"Connection: upgrade", b"Connection:", b"Upgrade: websocket", b"Trailer: X-T", b"X-E: \x7f",
    b"Content-Encoding: gzip", b"Content-Type: text/event-stream", b"Content-Type: \xff",
    b"Set-Cookie: a=1; b", b"Date: never", b"Date: Thu, 01 Jan 1970 00:00:00 GMT", b"Server: x",
    b"X-Lifeboat-Backend: other", b"X-Lifeboat-Wait-ms: 9", b"X-Request-ID: theirs", b"Age: -1",
    b"Keep-Alive: timeout=1", b"Proxy-Authenticate: Basic", b"Retry-After: 1", b"Warning: 110",
)  # fmt: skip
BODY = b'{"id": "1", "choices": [{"message": {"content": "a line\\r\\n"}}]}'


@dataclass(frozen=True, slots=True)
class Reply:
    """What a backend says. end: see engine.Says; "" where it must be whole to stay."""

    wire: bytes
    pieces: list[bytes]
    end: str


def _framings(size: int) -> tuple[bytes, ...]:
    said = (b" %d" % size,) * 4 + (
        b"", b" %d, %d" % (size, size), b" %d, 5" % size, b" +%d" % size, b" -1", b" 0x10", b" 1 2",
        b" 00%d" % size, b" 99999999999999999999", b"%d" % (size + 1), b"%d" % (size - 1), b" 0",
    )  # fmt: skip
    codings = (b" chunked",) * 4 + (
        b"chunked ", b" Chunked", b" gzip, chunked", b" chunked, chunked", b" gzip", b" identity",
        b"",
        b" xchunked", b" chunked;a=b", b" ,chunked", b"\tchunked", b' "chunked"',
    )  # fmt: skip
    lengths = tuple(b"Content-Length:%b" % one for one in said)
    return lengths + tuple(b"Transfer-Encoding:%b" % one for one in codings)


@st.composite
def replies(draw: st.DrawFn) -> Reply:
    """One answer, perhaps with bytes behind it, cut as it is written."""
    data = draw(st.data())
    body = draw(st.sampled_from((BODY, b"", b"x", BODY * 30, b"data: 1\n\ndata: 2\n\n")))
    is_chunked = draw(st.booleans())
    sent = chunks(body, data) if is_chunked else body
    plain = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: %d" % len(body)
    framing = draw(
        st.sampled_from(((plain,),) * 4 + ((),))
        | st.lists(st.sampled_from(_framings(len(body))), max_size=2)
    )
    head = draw(st.sampled_from(VERSIONS)) + b" " + draw(st.sampled_from(STATUSES))
    lines = draw(st.lists(st.sampled_from(LINES), max_size=4))
    end = draw(st.sampled_from(ENDS))
    wire = end.join((head, b"Content-Type: application/json", *lines, *framing, b"", sent))
    early = draw(
        st.sampled_from(
            (b"",) * 8 + (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 E\r\nX: 1\r\n\r\n")
        )
    )
    stray = draw(
        st.sampled_from(
            (b"",) * 8 + (b"\r\n", b"x", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")
        )
    )
    wire = early + wire + stray
    if draw(st.integers(0, 4)) == 0:
        wire = knocked(wire, draw(st.lists(knocks(len(wire)), max_size=3)))
    if draw(st.integers(0, 5)) == 0:
        wire = wire[: draw(st.integers(0, len(wire)))]
    pieces = cut(wire, draw(st.lists(st.integers(0, min(len(wire), 500)), max_size=5)))
    return Reply(wire, pieces, draw(st.sampled_from(("", "", "closed", "reset"))))
