"""The measurements of bench/, one after another, each in a process of its own.

    make bench                     # all: half an hour, then a table of what took how long
    make bench BENCH=quick         # those of two minutes together
    python -m bench core peers     # only these

Each is also a command of its own: `python -m bench.core`. The long ones write bench/RESULTS.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from bench.overload.contestants import contestants
from bench.peers.contestants import CONTESTANTS, missing

QUICK: dict[str, tuple[str, ...]] = {
    "core": (),
    "memory": (),
    "observe": (),
    "sim": (),
    "estimate": ("--speed",),
    "hostile_body": (),
    "start": (),
}
"""Name of the module under bench/, and its arguments."""
LONG: dict[str, tuple[str, ...]] = {
    "connections": (),
    "peers": (),
    "overload": (),
    "storm": (),
}
GROUPS = {"quick": QUICK, "long": LONG}
EVERY = QUICK | LONG


def left_out(names: list[str]) -> list[str]:
    """Return which peers the chosen benches will miss, each with its remedy."""
    compared = {"peers": CONTESTANTS, "overload": contestants(objective_s=1.0)}
    return missing(row.program for name in names for row in compared.get(name, ()))


def chosen(words: list[str]) -> list[str]:
    """Return the names that were meant; no word means all of them."""
    names = [name for word in words for name in GROUPS.get(word, (word,))]
    return names or list(EVERY)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = ", ".join((*GROUPS, *EVERY))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {known}")
    names = chosen(parser.parse_args().names)
    if unknown := [name for name in names if name not in EVERY]:
        parser.error(f"no such bench: {', '.join(unknown)}; there are {known}")
    absent = [f"NOT COMPARED: {line}" for line in left_out(names)]
    print(*absent, sep="\n")
    rows: list[tuple[str, int, float]] = []
    for name in names:
        print(f"\n== python -m bench.{' '.join((name, *EVERY[name]))}", flush=True)
        started = time.monotonic()
        command = [sys.executable, "-m", f"bench.{name}", *EVERY[name]]
        ended = subprocess.run(command, check=False)
        rows.append((name, ended.returncode, time.monotonic() - started))
    print(f"\n{'bench':14}{'seconds':>9}  end")
    for name, code, took_s in rows:
        print(f"{name:14}{took_s:9.1f}  {'ok' if code == 0 else f'failed or missed ({code})'}")
    print(*absent, sep="\n")
    return max(abs(code) for _, code, _ in rows)


if __name__ == "__main__":
    sys.exit(main())
