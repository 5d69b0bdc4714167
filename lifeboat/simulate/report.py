"""Runs side by side: the rows of a table, and a page with charts."""

from __future__ import annotations

from collections.abc import Sequence

from lifeboat.charts import Line, html_page, html_table, line_chart
from lifeboat.simulate.figures import Figures, Spread


def rows(runs: Sequence[Figures]) -> list[tuple[str, list[str]]]:
    """Return each figure's name with one cell a run."""
    reasons = sorted({reason for run in runs for reason in run.refused})
    table: list[tuple[str, list[str]]] = [
        ("requests", [str(run.requests) for run in runs]),
        ("answered", [str(run.answered) for run in runs]),
        ("refused", [str(run.refusals) for run in runs]),
    ]
    table += [
        (f"  {reason}", [str(run.refused.get(reason, 0)) for run in runs]) for reason in reasons
    ]
    objective = runs[0].objective_s if runs else 0.0
    table += [
        ("parked", [str(run.parked) for run in runs]),
        ("wait, mean", [_seconds(run.wait.mean_s) for run in runs]),
        ("wait, p50 / p95 / p99", [_spread(run.wait) for run in runs]),
        ("first token, p50 / p95 / p99", [_spread(run.first_token) for run in runs]),
        ("whole answer, p50 / p95 / p99", [_spread(run.took) for run in runs]),
        ("answers per second", [f"{run.answered_per_s:.2f}" for run in runs]),
        ("output tokens per second", [f"{run.tokens_per_s:,.0f}" for run in runs]),
        (f"goodput (first token within {objective:g} s)", [_good(run) for run in runs]),
        ("limit in use", [_share(run.utilization) for run in runs]),
        ("engine seats in use", [_share(run.seats) for run in runs]),
        ("529s of the engines", [str(run.engine_refusals) for run in runs]),
        ("lasted", [_seconds(run.lasted_s) for run in runs]),
    ]
    return table


def _seconds(value_s: float) -> str:
    if value_s >= 100.0:
        return f"{value_s:,.0f} s"
    return f"{value_s:.2f} s" if value_s >= 1.0 else f"{value_s * 1000:.0f} ms"


def _spread(of: Spread) -> str:
    return " / ".join(_seconds(value) for value in (of.p50_s, of.p95_s, of.p99_s))


def _share(value: float | None) -> str:
    return "no gate" if value is None else f"{value:.0%}"


def _good(run: Figures) -> str:
    share = run.good / run.requests if run.requests else 0.0
    return f"{run.goodput_per_s:.2f}/s, {share:.1%}"


def comparison_page(runs: Sequence[Figures], source: str) -> str:
    """Return the comparison as an HTML page of its own."""
    seconds = "seconds since the first arrival"
    charts = [
        line_chart(
            "Parked requests",
            seconds,
            "parked",
            [Line(run.name, [(point.at_s, point.parked) for point in run.course]) for run in runs],
        ),
        line_chart(
            "In flight",
            seconds,
            "requests",
            [
                Line(run.name, [(point.at_s, point.in_flight) for point in run.course])
                for run in runs
            ],
        ),
        line_chart(
            "Effective limit, all backends",
            seconds,
            "requests",
            [
                Line(run.name, [(p.at_s, p.limit) for p in run.course if p.limit is not None])
                for run in runs
            ],
        ),
        line_chart(
            "In line inside the engines",
            seconds,
            "requests",
            [Line(run.name, [(point.at_s, point.waiting) for point in run.course]) for run in runs],
        ),
    ]
    table = html_table(("", *(run.name for run in runs)), [(n, *cells) for n, cells in rows(runs)])
    words = (
        f"{source}, in virtual time: the real gate and queue over simulated engines. "
        "No network, no tokenizer, no client that gives up."
    )
    return html_page("Lifeboat, simulated", [words], [table, *charts])
