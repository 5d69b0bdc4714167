"""`GET /openapi.json`: the router's own paths, for tools and for people.

The proxied paths are the servers' and described by them; docs/reference/endpoints.md lists them.
Held by tests/web/test_openapi.py: every own path and method is here, and a live router answers as
described.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lifeboat.web.schemas import SCHEMAS
from lifeboat.web.shapes import Schema, ref

_NAME: Schema = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "percent-encoded; it may hold slashes",
    "schema": {"type": "string", "minLength": 1},
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One row: a path, a method, and what comes back.

    schema: of a 200. body: of the request. also: other statuses with the schema of each, None for
    an answer without a body. text: a 200 that is no JSON, by its content type. query: parameters
    with what each does. secured: takes the admin token.
    """

    path: str
    method: str
    summary: str
    schema: str = ""
    body: str = ""
    also: tuple[tuple[int, str | None], ...] = ()
    text: tuple[str, ...] = ()
    query: tuple[tuple[str, str], ...] = ()
    secured: bool = False
    tags: tuple[str, ...] = field(default=("observe",))


_CALL = ((400, "Error"), (401, "Error"), (403, "Error"))
_CALL_ON_BACKEND = (*_CALL, (404, "Error"), (409, "Error"))

OPERATIONS = (
    Operation("/api/lb/state", "get", "The live state", "State"),
    Operation(
        "/api/lb/state/stream",
        "get",
        "The live state as server-sent events: one a second, and on change",
        text=("text/event-stream",),
        query=(("capacity", "present: an event `capacity` of the same moment before each state"),),
    ),
    Operation("/api/lb/history", "get", "The last 15 minutes", "History"),
    Operation("/api/lb/parked", "get", "The requests parked longest", "Parked"),
    Operation("/api/lb/rejections", "get", "The rejection table, with counts", "Rejections"),
    Operation("/api/lb/capacity", "get", "What pools carry, and what would be enough", "Capacity"),
    Operation("/api/lb/mode", "get", "The routing mode", "Mode"),
    Operation("/api/lb/backends", "get", "Every backend", "Backends"),
    Operation(
        "/metrics",
        "get",
        "Prometheus text, or OpenMetrics by Accept",
        text=("text/plain", "application/openmetrics-text"),
    ),
    Operation("/health", "get", "The process is alive", "Status"),
    Operation("/ready", "get", "It can answer, refuse or park", "Status", also=((503, "Status"),)),
    Operation("/v1/models", "get", "Every model that can be asked for", "Models"),
    Operation("/v1/models/{name}", "get", "One model", "Model", also=((404, "Error"),)),
    Operation("/openapi.json", "get", "This page", "OpenAPI"),
    Operation("/", "get", "The dashboard", text=("text/html",)),
    Operation(
        "/static/{name}",
        "get",
        "A file of the dashboard",
        text=("text/javascript", "text/css", "text/html", "image/svg+xml"),
        also=((404, "Error"),),
    ),
    Operation(
        "/api/lb/explain",
        "post",
        "What would happen to a request; nothing is sent",
        "Explanation",
        body="ExplainRequest",
        also=_CALL,
        secured=True,
    ),
    Operation(
        "/api/lb/mode",
        "put",
        "Change the routing mode or the queue",
        "Mode",
        body="ModeChange",
        also=_CALL,
        secured=True,
        tags=("change",),
    ),
    Operation(
        "/api/lb/backends",
        "post",
        "Register a backend, or renew its heartbeat",
        "NamedBackend",
        body="Registration",
        also=((201, "NamedBackend"), *_CALL, (409, "Error")),
        secured=True,
        tags=("change",),
    ),
    Operation(
        "/api/lb/backends/{name}",
        "patch",
        "Retune a backend, drain it, close it, reopen it",
        "NamedBackend",
        body="BackendChange",
        also=_CALL_ON_BACKEND,
        secured=True,
        tags=("change",),
    ),
    Operation(
        "/api/lb/backends/{name}",
        "delete",
        "Remove a backend, once what it runs has ended",
        also=((202, "NamedBackend"), (204, None), *_CALL_ON_BACKEND),
        secured=True,
        tags=("change",),
    ),
)
"""Every path of the router's own."""


def openapi_json(version: str) -> Schema:
    """Return the description, OpenAPI 3.1. version: of Lifeboat."""
    paths: dict[str, dict[str, object]] = {}
    for row in OPERATIONS:
        paths.setdefault(row.path, {})[row.method] = _operation(row)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Lifeboat",
            "version": version,
            "summary": "The router's own paths: state, changes, metrics.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": {**SCHEMAS, "OpenAPI": {"type": "object", "description": "OpenAPI 3.1."}},
            "securitySchemes": {
                "adminToken": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "LIFEBOAT_ADMIN_TOKEN; without one, loopback alone may change.",
                }
            },
        },
    }


def _operation(row: Operation) -> Schema:
    responses: dict[str, object] = {}
    if row.schema:
        responses["200"] = _json_answer("As asked.", row.schema)
    elif row.text:
        content = {kind: {"schema": {"type": "string"}} for kind in row.text}
        responses["200"] = {"description": "As asked.", "content": content}
    for status, schema in row.also:
        words = _STATUSES[status]
        responses[str(status)] = (
            {"description": words} if schema is None else _json_answer(words, schema)
        )
    operation: Schema = {
        "summary": row.summary,
        "operationId": _operation_id(row),
        "tags": list(row.tags),
        "responses": responses,
    }
    parameters = [_NAME] if "{name}" in row.path else []
    parameters += [_query(*one) for one in row.query]
    if parameters:
        operation["parameters"] = parameters
    if row.body:
        content = {"application/json": {"schema": ref(row.body)}}
        operation["requestBody"] = {"required": True, "content": content}
    if row.secured:
        # The empty one: a router without a token asks loopback for none.
        operation["security"] = [{"adminToken": []}, {}]
    return operation


def _query(name: str, description: str) -> Schema:
    schema = {"type": "string"}
    return {"name": name, "in": "query", "description": description, "schema": schema}


_STATUSES = {
    201: "It is new.",
    202: "It drains first.",
    204: "It is gone.",
    400: "The call is not valid; the message says why.",
    401: "The admin token is missing or wrong.",
    403: "Not from loopback, and no admin token is set.",
    404: "There is no such thing.",
    409: "It conflicts with what is there.",
    503: "Not now.",
}


def _json_answer(words: str, schema: str) -> Schema:
    return {"description": words, "content": {"application/json": {"schema": ref(schema)}}}


def _operation_id(row: Operation) -> str:
    words = row.path.replace("{", "").replace("}", "").replace(".", "/").split("/")
    return "_".join([row.method, *(word for word in words if word)])
