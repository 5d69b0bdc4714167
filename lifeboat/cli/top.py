"""`lifeboat top`: the state of a running router, again and again."""

from __future__ import annotations

import time

import click

from lifeboat.cli.remote import fetch, url_option
from lifeboat.cli.status import state_text, warning_text


@click.command()
@url_option
@click.option(
    "--every",
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(0.1, 3600.0),
    help="Pause between two looks.",
)
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after so many looks.")
def top(url: str | None, every: float, count: int | None) -> None:
    """Show the state of a running router and renew it until Ctrl-C.

    Exit code 2 when no router answers.
    """
    looks = 0
    while True:
        state = fetch(url, "/api/lb/state")
        warnings = [warning_text(warning) for warning in state.get("warnings") or ()]
        # On a terminal only: a pipe gets one page after the other.
        click.clear()
        click.echo("\n".join([state_text(state), *([""] if warnings else []), *warnings]))
        looks += 1
        if looks == count:
            return
        time.sleep(every)
