"""Reads the backends: from the file, from `--backend` flags, and from a registration's JSON.

Held by tests/settings/test_backends.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from lifeboat.core.urls import server_root
from lifeboat.core.vocabulary import Capability, Kind
from lifeboat.settings.entries import BACKEND_ENTRIES, NAME
from lifeboat.settings.problems import ConfigErrors, Findings
from lifeboat.settings.reading import read_entry
from lifeboat.settings.shapes import BackendConfig
from lifeboat.settings.urls import URL_RULE, name_from_url, parse_url, without_password
from lifeboat.settings.values import BadValueError
from lifeboat.settings.yamlfile import Document, KeyPath, dotted

_DEFAULT_SIMULATION: dict[str, object] = {
    "model": "gpt-oss-20b", "hardware": "b200", "max_num_seqs": 32, "max_waiting": 0,
}  # fmt: skip


def default_backends() -> tuple[BackendConfig, ...]:
    """Return what runs where nothing is configured: two embedded simulated backends."""
    return tuple(
        BackendConfig(name, Kind.SIMULATED, models=("gpt-oss-20b",), simulate=_DEFAULT_SIMULATION)
        for name in ("sim-a", "sim-b")
    )


def read_backends(raw: object, document: Document, findings: Findings) -> tuple[BackendConfig, ...]:
    """Return the backends of the file, replicas expanded; faults go into `findings`."""
    if raw is None:
        return ()
    base: KeyPath = ("backends",)
    if not isinstance(raw, list):
        rule, remedy = "must be a list", "Begin each backend with a dash: `- url: ...`."
        findings.refuse(document.where(base), "backends", raw, rule, remedy)
        return ()
    found: list[tuple[KeyPath, BackendConfig]] = []
    for at, item in enumerate(cast("list[object]", raw)):
        path = (*base, at)
        backend = _read_backend(_with_empty_key(item), path, document, findings)
        if backend is not None:
            found.extend((path, one) for one in backend.expanded())
    return _checked_together(found, document, findings)


def _with_empty_key(item: object) -> object:
    """Return an entry with `api_key:` and nothing behind it as an empty key.

    So it stands after `api_key: ${KEY:-}` without the variable: a key was meant to be there, and
    the client's own must not go in its place (BUG-127).
    """
    if not isinstance(item, dict):
        return item
    entry = cast("dict[str, object]", item)
    empty = "api_key" in entry and entry["api_key"] is None
    return {**entry, "api_key": ""} if empty else entry


def read_backend_flags(texts: Iterable[str], findings: Findings) -> tuple[BackendConfig, ...]:
    """Return the backends of `--backend [NAME=][KIND+]URL` flags."""
    document = Document("flag")
    found: list[tuple[KeyPath, BackendConfig]] = []
    for text in texts:
        path: KeyPath = ("--backend",)
        backend = _read_backend(_flag_entry(text), path, document, findings)
        if backend is not None:
            found.append((path, backend))
    return _checked_together(found, document, findings)


def backend_from_mapping(raw: Mapping[str, object]) -> BackendConfig:
    """Return a backend that is registered at run time, by the keys of the file.

    Raises ConfigErrors with every fault.
    """
    findings = Findings()
    backend = _read_backend(dict(raw), (), Document("body"), findings)
    if backend is None or findings.problems:
        raise ConfigErrors(findings.problems, findings.warnings)
    return backend


def _flag_entry(text: str) -> dict[str, object]:
    """Return the entry that a flag abbreviates."""
    entry: dict[str, object] = {}
    named = re.fullmatch(rf"(?P<name>{NAME.form})=(?P<url>.*://.*)", text)
    url = named["url"] if named else text
    if named:
        entry["name"] = named["name"]
    kind, plus, rest = url.partition("+")
    if plus and re.fullmatch(r"[\w.-]+", kind) and rest.startswith(("http://", "https://")):
        entry["kind"], url = kind, rest
    entry["url"] = url
    return entry


def _read_backend(
    raw: object, path: KeyPath, document: Document, findings: Findings
) -> BackendConfig | None:
    """Return one backend, None where anything in it was refused."""
    before = len(findings.problems)
    values = read_entry(raw, BACKEND_ENTRIES, path, document, findings)
    _judge_url(raw, values, path, document, findings)
    if len(findings.problems) > before:
        return None
    url = cast("str | None", values.get("url"))
    values.setdefault("name", name_from_url(url) if url else _numbered_name(path))
    values["kind"] = Kind(str(values.get("kind", Kind.OPENAI)))
    if "serves" in values:
        served = cast("Sequence[str]", values["serves"])
        values["serves"] = frozenset(Capability(word) for word in served)
    return BackendConfig(**cast("dict[str, Any]", values))


def _judge_url(
    raw: object, values: dict[str, object], path: KeyPath, document: Document, findings: Findings
) -> None:
    """Put the URL into normal spelling; refuse a missing one, and one beside `simulate`."""
    where, key = document.where(path), dotted(path)
    if isinstance(values.get("url"), str):
        values["url"] = _read_url(str(values["url"]), path, document, findings)
    elif not isinstance(raw, dict | None) or (*path, "url") in document.refused:
        pass
    elif "url" not in values and values.get("kind") != Kind.SIMULATED:
        remedy = "Add its url, or say kind: simulated for one that runs embedded."
        findings.refuse(where, key or "url", None, "has no url", remedy)
    if "url" in values and "simulate" in values:
        remedy = "Remove one of the two: a server with a url simulates by its own settings."
        findings.refuse(where, f"{key}.simulate", None, "stands beside a url", remedy)


def _numbered_name(path: KeyPath) -> str:
    """Return the name of an embedded backend that has none: by its place in the list."""
    place = path[-1] if path else 0
    return f"sim-{place + 1 if isinstance(place, int) else 1}"


def _read_url(text: str, path: KeyPath, document: Document, findings: Findings) -> str:
    """Return the URL in normal spelling; a `/v1` at its end is dropped with a warning."""
    full = (*path, "url")
    where, key = document.where(full), dotted(full)
    try:
        url = parse_url(text)
    except BadValueError as error:
        findings.refuse(where, key, without_password(text), URL_RULE, f"{error}.")
        return ""
    root = server_root(url)
    if root != url:
        findings.warn(f"{where}: {key} ends in /v1, which every path begins with: it is left out")
    return root


def _checked_together(
    found: Sequence[tuple[KeyPath, BackendConfig]], document: Document, findings: Findings
) -> tuple[BackendConfig, ...]:
    """Return the backends; a name that stands twice is a problem, a URL a warning."""
    names: dict[str, KeyPath] = {}
    urls: dict[str, list[str]] = {}
    for path, backend in found:
        if backend.name in names:
            where, key = document.where((*path, "name")), dotted((*path, "name"))
            first = names[backend.name]
            holder = dotted(first) if first != path else f"another {dotted(path)}"
            rule = f"is the name of {holder} already"
            findings.refuse(where, key, backend.name, rule, "Give each backend a name of its own.")
            continue
        names[backend.name] = path
        if backend.url is not None:
            urls.setdefault(backend.url, []).append(backend.name)
    for url, holders in urls.items():
        if len(holders) > 1:
            findings.warn(
                f"backends {', '.join(holders)} share the url {url}: "
                "each counts its own requests, so the server sees the sum"
            )
    return tuple(backend for _, backend in found)
