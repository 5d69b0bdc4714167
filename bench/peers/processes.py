"""Processes that a bench starts, and what their trees cost, from /proc (Linux)."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_READY_S = 90.0
"""Longest wait for a server to listen: the largest one imports for half a minute."""


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Server:
    """A server that the bench started; a context manager that ends it."""

    def __init__(
        self, command: list[str], port: int, log: Path, environ: Mapping[str, str] | None = None
    ) -> None:
        self.port = port
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env={**os.environ, **(environ or {})},
            )  # fmt: skip

    def wait_until_listening(self) -> None:
        """Raises RuntimeError, with the end of its log, when it ends or does not listen in time."""
        until = time.monotonic() + _READY_S
        while time.monotonic() < until and self.process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        self.stop()
        raise RuntimeError(f"{self.process.args} does not listen:\n{tail(self.log)}")

    def cpu_s(self) -> float:
        """Return the CPU seconds that the process and all its descendants have used."""
        return tree_cpu_s(self.process.pid)

    def stop(self) -> None:
        """End it; by force after ten seconds."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def tail(log: Path) -> str:
    """Return the last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


def tree_cpu_s(root: int) -> float:
    """Return user and system seconds of a process tree, its ended and awaited children included."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(entry.name)
        # After the name: state, parent, ...; utime, stime, cutime, cstime are 14 to 17 of all.
        children.setdefault(int(fields[1]), []).append(pid)
        ticks[pid] = sum(map(int, fields[11:15]))
    total, pending = 0, [root]
    while pending:
        pid = pending.pop()
        total += ticks.get(pid, 0)
        pending += children.get(pid, [])
    return total * _TICK_S


def machine() -> str:
    """Return what the figures were measured on, in words."""
    model = next(
        (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")),
        "unknown CPU",
    )  # fmt: skip
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    return f"{os.cpu_count()} x {model}, {memory_kib / (1 << 20):.0f} GiB"
