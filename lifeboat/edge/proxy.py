"""The journey of a proxied request, in the order of docs/explanation/journey.md.

Accept, intake, estimate, fit and gate, wait, dispatch, relay; every step that can fail ends in one
refusal, and every request in one terminal event. Invariant I10: a refusal is decided before any
response byte; after the first byte there is only relay or abort.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from aiohttp import web

from lifeboat.core.estimate import bounds, near_border, needs_count, quick
from lifeboat.core.ledger import BodyLedger
from lifeboat.core.rejections import ErrorType
from lifeboat.core.vocabulary import Ask, Reason, Refusal
from lifeboat.counting import TokenCounter
from lifeboat.door import CLIENT_GONE, Door
from lifeboat.edge.bodyscan import splice_model
from lifeboat.edge.dispatch import Dispatch, GiveUp, GoOn
from lifeboat.edge.endpoints import BodyKind, Endpoint, ModelRule
from lifeboat.edge.headers import facts_of
from lifeboat.edge.held import HeldAnswer
from lifeboat.edge.intake import IntakeRules, parse_body, read_body
from lifeboat.edge.journey import Journey, NewId
from lifeboat.edge.keys import KeyRing
from lifeboat.edge.makers import Makers
from lifeboat.edge.realtime import (
    asks_for_websocket,
    model_in_query,
    protocol_keys,
    upgrade_required,
    with_model,
)
from lifeboat.edge.refuse import error_response, refusal_response
from lifeboat.edge.slices import YieldNow
from lifeboat.edge.sweep import PausedSweep
from lifeboat.fleet import Ambiguous, Fleet
from lifeboat.observe.events import CLIENT_LEFT_STATUS, GoneAt, Observers
from lifeboat.wire.downstream import Relayed, abort, client_gone
from lifeboat.wire.headers import Headers

_log = logging.getLogger("lifeboat.edge")

SUPERSEDED = frozenset({Reason.GATE, Reason.NO_BACKENDS})
"""Refusals of a further attempt that give way to the answer a backend already gave."""


@dataclass(frozen=True, slots=True)
class ProxyRules:
    """The settings of the journey that no other part owns."""

    intake: IntakeRules
    reject_status: int


class Proxy:
    """Serves proxied requests; one instance serves all."""

    def __init__(
        self,
        door: Door,
        fleet: Fleet,
        dispatch: Dispatch,
        counter: TokenCounter | None,
        ledger: BodyLedger,
        makers: Makers,
        keys: KeyRing,
        observers: Observers,
        sweep: PausedSweep,
        rules: ProxyRules,
        *,
        wall: Callable[[], float],
        new_id: NewId,
        yield_now: YieldNow,
    ) -> None:
        """counter: None where only the quick figure is wanted. wall: epoch seconds.

        yield_now: between slices of long work, one for all who read bodies on this loop.
        """
        self.rules = rules
        self._door = door
        self._fleet = fleet
        self._dispatch = dispatch
        self._counter = counter
        self._ledger = ledger
        self._makers = makers
        self._keys = keys
        self._observers = observers
        self._sweep = sweep
        self._wall = wall
        self._new_id = new_id
        self._yield_now = yield_now
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self) -> None:
        """Wait until no request is under way, the tails of slow readers included."""
        await self._idle.wait()

    async def handle(self, request: web.BaseRequest, endpoint: Endpoint) -> web.StreamResponse:
        """Serve one request to a proxied path."""
        headers = Headers.of(request.raw_headers)
        facts = facts_of(headers)
        journey = Journey(
            request,
            endpoint,
            headers,
            facts,
            facts.given_id or self._new_id(),
            self._door.clock(),
            self._ledger,
            priority=facts.priority,
            unknown_priority=not facts.understood,
        )
        self._active += 1
        self._idle.clear()
        try:
            return await self._travel(journey)
        except asyncio.CancelledError:
            journey.gone = True
            raise
        except ConnectionError:
            # The client's connection broke while we read from it or wrote to it ourselves: nobody
            # is left to answer, and raised it would be logged as a fault of ours.
            journey.gone = True
            abort(request)
            return Relayed(CLIENT_LEFT_STATUS, body_bytes=0, keep_alive=False)
        except Exception:
            _log.exception("request %s failed", journey.request_id)
            return self._fault(journey)
        finally:
            self._active -= 1
            if not self._active:
                self._idle.set()
            self._sweep.forget(request)
            journey.drop_body()
            journey.finish(self._observers, self._door.clock(), self._wall())

    async def _travel(self, journey: Journey) -> web.StreamResponse:
        shown = journey.facts.keys
        if journey.endpoint.upgrades:
            shown += protocol_keys(journey.headers)
        if not self._keys.admits(shown):
            return self._refuse(journey, _unauthorized())
        if self._door.draining:
            pool = journey.pool
            return self._refuse(journey, Refusal(Reason.SHUTTING_DOWN, _DRAINING, pool=pool))
        if journey.endpoint.upgrades and not asks_for_websocket(journey.request, journey.headers):
            journey.status = 426
            return upgrade_required(journey.request.raw_path, journey.request_id)
        body = await read_body(journey, self.rules.intake)
        if isinstance(body, Refusal):
            return self._refuse(journey, body)
        journey.body_bytes = len(body)
        journey.body = body if body or journey.request.body_exists else None
        ask = await self._understand(journey, body)
        if not isinstance(ask, Ask):
            return self._refuse(journey, ask) if isinstance(ask, Refusal) else ask
        journey.ask = ask
        journey.pool = self._door.pool_of(ask.model)
        if not journey.charge(journey.pool):
            return self._refuse(journey, self._door.bytes_full(journey.pool, self._ledger))
        self._sweep.watch(journey.request)
        # The journey holds what is sent, until an answer is committed.
        del body
        return await self._serve(journey, ask)

    # -- what is asked ----------------------------------------------------------------------

    async def _understand(
        self, journey: Journey, body: bytes
    ) -> Ask | Refusal | web.StreamResponse:
        endpoint = journey.endpoint
        if endpoint.model is ModelRule.BY_ID:
            return self._by_id(journey)
        if endpoint.model is ModelRule.IN_QUERY:
            return self._in_query(journey)
        if endpoint.body is BodyKind.NONE:
            return self._ask(journey, None)
        parsed = await parse_body(journey, body, self.rules.intake, self._yield_now)
        if isinstance(parsed, Refusal):
            return parsed
        journey.model = parsed.model
        journey.stream = parsed.stream
        journey.stored = parsed.store is not False
        shape = parsed.shape
        model = self._model(journey, parsed.model)
        if isinstance(model, Refusal):
            return model
        resolved = self._fleet.resolve(model)
        if resolved.rewrite is not None and parsed.model is not None:
            journey.body = splice_model(parsed, resolved.rewrite)
            journey.drop_encoding = parsed.plain is not body
        deadline_s = journey.facts.deadline_s
        if deadline_s is not None:
            # What reading the body took is gone already.
            deadline_s = max(0.0, deadline_s - (self._door.clock() - journey.started_at))
        journey.estimate = quick(shape)
        ask = Ask(
            resolved.model,
            endpoint.capability,
            journey.estimate,
            journey.priority,
            len(body),
            endpoint.gated,
            None,
            deadline_s,
        )
        caps = self._door.caps(ask.model, ask.capability)
        counter = self._counter
        if caps and counter is not None and needs_count(ask.estimate, caps, bounds(shape)):
            counted = await counter.count(shape, max(caps))
            if counted is not None:
                journey.estimate = counted
                ask = replace(ask, estimate=counted)
        if endpoint.protocol is not None and any(near_border(ask.estimate, cap) for cap in caps):
            exact = await self._fleet.exact_size(ask, endpoint.protocol, parsed.plain)
            journey.estimate = exact
            ask = replace(ask, estimate=exact)
        return ask

    def _in_query(self, journey: Journey) -> Ask | Refusal:
        raw_path = journey.request.raw_path
        journey.model = model_in_query(raw_path)
        asked = self._ask(journey, journey.model or None)
        if isinstance(asked, Refusal):
            return asked
        resolved = self._fleet.resolve(asked.model)
        if resolved.rewrite is not None:
            journey.sent_path = with_model(raw_path, resolved.rewrite)
        return replace(asked, model=resolved.model)

    def _ask(self, journey: Journey, model: str | None) -> Ask | Refusal:
        """Return what a request without input asks."""
        chosen = self._model(journey, model)
        if isinstance(chosen, Refusal):
            return chosen
        endpoint = journey.endpoint
        return Ask(chosen, endpoint.capability, priority=journey.priority, gated=endpoint.gated)

    def _model(self, journey: Journey, model: str | None) -> str | Refusal:
        """Return the name that is meant."""
        endpoint = journey.endpoint
        if model is None or (model == "" and not endpoint.model_required):
            if endpoint.model_required:
                return Refusal(
                    Reason.INVALID_REQUEST,
                    "`model` is missing: name one of the ids that GET /v1/models lists",
                )
            chosen = self._fleet.default_model(endpoint.capability)
            if isinstance(chosen, Ambiguous) and chosen.choices:
                return _ambiguous(chosen)
            # Nothing could be meant: the gate says why, a missing capability first.
            model = "" if isinstance(chosen, Ambiguous) else chosen
        return model

    def _by_id(self, journey: Journey) -> Ask | web.StreamResponse:
        object_id = journey.endpoint.object_id(journey.request.raw_path) or ""
        maker = self._makers.find(object_id)
        if maker is None:
            journey.status = 404
            return error_response(
                404,
                f"no backend of this router is known to have made {object_id!r}",
                code="not_found",
                request_id=journey.request_id,
                path=journey.request.raw_path,
            )
        endpoint = journey.endpoint
        return Ask(
            maker.model,
            endpoint.capability,
            priority=journey.priority,
            gated=endpoint.gated,
            backend=maker.backend,
        )

    # -- waiting and sending ----------------------------------------------------------------

    async def _serve(self, journey: Journey, ask: Ask) -> web.StreamResponse:
        """Admit, wait, send; again without the backend that failed, until something is final."""
        held: HeldAnswer | None = None
        while True:
            parked_before_s = 0.0 if journey.place is None else journey.place.parked_s
            journey.phase = GoneAt.PARKED
            journey.parked_since = self._door.clock()
            async with self._door.slot(ask, journey.place) as admission:
                journey.parked_since = None
                if isinstance(admission, Refusal):
                    return await self._turned_away(journey, admission, held, parked_before_s)
                journey.place = admission.place
                # Who was not parked was heard a moment ago.
                if admission.place.parked_s and client_gone(journey.request):
                    self._door.close(admission, CLIENT_GONE)
                    raise ConnectionResetError("the client left while its request was parked")
                result = await self._dispatch.attempt(journey, admission)
            match result:
                case GoOn():
                    held = result.held or held
                case GiveUp():
                    return self._refuse(journey, result.refusal)
                case _:
                    return result

    async def _turned_away(
        self,
        journey: Journey,
        refusal: Refusal,
        held: HeldAnswer | None,
        parked_before_s: float,
    ) -> web.StreamResponse:
        """No (further) backend: relay the answer that was held back, or refuse."""
        if refusal.temporary and journey.ask is not None:
            self._fleet.nudge(journey.ask.model)
        timed_out = refusal.reason is Reason.QUEUE_TIMEOUT
        never_parked = timed_out and refusal.wait_s <= parked_before_s
        if journey.attempts and (refusal.reason in SUPERSEDED or never_parked):
            if held is not None:
                end = await self._dispatch.relay_answer(journey, held, held.backend)
                return end.response
            if refusal.reason is not Reason.GATE:
                refusal = Refusal(
                    Reason.BACKEND_UNREACHABLE,
                    _unreachable(journey, refusal),
                    pool=journey.pool,
                    effective_limits=refusal.effective_limits,
                )
        return self._refuse(journey, refusal)

    # -- ends -------------------------------------------------------------------------------

    def _refuse(self, journey: Journey, refusal: Refusal) -> web.Response:
        self._door.note_rejected(refusal.pool, refusal.reason)
        journey.drop_body()
        journey.reason = refusal.reason
        journey.refused_wait_s = refusal.wait_s
        journey.pool = refusal.pool or journey.pool
        response = refusal_response(
            refusal,
            mode=self._door.rules.mode,
            reject_status=self.rules.reject_status,
            request_id=journey.request_id,
            attempts=journey.attempts,
            wait_ms=round(journey.wait_s(0.0) * 1000),
            path=journey.request.raw_path,
            close=self._dispatch.draining,
        )
        journey.status = response.status
        return response

    def _fault(self, journey: Journey) -> web.Response:
        journey.status = 500
        return error_response(
            500,
            "the router failed on this request; its log has the cause under this request id",
            code="internal_error",
            error_type=ErrorType.API,
            request_id=journey.request_id,
            path=journey.request.raw_path,
            close=True,
        )


_DRAINING = "the router is shutting down and takes no new requests: send it again"


def _unauthorized() -> Refusal:
    return Refusal(
        Reason.UNAUTHORIZED,
        "the key is missing or none of LIFEBOAT_API_KEYS: send one as `Authorization: Bearer KEY` "
        "or `x-api-key: KEY`",
    )


def _ambiguous(choice: Ambiguous) -> Refusal:
    names = ", ".join(choice.choices[:20]) or "none"
    return Refusal(
        Reason.INVALID_REQUEST,
        f"`model` is missing and several could be meant ({names}): name one, or mark one with "
        "`default: true` under `models:`",
    )


def _unreachable(journey: Journey, refusal: Refusal) -> str:
    tried = "; ".join(
        f"{attempt.backend}: {attempt.verdict.value}" for attempt in journey.attempts[:8]
    )
    return f"every candidate failed before a byte of an answer came ({tried}); {refusal.message}"
