"""bench/RESULTS.md: one section a bench, each replaced as a whole by its next run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "RESULTS.md"
_TITLE = "# Measured results\n\nWritten by the benches themselves; each section is one run.\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table: the first column to the left, the others to the right."""
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)


def write_section(name: str, text: str) -> None:
    """Put a section in its place, the others left as they are."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    page = RESULTS.read_text() if RESULTS.exists() else _TITLE
    section = f"{begin}{text.strip()}\n{end}"
    before, found, rest = page.partition(begin)
    page = before + section + rest.partition(end)[2] if found else f"{page}\n{section}"
    RESULTS.write_text(page)


def add_write_options(parser: argparse.ArgumentParser) -> None:
    """Let the caller say whether bench/RESULTS.md is written; by default only a whole run is."""
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--write", action="store_true", help="into bench/RESULTS.md, even of a partial run"
    )
    choice.add_argument("--no-write", action="store_true", help="leave bench/RESULTS.md alone")


def wants_writing(asked: argparse.Namespace, *, whole: bool) -> bool:
    """Say whether to write, and tell when not. whole: nothing was left out or made shorter."""
    writes = asked.write or (whole and not asked.no_write)
    if not writes:
        print("bench/RESULTS.md is left as it is" + ("" if whole else " (--write replaces it)"))
    return writes
