"""`lifeboat simulate`: the router and simulated engines on a jumping clock, over a trace."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from itertools import product
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from lifeboat.cli.columns import columns
from lifeboat.cli.findings import print_errors
from lifeboat.settings.problems import ConfigErrors
from lifeboat.settings.quantities import Duration
from lifeboat.settings.values import BadValueError

if TYPE_CHECKING:
    from lifeboat.simulate.figures import Figures
    from lifeboat.simulate.traces import Arrival

LONGEST_S = 604_800.0


class _Seconds(click.ParamType[float]):
    """A duration, as in the configuration: 500ms, 30s, 10m, 2h or plain seconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        kind = Duration(0, LONGEST_S)
        try:
            return float(kind.parse(value))
        except BadValueError:
            self.fail(
                f"{value!r} must be {kind.rule}, or have a unit: 500ms, 30s, 10m, 2h", param, ctx
            )


@click.command()
@click.option("--config", metavar="FILE", help="Configuration; backends.yaml if it is there.")
@click.option(
    "--trace",
    "path",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Arrivals: azure (CSV), mooncake (JSONL), or JSONL with at, input_tokens, output_tokens.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    help="Instead of a trace: made-up arrivals (Poisson), this many a second.",
)
@click.option(
    "--input-tokens",
    default=500,
    show_default=True,
    type=click.IntRange(1),
    help="With --rate: mean length of a prompt.",
)
@click.option(
    "--output-tokens",
    default=200,
    show_default=True,
    type=click.IntRange(1),
    help="With --rate: mean length of an answer.",
)
@click.option("--seed", default=1, show_default=True, help="With --rate: of chance.")
@click.option(
    "--start", "start_s", default="0s", type=_Seconds(), help="Leave out what comes before."
)
@click.option(
    "--for",
    "length_s",
    type=_Seconds(),
    help="Leave out what comes after; with --rate, 10m by default.",
)
@click.option(
    "--speed",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="The trace, so many times as fast.",
)
@click.option("--mode", "modes", multiple=True, help="A routing mode; several are compared.")
@click.option(
    "--try",
    "tries",
    multiple=True,
    metavar="'KEY=VALUE ...'",
    help="A column of the "
    "comparison: settings, or max_concurrency, adaptive, replicas, max_num_seqs, "
    "max_waiting for all backends. May be repeated.",
)
@click.option(
    "--objective",
    "objective_s",
    default="2s",
    show_default=True,
    type=_Seconds(),
    help="Goodput counts answers whose first token came within this.",
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the comparison with its charts.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def simulate(
    config: str | None, path: Path | None, rate: float | None, input_tokens: int,
    output_tokens: int, seed: int, start_s: float, length_s: float | None, speed: float,
    modes: tuple[str, ...], tries: tuple[str, ...], objective_s: float, html: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Run a trace through the router in virtual time: what would wait, what would be refused.

    The real gate and queue decide, simulated engines compute, nothing listens and nothing waits:
    an hour of a trace takes seconds. A backend with a url is stood in for by a simulated engine;
    give it the seats of the real one with --try max_num_seqs=N. Exit code 2 for a wrong call.
    """
    from lifeboat.sim.problems import ConfigError
    from lifeboat.simulate.cases import Case, CaseError, run_case
    from lifeboat.simulate.report import comparison_page
    from lifeboat.simulate.traces import TraceError, excerpt, read_trace, synthetic

    if (path is None) == (rate is None):
        raise click.UsageError("give --trace FILE or --rate N")
    trace: list[Arrival]
    try:
        if path is not None:
            trace = excerpt(read_trace(path), start_s, length_s or inf, speed)
        else:
            assert rate is not None
            trace = synthetic(rate * speed, length_s or 600.0, input_tokens, output_tokens, seed)
        cases = [Case.parse(text) for text in _case_texts(modes, tries)]
        runs: list[Figures] = []
        for case in cases:
            if len(cases) > 1:
                click.echo(f"running: {case.name}", err=True)
            runs.append(run_case(case, trace, config, os.environ, Path.cwd(), objective_s))
        if html is not None:
            source = path.name if path else "made-up arrivals"
            html.write_text(comparison_page(runs, source), "utf-8")
            click.echo(f"wrote {html}", err=True)
    except ConfigErrors as errors:
        print_errors(errors)
        sys.exit(2)
    except OSError as error:
        _complain(f"{error.filename}: {error.strerror}. Name a file that can be used")
    except (TraceError, CaseError, ConfigError) as error:
        _complain(str(error))
    if as_json:
        click.echo(json.dumps({"runs": [run.as_json() for run in runs]}, indent=2))
    else:
        click.echo(_as_text(runs))


def _complain(text: str) -> NoReturn:
    click.echo(f"{click.style('error', fg='red', bold=True)}: {text}", err=True)
    sys.exit(2)


def _case_texts(modes: Sequence[str], tries: Sequence[str]) -> list[str]:
    """Return every mode with every try; one case with no change where neither is given."""
    return [
        f"{'mode=' + mode if mode else ''} {text}".strip()
        for mode, text in product(modes or ("",), tries or ("",))
    ]


def _as_text(runs: Sequence[Figures]) -> str:
    from lifeboat.charts import sparkline
    from lifeboat.simulate.report import rows

    parts = [columns(("", *(run.name for run in runs)), [(n, *cells) for n, cells in rows(runs)])]
    for run in runs:
        name = f"{run.name}: " if len(runs) > 1 else ""
        parked = sparkline([point.parked for point in run.course])
        flying = sparkline([point.in_flight for point in run.course])
        most = max((point.parked for point in run.course), default=0)
        most_flying = max((point.in_flight for point in run.course), default=0)
        parts.append(
            f"{name}in flight {flying} up to {most_flying}\n"
            f"{' ' * len(name)}parked    {parked} up to {most}"
        )
    return "\n\n".join(parts)
