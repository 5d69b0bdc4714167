"""What a decision of the gate costs: CPU time, never the wall clock.

    python -m bench.core            # admit + release; park + hand-off at three depths, both orders
    python -m bench.core --profile  # where the time of a hand-off goes, at 32,000

Targets: admit + release about 5 us; park + hand-off at most 20 us at a depth of 32,000, and at most
3 times what it costs at 128. Each figure is the best of five runs: other work on the machine only
adds to it.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import random
import time
from collections.abc import Callable

from lifeboat.core.gate import Gate, Granted
from lifeboat.core.modes import Mode
from lifeboat.core.rules import GateRules
from lifeboat.core.seat import Lease
from lifeboat.core.vocabulary import (
    Ask,
    BackendSpec,
    Capability,
    Estimate,
    Kind,
    Outcome,
    Priority,
    Verdict,
)

DEPTHS = (128, 4_096, 32_000)
OPERATIONS = 20_000
RUNS = 5
OK = Outcome(Verdict.ANSWERED, 200)
MODELS = ("m", "n")


def full_gate(mode: Mode) -> Gate:
    """Return a gate with two backends of 32 that share two models, and room to park."""
    gate = Gate(GateRules(mode=mode, queue_enabled=True, max_depth=10**6))
    for name in ("a", "b"):
        spec = BackendSpec(name, Kind.VLLM, frozenset({Capability.GENERATE}), frozenset(MODELS), 32)
        gate.put_backend(spec, 0.0)
    return gate


def asks(count: int, chance: random.Random) -> list[Ask]:
    """Return requests of many sizes, one in ten of another class than normal."""
    found: list[Ask] = []
    for _ in range(count):
        tokens = chance.randrange(1, 5_000)
        priority = chance.choice([Priority.NORMAL] * 18 + [Priority.HIGH, Priority.LOW])
        model = chance.choice(MODELS)
        found.append(Ask(model, Capability.GENERATE, Estimate(tokens, tokens), priority))
    return found


def admit_and_release() -> float:
    """Return CPU microseconds of one request that finds room."""
    gate, (ask,) = full_gate(Mode.DEFAULT), asks(1, random.Random(1))
    now = 1.0
    started = time.process_time()
    for _ in range(OPERATIONS):
        now += 1e-4
        lease = gate.admit(ask, now)
        assert isinstance(lease, Lease)
        gate.release(lease, OK, now)
    return (time.process_time() - started) / OPERATIONS * 1e6


def park_and_hand_off(depth: int, mode: Mode) -> float:
    """Return CPU microseconds of parking one request and handing one slot on, at a steady depth."""
    gate, chance = full_gate(mode), random.Random(2)
    now = 1.0
    leases: list[Lease] = []
    for ask in asks(64 + depth, chance):
        found = gate.admit(ask, now)
        if isinstance(found, Lease):
            leases.append(found)
    arriving = asks(OPERATIONS, chance)
    started = time.process_time()
    for number, ask in enumerate(arriving):
        now += 1e-4
        gate.admit(ask, now)
        gate.release(leases[number % 64], OK, now)
        (effect,) = gate.take_effects()
        assert isinstance(effect, Granted)
        leases[number % 64] = effect.lease
    spent = time.process_time() - started
    assert gate.parked.count == depth
    return spent / OPERATIONS * 1e6


def best(measure: Callable[[], float]) -> float:
    """Return the smallest of some runs, with the garbage of each collected before the next."""
    found: list[float] = []
    for _ in range(RUNS):
        gc.collect()
        found.append(measure())
    return min(found)


def report() -> None:
    print(f"admit + release                    {best(admit_and_release):6.1f} us   (target 5)")
    for mode in (Mode.DEFAULT, Mode.QUEUE_ALL):
        costs = {depth: best(lambda d=depth, m=mode: park_and_hand_off(d, m)) for depth in DEPTHS}
        for depth, cost in costs.items():
            ratio = cost / costs[DEPTHS[0]]
            print(
                f"park + hand-off {mode:9}  {depth:6}  {cost:6.1f} us   "
                f"{ratio:4.2f} x the cost at {DEPTHS[0]}"
            )
    print("targets at 32,000: 20 us and 3 x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", action="store_true")
    if parser.parse_args().profile:
        with cProfile.Profile() as profile:
            park_and_hand_off(DEPTHS[-1], Mode.DEFAULT)
        pstats.Stats(profile).sort_stats("tottime").print_stats(20)
    else:
        report()


if __name__ == "__main__":
    main()
