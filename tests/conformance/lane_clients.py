"""Random requests. About half are twisted (`TWISTS`): legal but rare, or plainly broken."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from tests.conformance.lane_engines import meeting
from tests.conformance.lane_script import Send, cut_at

MODEL = "m"
KEY = b"sk-router"
_POST_PATHS = (
    "/v1/chat/completions",
    "/v1/chat/completions",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/score",
    "/v1/audio/speech",
    "/v1/images/generations",
    "/v1/videos",
    "/tokenize",
    "/completion",
    "/v1/messages/count_tokens",
)
_ODD_TARGETS = (
    "/v1/chat/completions?x=1&y=%20",
    "/v1/chat%2Fcompletions",
    "//v1/chat/completions",
    "/v1/chat/completions/",
    "/v1/./chat/completions",
    "/V1/chat/completions",
    "/v1/chat/completions#part",
    "/v1/chat/completions;a",
    "/v1/videos/vid-unknown",
    "/v1/responses/resp-unknown/cancel",
    "/v1/realtime?model=m",
    "/nope",
    "/v1/models",
    "/v1/models/m",
    "/v1/models/none",
    "/health",
    "/ready",
    "/ready?x",
    "/api/lb/mode",
    "http://127.0.0.1/v1/chat/completions",
    "http://elsewhere.test/v1/chat/completions",
    "*",
    "v1/chat/completions",
    "/caf\u00e9",
)
_METHODS = ("GET", "GET", "GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "post", "BREW")

_CLIENT_HEADERS: tuple[bytes, ...] = (
    b"Accept: */*",
    b"accept-encoding: gzip, br",
    b"User-Agent: OpenAI/Python 1.99",
    b"X-Stainless-Retry-Count: 0",
    b"Authorization: Bearer sk-router",
    b"authorization:   bearer   sk-other  ",
    b"x-api-key: sk-router",
    b"X-Request-ID: mine-1",
    b"X-Request-ID: not sane \xe9",
    b"Cookie: a=1",
    b"Cookie: b=2",
    b"X-oDD-CaSe:\tvalue\t",
    b"X-Empty:",
    b"X-Latin: caf\xe9",
    b"X-Comma: a,, b",
    b"Via: 1.1 before",
    b"X-Forwarded-For: 10.0.0.1",
    b"X-Forwarded-Proto: https",
    b"X-Forwarded-Host: outer.test",
    b"Forwarded: for=10.0.0.1",
    b"X-Lifeboat-Priority: high",
    b"X-Lifeboat-Priority: urgent",
    b"X-Lifeboat-Deadline-ms: 5",
    b"X-Lifeboat-Deadline-ms: soon",
    b"X-Lifeboat-Backend: forged",
    b"Proxy-Authorization: Basic eDp5",
    b"Keep-Alive: timeout=5",
    b"Connection: keep-alive",
    b"Origin: http://page.test",
    b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    b"Content-Language: en",
)


def _page(**more: object) -> bytes:
    return json.dumps(
        {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **more}
    ).encode()


_DEEP = b'{"model":"m","x":' + b"[" * 2000 + b"]" * 2000 + b"}"
_BODIES: tuple[tuple[bytes, bytes | None], ...] = (
    (_page(prompt="hi", input="hi", text_1="a", text_2="b"), b"application/json"),
    (_page(prompt="hi", input="hi", content="hi"), b"application/json"),
    (_page(stream=True, prompt="hi", input="hi"), b"application/json"),
    (_page(stream=True), b"Application/JSON; charset=UTF-8"),
    (_page(max_tokens=5), None),
    (_page().replace(b'"m"', b'"unknown"'), b"application/json"),
    (_page().replace(b'"m"', b'"alias"'), b"application/json"),
    (_page().replace(b'"m"', b"7"), b"application/json"),
    (b'{"messages": []}', b"application/json"),
    (b'{"model": "m"', b"application/json"),
    (b"[1, 2]", b"application/json"),
    (b"", b"application/json"),
    (b"\xef\xbb\xbf" + _page(), b"application/json"),
    (b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}', b"application/json"),
    (_DEEP, b"application/json"),
    (_page(user="word " * 400), b"application/json"),
    (_page(messages=[{"role": "user", "content": "word " * 400}]), b"application/json"),
    (_page(user="x" * 9000), b"application/json"),
    (b"model=m&prompt=x", b"application/x-www-form-urlencoded"),
    (
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n',
        b"multipart/form-data; boundary=b",
    ),
)
MAX_BODY_BYTES = 8000
"""What the player sets as the router's limit: one of the bodies lies above it."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A request before it is bytes. lines: headers without framing. framing: its lines.

    end: of a line. wire: the body as it is framed.
    """

    method: str
    target: str
    version: bytes
    lines: tuple[bytes, ...]
    framing: tuple[bytes, ...]
    wire: bytes
    first: bytes = b""
    end: bytes = b"\r\n"

    def rendered(self) -> bytes:
        """Return its bytes."""
        start = f"{self.method} {self.target} ".encode() + self.version
        head = self.end.join((start, *self.lines, *self.framing))
        return self.first + head + self.end * 2 + self.wire


Twist = Callable[[Draft], Draft]


def _with(*lines: bytes) -> Twist:
    return lambda draft: replace(draft, lines=(*draft.lines, *lines))


def _framed(*lines: bytes) -> Twist:
    return lambda draft: replace(draft, framing=lines)


def _chunked(*extra: bytes, tail: bytes = b"0\r\n\r\n", ext: bytes = b"") -> Twist:
    def twist(draft: Draft) -> Draft:
        body = draft.wire
        wire = b"%x%b\r\n%b\r\n%b" % (len(body), ext, body, tail) if body else tail
        return replace(draft, framing=(b"Transfer-Encoding: chunked", *extra), wire=wire)

    return twist


def _gzipped(draft: Draft) -> Draft:
    packer = zlib.compressobj(wbits=31)
    wire = packer.compress(draft.wire) + packer.flush()
    return replace(
        draft,
        lines=(*draft.lines, b"Content-Encoding: gzip"),
        framing=(b"Content-Length: %d" % len(wire),),
        wire=wire,
    )


def _length(more: int) -> Twist:
    def twist(draft: Draft) -> Draft:
        return replace(draft, framing=(b"Content-Length: %d" % (len(draft.wire) + more),))

    return twist


def _without_host(draft: Draft) -> Draft:
    kept = tuple(line for line in draft.lines if not line.lower().startswith(b"host:"))
    return replace(draft, lines=kept)


def _twice_length(draft: Draft) -> Draft:
    return replace(draft, framing=(*draft.framing, *draft.framing))


TWISTS: dict[str, Twist] = {
    "chunked": _chunked(),
    "chunked with an extension": _chunked(ext=b";a=b"),
    "chunked with a trailer": _chunked(b"Trailer: X-T", tail=b"0\r\nX-T: 1\r\n\r\n"),
    "chunked and a length": _chunked(b"Content-Length: 3"),
    "chunked in capitals": _framed(b"TRANSFER-ENCODING: Chunked"),
    "an unknown coding": _framed(b"Transfer-Encoding: gzip"),
    "chunked twice": _framed(b"Transfer-Encoding: chunked, chunked"),
    "no framing": _framed(),
    "length too large": _length(5),
    "length too small": _length(-5),
    "length with a plus": _framed(b"Content-Length: +3"),
    "length no number": _framed(b"Content-Length: abc"),
    "length empty": _framed(b"Content-Length:"),
    "length a list": _framed(b"Content-Length: 3, 3"),
    "length huge": _framed(b"Content-Length: 99999999999999999999"),
    "length above the limit": _framed(b"Content-Length: 123456789"),
    "length with zeros": lambda draft: replace(
        draft, framing=(b"Content-Length: 000%d" % len(draft.wire),)
    ),
    "length twice": _twice_length,
    "length spaced": lambda draft: replace(
        draft, framing=(b"Content-Length :%d" % len(draft.wire),)
    ),
    "gzip": _gzipped,
    "gzip that is none": _with(b"Content-Encoding: gzip"),
    "an unknown encoding": _with(b"Content-Encoding: lzma"),
    "expects 100": _with(b"Expect: 100-continue"),
    "expects something": _with(b"Expect: 200-ok"),
    "closes": _with(b"Connection: close"),
    "closes, and more": _with(b"Connection: X-Hop, Close", b"X-Hop: 1"),
    "connection twice": _with(b"Connection: keep-alive", b"connection: X-Hop", b"X-Hop: 1"),
    "connection empty": _with(b"Connection:"),
    "upgrade": _with(b"Connection: Upgrade", b"Upgrade: websocket"),
    "upgrade unsaid": _with(b"Upgrade: h2c"),
    "h2c": _with(
        b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQ"
    ),
    "te": _with(b"TE: trailers", b"Connection: TE"),
    "HTTP/1.0": lambda draft: replace(draft, version=b"HTTP/1.0"),
    "HTTP/1.0 kept": lambda draft: replace(
        draft, version=b"HTTP/1.0", lines=(*draft.lines, b"Connection: keep-alive")
    ),
    "HTTP/2.0": lambda draft: replace(draft, version=b"HTTP/2.0"),
    "HTTP/1.2": lambda draft: replace(draft, version=b"HTTP/1.2"),
    "http/1.1": lambda draft: replace(draft, version=b"http/1.1"),
    "no version": lambda draft: replace(draft, version=b""),
    "no host": _without_host,
    "host twice": _with(b"Host: other.test"),
    "host empty": lambda draft: replace(
        _without_host(draft), lines=(*_without_host(draft).lines, b"Host:")
    ),
    "host odd": lambda draft: replace(
        _without_host(draft), lines=(*_without_host(draft).lines, b"hOsT:a b/c")
    ),
    "folded line": _with(b"X-Fold: a\r\n b"),
    "bare line ends": lambda draft: replace(draft, end=b"\n"),
    "bare CR": _with(b"X-CR: a\rb"),
    "NUL": _with(b"X-Nul: a\x00b"),
    "DEL": _with(b"X-Del: a\x7fb"),
    "space in a name": _with(b"X Y: 1"),
    "space before the colon": _with(b"X-Y : 1"),
    "no colon": _with(b"nonsense"),
    "no name": _with(b": 1"),
    "odd name": _with(b"X-(odd): 1"),
    "latin name": _with(b"X-\xe9: 1"),
    "starts with space": _with(b" X-Y: 1"),
    "many headers": _with(*(b"X-%d: 1" % number for number in range(126))),
    "very many headers": _with(*(b"X-%d: 1" % number for number in range(140))),
    "long value": _with(b"X-Long: " + b"x" * 20_000),
    "too long value": _with(b"X-Long: " + b"x" * 70_000),
    "long target": lambda draft: replace(draft, target=draft.target + "?" + "x" * 9000),
    "line end first": lambda draft: replace(draft, first=b"\r\n"),
    "line ends first": lambda draft: replace(draft, first=b"\r\n\r\n\n"),
    "two spaces": lambda draft: replace(draft, method=draft.method + " "),
    "TLS": lambda draft: replace(draft, first=b"\x16\x03\x01\x02\x00\x01\x00"),
}
"""Ways in which a request is not plain; some are as good as any, some must be refused."""


def _recased(line: bytes, how: int) -> bytes:
    name, colon, value = line.partition(b":")
    return (name, name.lower(), name.upper(), name.swapcase())[how] + colon + value


def draft(rng: Random, tag: int, *, keys: bool, twists: int = 0) -> Draft:
    """A request. keys: the router wants one, so that most requests show it."""
    body, kind = rng.choice(_BODIES[:5] * 4 + _BODIES)
    method, target = "POST", rng.choice(_POST_PATHS)
    odd = rng.random()
    if odd < 0.2:
        target = rng.choice(_ODD_TARGETS)
        method = rng.choice(("POST", *_METHODS))
    elif odd < 0.3:
        method = rng.choice(_METHODS)
    lines = rng.sample(_CLIENT_HEADERS, rng.randint(0, 5))
    if keys and rng.random() < 0.75:
        lines.append(b"Authorization: Bearer " + KEY)
    if kind is not None:
        lines.append(b"Content-Type: " + kind)
    lines += [b"Host: router.test", b"X-Tag: %d" % tag]
    rng.shuffle(lines)
    lines = [_recased(line, rng.randint(0, 3)) for line in lines]
    framing = (_recased(b"Content-Length: %d" % len(body), rng.randint(0, 2)),)
    if method not in ("POST", "PUT", "PATCH", "post") and rng.random() < 0.8:
        body, framing = b"", ()
    out = Draft(method, target, b"HTTP/1.1", tuple(lines), framing, body)
    for _ in range(twists):
        out = TWISTS[rng.choice(tuple(TWISTS))](out)
    return out


def send(rng: Random, at: int, tag: int, *, keys: bool) -> Send:
    """A request, and how its attempts are met."""
    drafted = draft(rng, tag, keys=keys, twists=rng.choice((0, 0, 0, 1, 1, 2)))
    wire = drafted.rendered()
    nearest = rng.choice((300, len(wire)))
    places = [rng.randint(1, min(len(wire), nearest)) for _ in range(rng.randint(0, 4))]
    met = tuple(meeting(rng) for _ in range(rng.randint(1, 2)))
    return Send(at, tag, drafted.method, cut_at(wire, places), met)


def part(rng: Random, at: int, *, keys: bool) -> Send:
    """A request that is never sent to its end.

    Its head is sound: of a broken one that never ends, aiohttp refuses the first broken line, and
    the fast lane, which looks at heads when they are whole, closes at the head's timeout.
    """
    wire = draft(rng, 99, keys=keys).rendered()
    return Send(at, 99, "", (wire[: rng.randint(1, len(wire) - 1)],))
