"""One streamed request against a server under measurement, seen token by token.

Speaks the OpenAI chat protocol, which all kinds of backends have. Held by tests/tune/test_tune.py.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import aiohttp

OVERLOAD = frozenset({429, 503, 529})
WORDS = "oar sea row bay fog ebb tug log cod eel sun sky aft tar rig fin net hut bow".split()


class TuneError(Exception):
    """The server cannot be measured; the message says why."""


@dataclass(slots=True)
class Asked:
    """One request. at: clock seconds of its start; status: None when the connection was lost.

    tokens: as the server's usage says, else the chunks that carried text.
    """

    at: float
    status: int | None = None
    first_token_at: float | None = None
    ended_at: float | None = None
    chunks: int = 0
    tokens: int = 0

    @property
    def gap_s(self) -> float | None:
        """Mean seconds between two tokens, None for fewer than two."""
        if self.first_token_at is None or self.ended_at is None or self.tokens < 2:
            return None
        return (self.ended_at - self.first_token_at) / (self.tokens - 1)


@dataclass(frozen=True, slots=True)
class Server:
    """What the server said of itself. slots: parallel sequences, None where it tells nothing."""

    model: str
    slots: int | None


class Asker:
    """Asks one server.

    prompt_tokens, answer_tokens: means; each request differs by up to a half, so that answers do
    not end in step. on_token: called for each chunk of text.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        prompt_tokens: int,
        answer_tokens: int,
        rng: random.Random,
        clock: Callable[[], float],
    ) -> None:
        self._session = session
        self._url = url.rstrip("/").removesuffix("/v1")
        self._prompt_tokens = prompt_tokens
        self._answer_tokens = answer_tokens
        self._rng = rng
        self._clock = clock
        self._model = ""
        self._ignores_eos = True
        self._serial = 0

    async def meet(self, model: str | None) -> Server:
        """Find the model and the slots, and try one request. Raises TuneError."""
        listing = await self._page("/v1/models")
        ids = [str(one.get("id")) for one in cast("list[dict[str, Any]]", listing.get("data", []))]
        if model is None and not ids:
            raise TuneError(f"{self._url} lists no models: name one with --model")
        self._model = model or ids[0]
        await self._try_out()
        try:
            slots = (await self._page("/props")).get("total_slots")
        except TuneError:
            slots = None
        return Server(self._model, slots if isinstance(slots, int) and slots > 0 else None)

    async def _try_out(self) -> None:
        asked = await self.ask()
        if asked.status == 400:
            # Hosted endpoints refuse fields they do not know.
            self._ignores_eos = False
            asked = await self.ask()
        if asked.status != 200 or not asked.chunks:
            raise TuneError(
                f"{self._url} answered a streamed chat to {self._model!r} with {asked.status} and "
                f"{asked.chunks} chunks: is it a model server, and does it generate text?"
            )

    async def _page(self, path: str) -> dict[str, Any]:
        try:
            async with self._session.get(self._url + path) as answer:
                if answer.status != 200:
                    raise TuneError(f"{self._url}{path} answered {answer.status}")
                page: object = await answer.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise TuneError(f"{self._url}{path}: {error or type(error).__name__}") from None
        return cast("dict[str, Any]", page) if isinstance(page, dict) else {}

    def _body(self) -> dict[str, object]:
        rng = self._rng
        self._serial += 1
        words = max(1, int(self._prompt_tokens * rng.uniform(0.5, 1.5)))
        # The number first: no two prompts share a prefix that a server could have cached.
        prompt = f"{self._serial} {' '.join(rng.choices(WORDS, k=words))}"
        body: dict[str, object] = {
            "model": self._model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max(2, int(self._answer_tokens * rng.uniform(0.5, 1.5))),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return {**body, "ignore_eos": True} if self._ignores_eos else body

    async def ask(self, on_token: Callable[[], None] = lambda: None) -> Asked:
        """Send one request and read its stream to the end; failures are in the status."""
        asked = Asked(self._clock())
        try:
            async with self._session.post(
                f"{self._url}/v1/chat/completions", json=self._body()
            ) as answer:
                asked.status = answer.status
                if answer.status != 200:
                    await answer.read()
                    return asked
                async for line in answer.content:
                    if line.startswith(b"data:"):
                        self._event(line[5:].strip(), asked, on_token)
        except (TimeoutError, aiohttp.ClientError, ValueError):
            asked.status = None
            return asked
        asked.ended_at = self._clock()
        asked.tokens = asked.tokens or asked.chunks
        return asked

    def _event(self, raw: bytes, asked: Asked, on_token: Callable[[], None]) -> None:
        if raw == b"[DONE]":
            return
        event = cast("dict[str, Any]", json.loads(raw))
        if "error" in event:
            # vLLM refuses streamed requests inside a 200.
            code: object = event["error"].get("code")
            asked.status = code if isinstance(code, int) else None
            return
        usage = event.get("usage")
        if isinstance(usage, dict):
            asked.tokens = int(cast("dict[str, Any]", usage).get("completion_tokens") or 0)
        for choice in cast("list[dict[str, Any]]", event.get("choices") or []):
            delta = cast("dict[str, Any]", choice.get("delta") or {})
            if delta.get("content") or delta.get("reasoning_content"):
                asked.chunks += 1
                if asked.first_token_at is None:
                    asked.first_token_at = self._clock()
                on_token()
