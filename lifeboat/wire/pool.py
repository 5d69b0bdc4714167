"""The upstream connections: opened when needed, kept for a few seconds, never queued for.

Implements `upstream.Upstream` on asyncio alone. Not aiohttp's client, for reasons seen by running
3.14.5: its header writer drops bytes that are no UTF-8, it cannot be told to use a fresh
connection for a retry, its read timeout does not run while a body is written to a backend that does
not read, and it says neither whether a connection was reused nor the instant a body ended.

Invariants, held by tests/wire/test_upstream.py:
- A connection that is in the pool is between two answers: what was cut, aborted, answered early or
  followed by stray bytes is closed instead.
- A request is sent again only on a fresh connection to the same backend, once, when a reused idle
  connection closed within STALE_WINDOW_S of the write and no response byte came.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import cast

from lifeboat.core.exhaustion import is_ours
from lifeboat.core.vocabulary import Verdict
from lifeboat.wire.deadlines import Deadlines
from lifeboat.wire.downstream import has_unread_bytes
from lifeboat.wire.exchange import Exchange
from lifeboat.wire.headers import RawHeaders
from lifeboat.wire.upstream import Target, UpstreamError, head_start

KEEP_IDLE_S = 4.0
"""llama.cpp and uvicorn close idle connections after 5 s: be gone before them."""
STALE_WINDOW_S = 1.0
"""A reused connection that closes this soon after the write was closed before it (contract,
section 5)."""
JOIN_BODY_BYTES = 64 * 1024
"""Up to this size head and body leave in one write."""

Origin = tuple[str, int, bool, str | None, bool]
"""What connections may be shared over: host, port, tls, ca_file, verify."""


def _origin_of(target: Target) -> Origin:
    return target.host, target.port, target.tls, target.ca_file, target.verify


class UpstreamConnection(asyncio.Protocol):
    """One connection to a backend: carries one exchange at a time, or idles in the pool.

    answered: a byte came since the exchange began.
    """

    def __init__(self, pool: PooledUpstream, origin: Origin) -> None:
        self.origin = origin
        self.answered = False
        self.transport: asyncio.Transport | None = None
        self._pool = pool
        self._exchange: Exchange | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport; watch for peers that vanish without a word."""
        # A cast: uvloop's transports do not inherit from asyncio's.
        self.transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        """Feed the exchange; a backend that speaks unasked is not to be trusted again."""
        if self._exchange is not None:
            self.answered = True
            self._exchange.bytes_came(data)
        else:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the exchange and the pool."""
        self._pool.forget(self)
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.connection_lost(exc)

    def pause_writing(self) -> None:
        """The backend lags behind what was sent to it."""
        if self._exchange is not None:
            self._exchange.writable(False)

    def resume_writing(self) -> None:
        """It has caught up."""
        if self._exchange is not None:
            self._exchange.writable(True)

    def begin(
        self,
        loop: asyncio.AbstractEventLoop,
        target: Target,
        *,
        is_head: bool,
        upgrade: bool = False,
    ) -> Exchange:
        """Start the next exchange on this connection."""
        if self.transport is None:
            raise RuntimeError("the connection has no transport")
        self._pool.use(self)
        self.answered = False
        self._exchange = Exchange(
            loop,
            self.transport,
            is_head=is_head,
            upgrade=upgrade,
            idle_timeout_s=target.idle_timeout_s,
            on_clean_end=self._exchange_ended,
        )
        return self._exchange

    def write(self, head: bytes, body: bytes | None) -> None:
        """Send a request; the transport buffers what the backend does not take yet."""
        if self.transport is None:
            raise RuntimeError("the connection has no transport")
        if body and len(body) <= JOIN_BODY_BYTES:
            self.transport.write(head + body)
            return
        self.transport.write(head)
        if body:
            # By itself: joining would copy what may be tens of megabytes.
            self.transport.write(body)

    def _exchange_ended(self, reusable: bool) -> None:
        self._exchange = None
        if reusable and self.alive:
            self._pool.put_back(self)
        else:
            self.abort()

    @property
    def bytes_came_at(self) -> float | None:
        """As the exchange's that it carries."""
        return None if self._exchange is None else self._exchange.bytes_came_at

    @property
    def alive(self) -> bool:
        """Nothing has been heard of its end yet."""
        return self.transport is not None and not self.transport.is_closing()

    def abort(self) -> None:
        """Close at once."""
        if self.transport is not None:
            self.transport.abort()

    def give_up(self) -> None:
        """Close at once and be forgotten, whether or not the loop will tell of its end."""
        self.abort()
        self._pool.forget(self)


