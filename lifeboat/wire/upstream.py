"""The seam of the upstream leg: where a request goes, what comes back, how it may fail.

Everything above this file (the journey, the relay) knows only these types; the implementation is
`wire.pool.PooledUpstream`, and tests may hand in another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

from lifeboat.core.urls import path_prefix
from lifeboat.core.vocabulary import Verdict
from lifeboat.wire.answer_head import ResponseHead
from lifeboat.wire.headers import RawHeaders

DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Target:
    """One backend as the wire sees it.

    base_url: http or https, IPv6 in brackets, with an optional path prefix. **The join rule**: the
        base url names the root of the server. A trailing slash, and a last path segment `v1`, are
        dropped, because every proxied path brings its own `/v1`; what is left is put before the
        request's path. So `http://h`, `http://h/`, `http://h/v1` and `http://h/v1/` are the same
        target, and `http://h/llm/v1` sends `/v1/models` to `/llm/v1/models`.
    api_key: sent in place of the client's credentials; None or "" = no key of its own.
    *_timeout_s: to connect; from the request's first byte to the response head; longest silence
        of the backend within its answer. There is no total timeout.
    ca_file, verify: TLS trust: a PEM file in place of the system's, or no verification at all.

    Raises ValueError, naming the url and the rule, for a base url that cannot be used.
    """

    name: str
    base_url: str
    api_key: str | None = None
    connect_timeout_s: float = 5.0
    first_byte_timeout_s: float = 1800.0
    idle_timeout_s: float = 600.0
    ca_file: str | None = None
    verify: bool = True
    host: str = field(init=False)
    port: int = field(init=False)
    tls: bool = field(init=False)
    authority: str = field(init=False)
    """What the Host header says: the port only where it is not the scheme's own."""
    path_prefix: str = field(init=False)

    def __post_init__(self) -> None:
        """Split the base url once, so that a request pays nothing for it."""
        scheme, host, port, prefix = _split_base_url(self.base_url)
        bracketed = f"[{host}]" if ":" in host else host
        authority = bracketed if port == DEFAULT_PORTS[scheme] else f"{bracketed}:{port}"
        for name, value in (
            ("host", host),
            ("port", port),
            ("tls", scheme == "https"),
            ("authority", authority),
            ("path_prefix", prefix),
        ):
            object.__setattr__(self, name, value)

    def path_for(self, raw_path_qs: str) -> str:
        """Return the request target on this backend for a raw path and query (the join rule)."""
        return self.path_prefix + raw_path_qs


def _split_base_url(base_url: str) -> tuple[str, str, int, str]:
    def refuse(why: str) -> ValueError:
        return ValueError(f"backend url {base_url!r}: {why}")

    try:
        parts = urlsplit(base_url.strip())
        port = parts.port
    except ValueError as error:
        raise refuse(str(error)) from None
    scheme, host = parts.scheme.lower(), parts.hostname
    if scheme not in DEFAULT_PORTS or not host:
        raise refuse("it must be http://host[:port][/prefix] or https://...")
    if parts.username is not None or parts.password is not None:
        raise refuse("credentials belong into api_key, not into the url")
    if parts.query or parts.fragment:
        raise refuse("it may not have a query or a fragment")
    try:
        host = host.encode("ascii").decode() if host.isascii() else host.encode("idna").decode()
    except UnicodeError:
        raise refuse("its host is no valid name") from None
    prefix = path_prefix(parts.path)
    if not prefix.isascii() or any(character <= " " for character in prefix):
        raise refuse("its path must be percent-encoded ASCII")
    return scheme, host, port or DEFAULT_PORTS[scheme], prefix


def head_start(target: Target, method: str, raw_path_qs: str, headers: RawHeaders) -> bytes:
    """Return the exact bytes of a request line and header lines, each with its line end.

    Raises ValueError for a line break or NUL in any part: none can come from a parsed request, so
    it would be a fault of ours.
    """
    # surrogateescape is how aiohttp's server decodes a path that is not UTF-8.
    path = target.path_for(raw_path_qs).encode("utf-8", "surrogateescape")
    lines = [b"%b %b HTTP/1.1" % (method.encode("ascii"), path)]
    lines += [b"%b: %b" % header for header in headers]
    head = b"\r\n".join(lines)
    if b"\0" in head or head.count(b"\n") != len(headers) or head.count(b"\r") != len(headers):
        raise ValueError("a request header holds a line break or NUL")
    return head + b"\r\n"


