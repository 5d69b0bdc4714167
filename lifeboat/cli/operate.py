"""`lifeboat drain`, `ready`, `maint` and `set-limit`: change one backend of a running router.

What they set holds until the router restarts or the value is reset. Exit codes: 0 done, 1 the
router refuses or the wait ran out, 2 a wrong call or no router there.
Held by tests/cli/test_operating.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from lifeboat.cli.remote import (
    RefusedError,
    call,
    fetch,
    json_option,
    named,
    token_of,
    token_options,
    url_option,
)
from lifeboat.cli.status import limit_text

POLL_S = 0.2
CONFIGURED = "configured"
"""What takes a value set by API back."""

Told = tuple[str | None, str | None]
"""The router's url and the admin token."""


def _changing(command: Callable[..., None]) -> Callable[..., None]:
    """Add what every change of one backend takes."""
    name = click.argument("name")
    return name(url_option(token_options(json_option(command))))


def _waiting(command: Callable[..., None]) -> Callable[..., None]:
    wait = click.option("--wait", is_flag=True, help="Return once it is so.")
    timeout = click.option(
        "--timeout",
        default=600.0,
        show_default=True,
        metavar="SECONDS",
        type=click.FloatRange(0.0),
        help="Longest --wait; exit code 1 after it.",
    )
    return wait(timeout(command))


@click.command()
@_changing
@_waiting
def drain(
    name: str, url: str | None, token: str | None, token_file: Path | None, as_json: bool,
    wait: bool, timeout: float,
) -> None:  # fmt: skip
    """Send a backend no new requests; what it runs, it finishes. --wait: until it is empty."""
    _set_state((url, token_of(token, token_file)), name, "drain", as_json)
    if wait:
        _await(url, name, _is_empty, timeout, "empty")


@click.command()
@_changing
@_waiting
def maint(
    name: str, url: str | None, token: str | None, token_file: Path | None, as_json: bool,
    wait: bool, timeout: float,
) -> None:  # fmt: skip
    """Take a backend out of service for maintenance. --wait: until it is empty."""
    _set_state((url, token_of(token, token_file)), name, "maint", as_json)
    if wait:
        _await(url, name, _is_empty, timeout, "empty")


@click.command()
@_changing
@_waiting
def ready(
    name: str, url: str | None, token: str | None, token_file: Path | None, as_json: bool,
    wait: bool, timeout: float,
) -> None:  # fmt: skip
    """Put a drained backend back into service. --wait: until it is live."""
    _set_state((url, token_of(token, token_file)), name, "ready", as_json)
    if wait:
        _await(url, name, _is_live, timeout, "live")


@click.command("set-limit")
@_changing
@click.argument("limit", metavar=f"N|{CONFIGURED}")
def set_limit(
    name: str, limit: str, url: str | None, token: str | None, token_file: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Set a backend's max concurrency to N (0 disables its gate), or back to what is configured.

    A lower one drains: nothing that runs is cut off.
    """
    if limit != CONFIGURED and not (limit.isascii() and limit.isdigit()):
        raise click.BadParameter(f"must be a number from 0, or {CONFIGURED}", param_hint="N")
    value = None if limit == CONFIGURED else int(limit)
    page = _patch((url, token_of(token, token_file)), name, {"max_concurrency": value})
    limits = (
        f"max concurrency {page.get('max_concurrency')}, in force "
        f"{limit_text(page.get('effective_limit'))} ({page.get('limit_reason')})"
    )
    click.echo(json.dumps(page, indent=2) if as_json else f"{name}: {limits}")


def _patch(told: Told, name: str, change: dict[str, object]) -> dict[str, Any]:
    url, token = told
    try:
        return call(url, "PATCH", f"/api/lb/backends/{quote(name, safe='')}", change, token)
    except RefusedError as error:
        if error.status in (401, 403):
            hint = "give the admin token by LIFEBOAT_ADMIN_TOKEN or --token-file"
            raise RefusedError(error.status, f"{error.message} ({hint})") from None
        raise


def _set_state(told: Told, name: str, state: str, as_json: bool) -> None:
    page = _patch(told, name, {"state": state})
    text = (
        f"{name}: {page.get('state')}, health {page.get('health')}, "
        f"{page.get('in_flight', 0)} in flight"
    )
    click.echo(json.dumps(page, indent=2) if as_json else text)


def _is_empty(backend: dict[str, Any]) -> bool:
    return not backend.get("in_flight")


def _is_live(backend: dict[str, Any]) -> bool:
    return bool(backend.get("live"))


def _await(
    url: str | None,
    name: str,
    holds: Callable[[dict[str, Any]], bool],
    timeout_s: float,
    what: str,
) -> None:
    """Wait until a backend is as wanted; one that has left holds nothing and is never live."""
    ends_at = time.monotonic() + timeout_s
    while True:
        backend = named(fetch(url, "/api/lb/backends"), "backends").get(name)
        if holds({} if backend is None else backend):
            # On the other stream where the first one carries JSON alone.
            click.echo(f"{name} is {what}", err=True)
            return
        if time.monotonic() >= ends_at:
            shown = 0 if backend is None else backend.get("in_flight", 0)
            raise click.ClickException(
                f"{name} was not {what} after {timeout_s:g} s: {shown} in flight"
            )
        time.sleep(POLL_S)
