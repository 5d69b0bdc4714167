"""aiohttp's own HTTP errors (404, 405, 413), in the contract's JSON.

Held by tests/wire/test_server.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from lifeboat.core.rejections import REJECTIONS
from lifeboat.core.vocabulary import Reason
from lifeboat.edge.headers import request_id_of
from lifeboat.edge.refuse import error_response, method_not_allowed, not_found


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
