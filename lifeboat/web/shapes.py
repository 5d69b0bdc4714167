"""The words that schemas are written in: JSON Schema 2020-12, as OpenAPI 3.1 has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

Schema = dict[str, object]


def record(doc: str, properties: Mapping[str, Schema], optional: Iterable[str] = ()) -> Schema:
    """Return an object of these keys and no others; all are required but the optional."""
    left_out = set(optional)
    return {
        "type": "object",
        "description": doc,
        "properties": dict(properties),
        "required": [name for name in properties if name not in left_out],
        "additionalProperties": False,
    }


def whole(doc: str) -> Schema:
    """Return a whole number, never negative."""
    return {"type": "integer", "minimum": 0, "description": doc}


def seconds(doc: str) -> Schema:
    """Return a number that is never negative."""
    return {"type": "number", "minimum": 0, "description": doc}


def text(doc: str) -> Schema:
    """Return a string."""
    return {"type": "string", "description": doc}


def flag(doc: str) -> Schema:
    """Return a boolean."""
    return {"type": "boolean", "description": doc}


def one_of(values: Iterable[str], doc: str) -> Schema:
    """Return a string out of a closed set."""
    return {"type": "string", "enum": list(values), "description": doc}


def many(items: Schema, doc: str = "") -> Schema:
    """Return an array."""
    return {"type": "array", "items": items, "description": doc}


def by_name(values: Schema, doc: str) -> Schema:
    """Return an object whose keys are names."""
    return {"type": "object", "additionalProperties": values, "description": doc}


def or_null(schema: Schema) -> Schema:
    """Return the schema, or null."""
    kind = schema["type"]
    kinds = cast("list[str]", kind) if isinstance(kind, list) else [cast("str", kind)]
    nullable: Schema = {**schema, "type": [*kinds, "null"]}
    if "enum" in schema:
        nullable["enum"] = [*cast("list[str]", schema["enum"]), None]
    return nullable


def ref(name: str) -> Schema:
    """Return a reference to a schema of `SCHEMAS`."""
    return {"$ref": f"#/components/schemas/{name}"}
