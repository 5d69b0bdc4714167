"""Plain tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

import click


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows under bold headings, each column as wide as its widest cell."""
    widths = [max(len(line[at]) for line in (head, *rows)) for at in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        return "  ".join(padded).rstrip()

    return "\n".join([click.style(line(head), bold=True), *map(line, rows)])
