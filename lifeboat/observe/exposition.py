"""The two formats of `/metrics`, and which one a client gets.

The Content-Type is one of two constants, never a part of the request's header (another exporter
echoed it). Held by tests/observe/test_exposition.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from prometheus_client import generate_latest as text_of
from prometheus_client.openmetrics.exposition import (
    generate_latest as openmetrics_of,  # pyright: ignore[reportUnknownVariableType]
)
from prometheus_client.registry import Collector

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_OPENMETRICS = "application/openmetrics-text"


def prefers_openmetrics(accept: str | None) -> bool:
    """Return whether an `Accept` header ranks OpenMetrics 1 at least as high as plain text.

    Plain text is what everything reads, so a wildcard, no header or a broken one means that. A
    range with a version is taken at its word: we have OpenMetrics 1.0.0 and nothing older.
    """
    best = {True: 0.0, False: 0.0}
    for item in (accept or "").lower().split(","):
        media_type, *parameters = (part.strip() for part in item.split(";"))
        values = dict(_parameter(text) for text in parameters)
        is_openmetrics = media_type == _OPENMETRICS
        if is_openmetrics and not values.get("version", "1").startswith("1"):
            continue
        if is_openmetrics or media_type in ("text/plain", "text/*", "*/*"):
            best[is_openmetrics] = max(best[is_openmetrics], _quality(values.get("q", "1")))
    return best[True] > 0.0 and best[True] >= best[False]


def _parameter(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name.strip(), value.strip().strip('"')


def _quality(text: str) -> float:
    try:
        quality = float(text)
    except ValueError:
        return 0.0
    return quality if 0.0 <= quality <= 1.0 else 0.0


def render(collector: Collector, accept: str | None) -> tuple[bytes, str]:
    """Return the page and its Content-Type."""
    if prefers_openmetrics(accept):
        # The library leaves this function without types.
        encode = cast("Callable[[Collector], bytes]", openmetrics_of)
        return encode(collector), OPENMETRICS_TYPE
    return text_of(collector), TEXT_TYPE
