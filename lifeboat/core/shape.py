"""Reading a request body's shape: which text, ids and media a model would be given.

Rules, each with its row in tests/estimate/test_shape.py:
- Any JSON is read, without recursion and without an exception; what is not understood weighs
  nothing or counts as text, whichever a prompt template would do.
- Text is text wherever it stands: content strings and parts, names, tool calls and results,
  reasoning, system prompts, tool schemas (as compact JSON).
- Media cost a bounded sum whatever their bytes: images, videos and documents `image_tokens` a
  part, audio its bytes over `audio_bytes_per_token`. Ids, signatures, cache marks and ciphertext
  (encrypted reasoning) never reach a prompt of the servers behind this router and cost nothing.
- Pre-tokenised input counts one token an id; booleans are no ids.
- A batch is many sequences. It fits by the longest and is ordered by the sum.

The reader is a generator that pauses after every few milliseconds of work, so that the event loop
lives on while a body of many megabytes is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappush, heappushpop
from typing import cast

from lifeboat.core.content import (
    Allowances,
    Draft,
    Pauses,
    read_content,
    read_format,
    read_messages,
    read_schema,
)
from lifeboat.core.longvalue import PIECE_CHARS, LongArray, LongObject, LongText, Text, pieces_of
from lifeboat.core.protocol import INPUT_FIELDS, Protocol, Role
from lifeboat.core.textsize import NO_TEXT, TextSize, Weights, size_text
from lifeboat.core.weights import DEFAULT_WEIGHTS

__all__ = ["Protocol", "Sequence", "Shape", "read_shape", "shape_of_upload", "shape_steps"]

KEPT_SEQUENCES = 4_096
"""Sequences of a batch that are kept for a count, the largest by the quick figure; OpenAI takes at
most 2,048. The sum still covers all of them."""

_PAUSE_EVERY = 256
"""Sequences sized between two pauses: about 2 ms of CPU."""


@dataclass(slots=True)
class Sequence:
    """One sequence that a model would be given.

    texts: what a tokenizer would count. fixed: tokens that need no count: ids, media, allowances.
    size: the quick figure of the texts.
    """

    texts: tuple[Text, ...]
    fixed: int
    size: TextSize

    @property
    def tokens(self) -> float:
        """The quick figure of the whole sequence."""
        return self.fixed + self.size.tokens


@dataclass(slots=True)
class Shape:
    """What a request asks a model to read. It refers to the body's text: do not keep it parked.

    sequences: the largest KEPT_SEQUENCES. total_tokens: the sum over all of them and the rest.
    has_ids: some input came as token ids. upload_bytes: bytes of the file parts of an upload.
    """

    sequences: tuple[Sequence, ...] = ()
    total_tokens: float = 0.0
    has_ids: bool = False
    upload_bytes: int = 0


class _Batch:
    """The sequences of one batch: the largest are kept, all are summed."""

    __slots__ = ("_heap", "count", "total_tokens")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []
        self.count = 0
        self.total_tokens = 0.0

    def add(self, sequence: Sequence) -> None:
        entry = (sequence.tokens, -self.count, sequence)
        self.count += 1
        self.total_tokens += sequence.tokens
        if len(self._heap) < KEPT_SEQUENCES:
            heappush(self._heap, entry)
        else:
            heappushpop(self._heap, entry)

    def in_order(self) -> list[Sequence]:
        """The kept sequences as they stood in the request."""
        return [sequence for _, _, sequence in sorted(self._heap, key=lambda entry: -entry[1])]


def _measure(draft: Draft, weights: Weights) -> Iterable[TextSize]:
    """Size a draft's texts: NO_TEXT at each pause, and last the size."""
    texts = draft.texts
    if len(texts) == 1 and type(only := texts[0]) is str and len(only) <= PIECE_CHARS:
        return (size_text(only, weights),)
    return _measure_many(texts, weights)


