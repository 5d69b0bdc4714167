"""How long the router takes to be ready, against importing its dependencies.

    python -m bench.start

Target (issue 2): ready within 1.5 times what a Python takes that only imports the modules of
others (packages and the standard library) that the router imports. Both are the best of some runs
of a fresh process, from its start: by the clock, and in CPU time of the process, which other work
on the machine does not touch. Both find their modules compiled, as an installer leaves them,
whatever the environment says of writing bytecode.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

RUNS = 7
TARGET = 1.5
PROBE = "import sys; sys.stdout.write(' listens on \\n'); sys.stdout.flush(); sys.stdin.read()"


def dependencies(directory: str) -> list[str]:
    """Return the modules of others that a router imports until it is ready, in their order."""
    log = Path(directory) / "imports.log"
    with log.open("wb") as errors:
        until_ready(
            [sys.executable, "-X", "importtime", "-m", "lifeboat", "serve"], directory, errors
        )
    rows = [line.rpartition("|")[2].strip() for line in log.read_text().splitlines()]
    return [name for name in rows if name and not name.startswith(("imported", "lifeboat"))]


def environment(directory: str) -> dict[str, str]:
    """Return the environment of a measured process; the first run compiles what it imports."""
    own = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {**own, "PYTHONPYCACHEPREFIX": f"{directory}/compiled", "LIFEBOAT_PORT": "0"}


def until_ready(
    command: list[str], directory: str, errors: IO[bytes] | None = None
) -> tuple[float, float]:
    """Run a command until it says that it listens; return seconds by the clock, and of CPU."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    with subprocess.Popen(
        command, cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=errors or subprocess.DEVNULL, env=environment(directory),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        while b" listens on " not in (line := process.stdout.readline()):
            assert line, f"{command} ended"
        ready_s = time.perf_counter() - started
        process.send_signal(signal.SIGKILL)
        process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return ready_s, cpu_s


def best(measure: Callable[[], tuple[float, float]]) -> tuple[float, float]:
    """Return the best of RUNS, each figure by itself."""
    runs = [measure() for _ in range(RUNS)]
    return min(run[0] for run in runs), min(run[1] for run in runs)


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        packages = dependencies(directory)
        # Their own `__main__`s and aliases are in no file: what cannot be imported so is skipped.
        imports = (
            "import importlib, contextlib\n"
            f"for name in {packages!r}:\n"
            "    with contextlib.suppress(Exception): importlib.import_module(name)\n"
            f"{PROBE}"
        )
        bare = best(lambda: until_ready([sys.executable, "-c", PROBE], directory))
        imported = best(lambda: until_ready([sys.executable, "-c", imports], directory))
        serve = [sys.executable, "-m", "lifeboat", "serve"]
        ready = best(lambda: until_ready(serve, directory))
        one = [*serve, "--backend", "http://127.0.0.1:9"]
        plain = best(lambda: until_ready(one, directory))
    print(f"{len(packages)} modules of others")
    rows = {
        "Python alone": bare,
        "its dependencies imported": imported,
        "ready, one backend that is down": plain,
        "ready, two simulated backends": ready,
    }
    print(f"{'':34}{'clock':>9}{'CPU':>9}")
    for name, (clock_s, cpu_s) in rows.items():
        print(f"{name:34}{clock_s * 1000:6.0f} ms{cpu_s * 1000:6.0f} ms")
    ratio, cpu_ratio = ready[0] / imported[0], ready[1] / imported[1]
    print(f"ready / dependencies: {ratio:.2f} by the clock, {cpu_ratio:.2f} in CPU")
    print(f"target {TARGET:g} by the clock")
    return 0 if ratio <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
