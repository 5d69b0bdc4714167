"""The endpoint table: which path is proxied, for which capability, under which rules.

Source: the contract's section 4. The only place that knows paths of the proxied protocols; docs,
`explain`, intake and the journey read `ENDPOINTS`. Paths are compared as they came, undecoded: an
encoded slash or dot never reaches another row. Held by tests/edge_tables/test_endpoints.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from lifeboat.core.protocol import Protocol
from lifeboat.core.vocabulary import Capability

_READ = ("GET", "HEAD")


def _bare(raw_path: str) -> str:
    # A fragment has no place in a request (RFC 9112, section 3.2): such a path is an unknown one.
    return raw_path.partition("?")[0]


def _segments(path: str) -> tuple[str, ...]:
    return tuple(path.split("/"))


class ModelRule(StrEnum):
    """Where the model's name comes from."""

    REQUIRED = "required"
    """In the body, else 400."""
    OPTIONAL = "optional"
    """In the body if it is there, else the only pool with the capability, else the default."""
    IN_QUERY = "in the query"
    """`?model=`, as OPTIONAL otherwise."""
    BY_ID = "by id"
    """The backend that made the id in the path, else 404."""


class BodyKind(StrEnum):
    """What a body may be."""

    JSON = "json"
    MULTIPART = "multipart"
    EITHER = "json or multipart"
    NONE = "none"
    """No body is looked at; one that comes is passed on."""


class Replay(StrEnum):
    """Whether a request that was lost before its answer began may be sent to another backend."""

    ALWAYS = "always"
    NEVER = "never"
    UNLESS_STORED = "only with store: false"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One row.

    path: segments in braces match one segment, a last one with `...` one or more.
    protocol: the shape of the body, None where there is none to read.
    gated: takes a slot. upgrades: the connection becomes a WebSocket, and the slot is held for its
        life. makes_id: the answer names a new object whose sub-paths must come back to
        the same backend. summary: for the docs.
    """

    path: str
    methods: tuple[str, ...]
    capability: Capability
    protocol: Protocol | None
    model: ModelRule = ModelRule.REQUIRED
    body: BodyKind = BodyKind.JSON
    gated: bool = True
    replay: Replay = Replay.ALWAYS
    makes_id: bool = False
    upgrades: bool = False
    summary: str = ""
    segments: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Split the pattern once."""
        object.__setattr__(self, "segments", _segments(self.path))

    @property
    def generates(self) -> bool:
        """It asks a language model for text: what an embedding-only pool cannot do."""
        return self.capability is Capability.GENERATE

    @property
    def model_required(self) -> bool:
        """A missing model is a 400."""
        return self.model is ModelRule.REQUIRED

    def replayable(self, *, stored: bool = True) -> bool:
        """Say whether a lost request may be sent again.

        stored: the body does not say `store: false`.
        """
        return self.replay is Replay.ALWAYS or (self.replay is Replay.UNLESS_STORED and not stored)

    def object_id(self, raw_path: str) -> str | None:
        """Return the id in a path that matched this row, undecoded; None where the row has none."""
        for pattern, segment in zip(self.segments, _segments(_bare(raw_path)), strict=False):
            if pattern == "{id}":
                return segment
        return None


@dataclass(frozen=True, slots=True)
class NotFound:
    """No row has this path."""


@dataclass(frozen=True, slots=True)
class MethodNotAllowed:
    """The path is known, the method is not. allow: for the Allow header, sorted."""

    allow: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LocalPath:
    """A path the router answers itself; the app lists its own for `allow_for`."""

    path: str
    methods: tuple[str, ...]


_GENERATE = Capability.GENERATE
_POST = ("POST",)