def _measure_many(texts: list[Text], weights: Weights) -> Iterator[TextSize]:
    size = NO_TEXT
    joined: list[str] = []
    joined_chars = 0
    for text in texts:
        if isinstance(text, LongText) or len(text) > PIECE_CHARS:
            for piece in pieces_of(text):
                size += size_text(piece, weights)
                yield NO_TEXT
            continue
        if joined_chars + len(text) > PIECE_CHARS:
            size += size_text(" ".join(joined), weights)
            yield NO_TEXT
            joined, joined_chars = [], 0
        joined.append(text)
        joined_chars += len(text) + 1
    # A blank between texts weighs nothing and keeps the words apart.
    yield size + size_text(" ".join(joined), weights)


class _Reader:
    """Reads one body. `steps` is to be run to its end, then `shape` is there."""

    def __init__(self, allowances: Allowances, weights: Weights) -> None:
        self._allowances = allowances
        self._weights = weights
        self._base = Draft()
        self._left: _Batch | None = None
        self._batch: _Batch | None = None
        self._has_ids = False

    def read(self, body: dict[str, object], protocol: Protocol) -> Shape:
        """Read a parsed body at once, without a pause."""
        for name, role in INPUT_FIELDS[protocol].items():
            value = body.get(name)
            if value is not None:
                for _ in self._field(value, role):
                    pass
        size = NO_TEXT
        for measured in _measure(self._base, self._weights):
            size = measured
        return self._shape(size)

    def steps(self, body: object, protocol: Protocol) -> Iterator[None]:
        if type(body) is not dict and isinstance(body, LongObject):
            loaded: dict[str, object] = {}
            for part in body.fields():
                loaded = part
                yield
            body = loaded
        if not isinstance(body, dict):
            return
        fields = cast("dict[str, object]", body)
        for name, role in INPUT_FIELDS[protocol].items():
            value = fields.get(name)
            if value is not None:
                yield from self._field(value, role)

    def _field(self, value: object, role: Role) -> Pauses:
        base, allowances = self._base, self._allowances
        match role:
            case Role.MESSAGES:
                return read_messages(base, value, allowances)
            case Role.CONTENT | Role.SHARED:
                return read_content(base, value, allowances)
            case Role.SCHEMA:
                return read_schema(base, value)
            case Role.FORMAT:
                return read_format(base, value)
            case Role.PAIRED:
                self._left = self._left or _Batch()
                return self._prompts(value, self._left)
            case Role.PROMPTS:
                self._batch = self._batch or _Batch()
                return self._prompts(value, self._batch)

    def _prompts(self, value: object, batch: _Batch) -> Iterator[None]:
        """One prompt or many: a list that holds a bare number is one prompt of ids and text."""
        chunks: Iterator[list[object]]
        if isinstance(value, LongArray):
            chunks = value.chunks()
        elif isinstance(value, list):
            chunks = iter((cast("list[object]", value),))
        else:
            yield from self._one(value, batch)
            return
        single: Draft | None = None
        for chunk in chunks:
            yield
            kinds = set(map(type, chunk))
            if single is None and batch.count == 0 and (int in kinds or float in kinds):
                single = Draft()
            if single is not None:
                yield from read_content(single, chunk, self._allowances, numbers_are_ids=True)
                continue
            for index, element in enumerate(chunk):
                if index % _PAUSE_EVERY == 0:
                    yield
                yield from self._one(element, batch)
        if single is not None:
            yield from self._close(single, batch)

    def _one(self, value: object, batch: _Batch) -> Iterator[None]:
        draft = Draft()
        if type(value) is str:
            draft.texts.append(value)
        else:
            yield from read_content(draft, value, self._allowances, numbers_are_ids=True)
        yield from self._close(draft, batch)

    def _close(self, draft: Draft, batch: _Batch) -> Iterator[None]:
        size = NO_TEXT
        for size in _measure(draft, self._weights):
            if size is NO_TEXT:
                yield
        self._has_ids = self._has_ids or draft.has_ids
        if draft.texts or draft.fixed:
            batch.add(Sequence(tuple(draft.texts), draft.fixed, size))

    def shape(self) -> Iterator[Shape | None]:
        """None at each pause, and last the shape."""
        base_size = NO_TEXT
        for size in _measure(self._base, self._weights):
            base_size = size
            yield None
        yield self._shape(base_size)

    def _shape(self, base_size: TextSize) -> Shape:
        base = Sequence(tuple(self._base.texts), self._base.fixed, base_size)
        rights = self._paired()
        if not rights:
            sequences = (base,) if base.texts or base.fixed else ()
            return Shape(sequences, base.tokens, self._has_ids)
        joined = [_join(base, sequence) for sequence in rights]
        total = sum(sequence.tokens for sequence in joined)
        batch = self._batch
        if batch is not None and (self._left is None or not self._left.count):
            rest = batch.count - len(rights)
            if rest > 0:
                kept = sum(sequence.tokens for sequence in rights)
                total += batch.total_tokens - kept + rest * base.tokens
        return Shape(tuple(joined), total, self._has_ids)

    def _paired(self) -> list[Sequence]:
        """The batch, each sequence with its left side where the request has pairs."""
        if self._left is None and self._batch is None:
            return []  # a conversation
        lefts = [] if self._left is None else self._left.in_order()
        rights = [] if self._batch is None else self._batch.in_order()
        if not lefts or not rights:
            return rights or lefts
        if len(lefts) == len(rights):
            return [_join(left, right) for left, right in zip(lefts, rights, strict=True)]
        if len(rights) == 1:
            return [_join(left, rights[0]) for left in lefts]
        # One left side for all; were there several (no server takes that), the longest.
        left = max(lefts, key=lambda sequence: sequence.tokens)
        return [_join(left, right) for right in rights]


