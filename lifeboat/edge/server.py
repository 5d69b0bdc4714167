"""aiohttp's server with JSON errors and a limit on how long a request head may take.

aiohttp answers requests it cannot parse, and faults of a handler, in text/plain, before any
middleware: only its protocol class can change that. Held by tests/wire/test_server.py.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable, Container, Iterable
from typing import Any, cast

from aiohttp import hdrs, web
from aiohttp.http_exceptions import BadHttpMessage, HttpProcessingError
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.typedefs import Handler, Middleware
from aiohttp.web_protocol import RequestHandler, _ErrInfo  # pyright: ignore[reportPrivateUsage]
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from lifeboat.core.rejections import REJECTIONS, ErrorType
from lifeboat.core.vocabulary import Reason
from lifeboat.edge.faults import BodyError
from lifeboat.edge.headers import request_id_of
from lifeboat.edge.refuse import error_response, method_not_allowed, not_found
from lifeboat.edge.targets import host_of, is_own_name, origin_form
from lifeboat.wire.downstream import has_unread_bytes
from lifeboat.wire.lane import LINGER_S

MAX_LINE_BYTES = 64 * 1024
MAX_FIELD_BYTES = 64 * 1024
"""Request lines and headers: far above aiohttp's 8190, since tokens and tracing baggage grow."""
UNREAD_GRACE_S = 0.01
"""How soon a connection with unread bytes is looked at again: they are read before that."""
_HEAD_END = b"\r\n\r\n"
_REST_OF_HEAD_END = re.compile(rb"(?:\r?\n)?\r?\n")
MOST_HEADS_A_READ = 16
"""More heads in one read are parsed together: a body full of blank lines must cost no more."""
DEFAULT_HEAD_TIMEOUT_S = 30.0
"""LIFEBOAT_CLIENT_HEAD_TIMEOUT_SEC."""


class JsonRequestHandler(RequestHandler):
    """The protocol of one client connection.

    head_timeout_s: a connection that has not sent its first whole request head by then is closed.
    A later one must begin within keepalive_timeout of the end of the last answer, and has
    head_timeout_s from its first byte.
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
    )

    def __init__(
        self, manager: web.Server, *, head_timeout_s: float = DEFAULT_HEAD_TIMEOUT_S, **kwargs: Any
    ) -> None:
        super().__init__(manager, **kwargs)
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
            body.set_exception(BodyError(f"the framing of the request body is broken: {said}"))
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
        return await super().finish_response(request, resp, start_time)

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
        return "this server speaks HTTP/1.1 and HTTP/1.0"
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


def _first_line(exc: BaseException | None, message: str | None) -> str:
    """The parser's own sentence, without the bytes it quotes below."""
    said = exc.message if isinstance(exc, HttpProcessingError) else message
    return (said or "it could not be parsed").strip().partition("\n")[0].rstrip(":. ")


