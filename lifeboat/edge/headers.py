"""The header table: what crosses the router, in both directions.

Source: RFC 9110 section 7.6.1 (hop-by-hop), the contract's sections 3 (keys) and 6 (ours). Headers
are lists of raw (name, value) pairs throughout, so that duplicates, order, spelling and bytes
survive. Held by tests/edge_tables/test_headers.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from lifeboat.core.vocabulary import Priority
from lifeboat.wire.framing import Headers, RawHeaders, tokens_of
from lifeboat.wire.upstream import Target

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"http2-settings",
        b"keep-alive",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers about one connection; those named in Connection and all `Proxy-*` join them."""
HOP_BY_HOP_PREFIX = b"proxy-"

OURS_PREFIX = b"x-lifeboat-"
"""Only the router speaks in this name: forged ones are dropped in both directions."""

WAIT_MS = b"X-Lifeboat-Wait-ms"
BACKEND = b"X-Lifeboat-Backend"
ATTEMPTS = b"X-Lifeboat-Attempts"
REJECT_REASON = b"X-Lifeboat-Reject-Reason"
REQUEST_ID = b"X-Request-ID"
PRIORITY = b"X-Lifeboat-Priority"
DEADLINE_MS = b"X-Lifeboat-Deadline-ms"
_REQUEST_ID_LOWER = REQUEST_ID.lower()
_PRIORITY_LOWER = PRIORITY.lower()
_DEADLINE_LOWER = DEADLINE_MS.lower()
_MILLISECONDS = re.compile(rb"[0-9]{1,12}")

_REPLACED_UPSTREAM = frozenset({b"host", b"content-length", b"expect", b"x-request-id"})
"""Expect is answered by the router itself; the others are written anew."""
_CREDENTIALS = frozenset({b"authorization", b"x-api-key"})
_CHAIN = frozenset({b"x-forwarded-for"})
_LENGTH = frozenset({b"content-length"})
_ANSWER_ID = frozenset({b"x-request-id"})
_DROPPED_PREFIXES = (HOP_BY_HOP_PREFIX, OURS_PREFIX)

_SANE_ID = re.compile(rb"[!-~]{1,128}")
_BEARER = re.compile(rb"bearer +(.+)", re.IGNORECASE | re.DOTALL)


def upstream_headers(
    client_headers: Iterable[tuple[bytes, bytes]],
    *,
    target: Target,
    request_id: str,
    body_length: int | None,
    router_keys_configured: bool = False,
    client_address: str | None = None,
    client_scheme: str = "http",
) -> RawHeaders:
    """Return the headers for the backend: the client's end-to-end ones and nothing invented.

    body_length: exact bytes of the body, None where no body is sent. client_address: appended to
    X-Forwarded-For; Host and scheme go into X-Forwarded-Host and -Proto unless a proxy before us
    said so. Credentials: a router key never goes upstream; the target's own key takes the place of
    the client's, an empty one (`""`) sends none, and only with neither (None) do the client's pass.
    """
    source = Headers.of(client_headers)
    unwanted = _connection_headers(source)
    dropped = unwanted | _REPLACED_UPSTREAM
    if router_keys_configured or target.api_key is not None:
        dropped |= _CREDENTIALS
    if client_address is not None:
        dropped |= _CHAIN
    out: RawHeaders = [(b"Host", target.authority.encode("ascii")), *_crossing(source, dropped)]
    if target.api_key:
        key = target.api_key.encode("utf-8")
        out.append((b"Authorization", b"Bearer " + key))
        if source.values(b"x-api-key"):
            # A client of Anthropic's protocol: its server looks there.
            out.append((b"x-api-key", key))
    _forward(out, source, unwanted, client_address, client_scheme)
    out.append((REQUEST_ID, request_id.encode("ascii")))
    if body_length is not None:
        out.append((b"Content-Length", b"%d" % body_length))
    return out


def _forward(
    out: RawHeaders,
    source: Headers,
    unwanted: frozenset[bytes],
    client_address: str | None,
    client_scheme: str,
) -> None:
    def said(lower_name: bytes) -> list[bytes]:
        return [] if lower_name in unwanted else source.values(lower_name)

    host = source.values(b"host")
    if host and not said(b"x-forwarded-host"):
        out.append((b"X-Forwarded-Host", host[0]))
    if not said(b"x-forwarded-proto"):
        out.append((b"X-Forwarded-Proto", client_scheme.encode("ascii")))
    if client_address is not None:
        chain = [*said(b"x-forwarded-for"), client_address.encode("ascii")]
        out.append((b"X-Forwarded-For", b", ".join(chain)))


