"""What a server's `GET /v1/models` says, read with care: bounded, and by no shape but the known.

Both the OpenAI form (`data`) and llama.cpp's and Ollama's (`models`) are understood. Ids are opaque
text. Held by tests/fleet/test_pure_parts.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from lifeboat.settings.entries import MODEL
from lifeboat.settings.values import BadValueError

MODELS_PATH = "/v1/models"
MOST_MODELS = 10_000
"""Ids taken of one list: hosted catalogues hold hundreds, a LoRA server a few thousand."""


@dataclass(frozen=True, slots=True)
class ListedModel:
    """One entry. created: epoch seconds, None where it is not told. max_model_len: in tokens."""

    id: str
    created: int | None = None
    owned_by: str | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """One server's list, in its own order, each id once. skipped: entries that were not usable."""

    models: tuple[ListedModel, ...] = ()
    skipped: int = 0

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids, in order."""
        return tuple(model.id for model in self.models)

    @property
    def max_input_tokens(self) -> int | None:
        """The largest context it names, None where it names none.

        The largest, because a request above its own model's is answered by the server itself,
        while one below must not be refused for another model's sake.
        """
        return max(
            (model.max_model_len for model in self.models if model.max_model_len), default=None
        )


class NoListingError(ValueError):
    """The answer is no list of models; the message says what is wrong."""


def parse_listing(body: bytes) -> Listing:
    """Return the list in an answer's body. Raises NoListingError."""
    try:
        answer: object = json.loads(body)
    except (ValueError, RecursionError):
        raise NoListingError("its answer is not JSON") from None
    if not isinstance(answer, dict):
        raise NoListingError("its answer is no JSON object")
    table = cast("dict[str, object]", answer)
    entries = table.get("data", table.get("models"))
    if not isinstance(entries, list):
        raise NoListingError("its answer has no `data` list")
    found: dict[str, ListedModel] = {}
    skipped = 0
    for entry in cast("list[object]", entries):
        model = _listed(entry)
        if model is None or len(found) >= MOST_MODELS:
            skipped += 1
        else:
            found.setdefault(model.id, model)
    if skipped and not found:
        # No server says on purpose that it serves nothing in this way: what was known stays.
        raise NoListingError("no entry of its `data` list has an id that can be used")
    return Listing(tuple(found.values()), skipped)


def _listed(entry: object) -> ListedModel | None:
    if not isinstance(entry, dict):
        return None
    values = cast("Mapping[str, object]", entry)
    name = values.get("id", values.get("name"))
    try:
        identity = MODEL.parse(name)
    except BadValueError:
        return None
    # An id is opaque: one that the settings would trim is kept out rather than changed.
    if identity != name:
        return None
    owner = values.get("owned_by")
    return ListedModel(
        identity,
        _whole(values.get("created")),
        owner[:100] if isinstance(owner, str) and owner.isprintable() else None,
        _whole(values.get("max_model_len")),
    )


def _whole(value: object) -> int | None:
    """Return a sane whole number above 0, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 < value < 1 << 53 else None
