"""The calls of `/api/lb/*` that change something, and `explain`, which dispatches nothing.

Each change is checked whole before any of it is applied, is logged, and answers with what is in
force afterwards. Source: the contract's section 4. Held by tests/edge/test_admin.py.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import cast
from urllib.parse import unquote

import orjson
from aiohttp import web

from lifeboat.core.modes import UnknownModeError, parse_mode
from lifeboat.core.rejections import ErrorType
from lifeboat.core.view import GateView
from lifeboat.edge.explain import Explainer
from lifeboat.edge.faults import SlowBodyError
from lifeboat.edge.keys import AdminGuard
from lifeboat.edge.pace import PacedBody
from lifeboat.edge.pages import json_page
from lifeboat.edge.refuse import error_response
from lifeboat.fleet import UNSET, Fleet, FleetError, Patch, Registration, Unset
from lifeboat.observe.state import Surroundings, backend_json, backends_json, mode_json

_log = logging.getLogger("lifeboat.admin")

BACKENDS_PREFIX = "/api/lb/backends/"
MAX_BODY_BYTES = 64 * 1024 * 1024
"""`explain` takes the bodies that the proxied paths take."""

AdminCall = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class BadCallError(ValueError):
    """A call that cannot be carried out; the message names the value, the rule and the remedy."""


class Admin:
    """The changing calls; one instance serves all."""

    def __init__(
        self,
        fleet: Fleet,
        guard: AdminGuard,
        explainer: Explainer,
        view: Callable[[], GateView],
        surroundings: Callable[[], Surroundings],
        body_timeout_s: Callable[[], float],
    ) -> None:
        """body_timeout_s: longest silence within the body of a call, as in force."""
        self._fleet = fleet
        self._guard = guard
        self._explainer = explainer
        self._view = view
        self._surroundings = surroundings
        self._body_timeout_s = body_timeout_s

    async def put_mode(self, request: web.BaseRequest) -> web.StreamResponse:
        """`{"mode": "...", "queue_enabled": bool}`, either alone; null resets to configured."""
        return await self._guarded(request, self._put_mode)

    async def list_backends(self, request: web.BaseRequest) -> web.StreamResponse:
        """Every backend, as in the state."""
        return json_page(backends_json(self._view(), self._surroundings()))

    async def post_backend(self, request: web.BaseRequest) -> web.StreamResponse:
        """Register a backend, or renew its heartbeat."""
        return await self._guarded(request, self._post_backend)

    async def patch_backend(self, request: web.BaseRequest) -> web.StreamResponse:
        """Retune a backend, drain it, close it or reopen it."""
        return await self._guarded(request, self._patch_backend)

    async def delete_backend(self, request: web.BaseRequest) -> web.StreamResponse:
        """Remove a backend; what it runs runs on."""
        return await self._guarded(request, self._delete_backend)

    async def explain(self, request: web.BaseRequest) -> web.StreamResponse:
        """Say what would happen to a request."""
        return await self._guarded(request, self._explain)

    async def _guarded(
        self,
        request: web.BaseRequest,
        call: AdminCall,
    ) -> web.StreamResponse:
        objection = self._guard.objection(request)
        if objection is not None:
            status, message = objection
            response = error_response(
                status, message, code="unauthorized", path=request.raw_path, close=True
            )
            if status == 401:
                response.headers["WWW-Authenticate"] = "Bearer"
            return response
        try:
            return await call(request)
        except (BadCallError, UnknownModeError) as error:
            return error_response(400, str(error), code="invalid_request", path=request.raw_path)
        except FleetError as error:
            kind = ErrorType.INVALID_REQUEST if error.status < 500 else ErrorType.API
            return error_response(
                error.status, str(error), code=error.code, error_type=kind, path=request.raw_path
            )

    async def _put_mode(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await self._object(request, {"mode", "queue_enabled"})
        mode = body.get("mode", UNSET)
        queue = body.get("queue_enabled", UNSET)
        if not (mode is UNSET or mode is None or isinstance(mode, str)):
            raise BadCallError(f"`mode` must be a string or null, not {mode!r}")
        if not (queue is UNSET or queue is None or isinstance(queue, bool)):
            raise BadCallError(f"`queue_enabled` must be true, false or null, not {queue!r}")
        if mode is UNSET and queue is UNSET:
            raise BadCallError("nothing to change: give `mode`, `queue_enabled` or both")
        self._fleet.set_mode(
            parse_mode(mode) if isinstance(mode, str) else cast("Unset | None", mode), queue
        )
        view = self._view()
        _log.warning("routing mode set to %s, queue %s", view.mode.value, view.queue_enabled)
        return json_page(mode_json(view, self._surroundings().sources))

    async def _post_backend(self, request: web.BaseRequest) -> web.StreamResponse:
        registration = Registration.from_mapping(await self._object(request))
        created = await self._fleet.register(registration)
        if created:
            _log.warning("backend %s registered", registration.backend.name)
        return self._backend_page(registration.backend.name, 201 if created else 200)

    async def _patch_backend(self, request: web.BaseRequest) -> web.StreamResponse:
        name = _name_in(request)
        asked = await self._object(request)
        self._fleet.patch(name, Patch.from_mapping(asked))
        _log.warning("backend %s changed: %s", name, orjson.dumps(asked).decode())
        return self._backend_page(name, 200)

    async def _delete_backend(self, request: web.BaseRequest) -> web.StreamResponse:
        name = _name_in(request)
        self._fleet.remove(name)
        _log.warning("backend %s removed", name)
        if name in self._view().backends:
            # Its leases run on; it is listed as draining until the last one ends.
            return self._backend_page(name, 202)
        return web.Response(status=204)

    async def _explain(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await self._object(request, {"path", "body", "priority"})
        path, inner = body.get("path"), body.get("body")
        if not isinstance(path, str):
            raise BadCallError('`path` must be a proxied path, such as "/v1/chat/completions"')
        return json_page(await self._explainer.explain(path, inner, body.get("priority")))

    async def _object(
        self, request: web.BaseRequest, known: set[str] | None = None
    ) -> Mapping[str, object]:
        """Return the JSON object of a call. known: its fields, None where others judge them."""
        return _object_in(await _body_of(request, self._body_timeout_s()), known)

    def _backend_page(self, name: str, status: int) -> web.Response:
        view = self._view()
        if name not in view.backends:
            return json_page({"name": name, "state": "removed"}, status)
        page = backend_json(view, name, self._surroundings())
        return json_page({"name": name, **page}, status)


def _name_in(request: web.BaseRequest) -> str:
    return unquote(request.raw_path.partition("?")[0].removeprefix(BACKENDS_PREFIX))


async def _body_of(request: web.BaseRequest, timeout_s: float) -> bytearray:
    """Return the body of a call. Raises BadCallError for one that is too long, or comes slowly."""
    length = request.content_length
    if length is not None and length > MAX_BODY_BYTES:
        raise BadCallError(f"the body has {length} bytes; the most is {MAX_BODY_BYTES}")
    paced = PacedBody(request.content, timeout_s)
    raw = bytearray()
    try:
        while piece := await paced.next():
            raw += piece
            if len(raw) > MAX_BODY_BYTES:
                raise BadCallError(f"the body has more than {MAX_BODY_BYTES} bytes")
    except SlowBodyError as slow:
        raise BadCallError(str(slow)) from None
    return raw


def _object_in(raw: bytearray, known: set[str] | None) -> Mapping[str, object]:
    """Return the JSON object in a body. Raises BadCallError for anything else."""
    try:
        value: object = orjson.loads(raw)
    except ValueError as error:
        raise BadCallError(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadCallError("the body must be a JSON object")
    body = cast("dict[str, object]", value)
    unknown = sorted(set(body) - known) if known is not None else []
    if unknown:
        raise BadCallError(
            f"unknown field {', '.join(map(repr, unknown))}: use {', '.join(sorted(known or ()))}"
        )
    return body
