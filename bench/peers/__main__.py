"""Compare what a request costs through each proxy, over the same stub backend.

    python -m bench.peers                        # five rounds, three seconds a figure: 3 minutes
    python -m bench.peers --rounds 3 --only HAProxy Lifeboat --no-write

A closed loop of 32 connections; CPU microseconds of the proxy's process tree per request, for a
small JSON answer and for a stream of 200 events. The proxies take turns within a round, so that
other work on a shared machine meets them alike; figures are medians over the rounds, and all rounds
are printed. Then latency at half of the rate that the slowest proxy carried, less the stub's own.
Targets (issue 5): Lifeboat at most 0.5 x vllm-router and 2 x HAProxy for JSON, 0.9 x and 1.7 x for
streams; added latency p99 below twice HAProxy's.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.peers.contestants import CONTESTANTS, Contestant, missing, versions
from bench.peers.processes import Server, free_port, machine
from bench.peers.results import add_write_options, table, wants_writing, write_section

CONNECTIONS = 32
KINDS = ("json", "stream")
TARGETS = {
    "json": {"vllm-router": 0.5, "HAProxy": 2.0},
    "stream": {"vllm-router": 0.9, "HAProxy": 1.7},
}
LATENCY_TARGET = 2.0
"""Most times HAProxy's added p99."""
DIRECT = "the stub itself"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement. cpu_us: of the proxy's tree, per request. rate: requests a second."""

    cpu_us: float
    rate: float
    p50_ms: float
    p99_ms: float


class Comparison:
    """The running proxies, and all that was measured of them."""

    def __init__(self, stub: Server, servers: Mapping[str, Server], seconds: float) -> None:
        self._stub = stub
        self.servers = servers
        self._seconds = seconds
        self.figures: dict[tuple[str, str], list[Figure]] = defaultdict(list)

    def measure(self, name: str, kind: str, rate: float | None = None) -> Figure:
        """Put a load on one proxy; raises RuntimeError when a request failed."""
        server = self._stub if name == DIRECT else self.servers[name]
        command = [
            sys.executable, "-m", "bench.peers.load", str(server.port), kind, str(CONNECTIONS),
            str(self._seconds), *([] if rate is None else [str(rate)]),
        ]  # fmt: skip
        before = server.cpu_s()
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        spent_s = server.cpu_s() - before
        if ended.returncode:
            raise RuntimeError(f"{name}, {kind}: {ended.stderr[-2000:]}")
        page = json.loads(ended.stdout)
        count = page["requests"]
        return Figure(spent_s / count * 1e6, count / self._seconds, page["p50_ms"], page["p99_ms"])

    def closed_round(self) -> None:
        """Measure every proxy once with each kind of answer."""
        for kind in KINDS:
            for name in self.servers:
                figure = self.measure(name, kind)
                self.figures[name, kind].append(figure)
                print(f"  {kind:6} {name:20} {figure.cpu_us:8.0f} us {figure.rate:8.0f} /s")

    def latency_round(self, rate: float) -> None:
        """Measure the latency of small requests that come at this rate."""
        for name in (DIRECT, *self.servers):
            figure = self.measure(name, "json", rate)
            self.figures[name, "latency"].append(figure)
            print(
                f"  at {rate:.0f}/s {name:20} p50 {figure.p50_ms:6.2f} p99 {figure.p99_ms:6.2f} ms"
            )

    def cpu_us(self, name: str, kind: str) -> float:
        """Return the median over the rounds."""
        return median(figure.cpu_us for figure in self.figures[name, kind])


@contextlib.contextmanager
def running(
    contestants: list[Contestant], directory: Path
) -> Iterator[tuple[Server, dict[str, Server]]]:
    """Start the stub and the proxies; end them all."""
    with contextlib.ExitStack() as stack:
        port = free_port()
        command = [sys.executable, "-m", "bench.peers.stub", str(port)]
        stub = stack.enter_context(Server(command, port, directory / "stub.log"))
        stub.wait_until_listening()
        servers: dict[str, Server] = {}
        for contestant in contestants:
            servers[contestant.name] = stack.enter_context(contestant.start(port, directory))
        for server in servers.values():
            server.wait_until_listening()
        yield stub, servers


