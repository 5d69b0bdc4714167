"""The application: every request line to its handler, by the undecoded path.

aiohttp's own router decodes paths and knows no raw ones, so one catch-all route stands before two
tables: the endpoints that are proxied, and the router's own paths below. Unknown paths are a JSON
404, wrong methods a 405 with Allow. Held by tests/acceptance/test_nonsense.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass

from aiohttp import web

from lifeboat.edge.admin import Admin
from lifeboat.edge.cors import OFF
from lifeboat.edge.dashboard import STATIC_PREFIX, Dashboard
from lifeboat.edge.endpoints import (
    ENDPOINTS,
    Endpoint,
    LocalPath,
    MethodNotAllowed,
    allow_for,
    match,
)
from lifeboat.edge.headers import request_id_of
from lifeboat.edge.http_errors import json_errors
from lifeboat.edge.journey import NewId
from lifeboat.edge.pages import Pages
from lifeboat.edge.proxy import Proxy
from lifeboat.edge.refuse import method_not_allowed, not_found
from lifeboat.wire.headers import Headers

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
_GET = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class OwnPath:
    """One of the router's own paths. A path that ends in `/` stands for all below it.

    operators: it moves to the second listener where there is one.
    """

    path: str
    methods: tuple[str, ...]
    handler: Handler
    operators: bool = True

    @property
    def local(self) -> LocalPath:
        """The row for `Allow`."""
        return LocalPath(self.path, self.methods)


def own_paths(pages: Pages, admin: Admin, dashboard: Dashboard) -> tuple[OwnPath, ...]:
    """Return the table of the router's own paths (contract, section 4)."""
    return (
        OwnPath("/health", _GET, pages.health, operators=False),
        OwnPath("/ready", _GET, pages.ready, operators=False),
        OwnPath("/v1/models", _GET, pages.models, operators=False),
        OwnPath("/v1/models/", _GET, pages.model, operators=False),
        OwnPath("/metrics", _GET, pages.metrics),
        OwnPath("/api/lb/state", _GET, pages.state),
        OwnPath("/api/lb/state/stream", ("GET",), pages.state_stream),
        OwnPath("/api/lb/rejections", _GET, pages.rejections),
        OwnPath("/api/lb/capacity", _GET, pages.capacity),
        OwnPath("/api/lb/history", _GET, dashboard.history),
        OwnPath("/api/lb/parked", _GET, dashboard.parked),
        OwnPath("/api/lb/explain", ("POST",), admin.explain),
        OwnPath("/api/lb/mode", _GET, pages.mode),
        OwnPath("/api/lb/mode", ("PUT",), admin.put_mode),
        OwnPath("/api/lb/backends", _GET, admin.list_backends),
        OwnPath("/api/lb/backends", ("POST",), admin.post_backend),
        OwnPath("/api/lb/backends/", ("PATCH",), admin.patch_backend),
        OwnPath("/api/lb/backends/", ("DELETE",), admin.delete_backend),
        OwnPath("/", _GET, dashboard.page),
        OwnPath(STATIC_PREFIX, _GET, dashboard.static),
        OwnPath("/openapi.json", _GET, dashboard.openapi),
    )


