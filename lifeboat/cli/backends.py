"""`lifeboat backends`: every backend of a running router, with what its engine says of itself."""

from __future__ import annotations

import json
from typing import Any, cast

import click

from lifeboat.cli.columns import columns
from lifeboat.cli.remote import fetch, json_option, named, url_option
from lifeboat.cli.status import limit_text

MODELS_SHOWN = 3
"""Names of models that a line has room for."""


@click.command()
@url_option
@json_option
def backends(url: str | None, as_json: bool) -> None:
    """Print the backends of a running router: where they are, how they are, what they hold.

    Exit code 2 when no router answers.
    """
    page = fetch(url, "/api/lb/backends")
    if as_json:
        click.echo(json.dumps(page, indent=2))
        return
    click.echo(backends_text(page))
    for name, backend in named(page, "backends").items():
        for warning in cast("list[str]", backend.get("warnings") or []):
            label = click.style("warning", fg="yellow", bold=True)
            click.echo(f"{label}: {name}: {warning}", err=True)


def backends_text(page: dict[str, Any]) -> str:
    """Return the backends, one a line."""
    head = (
        "backend", "kind", "url", "state", "health", "in flight", "limit", "because",
        "engine runs", "waits", "slots", "read", "models",
    )  # fmt: skip
    rows = [
        (
            name,
            str(backend.get("kind", "")),
            str(backend.get("url") or ""),
            str(backend.get("state", "")),
            _health(backend),
            str(backend.get("in_flight", 0)),
            limit_text(backend.get("effective_limit")),
            str(backend.get("limit_reason", "")),
            *_engine(cast("dict[str, Any]", backend.get("engine") or {})),
            _models(cast("list[str]", backend.get("models") or [])),
        )
        for name, backend in named(page, "backends").items()
    ]
    return columns(head, rows)


def _health(backend: dict[str, Any]) -> str:
    detail = backend.get("health_detail")
    health = str(backend.get("health", ""))
    return f"{health} ({detail})" if detail else health


def _engine(engine: dict[str, Any]) -> list[str]:
    """Return what the engine reports and how long ago it did; a dash where it tells nothing."""
    told = (engine.get(key) for key in ("running", "waiting", "slots"))
    age_s = engine.get("age_sec")
    read = "-" if age_s is None else f"{float(age_s):.0f} s ago"
    return [*("-" if value is None else str(value) for value in told), read]


def _models(models: list[str]) -> str:
    shown = ", ".join(models[:MODELS_SHOWN])
    more = len(models) - MODELS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
