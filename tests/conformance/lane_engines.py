"""Random engines: how one meets a request, from a plain answer to a reset within a head."""

from __future__ import annotations

from random import Random

from tests.conformance.lane_script import After, Meeting, cut_at

COMPLETION = b'{"id":"chatcmpl-1","choices":[{"message":{"content":"h\xc3\xa9llo"}}]}'
_EVENTS = (
    b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"b"}}]}\n\n',
    b"data: [DONE]\n\n",
)
_OVERLOADED = b'{"error":{"message":"busy","type":"overloaded_error","code":"queue_saturated"}}'
_LOADING = b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}'
_RATE_LIMITED = b'{"error":{"message":"slow down","type":"requests","code":"rate_limit_exceeded"}}'
_PLAIN_ERROR = b'{"error":{"message":"no","type":"invalid_request_error","code":null}}'
_BUSY_EVENT = b'data: {"error":{"message":"busy","type":"overloaded_error","code":503}}\n\n'

_ENGINE_HEADERS: tuple[bytes, ...] = (
    b"Content-Type: application/json",
    b"content-type: application/json; charset=utf-8",
    b"Server: uvicorn",
    b"X-Request-Id: engine-7",
    b"Set-Cookie: a=1; Path=/",
    b"Set-Cookie: b=2",
    b"x-ODD-case: Kept As It Is",
    b"X-Latin: caf\xe9",
    b"X-Empty:",
    b"Connection: X-Dropped",
    b"X-Dropped: 1",
    b"Keep-Alive: timeout=5",
    b"X-Lifeboat-Backend: forged",
    b"Retry-After: 7",
    b"Date: Tue, 01 Dec 2026 00:00:00 GMT",
    b"openai-processing-ms: 12",
    b"Content-Encoding: identity",
)

_STATUSES = (
    (b"200 OK", COMPLETION),
    (b"200 OK", COMPLETION),
    (b"200 OK", COMPLETION),
    (b"200 OK", b"x" * 300_000),
    (b"200 ", COMPLETION),
    (b"201 Created", COMPLETION),
    (b"204 No Content", b""),
    (b"304 Not Modified", b""),
    (b"307 Temporary Redirect", b""),
    (b"400 Bad Request", _PLAIN_ERROR),
    (b"404 Not Found", _PLAIN_ERROR),
    (b"422 Unprocessable Content", _PLAIN_ERROR),
    (b"429 Too Many Requests", _RATE_LIMITED),
    (b"429 Too Many Requests", _OVERLOADED),
    (b"500 Internal Server Error", _PLAIN_ERROR),
    (b"502 Bad Gateway", b"<html>no</html>"),
    (b"503 Service Unavailable", _OVERLOADED),
    (b"503 Service Unavailable", _LOADING),
    (b"503 Service Unavailable", b"busy"),
    (b"529 Site is overloaded", _OVERLOADED),
    (b"999 Odd", b"odd"),
)


_INTERIM = (
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n",
)


def chunked(pieces: tuple[bytes, ...], trailers: bytes = b"") -> bytes:
    """Return a chunked body."""
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return chunks + b"0\r\n" + trailers + b"\r\n"


def engine_bytes(rng: Random) -> bytes:
    """All bytes of one answer, whole. One without framing of its own ends with the connection."""
    status, body = rng.choice(_STATUSES)
    headers = rng.sample(_ENGINE_HEADERS, rng.randint(0, 4))
    is_stream = status.startswith(b"200") and rng.random() < 0.5
    events = (body,) if body else ()
    if is_stream:
        events = rng.choice((_EVENTS,) * 5 + ((_BUSY_EVENT, *_EVENTS),))
        headers = [line for line in headers if not line.lower().startswith(b"content-type")]
        headers.append(b"Content-Type: text/event-stream")
    framing = rng.choice(("length", "chunked", "trailers", "close"))
    wire = b"".join(events)
    if status[:3] in (b"204", b"304"):
        pass
    elif framing == "length":
        name = rng.choice((b"Content-Length", b"content-length"))
        headers.insert(rng.randint(0, len(headers)), b"%b: %d" % (name, len(wire)))
    elif framing != "close":
        headers.append(b"Transfer-Encoding: chunked")
        wire = chunked(events, b"X-Trailer: 1\r\n" if framing == "trailers" else b"")
    version = b"HTTP/1.0 " if framing == "close" and rng.random() < 0.5 else b"HTTP/1.1 "
    interim = rng.choice((b"",) * 12 + _INTERIM)
    return interim + b"\r\n".join((version + status, *headers)) + b"\r\n\r\n" + wire


_NONSENSE = (
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"HTTP/1.1 abc OK\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok!",
    b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nokay\r\n0\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    b"\r\n\r\n",
)


def _is_delimited(wire: bytes) -> bool:
    """Say whether an answer's framing tells where it ends."""
    for interim in _INTERIM:
        wire = wire.removeprefix(interim)
    head = wire.partition(b"\r\n\r\n")[0].lower()
    status = head.split(b" ")[1][:3]
    return b"content-length:" in head or b"transfer-encoding:" in head or status in (b"204", b"304")


def meeting(rng: Random) -> Meeting:
    """How one attempt is met."""
    kind = rng.choice(("whole",) * 12 + ("cut",) * 3 + ("silent", "lost", "lost", "nonsense"))
    if kind == "silent":
        return Meeting((), None, After.HANG)
    if kind == "lost":
        return Meeting((), None, rng.choice((After.CLOSE, After.RESET)))
    if kind == "nonsense":
        return Meeting((rng.choice(_NONSENSE),), None, rng.choice((After.CLOSE, After.HANG)))
    wire = engine_bytes(rng)
    after = After.CLOSE
    if kind == "cut":
        wire = wire[: rng.randint(1, min(len(wire), rng.choice((400, len(wire)))))]
        after = rng.choice((After.CLOSE, After.RESET, After.HANG))
    elif _is_delimited(wire):
        after = rng.choice((After.KEEP,) * 5 + (After.CLOSE,))
    pieces = cut_at(wire, [rng.randint(1, len(wire)) for _ in range(rng.randint(0, 3))])
    held = rng.choice((None, None, None, rng.randrange(len(pieces))))
    return Meeting(pieces, held, after, is_early=rng.random() < 0.1)