class _Request(web.Request):
    """A request whose answers say what the fast lane's do."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        await super()._prepare_hook(response)
        # aiohttp would tell everybody its own version and Python's.
        response.headers.pop("Server", None)
        if not self.content.is_eof():
            # The rest of the body is dropped if it comes soon, but nobody should wait for that.
            response.force_close()
            response.headers["Connection"] = "close"


class _JsonServer(web.Server):
    """Makes our protocol for every connection."""

    def __init__(self, handler: Any, *, handler_args: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(handler, **kwargs)
        self._handler_args = handler_args

    def retune(self, head_timeout_s: float, keepalive_timeout: float) -> None:
        """Set the timeouts of connections that are accepted from now on."""
        self._handler_args.update(
            head_timeout_s=head_timeout_s, keepalive_timeout=keepalive_timeout
        )

    def __call__(self) -> RequestHandler:
        """Return the protocol of a new connection."""
        return JsonRequestHandler(self, loop=self._loop, **self._handler_args)


class JsonRunner(web.AppRunner):
    """An AppRunner with JSON errors, handler cancellation and the router's limits.

    listens_on: names it was told to listen on, which absolute request targets may name.
    Keyword arguments are those of web.AppRunner and JsonRequestHandler (`head_timeout_s`,
    `keepalive_timeout`, `access_log`).
    """

    def __init__(
        self, app: web.Application, *, listens_on: Container[str] = (), **kwargs: Any
    ) -> None:
        defaults: dict[str, Any] = {
            # Off by default in runners: a client that hangs up would never be noticed.
            "handler_cancellation": True,
            # A compressed body must reach the backend as it came.
            "auto_decompress": False,
            "max_line_size": MAX_LINE_BYTES,
            "max_field_size": MAX_FIELD_BYTES,
            "lingering_time": LINGER_S,
            # The access log is ours.
            "access_log": None,
        }
        super().__init__(app, **(defaults | kwargs))
        self._listens_on = listens_on

    def retune(self, head_timeout_s: float, keepalive_timeout: float) -> None:
        """Set the timeouts of connections that are accepted from now on."""
        self._kwargs.update(head_timeout_s=head_timeout_s, keepalive_timeout=keepalive_timeout)
        if isinstance(self.server, _JsonServer):
            self.server.retune(head_timeout_s, keepalive_timeout)

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        new_request = functools.partial(made.request_factory, _cls=_Request)
        handler_args = dict(self._kwargs)
        cancellation = bool(handler_args.pop("handler_cancellation"))

        def make_request(
            message: RawRequestMessage, payload: Any, protocol: RequestHandler, *rest: Any
        ) -> web.BaseRequest:
            cast("JsonRequestHandler", protocol).begin(payload)
            if message.upgrade and message.headers.get("Upgrade", "").lower() != "websocket":
                # aiohttp's parser loses what came with it of the requests behind (up to 3.14).
                message = message._replace(should_close=True)
            if not message.path.startswith("/"):
                message = in_origin_form(message, protocol.transport, self._listens_on)
            return new_request(message, payload, protocol, *rest)

        return _JsonServer(
            made.request_handler,
            request_factory=make_request,
            handler_cancellation=cancellation,
            handler_args=handler_args,
        )


def in_origin_form(
    message: RawRequestMessage,
    transport: asyncio.BaseTransport | None,
    listens_on: Container[str],
) -> RawRequestMessage:
    """Return a request as if its absolute target, if it is one of ours, had come in origin form.

    The host of the target takes the place of every Host header.
    """
    found = origin_form(message.method, message.path)
    if found is None:
        return message
    host = host_of(found.authority)
    if not is_own_name(host, listens_on) and host != _local_address(transport):
        return message
    value = found.authority.encode("utf-8", "surrogateescape")
    raw_headers = [(b"Host", value)]
    raw_headers += [one for one in message.raw_headers if one[0].lower() != b"host"]
    headers = CIMultiDict(message.headers)
    headers["Host"] = found.authority
    return message._replace(
        path=found.target,
        url=URL(found.target, encoded=True),
        headers=CIMultiDictProxy(headers),
        raw_headers=tuple(raw_headers),
    )


def _local_address(transport: asyncio.BaseTransport | None) -> str | None:
    """Return the address of ours that a connection came in on; None on a Unix socket."""
    address: object = None if transport is None else transport.get_extra_info("sockname")
    if not isinstance(address, tuple):
        return None
    shown = str(cast("tuple[object, ...]", address)[0])
    return shown.partition("%")[0].removeprefix("::ffff:")


def json_errors(new_id: Callable[[], str], methods: Iterable[str] = ()) -> Middleware:
    """Return the middleware that turns aiohttp's own HTTP errors (404, 405, 413) into JSON.

    methods: all that any path takes: the answer to `OPTIONS *`, which no path can be.
    """
    allowed = ", ".join(sorted({*methods, "OPTIONS"}))

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as error:
            request_id = request_id_of(request.raw_headers, new_id)
            path = request.raw_path
            match error:
                case web.HTTPMethodNotAllowed():
                    allow = sorted(error.allowed_methods)
                    return method_not_allowed(request.method, path, allow, request_id=request_id)
                case web.HTTPNotFound() if (request.method, path) == ("OPTIONS", "*"):
                    return web.Response(status=204, headers={"Allow": allowed})
                case web.HTTPNotFound():
                    return not_found(path, request_id=request_id)
                case web.HTTPRequestEntityTooLarge():
                    row = REJECTIONS[Reason.BODY_TOO_LARGE]
                    return error_response(
                        row.status,
                        f"{row.when}. {row.advice}",
                        code=row.wire_reason,
                        request_id=request_id,
                        path=path,
                        close=True,
                    )
                case _:
                    return error_response(
                        error.status, error.reason, code=None, request_id=request_id, path=path
                    )

    return middleware
