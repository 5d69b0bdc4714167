"""WebSocket requests (`/v1/realtime`): told apart, their model found, their headers made.

The journey is that of any other request: keys, estimate (none), gate, queue up to the TTL, and a
refusal is a plain HTTP answer before anything is switched. The slot is held for the connection's
life. The handshake is the client's and the backend's own (key, version, extensions, subprotocol):
it passes as it is. Source: RFC 6455, section 4; OpenAI's realtime API for the query and for the key
in a subprotocol, the only place where a browser can put one. Held by
tests/conformance/test_websocket.py.
"""

from __future__ import annotations

from urllib.parse import quote, unquote_plus

from aiohttp import HttpVersion11, web

from lifeboat.edge.refuse import error_response
from lifeboat.wire.headers import Headers, RawHeaders, tokens_of

PROTOCOLS = b"sec-websocket-protocol"
KEY_PREFIX = b"openai-insecure-api-key."
SWITCH: RawHeaders = [(b"Upgrade", b"websocket"), (b"Connection", b"Upgrade")]
"""Hop-by-hop, so that they are written anew on each side."""


def asks_for_websocket(request: web.BaseRequest, headers: Headers) -> bool:
    """Say whether a request wants to switch to WebSocket."""
    return (
        request.version >= HttpVersion11
        and b"websocket" in tokens_of(headers, b"upgrade")
        and b"upgrade" in tokens_of(headers, b"connection")
    )


def upgrade_required(raw_path: str, request_id: str) -> web.Response:
    """Return the 426 to a plain request for such a path."""
    response = error_response(
        426,
        "this path speaks WebSocket: connect to it with `Connection: Upgrade` and `Upgrade: "
        "websocket` over HTTP/1.1",
        code="upgrade_required",
        request_id=request_id,
        path=raw_path,
    )
    response.headers["Upgrade"] = "websocket"
    return response


def model_in_query(raw_path: str) -> str | None:
    """Return the last `model=` of the query, decoded; None where there is none."""
    found = None
    for name, value in _fields(raw_path):
        if name == "model" and value is not None:
            # What is no UTF-8 becomes U+FFFD, which is in no configured name.
            found = unquote_plus(value, errors="replace")
    return found


def with_model(raw_path: str, model: str) -> str:
    """Return the path with every `model=` of its query replaced; all else stays as it is."""
    path, mark, _ = raw_path.partition("?")
    fields = [
        f"model={quote(model, safe='')}" if name == "model" else _written(name, value)
        for name, value in _fields(raw_path)
    ]
    return path + mark + "&".join(fields)


def _fields(raw_path: str) -> list[tuple[str, str | None]]:
    """The fields of the query as they are written; None where there is no `=`."""
    query = raw_path.partition("?")[2]
    split = (field.partition("=") for field in query.split("&"))
    return [(name, value if mark else None) for name, mark, value in split]


def _written(name: str, value: str | None) -> str:
    return name if value is None else f"{name}={value}"


def protocol_keys(headers: Headers) -> tuple[bytes, ...]:
    """Return the keys that are shown as subprotocols."""
    return tuple(
        token.removeprefix(KEY_PREFIX)
        for token in _protocols(headers)
        if token.startswith(KEY_PREFIX)
    )


def handshake_headers(headers: RawHeaders, *, drop_keys: bool) -> RawHeaders:
    """Return the headers for the backend with those of the switch.

    headers: end-to-end ones (edge.headers). drop_keys: the client's own must not go there.
    """
    out: RawHeaders = []
    for name, value in headers:
        if drop_keys and name.lower() == PROTOCOLS and KEY_PREFIX in value:
            kept = [token for token in _tokens(value) if not token.startswith(KEY_PREFIX)]
            if kept:
                out.append((name, b", ".join(kept)))
        else:
            out.append((name, value))
    return out + SWITCH


def switched_head(reason: bytes, headers: RawHeaders) -> bytes:
    """Return the head of the 101 for the client. headers: end-to-end ones, and ours."""
    lines = [b"HTTP/1.1 101 %b" % (reason or b"Switching Protocols")]
    lines += [b"%b: %b" % header for header in headers + SWITCH]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _protocols(headers: Headers) -> list[bytes]:
    return [token for value in headers.values(PROTOCOLS) for token in _tokens(value)]


def _tokens(value: bytes) -> list[bytes]:
    return [token for part in value.split(b",") if (token := part.strip())]