# fmt: off
# A table is read by its rows: one call a line where it fits.
ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("/v1/chat/completions", _POST, _GENERATE, Protocol.CHAT,
             summary="OpenAI chat completions"),
    Endpoint("/v1/completions", _POST, _GENERATE, Protocol.COMPLETIONS,
             summary="OpenAI completions"),
    Endpoint("/v1/responses", _POST, _GENERATE, Protocol.RESPONSES, replay=Replay.UNLESS_STORED,
             makes_id=True, summary="OpenAI responses; the answer's id is remembered"),
    Endpoint("/v1/responses/{id}", (*_READ, "DELETE"), _GENERATE, None, model=ModelRule.BY_ID,
             body=BodyKind.NONE, gated=False, replay=Replay.NEVER,
             summary="read or delete a response"),
    Endpoint("/v1/responses/{id}/cancel", _POST, _GENERATE, None, model=ModelRule.BY_ID,
             body=BodyKind.NONE, gated=False, replay=Replay.NEVER,
             summary="cancel a background response"),
    Endpoint("/v1/responses/{id}/input_items", _READ, _GENERATE, None, model=ModelRule.BY_ID,
             body=BodyKind.NONE, gated=False, replay=Replay.NEVER,
             summary="list the input items of a response"),
    Endpoint("/v1/realtime", ("GET",), _GENERATE, None, model=ModelRule.IN_QUERY,
             body=BodyKind.NONE, upgrades=True,
             summary="OpenAI realtime over WebSocket; the slot is held while it is open"),
    Endpoint("/v1/messages", _POST, _GENERATE, Protocol.MESSAGES, summary="Anthropic messages"),
    Endpoint("/v1/messages/count_tokens", _POST, _GENERATE, Protocol.MESSAGES, gated=False,
             summary="Anthropic token count; no inference, no slot"),
    Endpoint("/v1/embeddings", _POST, Capability.EMBED, Protocol.EMBEDDINGS,
             summary="OpenAI embeddings"),
    # Cohere and Jina want a model; vLLM's and llama.cpp's servers take these paths without one.
    Endpoint("/v1/rerank", _POST, Capability.RERANK, Protocol.RERANK, model=ModelRule.OPTIONAL,
             summary="rerank (Jina)"),
    Endpoint("/rerank", _POST, Capability.RERANK, Protocol.RERANK, model=ModelRule.OPTIONAL,
             summary="rerank (llama.cpp, vLLM)"),
    Endpoint("/v2/rerank", _POST, Capability.RERANK, Protocol.RERANK, model=ModelRule.OPTIONAL,
             summary="rerank (Cohere)"),
    Endpoint("/v1/score", _POST, Capability.RERANK, Protocol.SCORE, model=ModelRule.OPTIONAL,
             summary="score of pairs (vLLM)"),
    Endpoint("/score", _POST, Capability.RERANK, Protocol.SCORE, model=ModelRule.OPTIONAL,
             summary="score of pairs (vLLM)"),
    Endpoint("/v1/audio/transcriptions", _POST, Capability.TRANSCRIBE, Protocol.TRANSCRIPTION,
             body=BodyKind.MULTIPART, summary="OpenAI transcription of an audio upload"),
    Endpoint("/v1/audio/translations", _POST, Capability.TRANSCRIBE, Protocol.TRANSCRIPTION,
             body=BodyKind.MULTIPART, summary="OpenAI translation of an audio upload"),
    Endpoint("/v1/audio/speech", _POST, Capability.SPEECH, Protocol.SPEECH,
             summary="OpenAI text to speech"),
    Endpoint("/v1/images/generations", _POST, Capability.IMAGE, Protocol.IMAGE,
             model=ModelRule.OPTIONAL, summary="OpenAI image generation"),
    Endpoint("/v1/images/edits", _POST, Capability.IMAGE, Protocol.IMAGE,
             model=ModelRule.OPTIONAL, body=BodyKind.EITHER, summary="OpenAI image edits"),
    Endpoint("/v1/images/variations", _POST, Capability.IMAGE, Protocol.IMAGE,
             model=ModelRule.OPTIONAL, body=BodyKind.MULTIPART,
             summary="OpenAI image variations"),
    Endpoint("/v1/videos", _POST, Capability.VIDEO, Protocol.VIDEO, model=ModelRule.OPTIONAL,
             body=BodyKind.EITHER, replay=Replay.NEVER, makes_id=True,
             summary="OpenAI video job; the answer's id is remembered"),
    Endpoint("/v1/videos", _READ, Capability.VIDEO, None, model=ModelRule.OPTIONAL,
             body=BodyKind.NONE, gated=False, summary="list the jobs of the only video pool"),
    Endpoint("/v1/videos/{id}", (*_READ, "DELETE"), Capability.VIDEO, None, model=ModelRule.BY_ID,
             body=BodyKind.NONE, gated=False, replay=Replay.NEVER,
             summary="read or delete a video job"),
    Endpoint("/v1/videos/{id}/{rest...}", _READ, Capability.VIDEO, None, model=ModelRule.BY_ID,
             body=BodyKind.NONE, gated=False, replay=Replay.NEVER,
             summary="read below a video job, such as its content"),
    Endpoint("/v1/videos/{id}/{rest...}", _POST, Capability.VIDEO, None, model=ModelRule.BY_ID,
             body=BodyKind.NONE, replay=Replay.NEVER, makes_id=True,
             summary="work on a video job, such as a remix"),
    Endpoint("/completion", _POST, _GENERATE, Protocol.LLAMA_COMPLETION, model=ModelRule.OPTIONAL,
             summary="llama.cpp completion"),
    Endpoint("/infill", _POST, _GENERATE, Protocol.INFILL, model=ModelRule.OPTIONAL,
             summary="llama.cpp infill"),
    Endpoint("/tokenize", _POST, _GENERATE, Protocol.TOKENIZE, model=ModelRule.OPTIONAL,
             gated=False, summary="llama.cpp and vLLM tokenizer; no inference, no slot"),
    Endpoint("/detokenize", _POST, _GENERATE, Protocol.DETOKENIZE, model=ModelRule.OPTIONAL,
             gated=False, summary="llama.cpp and vLLM detokenizer; no inference, no slot"),
    Endpoint("/apply-template", _POST, _GENERATE, Protocol.APPLY_TEMPLATE,
             model=ModelRule.OPTIONAL, gated=False,
             summary="llama.cpp chat template; no inference, no slot"),
    Endpoint("/embedding", _POST, Capability.EMBED, Protocol.LLAMA_EMBEDDING,
             model=ModelRule.OPTIONAL, summary="llama.cpp embedding"),
)
# fmt: on
"""The table. Fixed paths and patterns never overlap, but for rows that share a path and differ in
their methods."""


