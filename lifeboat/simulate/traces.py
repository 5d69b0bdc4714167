"""Recorded and made-up arrivals: when requests come, and how long they and their answers are.

Formats: azure (CSV: TIMESTAMP, ContextTokens, GeneratedTokens), mooncake (JSONL: timestamp in ms,
input_length, output_length) and our own (JSONL: at in seconds, input_tokens, output_tokens, and
optionally model and priority). Held by tests/simulate/test_traces.py.
"""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO, cast

from lifeboat.core.vocabulary import Priority

_MICROSECONDS = 26
"""Characters of a timestamp down to its microseconds: the traces carry a seventh digit."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace.

    at_s: seconds since the trace began. model: None = the only one, or the first.
    output_tokens: 0 = prefill alone.
    """

    at_s: float
    input_tokens: int
    output_tokens: int
    model: str | None = None
    priority: Priority = Priority.NORMAL


class TraceError(ValueError):
    """A file that is no trace; the message names the line and what was expected."""


def read_trace(path: Path) -> list[Arrival]:
    """Return the arrivals of a file, in order of time from 0; its format is seen from its keys.

    Raises TraceError, and OSError where the file cannot be read.
    """
    with _opened(path) as lines:
        start = lines.readline()
        lines.seek(0)
        rows = _json_rows(lines, path) if start.lstrip().startswith("{") else _csv_rows(lines)
        found: list[Arrival] = []
        for number, row in rows:
            try:
                found.append(_arrival(row))
            except (KeyError, TypeError, ValueError) as error:
                raise TraceError(f"{path.name}:{number}: {_expected(error)}") from None
    if not found:
        raise TraceError(f"{path.name}: holds no request")
    found.sort(key=lambda one: one.at_s)
    began_s = found[0].at_s
    return [replace(one, at_s=one.at_s - began_s) for one in found]


@contextmanager
def _opened(path: Path) -> Generator[TextIO]:
    """Open a trace; where it turns out to be no text, TraceError."""
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            yield lines
    except UnicodeDecodeError:
        raise TraceError(f"{path.name}: is no text in UTF-8; a trace is CSV or JSONL") from None


def _json_rows(lines: Iterable[str], path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row: object = json.loads(line)
        except ValueError:
            raise TraceError(f"{path.name}:{number}: is no JSON") from None
        if not isinstance(row, dict):
            raise TraceError(f"{path.name}:{number}: is no JSON object")
        yield number, cast("dict[str, Any]", row)


def _csv_rows(lines: Iterable[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    yield from enumerate(csv.DictReader(lines), 2)


def _arrival(row: Mapping[str, Any]) -> Arrival:
    if "TIMESTAMP" in row:
        at = datetime.fromisoformat(row["TIMESTAMP"].strip()[:_MICROSECONDS])
        return _checked(at.timestamp(), row["ContextTokens"], row["GeneratedTokens"])
    if "input_length" in row:
        at_s = float(row["timestamp"]) / 1000.0
        return _checked(at_s, row["input_length"], row["output_length"])
    own = _checked(float(row["at"]), row["input_tokens"], row["output_tokens"])
    model = row.get("model")
    priority = Priority(row.get("priority", Priority.NORMAL))
    return replace(own, model=None if model is None else str(model), priority=priority)


def _checked(at_s: float, given: Any, made: Any) -> Arrival:
    input_tokens, output_tokens = int(given), int(made)
    if not math.isfinite(at_s) or input_tokens < 0 or output_tokens < 0:
        raise ValueError("a time or a length is out of range")
    return Arrival(at_s, max(input_tokens, 1), output_tokens)


def _expected(error: Exception) -> str:
    what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
    return (
        f"{what}; a line has TIMESTAMP, ContextTokens, GeneratedTokens (azure), or timestamp, "
        "input_length, output_length (mooncake), or at, input_tokens, output_tokens"
    )


def excerpt(
    trace: Sequence[Arrival], start_s: float = 0.0, length_s: float = math.inf, speed: float = 1.0
) -> list[Arrival]:
    """Return what arrives from `start_s` for `length_s`, `speed` times as fast; times from 0."""
    return [
        replace(one, at_s=(one.at_s - start_s) / speed)
        for one in trace
        if start_s <= one.at_s < start_s + length_s
    ]


def synthetic(
    rate_per_s: float, length_s: float, input_tokens: int, output_tokens: int, seed: int
) -> list[Arrival]:
    """Return Poisson arrivals; lengths are exponential around their means, at least 1."""
    rng = random.Random(seed)
    found: list[Arrival] = []
    at_s = rng.expovariate(rate_per_s)
    while at_s < length_s:
        prompt = 1 + int(rng.expovariate(1.0 / input_tokens))
        answer = 1 + int(rng.expovariate(1.0 / output_tokens))
        found.append(Arrival(at_s, prompt, answer))
        at_s += rng.expovariate(rate_per_s)
    return found