def client_headers(
    backend_headers: Iterable[tuple[bytes, bytes]],
    *,
    wait_ms: int,
    backend: str,
    attempts: int,
    request_id: str,
) -> RawHeaders:
    """Return the headers for the client: the backend's end-to-end ones, then ours, each once.

    Content-Length stays as the backend said it, unless the body came chunked (RFC 9112 section
    6.3: then it means nothing).
    """
    source = Headers.of(backend_headers)
    dropped = _connection_headers(source) - _LENGTH | _ANSWER_ID
    if source.values(b"transfer-encoding"):
        dropped |= _LENGTH
    out = _crossing(source, dropped)
    out += [
        (WAIT_MS, b"%d" % wait_ms),
        (BACKEND, header_text(backend)),
        (ATTEMPTS, b"%d" % attempts),
        (REQUEST_ID, request_id.encode("ascii")),
    ]
    return out


def _connection_headers(headers: Headers) -> frozenset[bytes]:
    """Return the names of the headers that are about this connection alone."""
    if not headers.values(b"connection"):
        return HOP_BY_HOP
    return HOP_BY_HOP.union(tokens_of(headers, b"connection"))


def _crossing(source: Headers, dropped: frozenset[bytes]) -> RawHeaders:
    """Return the lines that go on: none of `dropped`, none of a proxy's, none of ours."""
    return [
        line
        for line, lower_name in zip(source, source.lower_names, strict=True)
        if lower_name not in dropped and not lower_name.startswith(_DROPPED_PREFIXES)
    ]


def header_text(text: str) -> bytes:
    """Return text as a header value: what could break or forge a line becomes `?`."""
    clean = "".join(char if char >= " " and char != "\x7f" else "?" for char in text)
    return clean.encode("utf-8", "replace").strip()


def sane_request_id(raw: bytes | str | None, new_id: Callable[[], str]) -> str:
    """Return the client's request id if it is printable ASCII without blanks, at most 128 long.

    Anything else (none, forged line ends, 5 KB of it) is replaced by a fresh one from `new_id`.
    """
    given = raw.encode("utf-8", "surrogatepass") if isinstance(raw, str) else raw
    if given is not None and _SANE_ID.fullmatch(given):
        return given.decode("ascii")
    return new_id()


def request_id_of(headers: Iterable[tuple[bytes, bytes]], new_id: Callable[[], str]) -> str:
    """Return the request id of a request: its first X-Request-ID if sane, else a fresh one."""
    given = Headers.of(headers).values(_REQUEST_ID_LOWER)
    return sane_request_id(given[0] if given else None, new_id)


def priority_of(headers: Iterable[tuple[bytes, bytes]]) -> tuple[Priority, bool]:
    """Return the priority class asked for, and whether the header was understood.

    No header: normal, understood. Anything but high, normal or low (or two that differ): normal,
    not understood, which is counted.
    """
    values = Headers.of(headers).values(_PRIORITY_LOWER)
    if not values:
        return Priority.NORMAL, True
    asked = {value.strip().lower() for value in values}
    if len(asked) == 1:
        name = asked.pop()
        for priority in Priority:
            if name == priority.value.encode("ascii"):
                return priority, True
    return Priority.NORMAL, False


def deadline_of(headers: Iterable[tuple[bytes, bytes]]) -> float | None:
    """Return the seconds from its head in which a client wants a request under way.

    None without the header, and for anything but one whole number of milliseconds.
    """
    values = Headers.of(headers).values(_DEADLINE_LOWER)
    text = values[0].strip() if len(values) == 1 else b""
    return int(text) / 1000 if _MILLISECONDS.fullmatch(text) else None


def presented_keys(headers: Iterable[tuple[bytes, bytes]]) -> tuple[bytes, ...]:
    """Return every key a client shows: `Authorization: Bearer KEY` and `x-api-key: KEY`."""
    source = Headers.of(headers)
    bearers = (_BEARER.fullmatch(value) for value in source.values(b"authorization"))
    found = [bearer.group(1).strip() for bearer in bearers if bearer is not None]
    return (*found, *source.values(b"x-api-key"))
