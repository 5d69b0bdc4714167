"""What a parked request costs in memory at the gate and the door: without sockets and frames.

    python -m bench.memory

10,000 tasks wait at a door, each holding a body of 1 KiB; figures are growth of the resident set
over the number of tasks. The target of 16 KiB a request is for the whole router, with its socket,
parser and HTTP frames: what is measured here is the part that waiting itself costs.
"""

from __future__ import annotations

import asyncio
import gc
import os

from lifeboat.core.gate import Gate
from lifeboat.core.rules import GateRules
from lifeboat.core.seat import Lease
from lifeboat.core.vocabulary import (
    Ask,
    BackendSpec,
    Capability,
    Estimate,
    Kind,
    Refusal,
)
from lifeboat.door import Door

PARKED = 10_000
BODY_BYTES = 1_024


def resident_bytes() -> int:
    """Return the resident set of this process (Linux)."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def new_gate(now: float) -> Gate:
    """Return a gate with one backend of one slot."""
    gate = Gate(GateRules(queue_enabled=True, max_depth=10**6), now=now)
    generate, models = frozenset({Capability.GENERATE}), frozenset({"m"})
    gate.put_backend(BackendSpec("a", Kind.VLLM, generate, models, 1), now)
    return gate


def new_ask(number: int) -> Ask:
    """Return a request that shares no object with another."""
    return Ask("m", Capability.GENERATE, Estimate(1000 + number, 1000 + number), body_bytes=1024)


def at_the_gate() -> float:
    """Return bytes per ticket, without a task and a body."""
    gate = new_gate(0.0)
    gate.admit(new_ask(0), 0.0)
    gc.collect()
    before = resident_bytes()
    for number in range(PARKED):
        gate.admit(new_ask(number), 1000.0 + number / 7)
    gc.collect()
    return (resident_bytes() - before) / PARKED


async def at_the_door() -> list[float]:
    """Return bytes per parked task with its body, for the same crowd coming and leaving thrice."""
    loop = asyncio.get_running_loop()
    door = Door(new_gate(loop.time()), loop.time)

    async def client(number: int) -> Lease | Refusal:
        body = bytes([number % 256]) * BODY_BYTES
        found = await door.enter(new_ask(number))
        assert body
        return found

    running = await door.enter(new_ask(0))
    assert isinstance(running, Lease)
    gc.collect()
    before = resident_bytes()
    found: list[float] = []
    for _ in range(3):
        tasks = [asyncio.create_task(client(number)) for number in range(PARKED)]
        await asyncio.sleep(0)
        assert door.view().parked == PARKED
        gc.collect()
        found.append((resident_bytes() - before) / PARKED)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        del tasks, task
    return found


def main() -> None:
    print(f"a ticket at the gate          {at_the_gate():8.0f} bytes")
    first, *again = asyncio.run(at_the_door())
    print(f"a task at the door, body 1 KiB {first:7.0f} bytes")
    print("the same, once they left and came again:", *(f"{figure:.0f}" for figure in again))
    print("target, for the whole router: 16384 bytes")


if __name__ == "__main__":
    main()
