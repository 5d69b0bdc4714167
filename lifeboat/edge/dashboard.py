"""The dashboard and the pages made for it: files, history, the parked requests, the OpenAPI page.

The page is served under a policy that lets it run nothing but its own files, talk to nobody but
this router, and make no markup out of text: names of models and backends are the outside's.
Held by tests/web/test_pages.py.
"""

from __future__ import annotations

from aiohttp import web

from lifeboat.core.view import ParkedView
from lifeboat.door import Door
from lifeboat.edge.pages import json_page
from lifeboat.edge.refuse import not_found
from lifeboat.observe.history import History, history_json
from lifeboat.observe.printable import encodable
from lifeboat.web import INDEX, StaticFile, static_files
from lifeboat.web.openapi import openapi_json

STATIC_PREFIX = "/static/"
MOST_PARKED = 100
"""Parked requests listed: the longest waiting; a list of thousands is no reading."""

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
"""On every file of the dashboard."""


class Dashboard:
    """The dashboard's handlers; one instance serves all.

    history: filled by the runtime.
    """

    def __init__(self, door: Door, history: History, version: str) -> None:
        self._door = door
        self._history = history
        self._version = version

    async def page(self, request: web.BaseRequest) -> web.StreamResponse:
        """The dashboard."""
        return _file(request, static_files()[INDEX])

    async def static(self, request: web.BaseRequest) -> web.StreamResponse:
        """One of its files, by a name of the table."""
        found = static_files().get(request.raw_path.partition("?")[0].removeprefix(STATIC_PREFIX))
        return not_found(request.raw_path) if found is None else _file(request, found)

    async def history(self, request: web.BaseRequest) -> web.StreamResponse:
        """The last 15 minutes."""
        return json_page(history_json(self._history, self._door.clock()))

    async def parked(self, request: web.BaseRequest) -> web.StreamResponse:
        """The requests that have been parked longest; never their content."""
        parked = sorted(self._door.parked(MOST_PARKED), key=lambda one: -one.age_s)
        total = self._door.view().parked
        return json_page(
            {"total": total, "parked": [_parked_json(one) for one in parked[:MOST_PARKED]]}
        )

    async def openapi(self, request: web.BaseRequest) -> web.StreamResponse:
        """The description of the router's own paths."""
        return json_page(openapi_json(self._version))


def _parked_json(parked: ParkedView) -> dict[str, object]:
    return {
        "model": encodable(parked.model),
        "capability": parked.capability,
        "priority": parked.priority,
        "estimated_tokens": parked.estimated_tokens,
        "age_sec": round(max(parked.age_s, 0.0), 3),
        "remaining_sec": round(max(parked.remaining_s, 0.0), 3),
        "boosted": parked.boosted,
        "body_bytes": parked.body_bytes,
    }


def _file(request: web.BaseRequest, file: StaticFile) -> web.Response:
    """Return a file, or 304 to a browser that has it. It asks each time: releases change files."""
    headers = {**SECURITY_HEADERS, "ETag": file.etag, "Cache-Control": "no-cache"}
    if _has(request.headers.get("If-None-Match", ""), file.etag):
        return web.Response(status=304, headers=headers)
    return web.Response(body=file.body, headers={**headers, "Content-Type": file.content_type})


def _has(if_none_match: str, etag: str) -> bool:
    """Compare weakly, as RFC 9110 13.1.2 asks; a proxy that compressed an answer weakened it."""
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return etag in tags or tags == ["*"]
