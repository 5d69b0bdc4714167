"""Near an input cap, the backend's own tokenizer decides (`exact_border`).

A question to the engine costs it a moment and the request a round trip, so it is asked only where
the estimate lies within 15 % of the cap of a backend that wants it, within a time budget, for a few
requests at once; whatever goes wrong, the estimate stands. It takes no slot: it does no inference.
Held by tests/fleet/test_border.py. Source: issue 4, "Engine truth".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import cast

from lifeboat.core.estimate import near_border
from lifeboat.core.protocol import Protocol
from lifeboat.core.vocabulary import Ask, Estimate, EstimateMethod, Kind
from lifeboat.fleet.inquiry import AskError, Inquirer
from lifeboat.fleet.known import Known
from lifeboat.fleet.members import Member

BUDGET_S = 0.5
"""Longest time that all questions of one request take together: a tenth of it is usual."""
MOST_AT_ONCE = 16
"""Requests that may be asked about at once; beyond, the estimate stands."""
MOST_BODY_BYTES = 1 << 20
"""A longer body is not read again: near a cap of 200,000 tokens a prompt has about this size."""

TOKENIZE, TEMPLATE, COUNT_TOKENS = "/tokenize", "/apply-template", "/v1/messages/count_tokens"
_COUNTS: Mapping[str, tuple[str, ...]] = {
    TOKENIZE: ("count", "tokens"),
    COUNT_TOKENS: ("input_tokens",),
}
"""Path -> where its answer has the figure: a number, or a list of tokens."""
_CHAT_KEYS = ("model", "messages", "tools", "chat_template_kwargs", "add_generation_prompt")
_MESSAGES_KEYS = ("model", "messages", "system", "tools", "tool_choice", "thinking")

Json = Mapping[str, object]


class Border:
    """Asks engines for exact sizes. clock: seconds, for the budget of two questions in a row."""

    def __init__(self, inquirer: Inquirer, clock: Callable[[], float]) -> None:
        self._inquirer = inquirer
        self._clock = clock
        self._asking = 0

    async def settle(
        self,
        ask: Ask,
        protocol: Protocol,
        body: bytes,
        candidates: Iterable[Known],
    ) -> Estimate:
        """Return the exact size where an engine is to decide and does, else the estimate.

        body: the request's, as plain JSON. candidates: the live backends of its model.
        """
        estimate = ask.estimate
        member = _asked(ask, candidates)
        if member is None or len(body) > MOST_BODY_BYTES or self._asking >= MOST_AT_ONCE:
            return estimate
        self._asking += 1
        try:
            # Under the name that the server knows, which an alias is not.
            counted = await self._count(member, protocol, {**json.loads(body), "model": ask.model})
        except (AskError, ValueError, RecursionError):
            return estimate
        finally:
            self._asking -= 1
        if counted is None:
            return estimate
        rest = estimate.total_tokens - estimate.tokens
        return Estimate(counted, counted + rest, EstimateMethod.ENGINE)

    async def _count(self, member: Member, protocol: Protocol, body: Json) -> int | None:
        match protocol:
            case Protocol.CHAT if member.kind is Kind.GGUF:
                ends_at = self._clock() + BUDGET_S
                template = _only(body, ("messages", "tools", "chat_template_kwargs"))
                told = await self._post(member, TEMPLATE, template, BUDGET_S)
                prompt = None if told is None else told.get("prompt")
                if not isinstance(prompt, str):
                    return None
                left_s = max(0.01, ends_at - self._clock())
                return await self._figure(
                    member, TOKENIZE, {"content": prompt, "add_special": True}, left_s
                )
            case Protocol.CHAT:
                return await self._figure(member, TOKENIZE, _only(body, _CHAT_KEYS))
            case Protocol.MESSAGES:
                return await self._figure(member, COUNT_TOKENS, _only(body, _MESSAGES_KEYS))
            case Protocol.COMPLETIONS | Protocol.LLAMA_COMPLETION:
                prompt = body.get("prompt")
                if not isinstance(prompt, str):
                    return None
                gguf = member.kind is Kind.GGUF
                asked = {"content": prompt, "add_special": True} if gguf else {"prompt": prompt}
                return await self._figure(member, TOKENIZE, {"model": body["model"], **asked})
            case _:
                return None

    async def _figure(
        self, member: Member, path: str, body: Json, timeout_s: float = BUDGET_S
    ) -> int | None:
        told = await self._post(member, path, body, timeout_s)
        for key in _COUNTS[path]:
            value = None if told is None else told.get(key)
            if isinstance(value, list):
                return len(cast("list[object]", value))
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                return value
        return None

    async def _post(self, member: Member, path: str, body: Json, timeout_s: float) -> Json | None:
        reply = await self._inquirer.ask(member, path, timeout_s, json.dumps(body).encode())
        if reply.status != 200 or reply.cut:
            return None
        answer: object = json.loads(reply.body)
        return cast("Json", answer) if isinstance(answer, dict) else None


def _asked(ask: Ask, candidates: Iterable[Known]) -> Member | None:
    """Return the backend whose tokenizer decides; None where no border is near."""
    for known in candidates:
        spec = known.spec
        near = near_border(ask.estimate, spec.max_input_tokens)
        if near and known.config.exact_border and ask.capability in spec.serves:
            return known.member
    return None


def _only(body: Json, keys: tuple[str, ...]) -> dict[str, object]:
    return {key: body[key] for key in keys if key in body}
