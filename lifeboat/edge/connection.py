"""One client connection on aiohttp: its protocol class, and what that class has to put right.

aiohttp answers requests it cannot parse, and faults of a handler, in text/plain, before any
middleware, and does not bound how long a head takes: only its protocol class can change that. The
parser's own slips are mended here, too, so that both lanes read the same requests. Held by
tests/wire/test_server.py, tests/conformance/test_lanes_agree.py and tests/fuzz.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from aiohttp import hdrs, web
from aiohttp.http_exceptions import BadHttpMessage, HttpProcessingError
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import RequestHandler, _ErrInfo  # pyright: ignore[reportPrivateUsage]

from lifeboat.core.rejections import ErrorType
from lifeboat.edge.faults import BrokenFramingError
from lifeboat.edge.headers import request_id_of
from lifeboat.edge.refuse import error_response
from lifeboat.wire.downstream import has_unread_bytes
from lifeboat.wire.lane_head import MOST_HEADERS
from lifeboat.wire.stall import StallWatch

UNREAD_GRACE_S = 0.01
"""How soon a connection with unread bytes is looked at again: they are read before that."""
_HEAD_END = b"\r\n\r\n"
_REST_OF_HEAD_END = re.compile(rb"(?:\r?\n)?\r?\n")
MOST_HEADS_A_READ = 16
"""More heads in one read are parsed together: a body full of blank lines must cost no more."""
DEFAULT_HEAD_TIMEOUT_S = 30.0
"""LIFEBOAT_CLIENT_HEAD_TIMEOUT_SEC."""
DEFAULT_WRITE_TIMEOUT_S = 60.0
"""LIFEBOAT_CLIENT_WRITE_TIMEOUT_SEC."""
WATCH_FACTOR = 1.5
"""A relay watches for itself, and knows what follows: the connection's own watch comes after it."""


class JsonRequestHandler(RequestHandler):
    """The protocol of one client connection.

    head_timeout_s: a connection that has not sent its first whole request head by then is closed.
    A later one must begin within keepalive_timeout of the end of the last answer, and has
    head_timeout_s from its first byte. A client that takes no byte of what waits for it is cut off
    somewhat after write_timeout_s, whatever is served to it, also while it is closed.
    Once the parser has given up, no byte is read any more.
    """

    __slots__ = (
        "_content",
        "_head_begun_at",
        "_head_idle_until",
        "_head_number",
        "_head_timeout_s",
        "_head_timer",
        "_is_answered",
        "_is_broken",
        "_rest_watch",
        "_write_timeout_s",
    )

    def __init__(
        self,
        manager: web.Server,
        *,
        head_timeout_s: float = DEFAULT_HEAD_TIMEOUT_S,
        write_timeout_s: float = DEFAULT_WRITE_TIMEOUT_S,
        **kwargs: Any,
    ) -> None:
        super().__init__(manager, **kwargs)
        self._write_timeout_s = write_timeout_s
        self._rest_watch: StallWatch | None = None
        self._content: StreamReader = EMPTY_PAYLOAD
        self._is_answered = True
        self._is_broken = False
        self._head_timeout_s = head_timeout_s
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_number = 0
        """So many requests had come when a later head began."""
        self._head_begun_at = 0.0
        self._head_idle_until = -1.0
        """The idle period in which that head began, known by its end."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the clock of the first head."""
        super().connection_made(transport)
        self._time_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stop it."""
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client lags."""
        super().pause_writing()
        self._watch_rest()

    def _watch_rest(self) -> None:
        """Watch that the client takes what waits for it, until nothing does."""
        transport, watch = self.transport, self._rest_watch
        if transport is None or (watch is not None and watch.is_on):
            return
        if transport.get_write_buffer_size():
            timeout_s = WATCH_FACTOR * self._write_timeout_s
            self._rest_watch = StallWatch(transport, timeout_s, until_taken=True)
            self._rest_watch.begin()

    def _time_head(self) -> None:
        """Start the clock of a head, in the place of an earlier one's."""
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = self._loop.call_later(self._head_timeout_s, self._check_head)

    def data_received(self, data: bytes) -> None:
        """Parse; note when a head begins."""
        if self._is_broken:
            return
        number, serving = self._request_count, self._current_request
        bodies = [body for _, body in self._messages] or [serving.content if serving else None]
        is_between = bodies[-1] is None or bodies[-1].is_eof()
        for piece in up_to_heads(data):
            known = len(self._messages)
            super().data_received(piece)
            for place in range(known, len(self._messages)):
                self._judge(place)
            if self._is_broken:
                break
        if data and is_between and self._request_count == number > 0 and self._head_number < number:
            self._head_number = number
            self._time_head()
        waiter = self._waiter
        if data and waiter is not None and not waiter.done():
            # Part of a head, since nobody was woken.
            idle_until = self._next_keepalive_close_time
            if self._head_idle_until != idle_until:
                self._head_idle_until = idle_until
                self._head_begun_at = self._loop.time()

    def begin(self, content: StreamReader) -> None:
        """Note the body of the request that is served from now on."""
        self._content = content
        self._is_answered = False

    def _judge(self, place: int) -> None:
        """Look at a message the parser has found: refuse it, or end what it gave up in."""
        message, _ = self._messages[place]
        if isinstance(message, _ErrInfo):
            self._end_broken_body(_first_line(message.exc, message.message))
        elif (said := _fault_of(message)) is not None:
            self._messages[place] = (_ErrInfo(400, BadHttpMessage(said), said), EMPTY_PAYLOAD)
            self._is_broken = True

    def _end_broken_body(self, said: str) -> None:
        """End the body that the parser gave up in: it told nobody who waits for the rest."""
        messages = self._messages
        body = messages[-2][1] if len(messages) > 1 else self._content
        self._is_broken = True
        if body.is_eof():
            return
        messages.pop()
        if messages or not self._is_answered:
            told = f"the framing of the request body is broken: {said}"
            body.set_exception(BrokenFramingError(told))
        else:  # it was answered without its body
            self.close()
        body.feed_eof()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Let some answers be the last one: the one before what is broken, and to CONNECT.

        What follows CONNECT is no request to the parser, whatever length was announced.
        """
        if request.method == "CONNECT" or (self._is_broken and not self._messages):
            resp.force_close()
        self._is_answered = True
        finished = await super().finish_response(request, resp, start_time)
        self._watch_rest()
        return finished

    def _process_keepalive(self) -> None:
        """Close an idle connection, but not one whose next request is under way."""
        close_at = self._next_keepalive_close_time
        if self._head_idle_until == close_at:
            close_at = max(close_at, self._head_begun_at + self._head_timeout_s)
        now = self._loop.time()
        if now < close_at or has_unread_bytes(self.transport):
            again_at = max(close_at, now + UNREAD_GRACE_S)
            self._keepalive_handle = self._loop.call_at(again_at, self._process_keepalive)
            return
        super()._process_keepalive()

    def _check_head(self) -> None:
        """Close a connection that still waits for the head whose clock this was."""
        self._head_timer = None
        if self._head_number < self._request_count:
            return
        if self._current_request is None and not self._messages:
            self.force_close()
        else:  # it waits behind requests that are served
            self._time_head()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what never reached a handler, or what a handler did not catch, in JSON.

        Raises ConnectionError when a response has begun: the connection is broken then.
        """
        at_fault = status >= 500
        if at_fault:
            self.logger.error("a request failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the response has begun, it cannot become an error")
        request_id = request_id_of(request.raw_headers or (), _no_id) or None
        if at_fault:
            text = "The router failed on this request; its log says why."
            kind, code = ErrorType.API, "internal_error"
        else:
            text = f"The request is no valid HTTP: {_first_line(exc, message)}"
            kind, code = ErrorType.INVALID_REQUEST, "invalid_request"
        return error_response(
            status,
            text,
            code=code,
            error_type=kind,
            request_id=request_id,
            path=request.path,
            close=True,
        )


