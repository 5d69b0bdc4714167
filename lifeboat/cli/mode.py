"""`lifeboat mode`: shows or changes the routing mode of a running router."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import click

from lifeboat.cli.operate import CONFIGURED
from lifeboat.cli.remote import call, fetch, json_option, token_of, token_options, url_option
from lifeboat.core.modes import UnknownModeError, parse_mode

_QUEUE: dict[str, bool | None] = {"on": True, "off": False, CONFIGURED: None}


@click.command()
@click.argument("name", required=False, metavar=f"[MODE|{CONFIGURED}]")
@click.option("--queue", type=click.Choice(list(_QUEUE)), help="Turn the queue on or off, too.")
@url_option
@token_options
@json_option
def mode(
    name: str | None, queue: str | None, url: str | None, token: str | None,
    token_file: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Print the routing mode, or change it until the router restarts.

    `configured` goes back to what the configuration says. Exit code 1 when the router refuses, 2
    for an unknown mode or when no router answers.
    """
    change: dict[str, object] = {}
    if name is not None:
        try:
            change["mode"] = None if name == CONFIGURED else parse_mode(name).value
        except UnknownModeError as error:
            raise click.BadParameter(str(error), param_hint="MODE") from None
    if queue is not None:
        change["queue_enabled"] = _QUEUE[queue]
    if change:
        page = call(url, "PUT", "/api/lb/mode", change, token_of(token, token_file))
    else:
        page = fetch(url, "/api/lb/mode")
    if as_json:
        click.echo(json.dumps(page, indent=2))
        return
    sources = cast("dict[str, str]", page.get("sources") or {})
    source = sources.get("routing_mode", "default")
    queued = "on" if page.get("queue_enabled") else "off"
    click.echo(f"mode {page.get('mode')} (from: {source}), queue {queued}")