def _join(first: Sequence, second: Sequence) -> Sequence:
    if not first.texts and not first.fixed:
        return second
    return Sequence(
        first.texts + second.texts, first.fixed + second.fixed, first.size + second.size
    )


def shape_steps(
    body: object,
    protocol: Protocol,
    *,
    image_tokens: int = 2048,
    audio_bytes_per_token: int = 640,
    weights: Weights = DEFAULT_WEIGHTS,
) -> Iterator[Shape | None]:
    """Read a body in steps of a few milliseconds: None at each pause, and last the shape."""
    reader = _Reader(_allowances(image_tokens, audio_bytes_per_token), weights)
    yield from reader.steps(body, protocol)
    yield from reader.shape()


def read_shape(
    body: object,
    protocol: Protocol,
    image_tokens: int = 2048,
    audio_bytes_per_token: int = 640,
    weights: Weights = DEFAULT_WEIGHTS,
) -> Shape:
    """Read the shape of a parsed body at once. Never raises, whatever the JSON."""
    reader = _Reader(_allowances(image_tokens, audio_bytes_per_token), weights)
    if type(body) is dict:
        return reader.read(cast("dict[str, object]", body), protocol)
    for _ in reader.steps(body, protocol):
        pass
    last: Shape | None = None
    for step in reader.shape():
        last = step
    return last or Shape()


_allowances = lru_cache(maxsize=4)(Allowances)
"""They change with the settings alone."""


def shape_of_upload(
    texts: list[str], upload_bytes: int, file_tokens: int, weights: Weights = DEFAULT_WEIGHTS
) -> Shape:
    """The shape of a multipart upload: its text fields, and `file_tokens` for its files."""
    kept: tuple[Text, ...] = tuple(text for text in texts if text)
    size = NO_TEXT
    for text in kept:
        for piece in pieces_of(text):
            size += size_text(piece, weights)
    sequence = Sequence(kept, file_tokens, size)
    return Shape((sequence,), sequence.tokens, upload_bytes=upload_bytes)
