"""The measurements of bench/, one after another, each in a process of its own.

    make bench                     # all: half an hour, then a table of what took how long
    make bench BENCH=quick         # those of four minutes together
    python -m bench core peers     # only these

Each is also a command of its own: `python -m bench.core`. The long ones write bench/RESULTS.md
themselves; what the quick ones print is written there when all of them were run.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
import time

from bench.overload.contestants import contestants
from bench.peers.contestants import CONTESTANTS, missing
from bench.peers.processes import machine
from bench.peers.results import write_section

QUICK: dict[str, tuple[str, ...]] = {
    "core": (),
    "memory": (),
    "observe": (),
    "sim": (),
    "estimate": ("--speed",),
    "hostile_body": (),
    "hostile_router": (),
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


def run(command: list[str]) -> tuple[int, str]:
    """Run a command; return its exit code and what it printed, which is shown as it comes."""
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return process.returncode, "".join(lines)


def quick_section(printed: dict[str, str]) -> str:
    """Return what the quick benches printed, as a section of bench/RESULTS.md."""
    parts = ["## The quick benches", f"`make bench`, {datetime.date.today()}, {machine()}."]
    for name, arguments in QUICK.items():
        command = " ".join((f"python -m bench.{name}", *arguments))
        parts.append(f"`{command}`\n\n```text\n{printed[name].strip()}\n```")
    return "\n\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    known = ", ".join((*GROUPS, *EVERY))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {known}")
    names = chosen(parser.parse_args().names)
    if unknown := [name for name in names if name not in EVERY]:
        parser.error(f"no such bench: {', '.join(unknown)}; there are {known}")
    absent = [f"NOT COMPARED: {line}" for line in left_out(names)]
    print(*absent, sep="\n")
    rows: list[tuple[str, int, float]] = []
    printed: dict[str, str] = {}
    for name in names:
        print(f"\n== python -m bench.{' '.join((name, *EVERY[name]))}", flush=True)
        started = time.monotonic()
        code, printed[name] = run([sys.executable, "-m", f"bench.{name}", *EVERY[name]])
        rows.append((name, code, time.monotonic() - started))
    if printed.keys() >= QUICK.keys():
        write_section("quick", quick_section(printed))
    print(f"\n{'bench':14}{'seconds':>9}  end")
    for name, code, took_s in rows:
        print(f"{name:14}{took_s:9.1f}  {'ok' if code == 0 else f'failed or missed ({code})'}")
    print(*absent, sep="\n")
    return max(abs(code) for _, code, _ in rows)


if __name__ == "__main__":
    sys.exit(main())
