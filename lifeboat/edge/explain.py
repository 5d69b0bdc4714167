"""`POST /api/lb/explain`: the journey of a request up to the gate, dispatching nothing.

It goes through the same parsing, sizing, naming and judging as a real one, so that what it says is
what would happen. Held by tests/edge/test_admin.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from lifeboat.core.estimate import bounds, near_border, needs_count, quick
from lifeboat.core.explain import Explanation
from lifeboat.core.rejections import REJECTIONS, status_of
from lifeboat.core.vocabulary import Ask, Estimate, Priority, Refusal
from lifeboat.counting import TokenCounter
from lifeboat.door import Door
from lifeboat.edge.bodyscan import parse_json
from lifeboat.edge.endpoints import Endpoint, match
from lifeboat.edge.faults import BodyError
from lifeboat.edge.proxy import ProxyRules
from lifeboat.edge.slices import YieldNow
from lifeboat.fleet import Ambiguous, Fleet

Json = dict[str, object]


class Explainer:
    """Explains requests; one instance serves all."""

    def __init__(
        self,
        door: Door,
        fleet: Fleet,
        counter: TokenCounter | None,
        rules: Callable[[], ProxyRules],
        yield_now: YieldNow,
    ) -> None:
        """rules: those in force for real requests. yield_now: as theirs."""
        self._door = door
        self._fleet = fleet
        self._counter = counter
        self._rules = rules
        self._yield_now = yield_now

    async def explain(self, path: str, body: object, priority: object) -> Json:
        """Return the explanation of a POST of this body to this path; never raises for either."""
        endpoint = match("POST", path)
        if not isinstance(endpoint, Endpoint) or endpoint.protocol is None:
            message = f"{path!r} is not proxied: take a path that is, like /v1/chat/completions"
            return {"decision": "refuse", "status": 404, "message": message}
        rules = self._rules().intake
        raw = json.dumps(body, ensure_ascii=True).encode("ascii")
        try:
            parsed = await parse_json(
                raw,
                endpoint.protocol,
                yield_now=self._yield_now,
                image_tokens=rules.image_tokens,
                audio_bytes_per_token=rules.audio_bytes_per_token,
                weights=rules.weights,
            )
        except BodyError as error:
            return {
                "decision": "refuse", "status": 400, "reason": "invalid_request",
                "message": str(error),
            }  # fmt: skip
        asked = parsed.model
        if asked is None and not endpoint.model_required:
            chosen = self._fleet.default_model(endpoint.capability)
            asked = None if isinstance(chosen, Ambiguous) else chosen
        if asked is None:
            return {
                "decision": "refuse", "status": 400, "reason": "invalid_request",
                "message": "`model` is missing, and no default stands in for it",
            }  # fmt: skip
        model = self._fleet.resolve(asked).model
        estimate = quick(parsed.shape)
        first = estimate
        caps = self._door.caps(model, endpoint.capability)
        if self._counter is not None and needs_count(estimate, caps, bounds(parsed.shape)):
            estimate = await self._counter.count(parsed.shape, max(caps)) or estimate
        rank = Priority(priority) if priority in tuple(Priority) else Priority.NORMAL
        ask = Ask(model, endpoint.capability, estimate, rank, len(raw), endpoint.gated)
        if any(near_border(estimate, cap) for cap in caps):
            estimate = await self._fleet.exact_size(ask, endpoint.protocol, raw)
            ask = replace(ask, estimate=estimate)
        told = self._door.explain(ask)
        return {
            "model": asked,
            "pool": told.pool,
            "capability": endpoint.capability.value,
            "estimate": {
                **_estimate_json(estimate),
                "caps": list(caps),
                "quick": _estimate_json(first),
            },
            "backends": [
                {
                    "name": backend.name,
                    "candidate": backend.candidate,
                    "room": backend.with_room,
                    "why": backend.why,
                }
                for backend in told.backends
            ],
            **self._decision(told),
        }

    def _decision(self, told: Explanation) -> Json:
        refusal = told.refusal
        if refusal is not None:
            return {"decision": "refuse", **self._refusal_json(refusal)}
        if told.parked:
            return {"decision": "park", "ahead": told.ahead}
        return {"decision": "dispatch", "backend": told.backend}

    def _refusal_json(self, refusal: Refusal) -> Json:
        row = REJECTIONS[refusal.reason]
        return {
            "status": status_of(refusal.reason, self._rules().reject_status),
            "reason": row.wire_reason,
            "message": refusal.message,
            "advice": row.advice,
        }


def _estimate_json(estimate: Estimate) -> Json:
    return {
        "tokens": estimate.tokens,
        "total_tokens": estimate.total_tokens,
        "method": estimate.method.value,
        "error": estimate.error,
    }