def cost_tables(comparison: Comparison) -> str:
    """Return medians, ratios and all rounds."""
    names = list(comparison.servers)
    parts: list[str] = []
    for kind in KINDS:
        title = "Small JSON" if kind == "json" else "Streams of 200 events"
        rows: list[list[str]] = []
        for name in names:
            figures = comparison.figures[name, kind]
            own = comparison.cpu_us(name, kind)
            ratios = [
                f"{own / comparison.cpu_us(base, kind):.2f}" if base in names else "-"
                for base in ("HAProxy", "vllm-router")
            ]
            rate = f"{median(f.rate for f in figures):.0f}"
            rounds = ", ".join(f"{f.cpu_us:.0f}" for f in figures)
            rows.append([name, f"{own:.0f}", *ratios, rate, rounds])
        head = ["", "CPU us", "x HAProxy", "x vllm-router", "requests/s", "CPU us of each round"]
        parts.append(f"**{title}**\n\n{table(head, rows)}")
        parts.append("\n".join(f"- {line}" for line in verdicts(comparison, kind)))
    return "\n\n".join(parts)


def verdicts(comparison: Comparison, kind: str) -> list[str]:
    """Return whether Lifeboat keeps its targets."""
    found: list[str] = []
    for base, most in TARGETS[kind].items():
        if not {"Lifeboat", base} <= comparison.servers.keys():
            continue
        ratio = comparison.cpu_us("Lifeboat", kind) / comparison.cpu_us(base, kind)
        word = "kept" if ratio <= most else "MISSED"
        found.append(f"Lifeboat / {base}: {ratio:.2f}, target at most {most:g}: {word}")
    return found


def latency_table(comparison: Comparison, rate: float) -> str:
    """Return what each proxy adds to the stub's own latency."""
    figures = comparison.figures
    own50, own99 = (
        median(getattr(f, key) for f in figures[DIRECT, "latency"]) for key in ("p50_ms", "p99_ms")
    )
    rows: list[list[str]] = []
    added: dict[str, float] = {}
    for name in comparison.servers:
        found = figures[name, "latency"]
        p50, p99 = median(f.p50_ms for f in found), median(f.p99_ms for f in found)
        added[name] = p99 - own99
        rounds = ", ".join(f"{f.p99_ms:.2f}" for f in found)
        rows.append([name, f"{p50 - own50:.2f}", f"{added[name]:.2f}", rounds])
    text = (
        f"**Latency added at {rate:.0f} small requests a second**, half of what the slowest "
        f"carried (the stub itself: p50 {own50:.2f}, p99 {own99:.2f} ms)\n\n"
        + table(["", "p50 ms", "p99 ms", "whole p99 of each round"], rows)
    )
    if {"Lifeboat", "HAProxy"} <= added.keys():
        most = LATENCY_TARGET * added["HAProxy"]
        word = "kept" if added["Lifeboat"] <= most else "MISSED"
        text += (
            f"\n\n- Lifeboat adds {added['Lifeboat']:.2f} ms at p99, target at most "
            f"{LATENCY_TARGET:g} x HAProxy's {added['HAProxy']:.2f}: {word}"
        )
    return text


def main() -> int:
    names = [contestant.name for contestant in CONTESTANTS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of load per figure")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    add_write_options(parser)
    asked = parser.parse_args()
    asked_for = [contestant for contestant in CONTESTANTS if contestant.name in asked.only]
    for line in missing(contestant.program for contestant in asked_for):
        print(f"LEFT OUT: {line}", flush=True)
    chosen = [row for row in asked_for if not missing([row.program])]
    with (
        tempfile.TemporaryDirectory() as directory,
        running(chosen, Path(directory)) as (stub, servers),
    ):
        comparison = Comparison(stub, servers, asked.seconds)
        # One round that is not counted: connections, code and memory become warm.
        for kind in KINDS:
            for name in servers:
                comparison.measure(name, kind)
        for number in range(asked.rounds):
            print(f"round {number + 1}", flush=True)
            comparison.closed_round()
        rate = min(median(f.rate for f in comparison.figures[n, "json"]) for n in servers) / 2
        for _ in range(asked.rounds):
            comparison.latency_round(rate)
    command = " ".join(("python -m bench.peers", *sys.argv[1:]))
    conditions = (
        f"`{command}`, {datetime.date.today()}, {machine()}. {versions()}.\n\n"
        f"Closed loop of {CONNECTIONS} connections, {asked.rounds} rounds of {asked.seconds:g} s "
        "in turn, after one that is not counted; CPU is user and system time of the proxy's "
        "process tree. The machine was shared with other work: read the ratios, which the turns "
        "protect, before the figures."
    )
    title = "## Cost of a request, against other proxies"
    tables = (cost_tables(comparison), latency_table(comparison, rate))
    text = "\n\n".join((title, conditions, *tables))
    print(text)
    if wants_writing(asked, whole=len(chosen) == len(CONTESTANTS)):
        write_section("peers", text)
    return 0 if len(chosen) == len(asked_for) else 1


if __name__ == "__main__":
    sys.exit(main())
