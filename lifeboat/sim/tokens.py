"""The endpoints that count: tokenise, detokenise, apply the chat template, count a Messages body.

No inference, no seat: they answer at once, however full the engine is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from aiohttp import web

from lifeboat.sim import text
from lifeboat.sim.bodies import Body, messages_prompt, model_of, parse_json, render
from lifeboat.sim.config import Personality
from lifeboat.sim.refusal import invalid
from lifeboat.sim.served import ServedModel
from lifeboat.sim.wire import json_response

Find = Callable[[str | None], ServedModel]


async def tokenize(request: web.Request, find: Find) -> web.Response:
    """`POST /tokenize`: `prompt` or `messages` as vLLM takes it, `content` as llama.cpp does."""
    body = parse_json(await request.read())
    served = find(model_of(body))
    ids: list[int] = []
    for part in text.tokenize_in_slices(_text_of(body)):
        ids += part
        # The engines of this server, or a router around it, share the event loop.
        await asyncio.sleep(0)
    if served.config.personality is Personality.GGUF:
        return json_response({"tokens": ids})
    return json_response({"count": len(ids), "max_model_len": served.context_tokens, "tokens": ids})


async def detokenize(request: web.Request, find: Find) -> web.Response:
    """`POST /detokenize`: the inverse."""
    body = parse_json(await request.read())
    served = find(model_of(body))
    ids = body.get("tokens")
    if not isinstance(ids, list) or not all(
        isinstance(item, int) for item in cast("list[Any]", ids)
    ):
        raise invalid("`tokens` must be a list of token ids.", "tokens")
    field = "content" if served.config.personality is Personality.GGUF else "prompt"
    return json_response({field: text.detokenize(cast("list[int]", ids))})


async def apply_template(request: web.Request, find: Find) -> web.Response:
    """llama.cpp's `POST /apply-template`: the prompt that a conversation becomes."""
    body = parse_json(await request.read())
    find(model_of(body))
    return json_response({"prompt": _conversation(body)})


async def count_message_tokens(request: web.Request, find: Find) -> web.Response:
    """Anthropic's `POST /v1/messages/count_tokens`."""
    body = parse_json(await request.read())
    find(model_of(body))
    return json_response({"input_tokens": messages_prompt(body).tokens})


def _text_of(body: Body) -> str:
    if "messages" in body:
        return _conversation(body)
    given = body.get("prompt", body.get("content"))
    if not isinstance(given, str):
        raise invalid("`prompt` (or `content`) must be a string, or give `messages`.", "prompt")
    return given


def _conversation(body: Body) -> str:
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise invalid("`messages` must be a list.", "messages")
    return render(cast("list[Any]", messages), body.get("tools"))[0]
