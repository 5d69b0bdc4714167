"""`lifeboat explain`: what a running router would do with a request, and why; it sends none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any, cast

import click

from lifeboat.cli.columns import columns
from lifeboat.cli.remote import call, json_option, token_of, token_options, url_option
from lifeboat.core.vocabulary import Priority


@click.command()
@click.argument("body", type=click.File("rb"), metavar="FILE|-")
@click.option(
    "--path",
    default="/v1/chat/completions",
    show_default=True,
    metavar="PATH",
    help="The path that the request would go to.",
)
@click.option(
    "--priority",
    type=click.Choice([priority.value for priority in Priority]),
    help="The class it would ask for.",
)
@url_option
@token_options
@json_option
def explain(
    body: IO[bytes], path: str, priority: str | None, url: str | None, token: str | None,
    token_file: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Say what a running router would do with a request's body, read from a file or standard input.

    Exit code 0 when it would be sent or parked, 1 when it would be refused (or the router refuses
    to tell), 2 when the body is not JSON or no router answers.
    """
    try:
        asked: object = json.loads(body.read())
    except ValueError as error:
        raise click.BadParameter(f"is not JSON: {error}", param_hint="FILE") from None
    question = {"path": path, "body": asked, "priority": priority}
    told = call(url, "POST", "/api/lb/explain", question, token_of(token, token_file))
    click.echo(json.dumps(told, indent=2) if as_json else _text(told))
    if told.get("decision") == "refuse":
        raise click.exceptions.Exit(1)


def _text(told: dict[str, Any]) -> str:
    parts = [_decision(told)]
    estimate = cast("dict[str, Any] | None", told.get("estimate"))
    if estimate:
        caps = ", ".join(map(str, estimate.get("caps") or [])) or "none"
        parts.append(
            f"estimate {estimate.get('tokens')} tokens ({estimate.get('method')}); "
            f"input caps: {caps}"
        )
    backends = cast("list[dict[str, Any]]", told.get("backends") or [])
    if backends:
        head = ("backend", "candidate", "room", "why")
        rows = [
            (
                str(one.get("name")),
                "yes" if one.get("candidate") else "no",
                "yes" if one.get("room") else "no",
                str(one.get("why") or ""),
            )
            for one in backends
        ]
        parts.append(columns(head, rows))
    return "\n\n".join(parts)


def _decision(told: dict[str, Any]) -> str:
    """Return in one line what would happen."""
    match told.get("decision"):
        case "dispatch":
            return f"it would be sent to {told.get('backend')} at once"
        case "park":
            return f"it would be parked, behind {told.get('ahead', 0)} others"
        case _:
            # The gate's reason is null; a path that is not proxied is refused for none.
            reason = f" {told['reason'] or 'the gate'}" if "reason" in told else ""
            line = f"it would be refused: {told.get('status')}{reason}: {told.get('message')}"
            advice = told.get("advice")
            return f"{line}\n{advice}" if advice else line