class PooledUpstream:
    """The pool. Create it inside the running loop; `close` ends every connection.

    keep_idle_s: how long an unused connection is kept; 0 keeps none.
    """

    def __init__(self, *, keep_idle_s: float = KEEP_IDLE_S) -> None:
        self._loop = asyncio.get_running_loop()
        self._keep_idle_s = keep_idle_s
        # The most recently used is taken first, so that a quiet pool shrinks.
        self._idle: dict[Origin, list[UpstreamConnection]] = {}
        # An unused one is closed in time, one that was just opened for a canceller too.
        self._unused = Deadlines[UpstreamConnection](
            self._loop, keep_idle_s or KEEP_IDLE_S, UpstreamConnection.abort
        )
        self._heads: dict[float, Deadlines[Exchange]] = {}
        self._open: set[UpstreamConnection] = set()
        self._tls: dict[tuple[str | None, bool], ssl.SSLContext] = {}
        self._all_closed = asyncio.Event()
        self._closed = False

    @property
    def open_connections(self) -> int:
        """Connections in use and idle."""
        return len(self._open)

    def bytes_came_at(self, base_url: str) -> float | None:
        """Return when a server last sent bytes of an answer that is still under way, else None.

        Looks at every open connection: for those who have doubts about a server, not for traffic.
        """
        target = Target("", base_url)
        came = [
            at
            for connection in self._open
            if connection.origin[:2] == (target.host, target.port)
            and (at := connection.bytes_came_at) is not None
        ]
        return max(came, default=None)

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
    ) -> Exchange:
        """Send one request; see `upstream.Upstream.send`."""
        head = head_start(target, method, raw_path_qs, headers) + b"\r\n"
        if upgrade:
            connection = await self._connect(target)
            return await self._exchange(connection, target, method, head, body, upgrade=True)
        return await self.send_head(target, method, head, body, once=once)

    async def send_head(
        self, target: Target, method: str, head: bytes, body: bytes | None, *, once: bool = False
    ) -> Exchange:
        """Send one request whose head is written already; see `upstream.Upstream`."""
        connection = None if once else self._take_idle(_origin_of(target))
        if connection is not None:
            sent_at = self._loop.time()
            try:
                return await self._exchange(connection, target, method, head, body)
            except UpstreamError as error:
                soon = self._loop.time() - sent_at < STALE_WINDOW_S
                if error.verdict is not Verdict.RESET or connection.answered or not soon:
                    raise
            return await self._send_fresh(target, method, head, body, retry=True)
        return await self._send_fresh(target, method, head, body, retry=False)

    async def _send_fresh(
        self, target: Target, method: str, head: bytes, body: bytes | None, *, retry: bool
    ) -> Exchange:
        try:
            connection = await self._connect(target)
            answer = await self._exchange(connection, target, method, head, body)
        except UpstreamError as error:
            error.fresh_retry = retry
            # The first write went somewhere, even when the second connection failed.
            error.request_sent = error.request_sent or retry
            raise
        answer.fresh_retry = retry
        return answer

    async def _exchange(
        self,
        connection: UpstreamConnection,
        target: Target,
        method: str,
        head: bytes,
        body: bytes | None,
        *,
        upgrade: bool = False,
    ) -> Exchange:
        exchange = connection.begin(self._loop, target, is_head=method == "HEAD", upgrade=upgrade)
        try:
            connection.write(head, body)
            await exchange.head_complete(self._heads_within(target.first_byte_timeout_s))
        except UpstreamError as error:
            # Half a head, or none that can be read: all the same the backend had the request.
            error.answer_begun = connection.answered
            raise
        except BaseException:
            exchange.abort()
            raise
        return exchange

    def _heads_within(self, timeout_s: float) -> Deadlines[Exchange]:
        """Return the deadlines of heads that have so long: one for each setting there is."""
        deadlines = self._heads.get(timeout_s)
        if deadlines is None:

            def late(exchange: Exchange) -> None:
                exchange.head_is_late(timeout_s)

            deadlines = self._heads[timeout_s] = Deadlines(self._loop, timeout_s, late)
        return deadlines

    async def _connect(self, target: Target) -> UpstreamConnection:
        origin = _origin_of(target)

        def refuse(verdict: Verdict, detail: str) -> UpstreamError:
            return UpstreamError(verdict, detail, request_sent=False)

        if self._closed:
            raise refuse(Verdict.UNREACHABLE, "the upstream pool is closed")
        made: list[UpstreamConnection] = []

        def make() -> UpstreamConnection:
            made.append(UpstreamConnection(self, origin))
            return made[-1]

        opened = False
        try:
            async with asyncio.timeout(target.connect_timeout_s):
                context = await self._tls_context(target) if target.tls else None
                _, connection = await self._loop.create_connection(
                    make,
                    target.host,
                    target.port,
                    ssl=context,
                    server_hostname=target.host if context is not None else None,
                )
            opened = True
        except TimeoutError:
            raise refuse(
                Verdict.UNREACHABLE, f"no connection within {target.connect_timeout_s:g} s"
            ) from None
        except ssl.SSLError as error:
            raise refuse(Verdict.UNREACHABLE, f"TLS failed: {error}") from error
        except OSError as error:
            if is_ours(error):
                verdict = Verdict.ABANDONED
            else:
                verdict = Verdict.REFUSED if _is_refusal(error) else Verdict.UNREACHABLE
            raise refuse(verdict, str(error)) from error
        finally:
            if not opened:
                # Cancelled or timed out between its first step and its last: uvloop then closes the
                # socket and tells the protocol nothing.
                for unfinished in made:
                    unfinished.give_up()
        return connection

    async def _tls_context(self, target: Target) -> ssl.SSLContext:
        key = (target.ca_file, target.verify)
        context = self._tls.get(key)
        if context is None:
            # Reading the system's certificates takes tens of milliseconds.
            context = self._tls[key] = await asyncio.to_thread(make_tls_context, *key)
        return context

    # ---- the idle ones ------------------------------------------------------------------------

    def _take_idle(self, origin: Origin) -> UpstreamConnection | None:
        waiting = self._idle.get(origin)
        while waiting:
            connection = waiting.pop()
            if not waiting:
                del self._idle[origin]
            if connection.alive and not has_unread_bytes(connection.transport):
                return connection
            # What it said unasked must not be the answer to a request.
            connection.abort()
        return None

    def opened(self, connection: UpstreamConnection) -> None:
        """Count a new connection; it closes by itself if its opener was cancelled meanwhile."""
        self._open.add(connection)
        self._unused.set(connection)
        if self._closed:
            connection.abort()

    def put_back(self, connection: UpstreamConnection) -> None:
        """Keep a connection whose answer ended for the next request."""
        if self._closed or self._keep_idle_s <= 0:
            connection.abort()
            return
        self._idle.setdefault(connection.origin, []).append(connection)
        self._unused.set(connection)

    def use(self, connection: UpstreamConnection) -> None:
        """Take note that a connection carries a request now."""
        self._unused.take_back(connection)

    def forget(self, connection: UpstreamConnection) -> None:
        """Drop a connection that is gone."""
        self._open.discard(connection)
        self._unused.take_back(connection)
        waiting = self._idle.get(connection.origin)
        if waiting is not None and connection in waiting:
            waiting.remove(connection)
            if not waiting:
                del self._idle[connection.origin]
        if not self._open:
            self._all_closed.set()

    async def close(self) -> None:
        """Close every connection and wait until the loop has let go of them."""
        self._closed = True
        self._all_closed.clear()
        for deadlines in (self._unused, *self._heads.values()):
            deadlines.close()
        for connection in tuple(self._open):
            connection.abort()
        if self._open:
            await self._all_closed.wait()


def make_tls_context(ca_file: str | None, verify: bool) -> ssl.SSLContext:
    """Return the TLS trust of a target; probes and discovery must use the same.

    Raises OSError or ssl.SSLError when ca_file cannot be read.
    """
    context = ssl.create_default_context(cafile=ca_file)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context


def _is_refusal(error: OSError) -> bool:
    # With several addresses asyncio raises one OSError that quotes the others.
    return isinstance(error, ConnectionRefusedError) or "refused" in str(error).lower()
