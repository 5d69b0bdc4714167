"""One request and its answer on one upstream connection.

Invariants, held by tests/wire/test_upstream.py:
- The body is bounded in memory: reading from the backend pauses above HIGH_WATER_BYTES.
- `ended` turns True, and the callbacks run, in the same step in which the last byte was parsed.
- A cut or silent answer is an error for ever; it never looks like a clean end.
- Only silence of the backend counts against the timeouts, never a pause of our own.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress

from lifeboat.core.vocabulary import Verdict
from lifeboat.wire.deadlines import Deadlines
from lifeboat.wire.framing import BadAnswerError, ResponseHead, ResponseReader
from lifeboat.wire.upstream import Straight, UpstreamError

HIGH_WATER_BYTES = 128 * 1024
"""Above this much unread body the connection is not read any more."""
LOW_WATER_BYTES = 32 * 1024
"""Below this much it is read again."""
HANG_UP_S = 5.0
"""How long a backend has to take the last bytes of a switched connection."""
MOST_BYTES_A_READ = 64 * 1024
"""Waiting pieces are handed on joined up to this size: fewer writes to a client that lags."""


def abort_now(transport: asyncio.Transport) -> None:
    """Abort a transport, and let its peer see it before anything that is sent later.

    uvloop closes the socket in the next turn of the loop, and the freed slot may send the next
    request in this one: the engine would run one more than its cap for a moment.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        with suppress(OSError), socket.socket(fileno=os.dup(sock.fileno())) as twin:
            twin.shutdown(socket.SHUT_RDWR)
    transport.abort()


