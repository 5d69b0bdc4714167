"""aiohttp's server, with the router's connections and limits, and requests in one form.

Held by tests/wire/test_server.py and tests/edge/test_targets.py.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Container
from typing import Any, cast

from aiohttp import web
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_protocol import RequestHandler
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from lifeboat.edge.connection import JsonRequestHandler
from lifeboat.edge.targets import host_of, is_own_name, origin_form
from lifeboat.wire.lane import LINGER_S
from lifeboat.wire.lane_head import MOST_HEADERS

MAX_LINE_BYTES = 64 * 1024
MAX_FIELD_BYTES = 64 * 1024
"""Request lines and headers: far above aiohttp's 8190, since tokens and tracing baggage grow."""


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

    def retune(self, **timeouts: float) -> None:
        """Set the timeouts of connections that are accepted from now on."""
        self._handler_args.update(timeouts)

    def __call__(self) -> RequestHandler:
        """Return the protocol of a new connection."""
        return JsonRequestHandler(self, loop=self._loop, **self._handler_args)


class JsonRunner(web.AppRunner):
    """An AppRunner with JSON errors, handler cancellation and the router's limits.

    listens_on: names it was told to listen on, which absolute request targets may name.
    Keyword arguments are those of web.AppRunner and JsonRequestHandler (`head_timeout_s`,
    `write_timeout_s`, `keepalive_timeout`, `access_log`).
    """

    def __init__(
        self, app: web.Application, *, listens_on: Container[str] = (), **kwargs: Any
    ) -> None:
        defaults: dict[str, Any] = {
            # Off by default in runners: a client that hangs up would never be noticed.
            "handler_cancellation": True,
            # A compressed body must reach the backend as it came.
            "auto_decompress": False,
            "max_headers": MOST_HEADERS,
            "max_line_size": MAX_LINE_BYTES,
            "max_field_size": MAX_FIELD_BYTES,
            "lingering_time": LINGER_S,
            # The access log is ours.
            "access_log": None,
        }
        super().__init__(app, **(defaults | kwargs))
        self._listens_on = listens_on

    def retune(self, **timeouts: float) -> None:
        """Set the timeouts, named as at the start, of connections that are accepted from now on."""
        self._kwargs.update(timeouts)
        if isinstance(self.server, _JsonServer):
            self.server.retune(**timeouts)

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