@lru_cache(maxsize=256)
def match(method: str, raw_path: str) -> Endpoint | NotFound | MethodNotAllowed:
    """Return the row for a request line.

    raw_path: as it came, with or without the query. A target that is still in absolute form (those
    of other hosts: edge.targets), a path with empty or dot segments (encoded ones too) and a
    trailing slash match nothing.
    """
    rows = _rows_for(_bare(raw_path))
    for row in rows:
        if method in row.methods:
            return row
    if not rows:
        return NotFound()
    return MethodNotAllowed(_allow(row.methods for row in rows))


def allow_for(raw_path: str, local: Iterable[LocalPath] = ()) -> tuple[str, ...] | None:
    """Return the methods any path of the router takes, proxied or local; None: unknown path."""
    path = _bare(raw_path)
    methods = [row.methods for row in _rows_for(path)]
    segments = _segments(path)
    methods += [row.methods for row in local if _fits(_segments(row.path), segments)]
    return _allow(methods) if methods else None


def _allow(methods: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(sorted({method for some in methods for method in some}))


def _rows_for(path: str) -> tuple[Endpoint, ...]:
    rows = _FIXED.get(path)
    if rows is not None:
        return rows
    segments = _segments(path)
    return tuple(row for row in _PATTERNS if _fits(row.segments, segments))


def _fits(pattern: tuple[str, ...], segments: tuple[str, ...]) -> bool:
    open_ended = pattern[-1].endswith("...}")
    if len(segments) < len(pattern) or (len(segments) > len(pattern) and not open_ended):
        return False
    if pattern == segments:
        return True
    # The first segment is what stands before the leading slash: nothing.
    if segments[0] or any(_is_odd(segment) for segment in segments[1:]):
        return False
    return all(
        part.startswith("{") or part == segment
        for part, segment in zip(pattern, segments, strict=False)
    )


def _is_odd(segment: str) -> bool:
    """Empty, `.` or `..`, encoded or not: a server behind us may read another path in it."""
    return segment.lower().replace("%2e", ".") in ("", ".", "..")


def _fixed_rows() -> dict[str, tuple[Endpoint, ...]]:
    rows: dict[str, tuple[Endpoint, ...]] = {}
    for row in ENDPOINTS:
        if "{" not in row.path:
            rows[row.path] = (*rows.get(row.path, ()), row)
    return rows


_FIXED = _fixed_rows()
_PATTERNS = tuple(row for row in ENDPOINTS if "{" in row.path)
