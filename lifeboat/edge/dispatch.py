"""One attempt at one backend: send, understand the answer, relay it or say why to go on.

The lease is closed here, at the moment the backend is done with the request, with the outcome that
the answer means (contract, section 5). Nothing is sent again once an answer's head is committed
(I10). Held by tests/acceptance/test_backend_answers.py over scripted
backends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import cast

from aiohttp import web

from lifeboat.core.answers import CLASSIFIED_STATUSES, OVERLOAD_STATUS, classify
from lifeboat.core.seat import Lease
from lifeboat.core.vocabulary import Kind, Outcome, Refusal, Verdict
from lifeboat.door import ABANDONED, Door
from lifeboat.edge.cors import OFF, Cors
from lifeboat.edge.failures import exhausted, lost, timed_out
from lifeboat.edge.headers import HeadFacts, answer_facts, client_headers, upstream_headers
from lifeboat.edge.held import HeldAnswer
from lifeboat.edge.journey import Journey
from lifeboat.edge.makers import IdWatch, Maker, Makers
from lifeboat.edge.realtime import handshake_headers, switched_head
from lifeboat.edge.refuse import Attempt
from lifeboat.fleet import Fleet, Member
from lifeboat.observe.events import GoneAt
from lifeboat.wire.commit import error_body, first_event
from lifeboat.wire.downstream import ClientLines, Ended, RelayEnd, relay
from lifeboat.wire.headers import Headers, RawHeaders
from lifeboat.wire.tunnel import TunnelEnd, tunnel
from lifeboat.wire.upstream import Answer, Switched, Target, Upstream, UpstreamError

_log = logging.getLogger("lifeboat.edge")

MOST_SENDS = 3
"""Sends of one request that a backend may have worked on (contract, section 5)."""
MOST_ATTEMPTS = 64
"""Attempts of one request in all, refusals for load included: no request spins for ever."""

NOT_WORKED_ON = frozenset(
    {Verdict.SATURATED, Verdict.LOADING, Verdict.THROTTLED, Verdict.REFUSED, Verdict.UNREACHABLE}
)
"""Verdicts after which another attempt cannot double any work."""
LOOKED_INTO = CLASSIFIED_STATUSES | {OVERLOAD_STATUS}
"""Statuses whose answers are kept back until it is known what they mean."""

_NOT_TOLD = frozenset({Verdict.ANSWERED, Verdict.CLIENT_GONE})
"""No refusal lists such an attempt: it was the last."""

_ENDINGS: dict[Ended, Verdict] = {
    Ended.CLIENT_GONE: Verdict.CLIENT_GONE,
    Ended.CLIENT_TOO_SLOW: Verdict.CLIENT_GONE,
    Ended.UPSTREAM_CUT: Verdict.RESET,
    Ended.UPSTREAM_IDLE: Verdict.IDLE_TIMEOUT,
}

_TUNNEL_ENDINGS: dict[TunnelEnd, Verdict] = {
    TunnelEnd.CLOSED: Verdict.ANSWERED,
    TunnelEnd.ENDED: Verdict.ABANDONED,
    TunnelEnd.UPSTREAM_CUT: Verdict.RESET,
    TunnelEnd.CLIENT_GONE: Verdict.CLIENT_GONE,
}


@dataclass(frozen=True, slots=True)
class GoOn:
    """The attempt failed before any byte reached the client; the request may be tried elsewhere.

    held: the backend's own answer, if it gave one and it is to be relayed when nothing is left.
    """

    held: HeldAnswer | None = None


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The attempt failed and must not be repeated: this is what the client is told."""

    refusal: Refusal


@dataclass(frozen=True, slots=True)
class DispatchRules:
    """The settings of an attempt; another set may take their place at any time.

    redispatch: a request lost before its answer may be sent once more (where it is replayable).
    write_timeout_s: longest time in which a client takes no byte. router_keys: clients present
    keys of the router's own, which no backend may see. cors: the origins that may read answers.
    """

    redispatch: bool
    write_timeout_s: float
    router_keys: bool
    cors: Cors = OFF


