"""Bytes of clients: valid requests, requests bent by hand, and both with bytes knocked out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from tests.fuzz.stage import cut
from tests.running import CHAT

CRLF = b"\r\n"


@dataclass(frozen=True, slots=True)
class Draft:
    """A request before it is written. framing: the lines about the body; wire: as it is sent."""

    tag: int
    method: bytes = b"POST"
    target: bytes = CHAT.encode()
    version: bytes = b"HTTP/1.1"
    lines: tuple[bytes, ...] = ()
    framing: tuple[bytes, ...] = ()
    wire: bytes = b""
    before: bytes = b""
    end: bytes = CRLF
    gap: bytes = b" "

    def written(self) -> bytes:
        """Return the bytes."""
        first = self.gap.join(part for part in (self.method, self.target, self.version) if part)
        head = self.end.join((first, *self.lines, *self.framing))
        return self.before + head + 2 * self.end + self.wire


def chat(tag: int, filling: str = "x") -> Draft:
    """A request that must be served."""
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": f"{tag} {filling}"}]}
    ).encode()
    lines = (b"Host: localhost", b"X-Tag: %d" % tag, b"Content-Type: application/json")
    framing = (b"Content-Length: %d" % len(body),)
    return Draft(tag, lines=lines, framing=framing, wire=body)


def page(tag: int, target: bytes) -> Draft:
    """A request for one of the small pages."""
    return Draft(tag, b"GET", target, lines=(b"Host: localhost", b"X-Tag: %d" % tag))


def hidden(tag: int) -> bytes:
    """A whole request that stands where a body might: no careful reader ever sees it as one."""
    return chat(900 + tag, "hidden").written()


Twist = Callable[[Draft, st.DataObject], Draft]
"""Bends a request; draws what it needs."""


def _line(*choices: bytes) -> Twist:
    def twist(draft: Draft, data: st.DataObject) -> Draft:
        line = data.draw(st.sampled_from(choices))
        at = data.draw(st.integers(0, len(draft.lines)))
        return replace(draft, lines=(*draft.lines[:at], line, *draft.lines[at:]))

    return twist


def _set(**choices: tuple[bytes, ...]) -> Twist:
    def twist(draft: Draft, data: st.DataObject) -> Draft:
        drawn = {name: data.draw(st.sampled_from(some)) for name, some in choices.items()}
        return replace(draft, **drawn)  # pyright: ignore[reportArgumentType]

    return twist


def _framing(draft: Draft, data: st.DataObject) -> Draft:
    """Any lines about the body, contradictions above all, over a body that can be read two ways."""
    size = len(draft.wire)
    wire = data.draw(
        st.sampled_from(
            (
                draft.wire,
                b"%x\r\n%b\r\n0\r\n\r\n" % (size, draft.wire),
                b"%x\r\n%b\r\n0\r\n\r\n" % (size, draft.wire) + hidden(draft.tag),
                b"0\r\n\r\n" + hidden(draft.tag),
                draft.wire + hidden(draft.tag),
            )
        )
    )
    lengths = (size, len(wire), 0, 1, size - 1, size + 1, 5, 4)
    said = [b"Content-Length: %d" % length for length in lengths]
    said += [b"Content-Length:%b" % odd for odd in (
        b"", b" +%d" % size, b" -1", b" 0x10", b" %d, %d" % (size, size), b" %d, 5" % size,
        b" 000%d" % size, b" 99999999999999999999", b" 1e1", b" %d \t" % size, b" \x0b%d" % size,
        b" 5;5", b" 5 5", b"%d\r\n %d" % (size, size), b" " + b"0" * 400 + b"%d" % size,
    )]  # fmt: skip
    said += [b"content-length : %d" % size, b" Content-Length: %d" % size,
             b"Content_Length: %d" % size, b"Content-Length\x00: %d" % size]  # fmt: skip
    said += [b"Transfer-Encoding:%b" % coding for coding in (
        b" chunked", b" Chunked", b"chunked", b" chunked ", b"\tchunked", b" xchunked", b" gzip",
        b" chunked, identity", b" identity", b" identity, chunked", b" gzip, chunked", b"",
        b" chunked, chunked", b" chunked;a=b", b" \x0bchunked", b' "chunked"', b"\r\n chunked",
        b" chunked\x00", b" ,chunked", b" chun\rked",
    )]  # fmt: skip
    said += [b"Transfer-Encoding : chunked", b"Transfer_Encoding: chunked",
             b"X: y\nTransfer-Encoding: chunked", b"X: y\rTransfer-Encoding: chunked"]  # fmt: skip
    lines = data.draw(st.lists(st.sampled_from(said), max_size=3))
    return replace(draft, framing=tuple(lines), wire=wire)


_CHUNK_ENDS = (b"\r\n",) * 8 + (b"\n", b"\r", b"", b" \r\n", b"\r\r\n", b"\n\n")
_EXTENSIONS = (b"",) * 8 + (b";a=b", b';a="b;c"', b" ;a", b";", b";" + b"x" * 9000, b" ", b";\na",
                            b";a\rb", b"\x00", b"g", b";a=\r")  # fmt: skip
_SIZES = (b"%x",) * 10 + (b"%X", b"000%x", b"0x%x", b"+%x", b"-%x", b" %x", b"%xg",
                          b"fffffffffffffffff%x", b"%x_0")  # fmt: skip
_TAILS = (b"0\r\n\r\n",) * 8 + (
    b"0\r\nX-T: 1\r\n\r\n", b"0\r\nContent-Length: 5\r\n\r\n", b"0\r\nX T: 1\r\n\r\n",
    b"0;a=b\r\n\r\n", b"0\r\n", b"0\r\n\n", b"00\r\n\r\n", b"0\n\n", b"0\r\nX: a\rb\r\n\r\n",
    b"0\r\nTransfer-Encoding: chunked\r\n\r\n", b"0\r\n X: 1\r\n\r\n", b"0\r\nX: \x00\r\n\r\n",
)  # fmt: skip


def chunks(body: bytes, data: st.DataObject) -> bytes:
    """Return a body in chunks, well or badly made."""
    wire = b""
    while body:
        size = data.draw(st.integers(1, len(body)))
        piece, body = body[:size], body[size:]
        wire += data.draw(st.sampled_from(_SIZES)) % size
        wire += data.draw(st.sampled_from(_EXTENSIONS)) + CRLF
        wire += piece + data.draw(st.sampled_from(_CHUNK_ENDS))
    return wire + data.draw(st.sampled_from(_TAILS))


def _chunked(draft: Draft, data: st.DataObject) -> Draft:
    framing = (b"Transfer-Encoding: chunked",)
    return replace(draft, framing=framing, wire=chunks(draft.wire, data))


def _without_host(draft: Draft, data: st.DataObject) -> Draft:
    return replace(draft, lines=tuple(line for line in draft.lines if line[:4] != b"Host"))


def _many_lines(draft: Draft, data: st.DataObject) -> Draft:
    count = data.draw(st.sampled_from((100, 124, 127, 130, 500)))
    return replace(draft, lines=(*draft.lines, *(b"X-%d: 1" % at for at in range(count))))


TWISTS: tuple[Twist, ...] = (
    _framing,
    _framing,
    _chunked,
    _chunked,
    _without_host,
    _many_lines,
    _set(method=(
        b"post", b"GET", b"HEAD", b"PUT", b"OPTIONS", b"CONNECT", b"TRACE", b"PRI", b"P",
        b"P\x00ST",
        b"PO ST", b"P\xc3\x96ST", b"M-SEARCH", b"GE", b"", b"G\rET", b"X" * 300, b"POST\t", b"(x)",
    )),
    _set(target=(
        b"*", b"http://localhost/v1/chat/completions", b"http://127.0.0.1:1/v1/chat/completions",
        b"HTTP://LOCALHOST/v1/chat/completions", b"http://other.test/v1/chat/completions",
        b"//v1/chat/completions", b"/v1/chat/completions?a=b&%41=%zz", b"/v1//chat/completions",
        b"/v1/chat/completions#f", b"/v1/%63hat/completions", b"/v1/chat/completions/",
        b"/v1/chat/../chat/completions", b"\\v1\\chat", b"localhost:80", b"", b"/v1/chat\x00", b"/",
        b"/v1/chat/compl\xc3\xa9tions", b"/v1/chat/completions?q=\xff", b"/" + b"a" * 70_000,
        b"http://localhost", b"http://u@localhost/v1/chat/completions", b"ftp://localhost/", b"/ /",
        b"http://[::1]/v1/chat/completions", b"http://[/", b"/v1/chat/completions?\x7f", b"/\t",
        b"http://localhost:99999/", b"http://local\xe9host/v1/models", b"/%", b"/v1/models/%ff",
    )),
    _set(version=(
        b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.1 ", b"http/1.1", b"HTTP/1.",
        b"HTTP/11", b"HTTP/1.10", b"HTTP", b"", b"HTTP/1.1x", b"HTTP /1.1", b"HTTP/1,1", b"ICE/1.0",
    )),
    _set(end=(b"\n", b"\r", b"\r\r\n", b"\n\r", b" \r\n")),
    _set(gap=(b"  ", b"\t", b"\x0b", b" \x00", b"\r", b"")),
    _set(before=(
        b"\r\n", b"\r\n\r\n", b"\n", b"\r", b" ", b"\x00", b"\r\n\n\r\n", b"\x16\x03\x01\x02\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\xef\xbb\xbf", b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\n",
    )),
    _line(b"Host: localhost", b"Host: other.test", b"Host:", b"host: a, b", b"Host: a/b@c",
        b"Host : a"),
    _line(
        b" folded", b"X-Fold: a\r\n b", b"X-Fold: a\r\n\tb", b"X-Fold: a\r\n ", b"X-CR: a\rb",
        b"X-Nul: a\x00b", b"X-Ctl: a\x01b", b"X-Del: a\x7fb", b"X-High: \xff\xfe", b"nonsense",
        b": x",
        b"X Y: 1", b"X-Y : 1", b"X-(odd): 1", b"X-\xe9: 1", b"X-Long: " + b"x" * 70_000, b"X-E:",
        b"\x00",
        b"X-Tag: 1, 2", b"X-Lf: a\nX-Tag: 7", b"x" * 9000 + b": 1", b"X-Tab:\t1\t",
        b"X-Quote: \"a\r\nb",
    ),
    _line(
        b"Connection: close", b"Connection: keep-alive", b"Connection: X-Tag",
        b"Connection: upgrade",
        b"Connection: content-length", b"Connection: transfer-encoding, close", b"Connection:",
        b"Connection: keep-alive, close", b"Keep-Alive: timeout=0", b"Proxy-Connection: close",
        b"Connection: host", b"Connection: \xff, close",
    ),
    _line(
        b"Expect: 100-continue", b"Expect: 100-Continue, x", b"Expect: nothing",
        b"TE: trailers, gzip",
        b"Upgrade: websocket", b"Upgrade: h2c", b"Trailer: X-T", b"Content-Encoding: gzip",
        b"Content-Encoding: identity", b"Content-Encoding: br, gzip, zstd", b"Content-Type: \xff/x",
        b"Content-Type: multipart/form-data; boundary=", b"X-Request-ID: a b\xff",
        b"X-Request-ID: " + b"y" * 5000, b"X-Lifeboat-Priority: \xff", b"X-Lifeboat-Wait-ms: 7",
        b"X-Forwarded-For: \"", b"Forwarded: ;;;", b"Authorization: \xff", b"Content-Type: ",
        b"HTTP2-Settings: AAMAAABkAAQ", b"Range: bytes=0-1", b"Accept-Encoding: *;q=0",
    ),
)  # fmt: skip

PAGES = (b"/v1/models", b"/health", b"/v1/models/m", b"/ready", b"/nowhere", b"/v1/models/nobody",
         b"/v1/chat/completions", b"/metrics?x", b"/api/lb/mode")  # fmt: skip


@st.composite
def conversations(draw: st.DrawFn) -> tuple[bytes, ...]:
    """What a client sends on one connection, cut as it is written."""
    data = draw(st.data())
    wire = b""
    for tag in range(1, draw(st.integers(1, 4)) + 1):
        how = draw(st.sampled_from(("plain", "plain", "page", "twisted", "twisted", "twisted")))
        if how == "page":
            draft = page(tag, draw(st.sampled_from(PAGES)))
        else:
            draft = chat(tag, draw(st.sampled_from(("", "x", "y" * 300))))
        for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3))) if how == "twisted" else 0):
            draft = draw(st.sampled_from(TWISTS))(draft, data)
        wire += draft.written()
    wire = knocked(wire, draw(st.lists(knocks(len(wire)), max_size=3)) if draw(KNOCKED) else [])
    if draw(st.integers(0, 9)) == 0:
        wire = wire[: draw(st.integers(0, len(wire)))]
    near = st.integers(0, min(len(wire), 600))
    return tuple(cut(wire, draw(st.lists(near | st.integers(0, len(wire)), max_size=6))))


KNOCKED = st.integers(0, 5).map(lambda drawn: drawn == 0)
"""Whether bytes are knocked about."""
STRAY = (b"\r", b"\n", b"\r\n", b"\0", b" ", b"\t", b":", b",", b";", b"0", b"\x7f", b"\xff",
    b"\x0b",
         b"\r\n\r\n", b"chunked", b"A")  # fmt: skip
Knock = tuple[str, int, bytes]


def knocks(size: int) -> st.SearchStrategy[Knock]:
    """Ways to damage so many bytes: put in, put over, take out."""
    return st.tuples(
        st.sampled_from(("in", "over", "out")),
        st.integers(0, max(0, min(size - 1, 400))) | st.integers(0, max(0, size - 1)),
        st.sampled_from(STRAY),
    )


def knocked(wire: bytes, damage: list[Knock]) -> bytes:
    """Return bytes damaged so."""
    for how, at, stray in damage:
        after = at if how == "in" else at + len(stray)
        wire = wire[:at] + (b"" if how == "out" else stray) + wire[after:]
    return wire
