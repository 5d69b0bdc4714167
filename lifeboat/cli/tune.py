"""`lifeboat tune URL`: which max_concurrency a model server wants."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lifeboat.cli.columns import columns
from lifeboat.embedded import USUAL_INPUT_TOKENS, USUAL_OUTPUT_TOKENS
from lifeboat.settings.urls import parse_url
from lifeboat.settings.values import BadValueError

if TYPE_CHECKING:
    from lifeboat.tune.asking import Server
    from lifeboat.tune.knee import Step

REQUEST_TIMEOUT_S = 600.0

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def _number(
    flag: str,
    default: float,
    bounds: click.IntRange | click.FloatRange,
    says: str,
    parameter: str | None = None,
) -> Decorator:
    """Return an option that takes a number. parameter: its name in code, if not the flag's."""
    names = (flag,) if parameter is None else (flag, parameter)
    return click.option(*names, default=default, show_default=True, type=bounds, help=says)


@click.command()
@click.argument("url")
@click.option("--model", help="The model to ask; by default the first that the server lists.")
@click.option(
    "--api-key",
    envvar="LIFEBOAT_TUNE_API_KEY",
    help="Sent as a bearer token. Better "
    "given by the variable LIFEBOAT_TUNE_API_KEY: command lines can be read.",
)
@_number("--up-to", 256, click.IntRange(1, 4096), "The highest concurrency.")
@click.option("--steps", "chosen", metavar="N,N,...", help="These concurrencies and no others.")
@_number("--step", 5.0, click.FloatRange(0.2, 600.0), "Seconds measured in each step.", "step_s")
@_number(
    "--budget",
    180.0,
    click.FloatRange(1.0, 86_400.0),
    "Seconds after which no step begins.",
    "budget_s",
)
@_number(
    "--refine", 3, click.IntRange(0, 10), "Steps between those of the ladder, to place the knee."
)
@_number(
    "--input-tokens",
    USUAL_INPUT_TOKENS,
    click.IntRange(1, 100_000),
    "Mean length of a prompt, in words.",
)
@_number(
    "--output-tokens",
    USUAL_OUTPUT_TOKENS,
    click.IntRange(2, 100_000),
    "Mean length of an answer.",
)
@click.option("--seed", default=1, show_default=True, help="Of the lengths.")
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the measurement with its charts.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def tune(
    url: str, model: str | None, api_key: str | None, up_to: int, chosen: str | None,
    step_s: float, budget_s: float, refine: int, input_tokens: int, output_tokens: int, seed: int,
    html: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure a model server at rising concurrency, and say which max_concurrency to set.

    Point it at the server itself, not at the router, while nobody else uses it. Choose lengths like
    those of your traffic. Exit code 1 when nothing was answered, 2 when no server is there.
    """
    from lifeboat.tune.asking import TuneError
    from lifeboat.tune.knee import advise
    from lifeboat.tune.report import HEAD, advice_lines, page, rows
    from lifeboat.tune.report import as_json as report_json

    try:
        address = parse_url(url if "://" in url else f"http://{url}")
    except BadValueError as error:
        raise click.UsageError(f"{url!r} is no URL of a server: {error}") from None
    run = _Run(address, up_to, _chosen(chosen), step_s, budget_s, refine)
    try:
        server, steps = asyncio.run(run.measure(model, api_key, input_tokens, output_tokens, seed))
    except TuneError as error:
        click.echo(f"{click.style('error', fg='red', bold=True)}: {error}", err=True)
        sys.exit(2)
    advice = advise(steps, server.slots)
    if html is not None:
        html.write_text(page(address, server.model, steps, advice), "utf-8")
        click.echo(f"wrote {html}", err=True)
    if as_json:
        click.echo(json.dumps(report_json(address, server.model, steps, advice), indent=2))
    else:
        click.echo(columns(HEAD, rows(steps)))
        if advice is not None:
            click.echo("\n" + "\n".join(advice_lines(advice)))
    if advice is None:
        click.echo("error: no step was answered without refusals", err=True)
        sys.exit(1)


def _chosen(text: str | None) -> list[int]:
    if text is None:
        return []
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1 or found[-1] > 4096:
        raise click.UsageError("--steps wants whole numbers from 1 to 4096 with commas between")
    return found


class _Run:
    """One measurement, with its progress bar."""

    def __init__(
        self, url: str, up_to: int, chosen: list[int], step_s: float, budget_s: float, refine: int
    ) -> None:
        from lifeboat.tune.knee import ladder

        self._url = url
        self._up_to = up_to
        self._chosen = chosen
        self._step_s = step_s
        self._budget_s = budget_s
        self._refine = refine
        self._most_steps = len(chosen) or len(ladder(up_to)) + refine

    async def measure(
        self,
        model: str | None,
        api_key: str | None,
        input_tokens: int,
        output_tokens: int,
        seed: int,
    ) -> tuple[Server, list[Step]]:
        """Meet the server and climb; raises TuneError."""
        import aiohttp

        from lifeboat.tune.asking import Asker
        from lifeboat.tune.measuring import Measuring

        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        # A connection for each request: llama.cpp closes those it has answered on, and a request
        # that meets the closing is lost.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(
            headers=headers, timeout=timeout, connector=connector
        ) as session:
            rng = random.Random(seed)
            asker = Asker(session, self._url, input_tokens, output_tokens, rng, time.monotonic)
            server = await asker.meet(model)
            measuring = Measuring(asker, time.monotonic, self._step_s)
            # On stderr, where it disturbs no pipe; silent where that is no terminal.
            with click.progressbar(
                length=self._most_steps, label=f"measuring {server.model}", file=sys.stderr
            ) as progress:

                def shown(step: Step) -> None:
                    progress.label = f"{step.concurrency} at once: {step.tokens_per_s:,.0f} tok/s"
                    progress.update(1)

                steps = await measuring.climb(
                    self._up_to, self._refine, self._budget_s, shown, self._chosen
                )
        return server, steps
