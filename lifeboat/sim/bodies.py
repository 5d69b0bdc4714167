"""Request bodies of every generating endpoint, read into one `Job`.

A body of the wrong shape raises Refused (400) naming the field; what the simulator does not know
is ignored, as the real servers do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from lifeboat.sim.refusal import invalid
from lifeboat.sim.text import IMAGE_TOKENS, count, seed_of

DEFAULT_MAX_TOKENS = 256
MOST_CHOICES = 128
"""Sequences that one request may ask for (prompts x n)."""

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt as it is charged: its tokens, and the seed of its answer."""

    tokens: int
    seed: int


@dataclass(slots=True)
class Job:
    """What a generating request asks for.

    max_tokens: None where the body names none. stop: strings that end the answer.
    include_usage: a usage chunk in the stream. hide_usage: a fault leaves all usage out.
    """

    model: str | None
    prompts: list[Prompt]
    max_tokens: int | None
    stream: bool
    include_usage: bool = False
    hide_usage: bool = False
    stop: list[str] = field(default_factory=list[str])
    ignore_eos: bool = False


def parse_json(raw: bytes) -> dict[str, Any]:
    """Return the JSON object in `raw`."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        # orjson refuses lone surrogates and NaN, which the json module and real servers take.
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError):
            raise invalid("The body is not valid JSON.") from None
    if not isinstance(body, dict):
        raise invalid("The body must be a JSON object.")
    return cast("dict[str, Any]", body)


def model_of(body: Body) -> str | None:
    """Return the model that the body names, None where it names none."""
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise invalid("`model` must be a string.", "model")
    return model


def chat_job(body: Body) -> Job:
    """Read a chat completion."""
    prompt = _prompt(*render(_messages(body), body.get("tools")))
    return _job(body, [prompt] * _choices(body), "max_completion_tokens", "max_tokens")


def completion_job(body: Body) -> Job:
    """Read a text completion: text, token ids, or a list of either."""
    prompts = [p for p in prompts_of(body.get("prompt"), "prompt") for _ in range(_choices(body))]
    return _job(body, prompts, "max_tokens")


def responses_job(body: Body) -> Job:
    """Read a Responses request: `input` as text or items, `instructions` before them."""
    given = body.get("input")
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise invalid("`input` must be a string or a non-empty list of items.", "input")
    items = cast("list[Any]", given)
    if body.get("instructions"):
        items = [{"role": "system", "content": body["instructions"]}, *items]
    return _job(body, [_prompt(*render(items, body.get("tools")))], "max_output_tokens")


def messages_job(body: Body) -> Job:
    """Read an Anthropic Messages request; `max_tokens` is required there."""
    job = _job(body, [messages_prompt(body)], "max_tokens")
    if job.max_tokens is None:
        raise invalid("max_tokens: Field required", "max_tokens")
    job.stop = _stops(body.get("stop_sequences"), "stop_sequences")
    return job


def messages_prompt(body: Body) -> Prompt:
    """Return the prompt of an Anthropic body, for its answer or its count."""
    messages = _messages(body)
    if body.get("system"):
        messages = [{"role": "system", "content": body["system"]}, *messages]
    return _prompt(*render(messages, body.get("tools")))


def native_job(body: Body) -> Job:
    """Read llama.cpp's own /completion or /infill."""
    pieces = (body.get("input_prefix"), body.get("input_suffix"))
    if any(isinstance(piece, str) for piece in pieces):
        around = "".join(piece for piece in pieces if isinstance(piece, str))
        prompts = [_prompt(around + str(body.get("prompt") or ""), 0)]
    else:
        prompts = prompts_of(body.get("prompt"), "prompt")[:1]
    unlimited = body.get("n_predict") == -1
    return _job(
        {**body, "n_predict": None} if unlimited else body, prompts, "n_predict", "max_tokens"
    )


