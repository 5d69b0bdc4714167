"""Content of a prompt: messages, parts, blocks, items and schemas, at any depth.

`shape` says which fields of a body hold content; this module turns content into texts and fixed
tokens. Every reader is a generator that pauses (yields) after some thousand values, and keeps its
own stack: nothing here recurses.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import cast

from lifeboat.core.longvalue import LongArray, LongJson, LongObject, LongText, Text

MESSAGE_TOKENS = 5
"""A chat template's marks around one message: 4 in ChatML as cl100k counts it, 5 in llama.cpp's
own templates for small models, 6 with a role name of two tokens."""
REPLY_TOKENS = 3
"""What a template adds to open the assistant's turn."""
CALL_TOKENS = 8
"""The braces, quotes and field names that a template prints around one tool call."""

_PAUSE_EVERY = 1_024
"""Values read between two pauses: up to 2 ms of CPU."""

_IMAGE_TYPES = frozenset({
    "image", "image_url", "input_image", "image_file", "image_pil", "image_embeds", "input_video",
    "video", "video_url", "computer_screenshot", "image_generation_call",
})  # fmt: skip
_AUDIO_TYPES = frozenset({"input_audio", "audio", "audio_url", "output_audio"})
_DOCUMENT_TYPES = frozenset({
    "file", "input_file", "document", "document_url", "file_url", "container_upload",
})  # fmt: skip
_CIPHER_TYPES = frozenset({"redacted_thinking", "reasoning.encrypted"})

_UNPRINTED = frozenset({
    # Ids, states and marks: none is printed into a prompt.
    "id", "type", "role", "status", "phase", "index", "object", "call_id", "tool_call_id",
    "tool_use_id", "item_id", "caller", "caller_id", "container", "container_id", "fingerprint",
    "cache_control", "prompt_cache_breakpoint", "metadata", "created_at", "logprobs", "weight",
    "detail", "media_type", "mime_type", "mimeType", "annotations", "citations",
    "reasoning_details", "execution", "is_error", "audio", "prefix", "partial",
    # Ciphertext. The server that can read it is not behind this router; counting it as text would
    # refuse requests that the backend takes.
    "encrypted_content", "encrypted_index", "encrypted_stdout", "signature",
    "thought_signature", "redacted_data",
})  # fmt: skip

_PRINTED_JSON = frozenset({
    "input", "arguments", "parameters", "schema", "input_schema", "output_schema", "tools",
    "format", "variables", "action", "output_format",
})  # fmt: skip
"""Fields whose objects are printed as JSON: keys and punctuation count."""


@dataclass(frozen=True, slots=True)
class Allowances:
    """What media cost: tokens per image-like part; bytes of audio per token."""

    image_tokens: int
    audio_bytes_per_token: int


@dataclass(slots=True)
class Draft:
    """A sequence while it is being read."""

    texts: list[Text] = field(default_factory=list["Text"])
    fixed: int = 0
    has_ids: bool = False


Pauses = Iterable[None]
"""What a reader gives back: to be run to its end, with a pause allowed at each step."""


def read_messages(draft: Draft, value: object, allowances: Allowances) -> Pauses:
    """Read a list of messages (or items), or a bare string as one message."""
    if type(value) is list:
        draft.fixed += REPLY_TOKENS + MESSAGE_TOKENS * len(cast("list[object]", value))
        return read_content(draft, cast("object", value), allowances)
    draft.fixed += REPLY_TOKENS
    if isinstance(value, LongArray):
        return _read_chunks(draft, value, allowances)
    draft.fixed += MESSAGE_TOKENS
    return read_content(draft, value, allowances)


def _read_chunks(draft: Draft, messages: LongArray, allowances: Allowances) -> Iterator[None]:
    for chunk in messages.chunks():
        draft.fixed += MESSAGE_TOKENS * len(chunk)
        yield from read_content(draft, chunk, allowances)
        yield


def read_content(
    draft: Draft, value: object, allowances: Allowances, *, numbers_are_ids: bool = False
) -> Pauses:
    """Read a value of any kind as content: texts and media at any depth.

    numbers_are_ids: a bare number is a token id (prompts and inputs), else it weighs one token.
    """
    stack: list[object] = [value]
    # What a step suffices for, as nearly always, is read without making a generator.
    if not _read_some(draft, stack, allowances, numbers_are_ids):
        return ()
    return _read_rest(draft, stack, allowances, numbers_are_ids)


def _read_rest(
    draft: Draft, stack: list[object], allowances: Allowances, numbers_are_ids: bool
) -> Iterator[None]:
    yield
    while _read_some(draft, stack, allowances, numbers_are_ids):
        yield


def _read_some(
    draft: Draft, stack: list[object], allowances: Allowances, numbers_are_ids: bool
) -> bool:
    """Read up to _PAUSE_EVERY values off a stack; return whether any are left."""
    left = _PAUSE_EVERY
    while stack:
        left -= 1
        if left == 0:
            return True
        item = stack.pop()
        kind = type(item)
        if kind is str:
            draft.texts.append(cast("str", item))
        elif kind is dict:
            _read_part(draft, cast("dict[str, object]", item), stack, allowances)
        elif kind is list:
            elements = cast("list[object]", item)
            if set(map(type, elements)) == {int}:
                draft.fixed += len(elements)
                draft.has_ids = draft.has_ids or numbers_are_ids
            else:
                stack.extend(reversed(elements))
        elif kind is int or kind is float:
            draft.fixed += 1
            draft.has_ids = draft.has_ids or numbers_are_ids
        elif isinstance(item, LongText):
            draft.texts.append(item)
        elif isinstance(item, LongArray):
            stack.append(item.chunks())
        elif isinstance(item, LongObject):
            stack.append(item.fields())
        elif isinstance(item, Iterator):
            # The rest of a long array or object: its next chunk, then the rest again.
            chunk: object = next(cast("Iterator[object]", item), None)
            if chunk is not None:
                stack.append(cast("object", item))
                if chunk:
                    stack.append(chunk)
                return True
    return False


