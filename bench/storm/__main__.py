"""A storm against a router process: cancels, kills, retunes, reloads, slow peers, at random.

    python -m bench.storm                              # ten minutes
    python -m bench.storm --seconds 30 --seed 7 --no-write

`lifeboat serve` over six scripted engines, which keep their own count of what runs in them; clients
of every kind; an operator who turns every knob. bench/storm/laws.py has the laws; exit code 1 when
one was broken, or never looked at. tests/acceptance/test_storm.py is the short one.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import sys
import tempfile
from pathlib import Path

from bench.peers.processes import machine
from bench.peers.results import add_write_options, table, wants_writing, write_section
from bench.storm.laws import Law
from bench.storm.storm import Storm, storm

WHOLE_S = 600.0


def report(found: Storm, command: str) -> str:
    """Return its section of bench/RESULTS.md."""
    laws = found.laws
    rows = [[law.value, f"{laws.looks[law]}", f"{laws.broken[law]}"] for law in Law]
    figures = [[what, figure] for what, figure in found.figures.items()]
    faults = [f"- BROKEN: {line}" for line in laws.faults()]
    verdict = "\n".join(faults) if faults else "No violation."
    conditions = f"`{command}`, {datetime.date.today()}, {machine()}, shared with other work."
    parts = ("## Storm", conditions, verdict, table(["law", "looks", "broken"], rows))
    return "\n\n".join((*parts, table(["", "measured"], figures)))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=WHOLE_S)
    parser.add_argument("--seed", type=int, default=1)
    add_write_options(parser)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = asyncio.run(storm(asked.seconds, asked.seed, Path(directory)))
    text = report(found, " ".join(("python -m bench.storm", *sys.argv[1:])))
    print(text)
    if wants_writing(asked, whole=asked.seconds >= WHOLE_S):
        write_section("storm", text)
    return 1 if found.laws.faults() else 0


if __name__ == "__main__":
    sys.exit(main())
