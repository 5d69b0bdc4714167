"""Users in a closed loop over the real gate and one engine whose seats are turned: virtual time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from lifeboat.core.gate import Gate
from lifeboat.core.rules import GateRules
from lifeboat.core.vocabulary import BackendSpec, Capability, Kind
from lifeboat.sim.config import EngineConfig
from lifeboat.simulate.machines import Machine
from lifeboat.simulate.traces import Arrival
from lifeboat.simulate.world import Trip, World

PHASES = ((0.0, 64), (30.0, 16), (60.0, 64))
"""(from virtual second, seats)."""
END_S = 90.0


@dataclass(frozen=True, slots=True)
class Course:
    """limits: (at, limit) four times a second. tokens_per_s: by phase. ended: what clients saw."""

    limits: list[tuple[float, int]]
    tokens_per_s: list[float]
    ended: Counter[str]
    reasons: set[str]

    def between(self, since_s: float, until_s: float) -> list[int]:
        return [limit for at_s, limit in self.limits if since_s <= at_s < until_s]


def run(
    max_concurrency: int,
    *,
    adaptive: bool,
    users: int = 150,
    max_waiting: int = 8,
    prompt: int = 100,
    answer: int = 100,
    phases: Sequence[tuple[float, int]] = PHASES,
    end_s: float = END_S,
) -> Course:
    machine = Machine("a", EngineConfig(max_num_seqs=phases[0][1], max_waiting=max_waiting))
    gate = Gate(GateRules(queue_enabled=True, queue_ttl_s=1e6, max_depth=users))
    serves = frozenset({Capability.GENERATE})
    spec = BackendSpec(
        "a", Kind.SIMULATED, serves, frozenset({"m"}), max_concurrency, adaptive=adaptive
    )
    gate.put_backend(spec, 0.0)
    rng = random.Random(2026)
    ended: Counter[str] = Counter()
    tokens: list[tuple[float, int]] = []

    def request() -> Arrival:
        def about(mean: int) -> int:
            return max(1, int(mean * rng.uniform(0.5, 1.5)))

        return Arrival(0.0, about(prompt), about(answer))

    def again(trip: Trip) -> None:
        ended[trip.ended or "answered"] += 1
        tokens.append((world.now_s, trip.arrival.output_tokens))
        world.ask(request(), world.now_s)

    world = World(gate, {"a": machine}, "m", again)
    for _ in range(users):
        world.ask(request(), 0.0)
    for at_s, seats in phases:
        world.at(at_s, lambda seats=seats: machine.retune(seats))
    limits: list[tuple[float, int]] = []
    reasons: set[str] = set()
    while world.now_s < end_s:
        world.run(world.now_s + 0.25)
        seat = gate.seats.by_name["a"]
        limits.append((world.now_s, seat.limit or 0))
        reasons.add(seat.reason.value)
    bounds = [at_s for at_s, _ in phases] + [end_s]
    rates = [
        sum(count for at_s, count in tokens if since_s <= at_s < until_s) / (until_s - since_s)
        for since_s, until_s in pairwise(bounds)
    ]
    return Course(limits, rates, ended, reasons)