class Dispatch:
    """Sends requests under a lease."""

    def __init__(
        self,
        door: Door,
        fleet: Fleet,
        upstream: Upstream,
        makers: Makers,
        wall: Callable[[], float],
        rules: DispatchRules,
    ) -> None:
        self._door = door
        self._fleet = fleet
        self._upstream = upstream
        self._makers = makers
        self._wall = wall
        self.rules = rules
        self._targets: dict[str, tuple[Member, Target]] = {}
        self._switched: set[Switched] = set()
        self.draining = False

    def end_switched(self) -> None:
        """End every WebSocket: the router goes, and nothing else would end them."""
        for answer in tuple(self._switched):
            answer.abort()

    async def attempt(self, journey: Journey, lease: Lease) -> web.StreamResponse | GoOn | GiveUp:
        """Send the request to the lease's backend; return the response once it is relayed."""
        member = self._fleet.member(lease.backend)
        if member is None:
            # Removed between the grant and now: the request goes where it may.
            self._door.close(lease, ABANDONED)
            self._door.exclude(lease)
            return GoOn()
        target = self._target(member)
        journey.about_to_send(member.name, self._door.clock())
        self._door.note_dispatch(lease)
        try:
            answer = await self._send(journey, target)
        except UpstreamError as error:
            if error.fresh_retry:
                journey.sent_again()
            return self._lost(journey, lease, error)
        if answer.fresh_retry:
            journey.sent_again()
        try:
            if answer.status == 101:
                return await self._switch(journey, lease, cast("Switched", answer))
            return await self._answered(journey, lease, member, answer)
        except BaseException:
            # The client left while the answer was looked into, or a fault of ours.
            answer.abort()
            raise

    async def _switch(self, journey: Journey, lease: Lease, answer: Switched) -> web.StreamResponse:
        """Pass bytes both ways; the slot is held until the backend's connection has ended."""
        journey.drop_body()
        journey.status = answer.status
        journey.backend = lease.backend
        journey.first_byte_at = self._door.clock()
        journey.phase = GoneAt.STREAMING
        headers = self._headers(journey, answer, lease.backend)
        head = switched_head(answer.reason, headers)
        self._switched.add(answer)
        try:
            end = await tunnel(
                journey.request, answer, head, write_timeout_s=self.rules.write_timeout_s
            )
        finally:
            self._switched.discard(answer)
        journey.body_bytes, journey.answer_bytes = end.client_bytes, end.backend_bytes
        journey.gone = end.end is TunnelEnd.CLIENT_GONE
        self._close(journey, lease, Outcome(_TUNNEL_ENDINGS[end.end], answer.status), end.detail)
        return end.response

    def _headers(self, journey: Journey, answer: Answer, backend: str) -> RawHeaders:
        """Return the end-to-end headers of an answer, and ours."""
        headers = client_headers(
            answer.head.headers,
            wait_ms=journey.wait_ms,
            backend=backend,
            attempts=journey.sends,
            request_id=journey.request_id,
        )
        cors = self.rules.cors
        return cors.relayed(headers, journey.headers) if cors.on else headers

    def _client_lines(self, journey: Journey, answer: Answer, backend: str) -> ClientLines:
        """Return the same, written."""
        if self.rules.cors.on:
            return ClientLines.of(self._headers(journey, answer, backend))
        head = answer.head
        return answer_facts(head.form).client_lines(
            head.values,
            wait_ms=journey.wait_ms,
            backend=backend,
            attempts=journey.sends,
            request_id=journey.request_id,
        )

    def _target(self, member: Member) -> Target:
        known = self._targets.get(member.name)
        if known is not None and known[0] is member:
            return known[1]
        target = Target(
            member.name,
            member.url,
            member.api_key,
            member.connect_timeout_s,
            member.first_byte_timeout_s,
            member.idle_timeout_s,
            None if member.tls_ca_file is None else str(member.tls_ca_file),
            member.tls_verify,
        )
        self._targets[member.name] = (member, target)
        return target

    def _send(self, journey: Journey, target: Target) -> Coroutine[None, None, Answer]:
        request = journey.request
        body = journey.body
        body_length = None if body is None else len(body)
        # The last send that is left must not turn into two on a stale connection.
        once = journey.sends >= MOST_SENDS
        path = journey.sent_path or request.raw_path
        router_keys = self.rules.router_keys
        if journey.endpoint.upgrades:
            headers = upstream_headers(
                journey.headers,
                target=target,
                request_id=journey.request_id,
                body_length=body_length,
                router_keys_configured=router_keys,
                client_address=request.remote,
                client_scheme=request.scheme,
            )
            own_key = target.api_key is not None
            headers = handshake_headers(headers, drop_keys=own_key or router_keys)
            return self._upstream.send(
                target, request.method, path, headers, body, once=once, upgrade=True
            )
        head = _facts_to_send(journey).upstream_head(
            target,
            request.method,
            path,
            request_id=journey.request_id,
            body_length=body_length,
            router_keys_configured=router_keys,
            client_address=request.remote,
            client_scheme=request.scheme,
        )
        return self._upstream.send_head(target, request.method, head, body, once=once)

    def _lost(self, journey: Journey, lease: Lease, error: UpstreamError) -> GoOn | GiveUp:
        """No answer at all: go on where that cannot double any work, else give up."""
        verdict = error.verdict
        if verdict is Verdict.REFUSED:
            self._fleet.saw_refusal(lease.backend)
        self._close(journey, lease, Outcome(verdict), error.detail)
        if verdict is Verdict.ABANDONED and not error.request_sent:
            # The next candidate would fare no better: it is this process that has run out.
            _log.error("no connection to %s could be opened: %s", lease.backend, error.detail)
            return GiveUp(exhausted(lease, error, journey.pool))
        self._door.exclude(lease)
        if verdict in NOT_WORKED_ON or not error.request_sent:
            return GoOn()
        if verdict in (Verdict.FIRST_BYTE_TIMEOUT, Verdict.IDLE_TIMEOUT):
            return GiveUp(timed_out(lease, error, journey.pool))
        may_repeat = (
            self.rules.redispatch
            and not error.answer_begun
            and not journey.redispatched
            and journey.sends < MOST_SENDS
            and journey.endpoint.replayable(stored=journey.stored)
        )
        if may_repeat:
            journey.redispatched = True
            return GoOn()
        return GiveUp(lost(lease, error, journey.pool))

    async def _answered(
        self, journey: Journey, lease: Lease, member: Member, answer: Answer
    ) -> web.StreamResponse | GoOn:
        start = b""
        head = answer.head
        status = head.status
        if status in LOOKED_INTO:
            start = await error_body(answer)
        facts = answer_facts(head.form)
        if status < 400 and facts.retry_after is None:
            outcome = facts.answered
        else:
            outcome = classify(
                status,
                facts.content_type,
                start,
                facts.retry_after,
                member.kind,
                bool(member.api_key),
                wall_now=self._wall(),
            )
        if journey.stream and _is_event_stream(member, status, facts.content_type):
            start, refused = await first_event(answer)
            if refused:
                outcome = Outcome(Verdict.SATURATED, answer.status)
                start += await error_body(answer)
        if _tried_elsewhere(outcome) and answer.ended and self._has_sends_left(journey, outcome):
            self._close(journey, lease, outcome, "")
            if outcome.verdict is Verdict.SERVER_ERROR:
                self._door.exclude(lease)
            return GoOn(HeldAnswer(answer, start + answer.take_ready(), lease.backend))
        return await self._pass_on(journey, lease, answer, outcome, start)

    def _has_sends_left(self, journey: Journey, outcome: Outcome) -> bool:
        if outcome.verdict in NOT_WORKED_ON:
            return len(journey.attempts) < MOST_ATTEMPTS
        return journey.sends < MOST_SENDS

    async def _pass_on(
        self, journey: Journey, lease: Lease, answer: Answer, outcome: Outcome, start: bytes
    ) -> web.StreamResponse:
        if journey.endpoint.makes_id and answer.status < 300:
            maker = Maker(lease.backend, lease.ask.model)
            answer = IdWatch(answer, lambda found: self._makers.remember(found, maker), start)

        def ended() -> None:
            self._close(journey, lease, _timed(journey, outcome), "")

        end = await self.relay_answer(journey, answer, lease.backend, start, ended)
        verdict = _ENDINGS.get(end.ended)
        if verdict is not None:
            detail = "" if end.error is None else end.error.detail
            self._close(journey, lease, Outcome(verdict, answer.status), detail)
        return end.response

    async def relay_answer(
        self,
        journey: Journey,
        answer: Answer,
        backend: str,
        start: bytes = b"",
        on_end: Callable[[], None] = lambda: None,
    ) -> RelayEnd:
        """Commit an answer and pass its bytes on; the request's body is not needed any more."""
        journey.drop_body()
        head = answer.head
        journey.status = head.status
        journey.backend = backend
        lines = self._client_lines(journey, answer, backend)

        def first_byte() -> None:
            journey.first_byte_at = self._door.clock()
            journey.phase = GoneAt.STREAMING

        journey.first_byte_at = self._door.clock()
        end = await relay(
            journey.request,
            answer,
            head.status,
            head.reason,
            lines,
            first=start,
            write_timeout_s=self.rules.write_timeout_s,
            close=self.draining,
            on_first_byte=first_byte,
            on_upstream_end=on_end,
        )
        journey.answer_bytes = end.body_bytes
        journey.gone = end.ended in (Ended.CLIENT_GONE, Ended.CLIENT_TOO_SLOW)
        return end

    def _close(self, journey: Journey, lease: Lease, outcome: Outcome, detail: str) -> None:
        """Close the lease and note the attempt; only the first call for a lease counts."""
        if not lease.open:
            return
        journey.verdict = outcome.verdict
        if outcome.verdict not in _NOT_TOLD:
            journey.attempts.append(Attempt(lease.backend, outcome.verdict, detail, outcome.status))
        self._door.close(lease, outcome)


def _timed(journey: Journey, outcome: Outcome) -> Outcome:
    """Add the time to first token, where the first byte of the body comes with it: in a stream."""
    if not journey.stream or journey.first_byte_at is None:
        return outcome
    return replace(outcome, first_token_s=journey.first_byte_at - journey.dispatched_at)


def _tried_elsewhere(outcome: Outcome) -> bool:
    """Say whether an answer of such a meaning is kept back while others are asked."""
    if outcome.verdict is Verdict.SERVER_ERROR:
        # Only a plain 503 says that nothing was done; other failures are relayed, once.
        return outcome.status == 503
    return outcome.verdict in NOT_WORKED_ON


def _is_event_stream(member: Member, status: int, content_type: str | None) -> bool:
    """Say whether the first event decides: vLLM refuses streamed requests inside a 200."""
    if member.kind is not Kind.VLLM or status != 200:
        return False
    return content_type is not None and content_type.lower().startswith("text/event-stream")


def _facts_to_send(journey: Journey) -> HeadFacts:
    """Return what is known of the client's headers, less an encoding that an alias made us undo."""
    if not journey.drop_encoding:
        return journey.facts
    return HeadFacts(
        Headers(line for line in journey.headers if line[0].lower() != b"content-encoding")
    )
