"""The answers the router gives itself, without changing anything: health, models, state, metrics.

None of them is gated and none waits. Source: the contract's sections 4, 7 and 9. Held by
tests/edge/test_pages.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

import orjson
from aiohttp import web

from lifeboat.core.scaling import ScalingStatus
from lifeboat.core.view import GateView
from lifeboat.door import Door
from lifeboat.edge.refuse import error_response
from lifeboat.fleet import Fleet, ModelEntry
from lifeboat.observe.capacity import capacity_json
from lifeboat.observe.events import LastRefusals
from lifeboat.observe.metrics import Metrics
from lifeboat.observe.state import Surroundings, mode_json, rejections_json, state_json

STREAM_TICK_S = 0.1
"""A change is shown to watchers at most this much later."""
STREAM_PERIOD_S = 1.0
"""An event comes at least this often (contract, section 4)."""
MODELS_PREFIX = "/v1/models/"


def json_page(page: object, status: int = 200) -> web.Response:
    """Return a page as JSON."""
    return web.Response(
        status=status, body=orjson.dumps(page), content_type="application/json", charset="utf-8"
    )


@dataclass(frozen=True, slots=True)
class Readiness:
    """started: backends are known and the first probes are through.

    needs_backend: the setting in force.
    """

    started: Callable[[], bool]
    needs_backend: Callable[[], bool]


class Pages:
    """The pages; one instance serves all."""

    def __init__(
        self,
        door: Door,
        fleet: Fleet,
        metrics: Metrics,
        refusals: LastRefusals,
        view: Callable[[], GateView],
        surroundings: Callable[[], Surroundings],
        readiness: Readiness,
        scaling: Callable[[], Mapping[str, ScalingStatus]],
    ) -> None:
        self._door = door
        self._fleet = fleet
        self._metrics = metrics
        self._refusals = refusals
        self._view = view
        self._surroundings = surroundings
        self._readiness = readiness
        self._scaling = scaling

    async def health(self, request: web.BaseRequest) -> web.StreamResponse:
        """The process is alive."""
        return json_page({"status": "ok"})

    async def ready(self, request: web.BaseRequest) -> web.StreamResponse:
        """200 while the router can answer, refuse or park; 503 while it starts or drains."""
        if self._door.draining:
            return json_page({"status": "draining"}, 503)
        if not self._readiness.started():
            return json_page({"status": "starting"}, 503)
        if self._readiness.needs_backend() and not self._any_live():
            return json_page({"status": "no live backend"}, 503)
        return json_page({"status": "ready"})

    def _any_live(self) -> bool:
        return any(
            backend.live and backend.operator_state.value == "ready"
            for backend in self._view().backends.values()
        )

    async def metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        """The Prometheus page, in the format that Accept asks for."""
        reading = self._metrics.read()
        # Writing the page takes milliseconds with many pools: in a thread, off what was read here.
        body, content_type = await asyncio.to_thread(reading.render, request.headers.get("Accept"))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def models(self, request: web.BaseRequest) -> web.StreamResponse:
        """Every model name that can be asked for."""
        entries = [_model_json(entry) for entry in self._fleet.listing()]
        return json_page({"object": "list", "data": entries})

    async def model(self, request: web.BaseRequest) -> web.StreamResponse:
        """One model; its id may hold slashes, encoded or not."""
        name = unquote(request.raw_path.partition("?")[0].removeprefix(MODELS_PREFIX))
        for entry in self._fleet.listing():
            if entry.id == name:
                return json_page(_model_json(entry))
        return error_response(
            404,
            f"no model is named {name!r}: GET /v1/models lists those that are",
            code="model_not_found",
            path=request.raw_path,
        )

    async def state(self, request: web.BaseRequest) -> web.StreamResponse:
        """The state, now."""
        return json_page(state_json(self._view(), self._surroundings()))

    async def state_stream(self, request: web.BaseRequest) -> web.StreamResponse:
        """The state as server-sent events: once a second, and on change.

        With `?capacity` in the query, each is preceded by the capacity of the same moment.
        """
        with_capacity = "capacity" in request.query
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        await response.prepare(request)
        clock = self._door.clock
        shown = -1
        shown_at = clock() - STREAM_PERIOD_S
        tick_s = STREAM_TICK_S
        # The end of the request's own task ends this: a watcher that leaves cancels it.
        while not (draining := self._door.draining):
            now = clock()
            if self._door.changes != shown or now - shown_at >= STREAM_PERIOD_S:
                await response.write(self._events(with_capacity))
                shown, shown_at = self._door.changes, now
                # A large state takes its time to make: watching may cost a tenth of a core.
                tick_s = max(STREAM_TICK_S, 10 * (clock() - now))
            await asyncio.sleep(tick_s)
        if draining:
            # The last thing a watcher learns is why the stream ends.
            await response.write(self._events(with_capacity))
        await response.write_eof()
        return response

    def _events(self, with_capacity: bool) -> bytes:
        """Return the events of this moment: the state, after the capacity where that is asked."""
        view = self._view()
        event = b"data: " + orjson.dumps(state_json(view, self._surroundings())) + b"\n\n"
        if with_capacity:
            page = orjson.dumps(capacity_json(view, self._scaling()))
            event = b"event: capacity\ndata: " + page + b"\n\n" + event
        return event

    async def capacity(self, request: web.BaseRequest) -> web.StreamResponse:
        """What each pool can carry, what is asked of it, and what would be enough."""
        return json_page(capacity_json(self._view(), self._scaling()))

    async def rejections(self, request: web.BaseRequest) -> web.StreamResponse:
        """The rejection table with counts and advice."""
        surroundings = self._surroundings()
        page = rejections_json(self._view(), self._refusals.seen_at, surroundings.reject_status)
        return json_page(page)

    async def mode(self, request: web.BaseRequest) -> web.StreamResponse:
        """The routing mode in force."""
        return json_page(mode_json(self._view(), self._surroundings().sources))


def _model_json(entry: ModelEntry) -> dict[str, object]:
    page: dict[str, object] = {
        "id": entry.id,
        "object": "model",
        "created": entry.created,
        "owned_by": entry.owned_by,
        "capabilities": sorted(capability.value for capability in entry.capabilities),
    }
    if entry.max_model_len is not None:
        page["max_model_len"] = entry.max_model_len
    return page