class Exchange:
    """Implements `upstream.Answer`; the connection feeds it.

    transport: of the connection, for flow control and abort. on_clean_end: called once, with
    whether the connection may serve another request.
    """

    __slots__ = (
        "_closed",
        "_ended",
        "_error",
        "_idle_timeout_s",
        "_loop",
        "_on_clean_end",
        "_on_ended",
        "_on_writable",
        "_paused",
        "_reader",
        "_straight",
        "_timer",
        "_transport",
        "_waiter",
        "_waiting_since",
        "fresh_retry",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        *,
        is_head: bool,
        upgrade: bool = False,
        idle_timeout_s: float,
        on_clean_end: Callable[[bool], None],
    ) -> None:
        self.fresh_retry = False
        self._loop = loop
        self._transport = transport
        self._reader = ResponseReader(is_head=is_head, upgrade=upgrade)
        self._on_writable: Callable[[bool], None] | None = None
        self._idle_timeout_s = idle_timeout_s
        self._on_clean_end = on_clean_end
        self._on_ended: list[Callable[[], None]] = []
        self._ended = False
        self._closed = False
        self._error: UpstreamError | None = None
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._straight: Straight | None = None
        self._waiting_since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # ---- what the reader of the answer sees ---------------------------------------------------

    @property
    def head(self) -> ResponseHead:
        """Status, reason and header lines."""
        head = self._reader.head
        if head is None:
            raise RuntimeError("the response head is not complete yet")
        return head

    @property
    def status(self) -> int:
        """HTTP status of the backend."""
        return self.head.status

    @property
    def reason(self) -> bytes:
        """Reason phrase as it stood on the wire."""
        return self.head.reason

    @property
    def ended(self) -> bool:
        """The body is complete."""
        return self._ended

    @property
    def bytes_came_at(self) -> float | None:
        """Until when bytes of the answer are known to have come, in loop time; None: none yet.

        Costs the chunk loop nothing: it is when the reader ran dry, or now while it is behind.
        """
        if self._reader.head is None:
            return None
        return self._loop.time() if self._waiter is None else self._waiting_since

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call back at the clean end; now, if it is past."""
        if self._ended:
            callback()
        else:
            self._on_ended.append(callback)

    async def head_complete(self, deadlines: Deadlines[Exchange]) -> None:
        """Wait for the head, as long as the deadlines give it. Raises UpstreamError."""
        deadlines.set(self)
        try:
            while self._reader.head is None:
                if self._error is not None:
                    raise self._error
                self._waiter = self._loop.create_future()
                await self._waiter
        finally:
            self._waiter = None
            deadlines.take_back(self)

    def head_is_late(self, timeout_s: float) -> None:
        """Give up on the head: it has had so long."""
        self._fail(Verdict.FIRST_BYTE_TIMEOUT, f"no response head within {timeout_s:g} s")

    def take_ready(self) -> bytes:
        """Body bytes that wait already."""
        reader = self._reader
        piece = reader.take(MOST_BYTES_A_READ)
        if self._paused and reader.buffered_bytes < LOW_WATER_BYTES:
            self._resume()
        return piece

    async def read(self, straight: Straight | None = None) -> bytes:
        """The next body bytes; b"" at the clean end. Raises UpstreamError."""
        while True:
            piece = self.take_ready()
            if piece:
                return piece
            if self._error is not None:
                raise self._error
            if self._ended:
                return b""
            self._waiting_since = self._loop.time()
            # Both sides of a switched connection may be silent for as long as they like.
            if self._timer is None and self.head.status != 101:
                self._timer = self._loop.call_later(self._idle_timeout_s, self._check_idle)
            self._straight = straight
            try:
                await self._wait()
            finally:
                self._straight = None

    def abort(self) -> None:
        """Close at once, unless the body ended."""
        self._fail(Verdict.ABANDONED, "given up by the router")

    def release(self) -> None:
        """Be done with this answer."""
        self.abort()
        self._reader.pieces.clear()

    # ---- once it has switched protocols -------------------------------------------------------

    def send_more(self, data: bytes) -> None:
        """Send bytes of the other protocol."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def on_writable(self, callback: Callable[[bool], None]) -> None:
        """Call back with False when the backend lags behind what was sent, with True again."""
        self._on_writable = callback

    def hang_up(self) -> None:
        """Close behind what was sent; at once if the backend does not take it soon."""
        if self._closed:
            return
        self._transport.close()
        self._timer = self._loop.call_later(HANG_UP_S, self.abort)

    # ---- what the connection tells ------------------------------------------------------------

    def bytes_came(self, data: bytes) -> None:
        """Parse what was read from the backend."""
        if self._closed:
            return
        reader = self._reader
        straight = self._straight
        if straight is not None and (size := reader.whole_chunks(data)):
            # The events of a stream, as nearly all of them come: nothing is cut out or put back.
            if straight.pass_chunks(data, size):
                self._waiting_since = self._loop.time()
                return
        try:
            reader.feed(data)
        except BadAnswerError as error:
            self._fail(Verdict.RESET, str(error))
            return
        if reader.done:
            self._end(keep_alive=self.head.keep_alive and not reader.excess)
        elif not self._paused and reader.buffered_bytes > HIGH_WATER_BYTES:
            self._paused = True
            self._transport.pause_reading()
        elif self._passed_straight():
            return
        self._wake()

    def _passed_straight(self) -> bool:
        """Offer what came to the reader that waits; True when there is nothing to wake it for.

        Waking a task for each event takes another turn of the loop, and a stream a quarter more
        CPU in all.
        """
        straight = self._straight
        if straight is None:
            return False
        self._waiting_since = self._loop.time()
        reader = self._reader
        while piece := reader.take(MOST_BYTES_A_READ):
            if not straight.pass_straight(piece):
                reader.put_back(piece)
                return False
        return True

    def writable(self, writable: bool) -> None:
        """The transport's buffer has passed a mark."""
        if self._on_writable is not None:
            self._on_writable(writable)

    def connection_lost(self, error: BaseException | None) -> None:
        """The connection is gone, in order (None) or not."""
        if self._closed:
            return
        if error is not None:
            self._fail(Verdict.RESET, str(error) or type(error).__name__)
            return
        try:
            self._reader.feed_eof()
        except BadAnswerError as bad:
            self._fail(Verdict.RESET, str(bad))
        else:
            self._end(keep_alive=False)
            self._wake()

    # ---- inside -------------------------------------------------------------------------------

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        # What comes from now on waits behind what the reader is woken for.
        self._straight = None
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _drop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _resume(self) -> None:
        self._paused = False
        if not self._closed and not self._transport.is_closing():
            self._transport.resume_reading()

    def _end(self, *, keep_alive: bool) -> None:
        self._closed = self._ended = True
        self._drop_timer()
        if self._paused:
            self._paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()
        # What is still unsent of the request (an early answer) would be read as the next one.
        unsent = self._transport.get_write_buffer_size() > 0
        self._on_clean_end(keep_alive and not unsent)
        callbacks, self._on_ended = self._on_ended, []
        for callback in callbacks:
            callback()

    def _fail(self, verdict: Verdict, detail: str) -> None:
        if self._closed:
            return
        self._closed = True
        self._on_ended.clear()
        self._error = UpstreamError(
            verdict, detail, request_sent=True, answer_begun=self._reader.head is not None
        )
        self._drop_timer()
        abort_now(self._transport)
        self._wake()

    def _check_idle(self) -> None:
        """One lazy timer an answer: a chunk costs a clock reading, not a timer."""
        left_s = self._idle_timeout_s
        if self._waiter is not None:
            left_s -= self._loop.time() - self._waiting_since
            if left_s <= 0.0:
                self._fail(
                    Verdict.IDLE_TIMEOUT, f"the answer was silent for {self._idle_timeout_s:g} s"
                )
                return
        # A millisecond's grace, lest a timer that fires a hair early spins.
        self._timer = self._loop.call_later(max(left_s, 0.001), self._check_idle)