def _read_part(
    draft: Draft, part: dict[str, object], stack: list[object], allowances: Allowances
) -> None:
    """Read one object of content, by its `type` where that says something."""
    kind = part.get("type")
    if isinstance(kind, str):
        if kind == "text" and type(text := part.get("text")) is str:
            draft.texts.append(text)  # by far the most frequent part
            return
        if kind in _IMAGE_TYPES:
            draft.fixed += allowances.image_tokens
            return
        if kind in _AUDIO_TYPES:
            draft.fixed += _audio_tokens(part, allowances)
            return
        if kind in _DOCUMENT_TYPES:
            _read_document(draft, part, stack, allowances)
            return
        if kind in _CIPHER_TYPES:
            return
    if "arguments" in part or kind == "tool_use":
        draft.fixed += CALL_TOKENS
    for name, value in part.items():
        if value is None or name in _UNPRINTED:
            continue
        if name == "image_url" or name == "input_audio" or name == "video_url":
            # vLLM takes these without a type, also as a bare url or data url.
            draft.fixed += allowances.image_tokens
        elif type(value) is str:
            draft.texts.append(value)
        elif name == "multimodal_data":
            many = len(cast("list[object]", value)) if isinstance(value, list) else 1
            draft.fixed += allowances.image_tokens * many
        elif name in _PRINTED_JSON and isinstance(value, (dict, list, LongJson)):
            _print_json(draft, cast("object", value))
        else:
            stack.append(value)


def _audio_tokens(part: dict[str, object], allowances: Allowances) -> int:
    """Tokens of an audio part: its decoded bytes over the setting; a link costs an image."""
    inner = part.get("input_audio", part.get("audio", part))
    encoded = cast("dict[str, object]", inner).get("data") if isinstance(inner, dict) else None
    if isinstance(encoded, str):
        encoded_chars = len(encoded)
    elif isinstance(encoded, LongText):
        encoded_chars = sum(map(len, encoded.pieces()))
    else:
        return allowances.image_tokens
    return encoded_chars * 3 // 4 // allowances.audio_bytes_per_token + 1


def _read_document(
    draft: Draft, part: dict[str, object], stack: list[object], allowances: Allowances
) -> None:
    """A document costs as an image; one that carries its text in the clear counts as that text."""
    source = part.get("source")
    if isinstance(source, dict):
        source = cast("dict[str, object]", source)
        if source.get("type") in ("text", "content"):
            stack.extend((source.get("data"), source.get("content")))
        else:
            draft.fixed += allowances.image_tokens
    elif "content" in part or isinstance(part.get("text"), (str, LongText)):
        stack.extend((part.get("content"), part.get("text")))
    else:
        draft.fixed += allowances.image_tokens
    stack.extend((part.get("title"), part.get("context"), part.get("filename")))


def read_schema(draft: Draft, value: object) -> Pauses:
    """Read JSON that is printed into the prompt as it is (tools, functions)."""
    _print_json(draft, value)
    return (None,)


def read_format(draft: Draft, value: object) -> Iterator[None]:
    """Read an output format: only its JSON schema is printed, the rest are switches."""
    for _ in range(3):  # response_format.json_schema.schema is the deepest there is
        if isinstance(value, LongObject):
            fields: dict[str, object] = {}
            for loaded in value.fields():
                fields = loaded
                yield
            value = fields
        if not isinstance(value, dict):
            return
        found = cast("dict[str, object]", value)
        schema = found.get("schema")
        if schema is not None:
            _print_json(draft, schema)
            return
        value = found.get("json_schema", found.get("format"))


def _print_json(draft: Draft, value: object) -> None:
    """Add a value as compact JSON text."""
    if isinstance(value, str | LongText):
        draft.texts.append(value)
        return
    if isinstance(value, LongJson):
        draft.texts.append(value.as_text())
        return
    apart: list[Text] = []

    def leave_apart(long: object) -> str:
        apart.append(long.as_text() if isinstance(long, LongJson) else cast("LongText", long))
        return ""

    encode = json.JSONEncoder(
        ensure_ascii=False, separators=(",", ":"), check_circular=False, default=leave_apart
    ).encode
    try:
        draft.texts.append(encode(value))
        draft.texts.extend(apart)
    except (RecursionError, ValueError, TypeError):
        # Nested beyond the encoder, or a number beyond the interpreter's digits: word by word.
        draft.texts.extend(_scalars(value))


def _scalars(root: object) -> Iterator[Text]:
    """Every key and scalar below a value, however deep."""
    stack = [root]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            for key, inner in cast("dict[str, object]", value).items():
                yield key
                stack.append(inner)
        elif isinstance(value, list):
            stack.extend(cast("list[object]", value))
        elif isinstance(value, str | LongText):
            yield value
        elif isinstance(value, LongJson):
            yield value.as_text()
        elif isinstance(value, int | float):
            yield "0"