class UpstreamError(Exception):
    """The backend gave no answer, or not all of it.

    verdict: REFUSED, UNREACHABLE (no byte of this attempt was sent), RESET, FIRST_BYTE_TIMEOUT or
        IDLE_TIMEOUT; ABANDONED where we aborted it, or could not open a connection ourselves (no
        descriptor left).
    request_sent: any byte of the request may have reached the backend.
    answer_begun: a byte of a response had arrived.
    fresh_retry: the request was sent again because a reused idle connection turned out closed.
    detail: what happened, in words, for log and attempts.
    """

    def __init__(
        self,
        verdict: Verdict,
        detail: str,
        *,
        request_sent: bool,
        answer_begun: bool = False,
        fresh_retry: bool = False,
    ) -> None:
        super().__init__(f"{verdict.value}: {detail}")
        self.verdict = verdict
        self.detail = detail
        self.request_sent = request_sent
        self.answer_begun = answer_begun
        self.fresh_retry = fresh_retry


class Straight(Protocol):
    """Takes pieces in the step in which they came; synchronous, and may not raise."""

    def pass_straight(self, piece: bytes) -> bool:
        """Take a piece (True), or leave it to be returned by `read` (False)."""
        ...

    def pass_chunks(self, chunks: bytes, size: int) -> bool:
        """The same for pieces in the chunked framing they came in. size: of the pieces alone."""
        ...


class Answer(Protocol):
    """The backend's answer: its head, and its body as it comes.

    The connection goes back to the pool by itself the moment the body ended cleanly, whether or
    not the tail has been read by then: `ended` is about the backend, `read` about us.
    """

    @property
    def status(self) -> int: ...

    @property
    def reason(self) -> bytes: ...

    @property
    def head(self) -> ResponseHead:
        """Status, reason and header lines as they came."""
        ...

    @property
    def fresh_retry(self) -> bool: ...

    @property
    def ended(self) -> bool:
        """The backend's body is known to be complete, though some of it may still be unread."""
        ...

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call `callback` synchronously once the body ended cleanly; now, if it has already."""
        ...

    def take_ready(self) -> bytes:
        """Return body bytes that wait already, b"" when none do. Never blocks."""
        ...

    async def read(self, straight: Straight | None = None) -> bytes:
        """Return the next body bytes as they came; b"" at the clean end, and ever after.

        straight: is offered each piece in the very step in which it came, while this waits; what
        it takes is not returned, and wakes nobody. An answer need not offer anything.
        Raises UpstreamError (RESET, IDLE_TIMEOUT) on a cut, again on every later call. Cancelling
        it loses nothing.
        """
        ...

    def abort(self) -> None:
        """Close the connection at once unless the body ended; it is never pooled. Repeatable."""
        ...

    def release(self) -> None:
        """Be done with this answer: drop what was not read; a body still coming is aborted."""
        ...


class Switched(Answer, Protocol):
    """An answer of 101: its body is what the backend says from then on, until it closes."""

    def send_more(self, data: bytes) -> None:
        """Send bytes as they are."""
        ...

    def on_writable(self, callback: Callable[[bool], None]) -> None:
        """Call back with False when the backend lags behind what was sent, with True again."""
        ...

    def hang_up(self) -> None:
        """Close behind what was sent; nothing more is read."""
        ...


class Upstream(Protocol):
    """Sends requests to backends.

    Implementations keep connections alive between requests and never queue: there is no limit but
    the gate's (a hidden one would be a second queue that nobody counts).
    """

    async def send(
        self,
        target: Target,
        method: str,
        raw_path_qs: str,
        headers: RawHeaders,
        body: bytes | None,
        *,
        once: bool = False,
        upgrade: bool = False,
    ) -> Answer:
        """Send one request and return its answer as soon as the head is complete.

        The head that goes out is exactly the request line and `headers`; raw_path_qs keeps its
        percent-encoding. once: never repeat it on a fresh connection, so take no idle one that may
        turn out closed. upgrade: the request asks to switch protocols; an answer of 101 is a
        Switched one. Raises UpstreamError. On cancellation the connection is closed.
        """
        ...

    async def send_head(
        self, target: Target, method: str, head: bytes, body: bytes | None, *, once: bool = False
    ) -> Answer:
        """As `send`, for a head that is written already (`head_start` checks what it is given)."""
        ...

    async def close(self) -> None:
        """Close every connection, in use or idle."""
        ...
