"""`lifeboat rejections`: the rejection table, with a running router's counts on demand."""

from __future__ import annotations

import json
import shutil
import textwrap
from typing import Any

import click

from lifeboat.cli.remote import fetch, url_option
from lifeboat.core.rejections import REJECTIONS, RejectionRow


@click.command()
@url_option
@click.option("--live", is_flag=True, help="Ask the router for its counts, at the usual address.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def rejections(url: str | None, live: bool, as_json: bool) -> None:
    """Print every reason that Lifeboat refuses for, when it does, and what to do about it.

    With --url or --live also how often the running router did, since its start.
    """
    counts = _counts(url) if url or live else None
    if as_json:
        rows = [_as_json(row, counts) for row in REJECTIONS.values()]
        click.echo(json.dumps({"rejections": rows}, indent=2))
        return
    click.echo("\n\n".join(_as_text(row, counts) for row in REJECTIONS.values()))


def _counts(url: str | None) -> dict[str, int]:
    """Return how often the router refused, by reason as metrics spell it."""
    state = fetch(url, "/api/lb/state")
    counted: dict[str, Any] = state.get("reject_counts") or {}
    return {reason: int(count) for reason, count in counted.items()}


def _as_json(row: RejectionRow, counts: dict[str, int] | None) -> dict[str, object]:
    fields: dict[str, object] = {
        "status": row.status,
        "reason": row.reason.value,
        "code": row.wire_reason,
        "type": row.error_type.value,
        "when": row.when,
        "advice": row.advice,
        "retry_is_pointless": row.retry_is_pointless,
    }
    if counts is not None:
        fields["count"] = counts.get(row.reason.value, 0)
    return fields


def _as_text(row: RejectionRow, counts: dict[str, int] | None) -> str:
    name = row.wire_reason or "(no reason: the gate)"
    head = f"{row.status}  {click.style(name, bold=True)}"
    if counts is not None:
        head += f"  x {counts.get(row.reason.value, 0)}"
    width = min(shutil.get_terminal_size().columns, 100)
    when, advice = (
        textwrap.fill(text, width, initial_indent="     ", subsequent_indent="     ")
        for text in (f"When {row.when}.", f"{row.advice}")
    )
    return f"{head}\n{when}\n{advice}"
