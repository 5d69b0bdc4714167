"""What was measured, as text, as JSON and as a page with charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lifeboat.charts import Line, Mark, bar, html_page, html_table, line_chart
from lifeboat.tune.knee import Advice, Step

HEAD = ("at once", "tokens/s", "", "answers/s", "first token", "p95", "between tokens", "refused")

DEFAULT_MULTIPLIER = 4
DEFAULT_TTL_S = 30
"""The router's own defaults, which the advice compares with."""


def rows(steps: Sequence[Step]) -> list[tuple[str, ...]]:
    """Return the steps as cells of a table; the third is a bar of the throughput."""
    most = max((step.tokens_per_s for step in steps), default=0.0)
    return [
        (
            str(step.concurrency),
            f"{step.tokens_per_s:,.0f}",
            bar(step.tokens_per_s, most),
            f"{step.answers_per_s:.2f}",
            _ms(step.first_token_s),
            _ms(step.first_token_p95_s),
            _ms(step.gap_s),
            str(step.refused + step.failed),
        )
        for step in steps
    ]


def _ms(value_s: float | None) -> str:
    if value_s is None:
        return "-"
    return f"{value_s:.2f} s" if value_s >= 1.0 else f"{value_s * 1000:.1f} ms"


def advice_lines(advice: Advice) -> list[str]:
    """Return the advice in sentences, the first one the value to set."""
    lines = [f"Set max_concurrency: {advice.max_concurrency}", f"Why: {advice.why}."]
    rate = advice.knee.answers_per_s
    if rate <= 0.0:
        lines.append("No answer was complete within the step: make it longer with --step.")
        return lines
    depths = ", ".join(f"{depth} in {ttl} s" for ttl, depth in advice.depths.items())
    lines.append(f"Queue: it drains {rate:.2f} requests/s, so what is parked drains {depths}.")
    ceiling = DEFAULT_MULTIPLIER * advice.max_concurrency
    needs_s = ceiling / rate
    if needs_s > DEFAULT_TTL_S:
        lines.append(
            f"With the defaults, {ceiling} may park for {DEFAULT_TTL_S} s, but need {needs_s:.0f} "
            f"s to drain: the last ones would expire. Set queue.max_depth to "
            f"{advice.depths[DEFAULT_TTL_S]} a backend, or a longer queue.ttl."
        )
    else:
        lines.append(
            f"The default ceiling of {ceiling} drains in {needs_s:.1f} s, within the default TTL "
            f"of {DEFAULT_TTL_S} s."
        )
    return lines


def as_json(url: str, model: str, steps: Sequence[Step], advice: Advice | None) -> dict[str, Any]:
    """Return everything for `--json`."""
    return {
        "url": url,
        "model": model,
        "steps": [
            {
                "concurrency": step.concurrency,
                "tokens_per_sec": round(step.tokens_per_s, 3),
                "answers_per_sec": round(step.answers_per_s, 4),
                "first_token_p50_sec": step.first_token_s,
                "first_token_p95_sec": step.first_token_p95_s,
                "inter_token_p50_sec": step.gap_s,
                "answers": step.answers,
                "refused": step.refused,
                "failed": step.failed,
            }
            for step in steps
        ],
        "max_concurrency": None if advice is None else advice.max_concurrency,
        "why": None if advice is None else advice.why,
        "slots": None if advice is None else advice.slots,
        "still_rising": None if advice is None else advice.climbing,
        "drain_rate_per_sec": None if advice is None else round(advice.knee.answers_per_s, 4),
        "queue_depth_by_ttl_sec": {}
        if advice is None
        else {str(ttl): depth for ttl, depth in advice.depths.items()},
    }


def page(url: str, model: str, steps: Sequence[Step], advice: Advice | None) -> str:
    """Return the measurement as an HTML page of its own."""
    marks = [] if advice is None else [Mark(advice.max_concurrency, f"{advice.max_concurrency}")]
    at_once = "requests at once"

    def times(name: str, values: Sequence[tuple[int, float | None]]) -> Line:
        return Line(name, [(float(at), value * 1000) for at, value in values if value is not None])

    charts = [
        line_chart(
            "Throughput",
            at_once,
            "output tokens/s",
            [Line("tokens/s", [(float(s.concurrency), s.tokens_per_s) for s in steps])],
            marks,
            dots=True,
        ),
        line_chart(
            "Time to first token",
            at_once,
            "ms",
            [
                times("median", [(s.concurrency, s.first_token_s) for s in steps]),
                times("p95", [(s.concurrency, s.first_token_p95_s) for s in steps]),
            ],
            marks,
            dots=True,
        ),
        line_chart(
            "Time between tokens of one answer",
            at_once,
            "ms",
            [times("median", [(s.concurrency, s.gap_s) for s in steps])],
            marks,
            dots=True,
        ),
    ]
    head = [name or "of the best" for name in HEAD]
    best = max((step.tokens_per_s for step in steps), default=0.0)
    shares = [f"{step.tokens_per_s / best:.0%}" if best else "-" for step in steps]
    cells = [(*row[:2], share, *row[3:]) for row, share in zip(rows(steps), shares, strict=True)]
    lines = ["Nothing was answered."] if advice is None else advice_lines(advice)
    return html_page(f"{model} at {url}", lines, [html_table(head, cells), *charts])
