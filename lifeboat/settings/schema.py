"""The JSON schema of `backends.yaml`, for editors, made from the same tables as the loader.

It is shipped as `lifeboat/backends.schema.json`; `make check` sees that it is current. Held by
tests/settings/test_schema.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import cast

from lifeboat.settings.entries import BACKEND_ENTRIES, MODEL_ENTRIES, Entry
from lifeboat.settings.table import SETTINGS
from lifeboat.settings.texts import FilePath
from lifeboat.settings.values import JsonSchema

_Row = tuple[Sequence[str], JsonSchema]


def json_schema() -> JsonSchema:
    """Return the schema, draft 2020-12."""
    rows: list[_Row] = []
    for row in SETTINGS:
        if row.yaml is None:
            continue
        rows.append((row.yaml, {**row.kind.schema(), "description": row.doc}))
        if row.from_file:
            about = f"The path of a file that holds {row.yaml[-1]}."
            rows.append((row.file_yaml, {**FilePath().schema(), "description": about}))
    backend = _object(_entry_rows(BACKEND_ENTRIES))
    model = _object(_entry_rows(MODEL_ENTRIES))
    rows.append(
        (("backends",), {"type": "array", "items": backend, "description": "The model servers."})
    )
    about = "What is special about single models: aliases, rates, the queue."
    models: JsonSchema = {"type": "object", "additionalProperties": model, "description": about}
    rows.append((("models",), models))
    head: JsonSchema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The configuration of Lifeboat (backends.yaml)",
    }
    return {**head, **_object(rows)}


def schema_text() -> str:
    """Return the schema as the file that is shipped."""
    return json.dumps(json_schema(), indent=2) + "\n"


def _entry_rows(entries: Iterable[Entry]) -> list[_Row]:
    """Return the rows of one entry, each with its doc line."""
    return [
        (entry.key.split("."), {**entry.kind.schema(), "description": entry.doc})
        for entry in entries
    ]


def _object(rows: Iterable[_Row]) -> JsonSchema:
    """Return the schema of a mapping; dotted paths become mappings within it."""
    properties: dict[str, object] = {}
    for path, schema in rows:
        level = properties
        for part in path[:-1]:
            section = cast("JsonSchema", level.setdefault(part, _section()))
            level = cast("dict[str, object]", section["properties"])
        value = {key: item for key, item in schema.items() if key != "description"}
        level[path[-1]] = {
            "description": schema.get("description", ""),
            "anyOf": [value, {"type": "null"}],
        }
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _section() -> JsonSchema:
    return {"type": ["object", "null"], "properties": {}, "additionalProperties": False}
