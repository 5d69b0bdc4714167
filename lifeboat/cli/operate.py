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
    call,
    fetch,
    json_option,
    named,
    token_of,
    token_options,
    url_option,
)
from lifeboat.cli.status import limit_text
from lifeboat.settings.problems import show
from lifeboat.settings.quantities import Integer
from lifeboat.settings.values import BadValueError

_LIMIT = Integer(0, 1_000_000)
"""As in the file (settings.entries), which this start has no time to import."""
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


class _SetLimit(click.Command):
    """The command whose second word may be a wrong number, not an unknown option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse `-1` by the rule of limits."""
        for word in args:
            if word.startswith("-") and word[1:].isdigit():
                raise _no_limit(word)
        return super().parse_args(ctx, args)


def _no_limit(text: str) -> click.BadParameter:
    rule = f"must be {_LIMIT.rule}, or {CONFIGURED}"
    return click.BadParameter(f"{show(text)} {rule}", param_hint="N")


def _limit(text: str) -> int | None:
    """Return the limit that is meant, None for what is configured."""
    if text == CONFIGURED:
        return None
    try:
        return _LIMIT.parse(text)
    except BadValueError:
        raise _no_limit(text) from None


@click.command("set-limit", cls=_SetLimit)
@_changing
@click.argument("limit", metavar=f"N|{CONFIGURED}")
def set_limit(
    name: str, limit: str, url: str | None, token: str | None, token_file: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Set a backend's max concurrency to N (0 disables its gate), or back to what is configured.

    A lower one drains: nothing that runs is cut off.
    """
    wanted: dict[str, object] = {"max_concurrency": _limit(limit)}
    page = _patch((url, token_of(token, token_file)), name, wanted)
    limits = (
        f"max concurrency {page.get('max_concurrency')}, in force "
        f"{limit_text(page.get('effective_limit'))} ({page.get('limit_reason')})"
    )
    click.echo(json.dumps(page, indent=2) if as_json else f"{name}: {limits}")


def _patch(told: Told, name: str, change: dict[str, object]) -> dict[str, Any]:
    url, token = told
    return call(url, "PATCH", f"/api/lb/backends/{quote(name, safe='')}", change, token)


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
