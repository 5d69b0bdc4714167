"""`lifeboat status`: what a running router is doing, from `GET /api/lb/state`."""

from __future__ import annotations

import json
from typing import Any, cast

import click

from lifeboat.cli.columns import columns
from lifeboat.cli.remote import fetch, json_option, named, url_option


@click.command()
@url_option
@json_option
def status(url: str | None, as_json: bool) -> None:
    """Print the state of a running router: mode, pools, backends, warnings.

    Exit code 2 when no router answers.
    """
    state = fetch(url, "/api/lb/state")
    if as_json:
        click.echo(json.dumps(state, indent=2))
        return
    click.echo(state_text(state))
    for warning in state.get("warnings") or ():
        click.echo(warning_text(warning), err=True)


def state_text(state: dict[str, Any]) -> str:
    """Return a state as tables: the router, its pools, its backends."""
    return "\n\n".join([_head(state), _pools(state), _backends(state)])


def warning_text(warning: dict[str, Any]) -> str:
    """Return one warning of a state as a line."""
    label = click.style("warning", fg="yellow", bold=True)
    return f"{label}: {warning.get('message', '')}"


def limit_text(limit: int | None) -> str:
    """Return a limit as a person reads it: null is ungated."""
    return "none" if limit is None else str(limit)


def _head(state: dict[str, Any]) -> str:
    queue = "on" if state.get("queue_enabled") else "off"
    line = (
        f"lifeboat {state.get('version', '?')}, up {float(state.get('uptime_sec', 0)):.0f} s, "
        f"mode {state.get('routing_mode', '?')}, queue {queue}, "
        f"{state.get('queue_total_waiters', 0)} parked"
    )
    return f"{line}, draining" if state.get("draining") else line


def _pools(state: dict[str, Any]) -> str:
    """Return the pools, one a line."""
    head = ("pool", "in flight", "limit", "parked", "ceiling", "wait p95", "dispatched", "refused")
    rows = [
        (
            name,
            str(pool.get("in_flight", 0)),
            limit_text(pool.get("effective_concurrency")),
            str(pool.get("queue_depth", 0)),
            str(pool.get("queue_limit", 0)),
            f"{float(pool.get('wait_p95_sec') or 0):.2f} s",
            str(pool.get("dispatched", 0)),
            str(sum(cast("dict[str, int]", pool.get("rejected") or {}).values())),
        )
        for name, pool in named(state, "pools").items()
    ]
    return columns(head, rows)


def _backends(state: dict[str, Any]) -> str:
    """Return the backends, one a line."""
    head = ("backend", "kind", "state", "health", "in flight", "limit", "because", "dispatched")
    rows = [
        (
            name,
            str(backend.get("kind", "")),
            str(backend.get("state", "")),
            str(backend.get("health", "")),
            str(backend.get("in_flight", 0)),
            limit_text(backend.get("effective_limit")),
            str(backend.get("limit_reason", "")),
            str(backend.get("dispatched", 0)),
        )
        for name, backend in named(state, "backends").items()
    ]
    return columns(head, rows)
