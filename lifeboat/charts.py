"""Charts as SVG inside one HTML file, and as bars in a terminal: no library, no network, no script.

Held by tests/simulate/test_pieces.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import floor, isfinite, log10

WIDTH, HEIGHT = 720, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 16, 40
"""Pixels: of a chart, and around its plane for the labels of the axes."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
"""Okabe and Ito's palette, which stays apart for the colour-blind; by turns where there are more.
Lines also differ in their dashes."""
DASHES = ("", "7 4", "2 3", "9 3 2 3")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: (x, y) points in order of x."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line that says something: the knee, a change of capacity."""

    x: float
    text: str


def ticks(most: float, wanted: int = 5) -> list[float]:
    """Return round values from 0 to at least `most`, about `wanted` of them."""
    if not isfinite(most) or most <= 0.0:
        return [0.0, 1.0]
    raw = most / wanted
    power = 10.0 ** floor(log10(raw))
    step = next(power * by for by in (1.0, 2.0, 2.5, 5.0, 10.0) if power * by >= raw * 0.999)
    found = [0.0]
    while found[-1] < most * 0.999:
        found.append(found[-1] + step)
    return found


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"


class _Plane:
    """Data to pixels."""

    def __init__(self, lines: Sequence[Line], marks: Sequence[Mark]) -> None:
        xs = [x for line in lines for x, _ in line.points] + [mark.x for mark in marks]
        ys = [y for line in lines for _, y in line.points]
        self.x_ticks = ticks(max(xs, default=1.0), 8)
        self.y_ticks = ticks(max(ys, default=1.0))

    def x(self, value: float) -> float:
        return LEFT + value / self.x_ticks[-1] * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / self.y_ticks[-1] * (HEIGHT - TOP - BOTTOM)


def line_chart(
    title: str,
    x_label: str,
    y_label: str,
    lines: Sequence[Line],
    marks: Sequence[Mark] = (),
    *,
    dots: bool = False,
) -> str:
    """Return a figure: the title, the lines over one pair of axes from 0, and their legend."""
    plane = _Plane(lines, marks)
    parts = [*_axes(plane, x_label, y_label)]
    for at, line in enumerate(lines):
        colour, dash = COLOURS[at % len(COLOURS)], DASHES[at % len(DASHES)]
        path = " ".join(f"{plane.x(x):.1f},{plane.y(y):.1f}" for x, y in line.points)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" '
            f'stroke-dasharray="{dash}"/>'
        )
        if dots:
            parts += [
                f'<circle cx="{plane.x(x):.1f}" cy="{plane.y(y):.1f}" r="3.5" fill="{colour}">'
                f"<title>{escape(line.name)}: {_number(y)} at {_number(x)}</title></circle>"
                for x, y in line.points
            ]
    for mark in marks:
        at_x = plane.x(mark.x)
        # Words to the right of the line would leave the picture near its edge.
        anchor, text_x = ("end", at_x - 5) if at_x > WIDTH * 0.7 else ("start", at_x + 5)
        parts.append(
            f'<line x1="{at_x:.1f}" x2="{at_x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" '
            f'class="mark"/><text x="{text_x:.1f}" y="{HEIGHT - BOTTOM - 8}" '
            f'text-anchor="{anchor}" class="strong">{escape(mark.text)}</text>'
        )
    return _figure(title, parts, [line.name for line in lines])


def _axes(plane: _Plane, x_label: str, y_label: str) -> list[str]:
    parts: list[str] = []
    for value in plane.y_ticks:
        y = plane.y(value)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(value)}</text>'
        )
    parts += [
        f'<text x="{plane.x(value):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">'
        f"{_number(value)}</text>"
        for value in plane.x_ticks
    ]
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 6}" text-anchor="middle">'
        f'{escape(x_label)}</text><text x="12" y="{middle:.0f}" text-anchor="middle" '
        f'transform="rotate(-90 12 {middle:.0f})">{escape(y_label)}</text>'
    )
    return parts


def _figure(title: str, parts: Sequence[str], names: Sequence[str]) -> str:
    legend = "".join(
        f'<span><i style="background:{COLOURS[at % len(COLOURS)]}"></i>{escape(name)}</span>'
        for at, name in enumerate(names)
        if len(names) > 1
    )
    svg = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )
    return f"<figure><figcaption>{escape(title)}</figcaption>{svg}<p>{legend}</p></figure>"


_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --faint: #8884; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --paper: #16181c; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
figure { margin: 2rem 0; } figcaption { font-weight: 600; } svg { width: 100%; height: auto; }
svg text { font-size: 12px; fill: currentColor; } svg .strong { font-weight: 600; }
.grid { stroke: var(--faint); } .mark { stroke: currentColor; stroke-dasharray: 4 3; }
figure p { margin: 0; } figure span { margin-right: 1.2em; white-space: nowrap; }
figure i { display: inline-block; width: .8em; height: .8em; margin-right: .4em; }
div.wide { overflow-x: auto; } table { border-collapse: collapse; }
th, td { padding: .2em .7em; text-align: right; border-bottom: 1px solid var(--faint); }
th:first-child, td:first-child { text-align: left; } td { white-space: nowrap; }
"""


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    titles = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f'<div class="wide"><table><tr>{titles}</tr>{body}</table></div>'


def html_page(title: str, words: Sequence[str], parts: Sequence[str]) -> str:
    """Return a page: the title, paragraphs of plain text, then finished parts."""
    said = "".join(f"<p>{escape(line)}</p>" for line in words)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1>{said}{''.join(parts)}</body></html>\n"
    )


_EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(value: float, most: float, width: int = 30) -> str:
    """Return a bar of `width` characters at `most`, exact to an eighth of a character."""
    share = min(max(value / most, 0.0), 1.0) if most > 0.0 else 0.0
    eighths = round(share * width * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).strip().ljust(width)


_LEVELS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """Return a series as a row of at most `width` blocks; each is the mean of its part."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [at * len(values) // count for at in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    most = max(means)
    if most <= 0.0:
        return _LEVELS[0] * count
    return "".join(_LEVELS[min(int(mean / most * 8), 7)] for mean in means)