class Switchboard:
    """Finds the handler of a request line.

    proxy: None for a listener that serves operators alone.
    """

    def __init__(self, own: tuple[OwnPath, ...], proxy: Proxy | None, new_id: NewId) -> None:
        self.cors = OFF
        """The origins that may read the public answers; another set may take its place."""
        self._proxy = proxy
        self._new_id = new_id
        self._public = {row.path for row in own if not row.operators}
        self._fixed: dict[str, dict[str, Handler]] = {}
        self._below: dict[str, dict[str, Handler]] = {}
        for row in own:
            table = self._below if row.path.endswith("/") and row.path != "/" else self._fixed
            table.setdefault(row.path, {}).update(dict.fromkeys(row.methods, row.handler))

    @property
    def methods(self) -> frozenset[str]:
        """Every method that any path takes."""
        tables = (*self._fixed.values(), *self._below.values())
        own = {method for handlers in tables for method in handlers}
        if self._proxy is not None:
            own.update(method for row in ENDPOINTS for method in row.methods)
        return frozenset(own)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Serve one request of aiohttp's, which wants a coroutine function."""
        return await self.serve(request)

    def serve(self, request: web.Request) -> Coroutine[None, None, web.StreamResponse]:
        """Serve one request."""
        if self.cors.on:
            return self._serve_origins(request)
        if self._proxy is not None:
            found = match(request.method, request.raw_path)
            if isinstance(found, Endpoint):
                return self._proxy.handle(request, found)
        return self._serve(request)

    async def _serve_origins(self, request: web.Request) -> web.StreamResponse:
        """Serve one request, and say in the answer which origins may read it."""
        response = await self._serve(request)
        if not response.prepared and self._is_public(request.raw_path):
            for name, value in self.cors.answer_headers(Headers.of(request.raw_headers)):
                response.headers.add(name.decode("ascii"), value.decode("latin-1"))
        return response

    def _is_public(self, raw_path: str) -> bool:
        """Say whether pages of other origins may read a path: proxied, or no operators'."""
        path = raw_path.partition("?")[0]
        if self._proxy is not None and allow_for(path) is not None:
            return True
        return any(
            path == public or (public.endswith("/") and path.startswith(public))
            for public in self._public
        )

    def _preflight(self, request: web.Request, allow: Iterable[str]) -> web.Response | None:
        """Return the answer to a preflight, but for what every answer says of its origin."""
        if request.method != "OPTIONS" or not self._is_public(request.raw_path):
            return None
        said = self.cors.preflight(Headers.of(request.raw_headers), allow)
        if said is None:
            return None
        answered = {name.decode("ascii"): value.decode("latin-1") for name, value in said}
        return web.Response(status=204, headers=answered)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        raw_path = request.raw_path
        found = match(request.method, raw_path) if self._proxy is not None else None
        if isinstance(found, Endpoint) and self._proxy is not None:
            return await self._proxy.handle(request, found)
        path = raw_path.partition("?")[0]
        handlers = self._fixed.get(path) or self._handlers_below(path) or {}
        handler = handlers.get(request.method)
        if handler is not None:
            return await handler(request)
        request_id = request_id_of(request.raw_headers, self._new_id)
        allow = set(handlers)
        if isinstance(found, MethodNotAllowed):
            allow.update(found.allow)
        if allow:
            preflight = self._preflight(request, sorted(allow))
            if preflight is not None:
                return preflight
            return method_not_allowed(
                request.method, raw_path, sorted(allow), request_id=request_id
            )
        return not_found(raw_path, request_id=request_id)

    def _handlers_below(self, path: str) -> dict[str, Handler] | None:
        for prefix, handlers in self._below.items():
            if path.startswith(prefix) and len(path) > len(prefix):
                return handlers
        return None


LANE_PAGES = frozenset({"/v1/models", "/health", "/ready"})
"""Small pages that clients mix in: a connection that asks for another one leaves the fast lane."""


def on_lane(method: str, raw_path: str) -> bool:
    """Say whether the fast lane serves a request line: a proxied POST, or one of LANE_PAGES."""
    if method == "POST":
        return isinstance(match(method, raw_path), Endpoint)
    return raw_path in LANE_PAGES


def application(switchboard: Switchboard, new_id: NewId) -> web.Application:
    """Return the aiohttp application around a switchboard."""

    async def body_says_continue(request: web.Request) -> None:
        """100-continue is answered by intake, once it is known that the body is wanted."""

    app = web.Application(middlewares=[json_errors(new_id, switchboard.methods)], client_max_size=0)
    app.router.add_route("*", "/{path:.*}", switchboard.handle, expect_handler=body_says_continue)
    return app
