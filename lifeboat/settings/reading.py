"""Takes keys out of the file: known ones by their table, unknown ones as problems.

Held by tests/settings/test_load.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, cast

from lifeboat.settings.entries import Entry
from lifeboat.settings.problems import HIDDEN, Findings, did_you_mean, nearest
from lifeboat.settings.values import BadValueError, Choice, ModeName, ValueType
from lifeboat.settings.yamlfile import Document, KeyPath, dotted


class _Bad:
    """The type of BAD."""


BAD: Final = _Bad()
"""Stands for a value that was refused; the problem is already recorded."""

NamePath = tuple[str, ...]


def parse_value(
    kind: ValueType,
    raw: object,
    where: str,
    key: str,
    findings: Findings,
    *,
    default: str = "",
    secret: bool = False,
    plain: bool = False,
) -> object:
    """Return the typed value, or BAD with the problem recorded.

    default: shown in the remedy; empty where there is none to fall back to.
    """
    try:
        return kind.parse(raw, plain=plain)
    except BadValueError as error:
        remedy = str(error) or _remedy(kind, raw, default)
        shown = HIDDEN if secret else raw
        findings.refuse(
            where, key, shown, f"must be {kind.rule}", f"{remedy.rstrip('.?')}{_end(remedy)}"
        )
        return BAD


def _remedy(kind: ValueType, raw: object, default: str) -> str:
    if isinstance(kind, Choice | ModeName) and isinstance(raw, str):
        word = nearest(raw.lower(), kind.words)
        if word is not None:
            return f"Did you mean {word}?"
    if default in ("", "none"):
        return "Change it, or leave it out"
    return f"Leave it out for the default, {default}"


def _end(remedy: str) -> str:
    return "?" if remedy.endswith("?") else "."


def flat_items(
    tree: object, known: Iterable[NamePath], base: KeyPath, document: Document, findings: Findings
) -> dict[NamePath, object]:
    """Return the given values by their path below `base`; null counts as not given.

    Unknown keys, and a value where a mapping belongs, become problems.
    """
    paths = frozenset(known)
    sections = {path[:depth] for path in paths for depth in range(1, len(path))}
    found: dict[NamePath, object] = {}

    def walk(value: object, at: NamePath) -> None:
        if not isinstance(value, dict):
            where, key = document.where((*base, *at)), dotted((*base, *at)) or "the file"
            findings.refuse(where, key, value, "must be a mapping", "Write key: value below it.")
            return
        for key, item in cast("dict[str, object]", value).items():
            path = (*at, key)
            if path in paths:
                if item is not None:
                    found[path] = item
            elif path in sections:
                if item is not None:
                    walk(item, path)
            else:
                _refuse_unknown(path, paths, base, document, findings)

    if tree is not None:
        walk(tree, ())
    return found


def _refuse_unknown(
    path: NamePath, paths: Iterable[NamePath], base: KeyPath, document: Document, findings: Findings
) -> None:
    """Record an unknown key, with the nearest known one."""
    full: KeyPath = (*base, *path)
    siblings = {known[len(path) - 1] for known in paths if known[: len(path) - 1] == path[:-1]}
    elsewhere = sorted(".".join(known) for known in paths if known[-1] == path[-1])
    if elsewhere:
        remedy = f"Did you mean {' or '.join(elsewhere)}?"
    else:
        remedy = did_you_mean(path[-1], siblings)
    findings.refuse(document.where(full), dotted(full), None, "is no key known here", remedy)


def read_entry(
    raw: object, entries: Sequence[Entry], base: KeyPath, document: Document, findings: Findings
) -> dict[str, object]:
    """Return the given values of one entry by attribute; BAD stands for those that were refused."""
    rows = {tuple(entry.key.split(".")): entry for entry in entries}
    values: dict[str, object] = {}
    for path, item in flat_items(raw, rows, base, document, findings).items():
        entry, full = rows[path], (*base, *path)
        values[entry.attribute] = parse_value(
            entry.kind,
            item,
            document.where(full),
            dotted(full),
            findings,
            default=entry.default,
            secret=entry.key == "api_key",
        )
    return values


def as_mapping(value: object) -> Mapping[str, object]:
    """Return a value that is known to be a mapping with text keys."""
    assert isinstance(value, dict)
    return cast("dict[str, object]", value)
