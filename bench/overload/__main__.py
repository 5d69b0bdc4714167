"""Replay a trace at twice the engines' capacity through each proxy, and compare what came of it.

    python -m bench.overload                      # two rounds of 40 s: about 12 minutes
    python -m bench.overload TRACE.csv --rounds 1 --seconds 20 --no-write

TRACE.csv: of the form of Azure/AzurePublicDataset (TIMESTAMP, ContextTokens, GeneratedTokens); its
azure2023_code.csv lies under tests/recorded/traces and is replayed by default. Two simulated
engines of four seats; the capacity is measured first, with every seat kept busy and no proxy
between. Each proxy is told the same cap and gets the same requests, the same impatient clients and
fresh engines. Read from both ends:

- goodput: whole and right answers within the objective, a second, and as a part of the capacity;
- wrong or missing: answers that were cut, differed, or were neither a 200 nor an honest refusal;
- work for the gone: requests that reached an engine after their client had hung up, and the engine
  seconds spent on any request after that;
- over the cap: requests that met an engine with all seats taken by others.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import aiohttp

from bench.overload.contestants import DEPTH_FACTOR, LONG_TTL_S, Contestant, contestants
from bench.overload.engines import SEATS, TIME_SCALE, Row
from bench.overload.replay import (
    Arrival,
    End,
    Patience,
    Replay,
    Told,
    ask,
    at_rate,
    chat,
    read_trace,
)
from bench.peers.contestants import missing, versions
from bench.peers.processes import Server, free_port, machine
from bench.peers.results import add_write_options, table, wants_writing, write_section

TRACE = Path(__file__).resolve().parents[2] / "tests/recorded/traces/azure2023_code.csv"
ENGINES = 2
OVERLOAD = 2.0
OBJECTIVE_S = 5.0
PATIENCE = Patience(most_s=15.0, restless=0.1)
HANG_UP_GRACE_S = 0.1
"""A hang-up takes a moment from the client to the engine: what arrives within it is no fault."""
END_GRACE_S = 0.02
"""The engine books the end of an answer a moment after its last byte has left."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One run of one proxy. goodput, in requests a second. gone_work_s: engine seconds."""

    goodput: float
    p50_s: float
    ends: Counter[End]
    late: int
    gone_sent: int
    gone_work_s: float
    over_cap: int
    most_in_flight: int
    cpu_ms: float


def over_cap(book: list[Row]) -> tuple[int, int]:
    """Return how many requests met a full engine, and the most that were in one at a time."""
    found, most = 0, 0
    for engine in range(ENGINES):
        edges: list[tuple[float, int]] = []
        for index, _, arrived, ended, _ in book:
            if index == engine:
                edges += [(arrived, 1), (max(arrived, ended - END_GRACE_S), -1)]
        inside = 0
        for _, step in sorted(edges):
            inside += step
            most = max(most, inside)
            found += step > 0 and inside > SEATS
    return found, most


def judge(told: list[Told], book: list[Row], lasted_s: float, cpu_s: float) -> Judged:
    """Bring together what the clients saw and what the engines did."""
    answered = [client.took_s for client in told if client.end is End.ANSWERED]
    good = sum(took_s <= OBJECTIVE_S for took_s in answered)
    left = {client.number: client.left_at for client in told if client.left_at is not None}
    gone_sent, gone_work_s = 0, 0.0
    for _, number, arrived, ended, _ in book:
        left_at = left.get(number)
        if left_at is not None:
            gone_sent += arrived > left_at + HANG_UP_GRACE_S
            gone_work_s += max(0.0, ended - max(arrived, left_at + HANG_UP_GRACE_S))
    violations, most = over_cap(book)
    return Judged(
        good / lasted_s, median(answered) if answered else float("nan"),
        Counter(client.end for client in told), len(answered) - good, gone_sent, gone_work_s,
        violations, most, cpu_s / len(told) * 1000,
    )  # fmt: skip


class Engines:
    """The process of the engines; `stop` returns its book."""

    def __init__(self, directory: Path) -> None:
        self.ports = [free_port() for _ in range(ENGINES)]
        self._book = directory / "book.json"
        ports = [str(port) for port in self.ports]
        command = [sys.executable, "-m", "bench.overload.engines", str(self._book), *ports]
        self._server = Server(command, self.ports[-1], directory / "engines.log")
        self._server.wait_until_listening()

    def stop(self) -> list[Row]:
        self._server.stop()
        return [tuple(row) for row in json.loads(self._book.read_text())]


async def measure_capacity(directory: Path, trace: list[Arrival], seconds: float) -> float:
    """Return requests a second that the engines answer with every seat always taken."""
    engines = Engines(directory)
    numbers = iter(range(len(trace)))
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    answered = 0

    async def seat(session: aiohttp.ClientSession, port: int) -> None:
        nonlocal answered
        while loop.time() < until:
            number = next(numbers)
            body = chat(number, trace[number])
            end, why = await ask(session, f"http://127.0.0.1:{port}", body)
            assert end is End.ANSWERED, why
            answered += 1

    begun = loop.time()
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True)
    ) as session:
        await asyncio.gather(*(seat(session, port) for port in engines.ports for _ in range(SEATS)))
    lasted_s = loop.time() - begun
    engines.stop()
    return answered / lasted_s


