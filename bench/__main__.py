"""The quick measurements of bench/, one after another, each in a process of its own.

    make bench                     # all of QUICK, then a table of what took how long
    python -m bench core sim       # only these

Each is also a command of its own: `python -m bench.core`. The benches that start other programs and
take minutes are run by name: `python -m bench.peers`, `python -m bench.overload`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(QUICK)}")
    names = parser.parse_args().names or list(QUICK)
    unknown = [name for name in names if name not in QUICK]
    if unknown:
        parser.error(f"no such quick bench: {', '.join(unknown)}")
    rows: list[tuple[str, int, float]] = []
    for name in names:
        print(f"\n== python -m bench.{' '.join((name, *QUICK[name]))}", flush=True)
        started = time.monotonic()
        command = [sys.executable, "-m", f"bench.{name}", *QUICK[name]]
        ended = subprocess.run(command, check=False)
        rows.append((name, ended.returncode, time.monotonic() - started))
    print(f"\n{'bench':14}{'seconds':>9}  end")
    for name, code, took_s in rows:
        print(f"{name:14}{took_s:9.1f}  {'ok' if code == 0 else f'failed or missed ({code})'}")
    print(
        "\nAgainst other proxies: python -m bench.peers; under overload: python -m bench.overload"
    )
    return max(abs(code) for _, code, _ in rows)


if __name__ == "__main__":
    sys.exit(main())
