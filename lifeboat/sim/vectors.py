"""Embeddings, rerank and score: prefill alone, with figures that depend on the text alone.

An embedding is a unit vector drawn from a hash of the text. A relevance is the share of the
query's words that the document has: simple, honest, and ordered as a reader would expect.
"""

from __future__ import annotations

import base64
import hashlib
from array import array
from collections.abc import Callable
from math import sqrt
from typing import Any, cast
from uuid import uuid4

from aiohttp import web

from lifeboat.core.vocabulary import Capability
from lifeboat.sim.bodies import Body, Prompt, model_of, parse_json, prompts_of
from lifeboat.sim.driver import EngineGoneError, TooManyInFlight
from lifeboat.sim.faults import Fault, FaultMode
from lifeboat.sim.generate import admit, check_input
from lifeboat.sim.refusal import engine_gone, invalid, not_offered, too_many_in_flight
from lifeboat.sim.scheduler import Sequence
from lifeboat.sim.served import ServedModel
from lifeboat.sim.text import count
from lifeboat.sim.wire import send_whole

Find = Callable[[str | None], ServedModel]


def vector(seed: int, dimensions: int) -> array[float]:
    """Return a unit vector that depends on the seed alone, as 32-bit floats."""
    raw = hashlib.shake_128(seed.to_bytes(8, "big")).digest(dimensions)
    values = [byte - 127.5 for byte in raw]
    length = sqrt(sum(value * value for value in values))
    return array("f", [value / length for value in values])


def relevance(query: str, document: str) -> float:
    """Return the share of the query's words that occur in the document, 0 to 1."""
    words = set(query.lower().split())
    return len(words & set(document.lower().split())) / len(words) if words else 0.0


async def prefill(
    served: ServedModel, tokens: list[int], capability: Capability, fault: Fault | None
) -> None:
    """Charge inputs of so many tokens as prefill and wait until they are computed."""
    if capability not in served.config.serves:
        raise not_offered(served.config.personality, capability is Capability.EMBED)
    if fault is not None:
        await fault.before_head()
    for size in tokens:
        check_input(served, size)
    answer = admit(served, [Sequence(size, 0) for size in tokens])
    if isinstance(answer, TooManyInFlight):
        raise too_many_in_flight(answer)
    driver, reply = answer
    try:
        if fault is not None and fault.mode is FaultMode.SLOW_HEADERS:
            await fault.pause()
        await reply.end()
    except EngineGoneError:
        raise engine_gone() from None
    finally:
        driver.withdraw(reply)
        served.observe(reply)


async def embeddings(request: web.Request, find: Find, fault: Fault | None) -> web.StreamResponse:
    """`POST /v1/embeddings`: text, ids, or a list of either; floats or base64."""
    body = parse_json(await request.read())
    served = find(model_of(body))
    prompts = prompts_of(body.get("input"), "input")
    dimensions = _dimensions(body, served.config.embedding_dimensions)
    as_base64 = body.get("encoding_format") == "base64"
    await prefill(served, [prompt.tokens for prompt in prompts], Capability.EMBED, fault)
    payload: dict[str, Any] = {
        "object": "list",
        "data": [
            {
                "object": "embedding",
                "index": index,
                "embedding": _written(vector(prompt.seed, dimensions), as_base64),
            }
            for index, prompt in enumerate(prompts)
        ],
        "model": model_of(body) or served.names[0],
    }
    return await send_whole(request, _with_usage(payload, prompts, fault), fault)


async def native_embedding(
    request: web.Request, find: Find, fault: Fault | None
) -> web.StreamResponse:
    """llama.cpp's own `POST /embedding`: a list without an envelope."""
    body = parse_json(await request.read())
    served = find(model_of(body))
    prompts = prompts_of(body.get("content", body.get("input")), "content")
    await prefill(served, [prompt.tokens for prompt in prompts], Capability.EMBED, fault)
    size = served.config.embedding_dimensions
    rows = [
        {"index": index, "embedding": [vector(prompt.seed, size).tolist()]}
        for index, prompt in enumerate(prompts)
    ]
    return await send_whole(request, rows, fault)


async def rerank(request: web.Request, find: Find, fault: Fault | None) -> web.StreamResponse:
    """`POST /v1/rerank`: each document is charged together with the query."""
    body = parse_json(await request.read())
    served = find(model_of(body))
    query = _text(body.get("query"), "query")
    documents = [_text(item, "documents") for item in _list(body.get("documents"), "documents")]
    top = body.get("top_n")
    sizes = [max(count(query) + count(document), 1) for document in documents]
    await prefill(served, sizes, Capability.RERANK, fault)
    ranked = sorted((-relevance(query, text), at) for at, text in enumerate(documents))
    results = [
        {"index": at, "document": {"text": documents[at]}, "relevance_score": -negative}
        for negative, at in ranked
    ]
    payload: dict[str, Any] = {
        "id": f"rerank-{uuid4().hex}",
        "model": model_of(body) or served.names[0],
        "results": results[:top] if isinstance(top, int) and top > 0 else results,
    }
    prompts = [Prompt(size, 0) for size in sizes]
    return await send_whole(request, _with_usage(payload, prompts, fault), fault)


async def score(request: web.Request, find: Find, fault: Fault | None) -> web.StreamResponse:
    """`POST /v1/score`: one text against one or many, or pair by pair."""
    body = parse_json(await request.read())
    served = find(model_of(body))
    left = [_text(item, "text_1") for item in _list(body.get("text_1"), "text_1")]
    right = [_text(item, "text_2") for item in _list(body.get("text_2"), "text_2")]
    if len(left) == 1:
        left *= len(right)
    if len(left) != len(right):
        raise invalid("`text_1` must be one text, or as many as `text_2`.", "text_1")
    pairs = list(zip(left, right, strict=True))
    sizes = [max(count(one) + count(other), 1) for one, other in pairs]
    await prefill(served, sizes, Capability.RERANK, fault)
    payload: dict[str, Any] = {
        "id": f"score-{uuid4().hex}",
        "object": "list",
        "model": model_of(body) or served.names[0],
        "data": [
            {"index": at, "object": "score", "score": relevance(one, other)}
            for at, (one, other) in enumerate(pairs)
        ],
    }
    prompts = [Prompt(size, 0) for size in sizes]
    return await send_whole(request, _with_usage(payload, prompts, fault), fault)


def _with_usage(
    payload: dict[str, Any], prompts: list[Prompt], fault: Fault | None
) -> dict[str, Any]:
    if fault is not None and fault.mode is FaultMode.NO_USAGE:
        return payload
    tokens = sum(prompt.tokens for prompt in prompts)
    return payload | {"usage": {"prompt_tokens": tokens, "total_tokens": tokens}}


def _dimensions(body: Body, default: int) -> int:
    value = body.get("dimensions")
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 65536:
        raise invalid("`dimensions` must be a whole number from 1 to 65536.", "dimensions")
    return value


def _written(values: array[float], as_base64: bool) -> str | list[float]:
    return base64.b64encode(values.tobytes()).decode() if as_base64 else values.tolist()


def _list(value: Any, name: str) -> list[Any]:
    if isinstance(value, (str, dict)):
        return [value]
    if not isinstance(value, list) or not value:
        raise invalid(f"`{name}` must be a text or a non-empty list of texts.", name)
    return cast("list[Any]", value)


def _text(value: Any, name: str) -> str:
    text = cast("dict[str, Any]", value).get("text") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise invalid(f"`{name}` must be text, or objects with a `text`.", name)
    return text