def _fault_of(message: RawRequestMessage) -> str | None:
    """Return what is wrong with a head that llhttp takes, None when nothing is."""
    if message.version.major != 1:
        # Of a request line without a version it takes the headers and the body all the same.
        return _ONLY_VERSION_1
    if not message.chunked and hdrs.TRANSFER_ENCODING in message.headers:
        # An empty one is none to it; who reads on before it may have seen chunks.
        return "the transfer coding is not chunked"
    return None


def up_to_heads(data: bytes) -> list[bytes]:
    """Cut a read behind each head in it.

    aiohttp's parser forgets the requests that it found in a read where a later one is broken: a
    good request would be answered with the fault of the one behind it.
    """
    rest = _REST_OF_HEAD_END.match(data)
    start = rest.end() if rest is not None else 0
    *heads, last = data[start:].split(_HEAD_END, MOST_HEADS_A_READ)
    pieces = [data[:start], *(head + _HEAD_END for head in heads), last]
    return [piece for piece in pieces if piece] or [data]


def _no_id() -> str:
    return ""


_ONLY_VERSION_1 = "this server speaks HTTP/1.1 and HTTP/1.0"
_PLAINLY = {
    "Too many headers received": f"it has more than {MOST_HEADERS} headers, send fewer",
    "Pause on PRI/Upgrade": f"it begins HTTP/2, {_ONLY_VERSION_1}",
    "Invalid HTTP version": _ONLY_VERSION_1,
    "Bad status line": "its first line is not METHOD TARGET HTTP/1.1",
}
"""What the parser says in words of its own."""


def _first_line(exc: BaseException | None, message: str | None) -> str:
    """The parser's own sentence, without the bytes it quotes below."""
    said = exc.message if isinstance(exc, HttpProcessingError) else message
    line = (said or "it could not be parsed").strip().partition("\n")[0].rstrip(":. ")
    return _PLAINLY.get(line, line)
