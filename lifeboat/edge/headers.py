"""The header table: what crosses the router, in both directions.

Source: RFC 9110 section 7.6.1 (hop-by-hop), the contract's sections 3 (keys) and 6 (ours). Headers
are lists of raw (name, value) pairs throughout, so that duplicates, order, spelling and bytes
survive. Held by tests/edge_tables/test_headers.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from lifeboat.core.vocabulary import Outcome, Priority, Verdict
from lifeboat.wire.answer_head import HOLE, HeadForm
from lifeboat.wire.downstream import ClientLines
from lifeboat.wire.headers import Headers, RawHeaders, header_block, tokens_of
from lifeboat.wire.upstream import Target, head_start

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
_CHAIN_NAME = b"X-Forwarded-For"
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
    out = _lasting_lines(
        source, target, router_keys_configured, client_scheme, chained=client_address is not None
    )
    if client_address is not None:
        out.append((_CHAIN_NAME, _chain(source, client_address.encode("ascii"))))
    out.append((REQUEST_ID, request_id.encode("ascii")))
    if body_length is not None:
        out.append((b"Content-Length", b"%d" % body_length))
    return out


def _lasting_lines(
    source: Headers, target: Target, router_keys: bool, client_scheme: str, *, chained: bool
) -> RawHeaders:
    """Return the lines that are the same for every request with this head; they come first."""
    unwanted = _connection_headers(source)
    dropped = unwanted | _REPLACED_UPSTREAM
    if router_keys or target.api_key is not None:
        dropped |= _CREDENTIALS
    if chained:
        dropped |= _CHAIN
    out: RawHeaders = [(b"Host", target.authority.encode("ascii")), *_crossing(source, dropped)]
    if target.api_key:
        key = target.api_key.encode("utf-8")
        out.append((b"Authorization", b"Bearer " + key))
        if source.values(b"x-api-key"):
            # A client of Anthropic's protocol: its server looks there.
            out.append((b"x-api-key", key))
    host = source.values(b"host")
    if host and (b"x-forwarded-host" in unwanted or not source.values(b"x-forwarded-host")):
        out.append((b"X-Forwarded-Host", host[0]))
    if b"x-forwarded-proto" in unwanted or not source.values(b"x-forwarded-proto"):
        out.append((b"X-Forwarded-Proto", client_scheme.encode("ascii")))
    return out


def _chain(source: Headers, client_address: bytes) -> bytes:
    """Return X-Forwarded-For: what came, and who sent it."""
    said = source.values(b"x-forwarded-for")
    if not said or b"x-forwarded-for" in _connection_headers(source):
        return client_address
    return b", ".join((*said, client_address))


class HeadFacts:
    """What the router reads off a request's head, found out once and kept with its Headers.

    given_id: a sane X-Request-ID, None where a fresh one is needed. keys: every key it shows.
    deadline_s: see `deadline_of`. content_type: of the body, "" where none is said. encodings:
    Content-Encoding, lower case. awaits_continue: it expects a 100.
    """

    __slots__ = (
        "_lasting",
        "_source",
        "awaits_continue",
        "content_type",
        "deadline_s",
        "encodings",
        "given_id",
        "keys",
        "priority",
        "understood",
    )

    def __init__(self, headers: Headers) -> None:
        self._source = headers
        self.priority, self.understood = priority_of(headers)
        self.given_id = request_id_of(headers, _no_id) or None
        self.keys = presented_keys(headers)
        self.deadline_s = deadline_of(headers)
        content_types = headers.values(b"content-type")
        self.content_type = content_types[0].decode("latin-1") if content_types else ""
        self.encodings = tokens_of(headers, b"content-encoding")
        self.awaits_continue = b"100-continue" in tokens_of(headers, b"expect")
        self._lasting: dict[str, tuple[Target, tuple[object, ...], bytes]] = {}

    def upstream_head(
        self,
        target: Target,
        method: str,
        raw_path: str,
        *,
        request_id: str,
        body_length: int | None,
        router_keys_configured: bool,
        client_address: str | None,
        client_scheme: str,
    ) -> bytes:
        """Return the whole head for a backend, as `upstream_headers` has it.

        What lasts is written once for each target: a head that comes again costs its own lines.
        """
        kept = self._lasting.get(target.name)
        rest = (method, raw_path, router_keys_configured, client_address is None, client_scheme)
        if kept is None or kept[0] is not target or kept[1] != rest:
            lines = _lasting_lines(
                self._source,
                target,
                router_keys_configured,
                client_scheme,
                chained=client_address is not None,
            )
            if len(self._lasting) >= MOST_TARGETS:
                self._lasting.clear()
            kept = (target, rest, head_start(target, method, raw_path, lines))
            self._lasting[target.name] = kept
        start, own_id = kept[2], request_id.encode("ascii")
        if client_address is not None:
            chain = _chain(self._source, client_address.encode("ascii"))
            start = b"%bX-Forwarded-For: %b\r\n" % (start, chain)
        if body_length is None:
            return b"%bX-Request-ID: %b\r\n\r\n" % (start, own_id)
        return b"%bX-Request-ID: %b\r\nContent-Length: %d\r\n\r\n" % (start, own_id, body_length)


MOST_TARGETS = 64
"""Backends for which one head is kept written; a bound of memory, not a wish."""


def facts_of(headers: Headers) -> HeadFacts:
    """Return what is known of a head."""
    facts = headers.facts
    if not isinstance(facts, HeadFacts):
        facts = headers.facts = HeadFacts(headers)
    return facts


def _no_id() -> str:
    return ""


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
    out = _crossing_to_client(Headers.of(backend_headers))
    out += [
        (WAIT_MS, b"%d" % wait_ms),
        (BACKEND, header_text(backend)),
        (ATTEMPTS, b"%d" % attempts),
        (REQUEST_ID, request_id.encode("ascii")),
    ]
    return out


def _crossing_to_client(source: Headers) -> RawHeaders:
    dropped = _connection_headers(source) - _LENGTH | _ANSWER_ID
    if source.values(b"transfer-encoding"):
        dropped |= _LENGTH
    return _crossing(source, dropped)


class AnswerFacts:
    """What the router reads off the head of an answer, found out once and kept with its form.

    content_type, retry_after: as the backend said them, None where it did not. answered: the
    outcome of an answer that means what its status says.
    """

    __slots__ = ("_has_length", "_holes", "_texts", "answered", "content_type", "retry_after")

    def __init__(self, form: HeadForm) -> None:
        self.content_type = _first_text(form.lines, b"content-type")
        self.retry_after = _first_text(form.lines, b"retry-after")
        self.answered = Outcome(Verdict.ANSWERED, form.status)
        crossing = _crossing_to_client(form.lines)
        self._has_length = any(name.lower() == b"content-length" for name, _ in crossing)
        block = header_block(crossing)
        # In a head that was not remembered, what looks like a hole is the backend's own.
        pieces = HOLE.split(block) if form.holes else [block]
        self._texts = pieces[0::2]
        self._holes = [int(hole) for hole in pieces[1::2]]

    def client_lines(
        self, values: Sequence[bytes], *, wait_ms: int, backend: str, attempts: int, request_id: str
    ) -> ClientLines:
        """Return the lines of `client_headers` for one answer of this form, written.

        values: what its holes hold.
        """
        texts = self._texts
        lines = texts[0]
        for hole, text in zip(self._holes, texts[1:], strict=True):
            lines += values[hole] + text
        own = _OWN_LINES % (
            wait_ms,
            _backend_text(backend),
            attempts,
            request_id.encode("ascii"),
        )
        return ClientLines(lines + own, self._has_length)


_OWN_LINES = b"%b: %%d\r\n%b: %%b\r\n%b: %%d\r\n%b: %%b\r\n" % (
    WAIT_MS, BACKEND, ATTEMPTS, REQUEST_ID,
)  # fmt: skip


def answer_facts(form: HeadForm) -> AnswerFacts:
    """Return what is known of the head of an answer."""
    facts = form.facts
    if not isinstance(facts, AnswerFacts):
        facts = form.facts = AnswerFacts(form)
    return facts


def _first_text(headers: Headers, lower_name: bytes) -> str | None:
    values = headers.values(lower_name)
    return values[0].decode("latin-1") if values else None


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


_backend_text = lru_cache(maxsize=256)(header_text)
"""Names of backends come again with every answer."""


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
