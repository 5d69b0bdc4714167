"""Intake of JSON bodies: bytes -> what routing needs, and an alias spliced into the bytes.

The original bytes are what a backend gets; a body is parsed only to route it. Invariants, held by
tests/intake/:
- No exception but BodyError, whatever the bytes; the edge answers it as 400 `invalid_request`.
- Duplicate `model` fields: the last one counts, as in Python's json, orjson and llama.cpp's parser
  (a server that takes the first is not among the ones we serve); an alias replaces every one.
- A body above SMALL_BODY_BYTES, or crowded with values, is read in slices (`slices.SLICE_S`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import cast

import orjson

from lifeboat.core.longvalue import LongText
from lifeboat.core.protocol import Protocol
from lifeboat.core.shape import Shape, read_shape, shape_steps
from lifeboat.core.textsize import Weights
from lifeboat.core.weights import DEFAULT_WEIGHTS
from lifeboat.edge.decoding import decode_body
from lifeboat.edge.faults import BodyError, BodyTooLargeError
from lifeboat.edge.jsontext import parse_bounded
from lifeboat.edge.longjson import Document, Scanner
from lifeboat.edge.slices import YieldNow, last_of

__all__ = [
    "BodyError", "BodyKind", "BodyTooLargeError", "ParsedBody", "decode_body", "parse_json",
    "splice_model",
]  # fmt: skip

SMALL_BODY_BYTES = 1_048_576
"""Up to here a body is parsed in one go: at most 2 ms."""
SMALL_BODY_NODES = 20_000
"""And if it has no more values than this: each costs memory and time, however short."""
AT_ONCE_BYTES = 16_384
"""Up to here the shape is read without looking at the clock: at most 1 ms."""
MODEL_CHARS = 512
"""A model name is cut here with an ellipsis: longer ones name nothing, and go into messages."""


class BodyKind(StrEnum):
    """How a body is written."""

    JSON = "json"
    MULTIPART = "multipart"


@dataclass(slots=True)
class ParsedBody:
    """What routing needs of a body.

    model: None when the field is absent or null; always encodable (lone surrogates are replaced).
    stream, store: the fields of those names; `store` is None where it is absent.
    shape: what the estimator needs; it holds on to the text, so let go of it before parking.
    plain: the body that was parsed: decoded, where the request was compressed.
    """

    model: str | None
    stream: bool
    store: bool | None
    shape: Shape
    body_kind: BodyKind
    plain: bytes
    known_model_spans: tuple[tuple[int, int], ...] | None = None

    @property
    def model_spans(self) -> tuple[tuple[int, int], ...]:
        """Byte spans [start, end) of every model value in `plain`, in order.

        JSON: quotes included. Multipart: the bare value.
        """
        if self.known_model_spans is not None:
            return self.known_model_spans
        return _model_spans(self.plain)

    def render_model(self, model: str) -> bytes:
        """Return a model name as it is written in this kind of body."""
        return model.encode() if self.body_kind is BodyKind.MULTIPART else orjson.dumps(model)


def splice_model(parsed: ParsedBody, new_model: str) -> bytes:
    """Return `plain` with every model value replaced; all other bytes stay as they are."""
    value = parsed.render_model(new_model)
    pieces: list[bytes] = []
    at = 0
    for start, end in parsed.model_spans:
        pieces += (parsed.plain[at:start], value)
        at = end
    pieces.append(parsed.plain[at:])
    return b"".join(pieces)


async def parse_json(
    body: bytes,
    protocol: Protocol,
    *,
    yield_now: YieldNow,
    image_tokens: int = 2048,
    audio_bytes_per_token: int = 640,
    weights: Weights = DEFAULT_WEIGHTS,
) -> ParsedBody:
    """Parse a JSON body for routing. Raises BodyError.

    body: decoded (see `decoding`), at most the body limit. yield_now: awaited before and
    between slices; pass one `Turnstile.turn` for all bodies.
    """
    if len(body) <= AT_ONCE_BYTES:
        return parse_at_once(body, protocol, image_tokens, audio_bytes_per_token, weights)
    spans: tuple[tuple[int, int], ...] | None = None
    await yield_now()
    if _is_small(body):
        parsed = parse_bounded(body)
    else:
        parsed, spans = await _parse_in_slices(body, yield_now)
    fields = _fields(parsed)
    model = model_name(fields.get("model"))
    steps = shape_steps(
        fields,
        protocol,
        image_tokens=image_tokens,
        audio_bytes_per_token=audio_bytes_per_token,
        weights=weights,
    )
    shape = await last_of(steps, yield_now) or Shape()
    return _parsed(fields, model, shape, body, spans)


def parse_at_once(
    body: bytes,
    protocol: Protocol,
    image_tokens: int,
    audio_bytes_per_token: int,
    weights: Weights,
) -> ParsedBody:
    """Parse a JSON body of at most AT_ONCE_BYTES. Raises BodyError."""
    fields = _fields(parse_bounded(body))
    model = model_name(fields.get("model"))
    shape = read_shape(fields, protocol, image_tokens, audio_bytes_per_token, weights)
    return _parsed(fields, model, shape, body, None)


def _fields(parsed: object) -> dict[str, object]:
    if not isinstance(parsed, dict):
        raise BodyError(f"the body is {_kind(parsed)}, not a JSON object: send an object")
    return cast("dict[str, object]", parsed)


def _parsed(
    fields: dict[str, object],
    model: str | None,
    shape: Shape,
    body: bytes,
    spans: tuple[tuple[int, int], ...] | None,
) -> ParsedBody:
    store = fields.get("store")
    return ParsedBody(
        model,
        fields.get("stream") is True,
        store if isinstance(store, bool) else None,
        shape,
        BodyKind.JSON,
        body,
        spans,
    )


def _is_small(body: bytes) -> bool:
    if len(body) <= SMALL_BODY_NODES:  # cannot hold that many values
        return True
    if len(body) > SMALL_BODY_BYTES:
        return False
    return body.count(b",") + body.count(b"[") + body.count(b"{") <= SMALL_BODY_NODES


async def _parse_in_slices(
    body: bytes, yield_now: YieldNow
) -> tuple[object, tuple[tuple[int, int], ...]]:
    """Return the top level, big parts left in place, and the spans of `model`."""
    start = _object_start(body)
    scanner = Scanner(Document(body), start, len(body))
    skeleton = await last_of(scanner.steps(), yield_now)
    if skeleton is None:
        raise BodyError("the body is empty: send a JSON object")
    if skeleton.nodes > 2 * SMALL_BODY_NODES:
        raise BodyError(
            f"the body has more than {SMALL_BODY_NODES:,} fields: send a request, not a table"
        )
    value = await last_of(skeleton.parse(), yield_now)
    return value, tuple(scanner.model_spans)


def _object_start(body: bytes) -> int:
    """The place of the opening brace, behind blanks and a byte order mark."""
    head = body[:_HEAD_BYTES]
    bare = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not bare:
        raise BodyError(
            f"the body has no JSON in its first {_HEAD_BYTES:,} bytes: send a JSON object"
        )
    if bare[:1] != b"{":
        raise BodyError("the body is not a JSON object: send an object")
    return len(head) - len(bare)


_HEAD_BYTES = 65_536


def _model_spans(body: bytes) -> tuple[tuple[int, int], ...]:
    scanner = Scanner(Document(body), _object_start(body), len(body))
    for _ in scanner.steps():
        pass
    return tuple(scanner.model_spans)


def model_name(value: object) -> str | None:
    """Return the model's name, None where there is none. Raises BodyError for a non-string."""
    if value is None:
        return None
    if isinstance(value, LongText):
        value = next(value.pieces(), "")
    if not isinstance(value, str):
        raise BodyError(f"`model` is {_kind(value)}, not a string: send the model's name")
    if len(value) > MODEL_CHARS:
        value = value[:MODEL_CHARS] + "…"
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        # U+FFFD is in no configured name, so this matches nothing, as it should.
        value = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def _kind(value: object) -> str:
    match value:
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case None:
            return "null"
        case _:
            return "an object"
