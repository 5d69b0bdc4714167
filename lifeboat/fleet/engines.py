"""What engines say of themselves, read from their own pages. Parsing is pure, cheap and bounded.

- gguf: running and waiting from `/metrics` (`llamacpp:requests_processing`,
  `llamacpp:requests_deferred`); where that page is off (501), running from the busy ones of
  `/slots`, and nothing on waiting. Slots from `/props` `total_slots`; the input cap from its
  `default_generation_settings.n_ctx`, which is per slot.
- vllm, simulated: `vllm:num_requests_running` and `_waiting`; the cap is `max_model_len` of
  `/v1/models` (listings).
- openai: the cap alone, where its list has one.

A simulated server also says its seats (`/control/capacity`), for the agent beside it.

Held by tests/fleet/test_pure_parts.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from lifeboat.core.vocabulary import Kind

METRICS_PATH, PROPS_PATH, SLOTS_PATH = "/metrics", "/props", "/slots"
SEATS_PATH = "/control/capacity"

_LABELS_AND_VALUE = rb"(?:\{[^\n]*\})?[ \t]+([0-9.eE+-]{1,32})"


@dataclass(frozen=True, slots=True)
class Load:
    """Requests inside an engine, ours and others'; None where it does not tell."""

    running: int | None = None
    waiting: int | None = None


@dataclass(frozen=True, slots=True)
class Props:
    """What a llama.cpp server is set up for."""

    slots: int | None = None
    max_input_tokens: int | None = None


def _sample(name: str) -> re.Pattern[bytes]:
    return re.compile(b"^" + re.escape(name.encode()) + _LABELS_AND_VALUE, re.MULTILINE)


_GAUGES: Mapping[Kind, tuple[re.Pattern[bytes], re.Pattern[bytes]]] = {
    Kind.GGUF: (_sample("llamacpp:requests_processing"), _sample("llamacpp:requests_deferred")),
    Kind.VLLM: (_sample("vllm:num_requests_running"), _sample("vllm:num_requests_waiting")),
    Kind.SIMULATED: (_sample("vllm:num_requests_running"), _sample("vllm:num_requests_waiting")),
}
"""Kind -> the gauges of running and waiting requests; summed over their labels (a vLLM server with
several engines has one of each)."""

TELLS_LOAD = frozenset(_GAUGES)
"""Kinds whose engines say how much they hold."""


def parse_metrics(text: bytes, kind: Kind) -> Load:
    """Return the load in a page of Prometheus text: only the wanted lines are looked at."""
    gauges = _GAUGES.get(kind)
    return Load() if gauges is None else Load(_sum(gauges[0], text), _sum(gauges[1], text))


def _sum(gauge: re.Pattern[bytes], text: bytes) -> int | None:
    total: float | None = None
    for match in gauge.finditer(text):
        try:
            value = float(match[1])
        except ValueError:
            continue
        if 0 <= value < 1e9:
            total = (total or 0.0) + value
    return None if total is None else round(total)


def parse_props(body: bytes) -> Props:
    """Return what `/props` says; empty where it says nothing that can be used."""
    table = _object(body)
    settings = table.get("default_generation_settings")
    n_ctx = (
        cast("Mapping[str, object]", settings).get("n_ctx") if isinstance(settings, dict) else None
    )
    return Props(_count(table.get("total_slots")), _count(n_ctx))


def parse_slots(body: bytes) -> Load:
    """Return the load in `/slots`: its busy ones. It does not show who waits."""
    try:
        slots: object = json.loads(body)
    except (ValueError, RecursionError):
        return Load()
    if not isinstance(slots, list):
        return Load()
    rows = [
        cast("Mapping[str, object]", row)
        for row in cast("list[object]", slots)
        if isinstance(row, dict)
    ]
    if any("is_processing" in row for row in rows):
        return Load(sum(row.get("is_processing") is True for row in rows))
    # Before llama.cpp b4000: `state` 0 is idle.
    if any("state" in row for row in rows):
        return Load(sum(row.get("state") not in (0, None) for row in rows))
    return Load()


def parse_seats(body: bytes) -> int | None:
    """Return the seats of a simulated server: the sum of `max_num_seqs` over its models."""
    try:
        rows: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(rows, list):
        return None
    seats = [
        _count(cast("Mapping[str, object]", row).get("max_num_seqs"))
        for row in cast("list[object]", rows)
        if isinstance(row, dict)
    ]
    return sum(count or 0 for count in seats) or None


def _object(body: bytes) -> Mapping[str, object]:
    try:
        value: object = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}


def _count(value: object) -> int | None:
    """Return a whole number above 0, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 < value < 1 << 31 else None