def prompts_of(given: Any, name: str) -> list[Prompt]:
    """Return the prompts in a string, a list of ids, or a list of strings or id lists."""
    if isinstance(given, str):
        return [_prompt(given, 0)]
    if not isinstance(given, list) or not given:
        raise invalid(f"`{name}` must be a string, token ids, or a non-empty list of them.", name)
    items = cast("list[Any]", given)
    if _are_ids(items):
        return [Prompt(len(items), seed_of(items))]
    prompts: list[Prompt] = []
    for item in items:
        if isinstance(item, str):
            prompts.append(_prompt(item, 0))
        elif isinstance(item, list) and item and _are_ids(cast("list[Any]", item)):
            ids = cast("list[int]", item)
            prompts.append(Prompt(len(ids), seed_of(ids)))
        else:
            raise invalid(f"every entry of `{name}` must be a string or a list of token ids.", name)
    return prompts


def render(messages: list[Any], tools: Any = None) -> tuple[str, int]:
    """Return a conversation as the simulator's chat template writes it, and its image parts.

    Tools, tool calls and whatever else is structured count as their JSON.
    """
    pieces = [f"<|tools|>{_dump(tools)}<|end|>"] if tools else []
    images = 0
    for message in messages:
        if not isinstance(message, dict):
            raise invalid("every message must be an object.", "messages")
        entry = cast("dict[str, Any]", message)
        pieces.append(f"<|{entry.get('role') or entry.get('type') or 'user'}|>")
        for key, value in entry.items():
            if key == "content":
                text, pictures = _content(value)
                images += pictures
                pieces.append(text)
            elif key not in ("role", "type", "id", "status") and value is not None:
                pieces.append(value if isinstance(value, str) else _dump(value))
        pieces.append("<|end|>")
    pieces.append("<|assistant|>")
    return "".join(pieces), images


def _content(value: Any) -> tuple[str, int]:
    """Return the text and the number of non-text parts of a message's content."""
    if value is None:
        return "", 0
    if isinstance(value, str):
        return value, 0
    if not isinstance(value, list):
        return _dump(value), 0
    texts: list[str] = []
    pictures = 0
    for part in cast("list[Any]", value):
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            entry = cast("dict[str, Any]", part)
            text = entry.get("text")
            if isinstance(text, str):
                texts.append(text)
            elif any(
                word in str(entry.get("type")) for word in ("image", "audio", "file", "video")
            ):
                pictures += 1
            elif "content" in entry:
                inner, inside = _content(entry["content"])
                texts.append(inner)
                pictures += inside
            else:
                texts.append(_dump(entry))
    return "".join(texts), pictures


def _messages(body: Body) -> list[Any]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise invalid("`messages` must be a non-empty list.", "messages")
    return cast("list[Any]", messages)


def _prompt(text: str, images: int) -> Prompt:
    return Prompt(max(count(text) + images * IMAGE_TOKENS, 1), seed_of(text))


def _job(body: Body, prompts: list[Prompt], *limits: str) -> Job:
    if len(prompts) > MOST_CHOICES:
        raise invalid(f"at most {MOST_CHOICES} sequences per request.", "n")
    max_tokens = next((_limit(body, key) for key in limits if body.get(key) is not None), None)
    options = body.get("stream_options")
    include = cast("dict[str, Any]", options) if isinstance(options, dict) else {}
    return Job(
        model=model_of(body),
        prompts=prompts,
        max_tokens=max_tokens,
        stream=body.get("stream") is True,
        include_usage=include.get("include_usage") is True,
        stop=_stops(body.get("stop"), "stop"),
        ignore_eos=body.get("ignore_eos") is True,
    )


def _limit(body: Body, key: str) -> int:
    value = body.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise invalid(f"`{key}` must be a whole number of at least 1.", key)
    return value


def _choices(body: Body) -> int:
    value = body.get("n")
    if value is None:
        return 1
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_CHOICES:
        raise invalid(f"`n` must be a whole number from 1 to {MOST_CHOICES}.", "n")
    return value


def _stops(value: Any, key: str) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(v, str) for v in cast("list[Any]", value)):
        raise invalid(f"`{key}` must be a string or a list of strings.", key)
    return [item for item in cast("list[str]", value) if item]


def _are_ids(items: list[Any]) -> bool:
    return all(isinstance(item, int) and not isinstance(item, bool) for item in items)


def _dump(value: Any) -> str:
    # The json module, because orjson refuses the lone surrogates that its fallback lets in.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


Reader = Callable[[Body], Job]
"""Reads the body of one endpoint."""