async def run_one(contestant: Contestant, trace: list[Arrival], directory: Path) -> Judged:
    """Run the whole trace through one proxy over fresh engines."""
    engines = Engines(directory)
    with contestant.start(engines.ports, directory) as proxy:
        proxy.wait_until_listening()
        url = f"http://127.0.0.1:{proxy.port}"
        await warm(url)
        before = proxy.cpu_s()
        told = await Replay(url, PATIENCE).run(trace)
        spent_s = proxy.cpu_s() - before
    book = engines.stop()
    wrong = Counter(client.why for client in told if client.end is End.WRONG)
    for why, count in wrong.most_common(3):
        print(f"    {count} x {why}")
    return judge(told, book, trace[-1].at_s, spent_s)


async def warm(url: str) -> None:
    """Ask until an answer is right: some proxies listen before they know their backends."""
    async with aiohttp.ClientSession() as session:
        for _ in range(60):
            end, _ = await ask(session, url, chat(10**9, Arrival(0.0, 20, 2)))
            if end is End.ANSWERED:
                return
            await asyncio.sleep(0.5)
    raise RuntimeError(f"{url} does not answer")


def result_table(found: dict[str, list[Judged]], capacity: float) -> str:
    """Return medians over the rounds, and the goodput of each."""
    rows: list[list[str]] = []
    for name, runs in found.items():

        def mid(read: str, runs: list[Judged] = runs) -> float:
            return median(getattr(run, read) for run in runs)

        def ended(end: End, runs: list[Judged] = runs) -> str:
            return f"{median(run.ends[end] for run in runs):g}"

        rows.append(
            [
                name, f"{mid('goodput'):.2f}", f"{mid('goodput') / capacity:.0%}",
                f"{mid('p50_s'):.2f}", f"{mid('late'):g}", ended(End.REFUSED), ended(End.LEFT),
                ended(End.WRONG), f"{mid('gone_sent'):g}", f"{mid('gone_work_s'):.1f}",
                f"{mid('over_cap'):g}", f"{mid('most_in_flight'):g}", f"{mid('cpu_ms'):.2f}",
                ", ".join(f"{run.goodput:.2f}" for run in runs),
            ]
        )  # fmt: skip
    head = [
        "", "goodput/s", "of capacity", "p50 s of answers", "late", "refused", "left",
        "wrong or missing", "sent for the gone", "engine s for the gone", "over the cap",
        "most in one engine", "proxy CPU ms/request", "goodput of each round",
    ]  # fmt: skip
    return table(head, rows)


async def compare(asked: argparse.Namespace, rows: list[Contestant], directory: Path) -> str:
    """Run everything; return the section for bench/RESULTS.md."""
    trace = read_trace(asked.trace, 4000)
    capacity = await measure_capacity(directory, trace, asked.seconds / 2)
    print(f"capacity {capacity:.2f} requests a second", flush=True)
    rate = OVERLOAD * capacity
    replayed = at_rate(trace[: round(rate * asked.seconds)], rate)
    found: dict[str, list[Judged]] = {row.name: [] for row in rows}
    for number in range(asked.rounds):
        for row in rows:
            judged = await run_one(row, replayed, directory)
            found[row.name].append(judged)
            print(f"  round {number + 1} {row.name:22} {judged}", flush=True)
    command = " ".join(("python -m bench.overload", *sys.argv[1:]))
    conditions = (
        f"`{command}`, {datetime.date.today()}, {machine()}. {versions()}.\n\n"
        f"{ENGINES} simulated engines (gpt-oss-20b on B200, {TIME_SCALE:g} times slower) of "
        f"{SEATS} seats carry {capacity:.2f} requests of this trace a second; {len(replayed)} came "
        f"at {OVERLOAD:g} x that in {replayed[-1].at_s:.0f} s, with the trace's bursts. Objective: "
        f"the whole answer within {OBJECTIVE_S:g} s. Clients hang up after {PATIENCE.most_s:g} s, "
        f"{PATIENCE.restless:.0%} of them earlier, by chance. Each proxy runs under two policies: "
        f"to park for {LONG_TTL_S:g} s (at most {DEPTH_FACTOR} requests a slot, where it has such "
        "a bound), and to park as many as come for no longer than the objective allows. Medians of "
        f"{asked.rounds} rounds in turn, on a machine shared with other work."
    )
    return "\n\n".join(("## Overload", conditions, result_table(found, capacity)))


def main() -> int:
    every = contestants(OBJECTIVE_S)
    names = [row.name for row in every]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path, nargs="?", default=TRACE)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=40.0, help="of load per run")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    add_write_options(parser)
    asked = parser.parse_args()
    asked_for = [row for row in every if row.name in asked.only]
    for line in missing(row.program for row in asked_for):
        print(f"LEFT OUT: {line}", flush=True)
    chosen = [row for row in asked_for if not missing([row.program])]
    with tempfile.TemporaryDirectory() as directory:
        text = asyncio.run(compare(asked, chosen, Path(directory)))
    print(text)
    if wants_writing(asked, whole=len(chosen) == len(every)):
        write_section("overload", text)
    return 0 if len(chosen) == len(asked_for) else 1


if __name__ == "__main__":
    sys.exit(main())
