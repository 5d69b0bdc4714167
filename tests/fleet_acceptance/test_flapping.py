"""A health page that says 200 and 500 in turn, under live traffic: the figures stay exact."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from tests.conformance.lanes import COMPLETION, answer
from tests.conformance.probed import FAST, Probed
from tests.fleet_acceptance.crowd import crowd
from tests.peers import Peer, Received
from tests.running import Running, backend, backends_yaml, running_router

CLIENTS = 24
CAP = 6
HOLD_S = 0.03
LISTING = {"object": "list", "data": [{"id": "m"}]}


class Flapping:
    """A probe's script: every second answer is a 500. flips: answers so far."""

    def __init__(self) -> None:
        self.flips = 0

    async def __call__(self, peer: Peer, asked: Received) -> None:
        self.flips += 1
        if self.flips % 2:
            await peer.send(answer(LISTING))
        else:
            await peer.send(answer({"error": {"message": "unwell"}}, b"500 Internal Server Error"))


class Counted:
    """A script that holds each request a moment, and counts what runs."""

    def __init__(self) -> None:
        self.running = 0
        self.most_running = 0

    async def __call__(self, peer: Peer, asked: Received) -> None:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(HOLD_S)
        self.running -= 1
        await peer.send(answer(COMPLETION))


class Samples:
    """Compares the gate with the engines, in one step of the loop that both run on."""

    def __init__(self, running: Running, engines: dict[str, Counted]) -> None:
        self.running = running
        self.engines = engines
        self.count = 0
        self.healths: set[str] = set()

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(0.003)

    def look(self) -> None:
        view = self.running.router.view()
        self.count += 1
        leases = 0
        for name, engine in self.engines.items():
            backend_ = view.backends[name]
            self.healths.add(backend_.health.value)
            leases += backend_.in_flight
            # What runs in the engine holds a slot; one more may be on its way there or back.
            assert engine.running <= backend_.in_flight <= CAP
        assert leases == view.open_leases
        assert view.open_leases == view.pools["m"].in_flight


async def test_in_flight_is_exact_at_every_sample_while_health_flaps(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    scripts = {"a": Counted(), "b": Counted()}
    flapping = Flapping(), Flapping()
    async with Probed(flapping[0], scripts["a"]) as one, Probed(flapping[1], scripts["b"]) as two:
        yaml = backends_yaml(
            backend(one.url, "a", max_concurrency=CAP),
            backend(two.url, "b", max_concurrency=CAP),
            queue={"enabled": True, "max_depth": 100},
        )
        environ = {**FAST, "LIFEBOAT_PROBE_FAILURES": "1"}
        async with running_router(yaml, tmp_path, environ) as running:
            samples = Samples(running, scripts)
            sampling = asyncio.create_task(samples.run())
            async with crowd(running.url, CLIENTS, tokens=1) as clients:
                await asyncio.sleep(3.0)
            assert not sampling.done(), sampling.exception()
            sampling.cancel()
            await running.settle()
            # Streams of this engine are plain answers; all that counts is that each was answered.
            assert not clients.bad()
            assert max(script.most_running for script in scripts.values()) == CAP
            flips = sum(flap.flips for flap in flapping)
            assert flips > 60
            # No thundering: flaps neither shed load onto the other nor slow what is served.
            ideal = 2 * CAP / HOLD_S * 3.0
            served = len(clients.seen)
            share = min(len(engine.asked) for engine in (one, two)) / served
            measured(
                f"{flips} probes, {samples.count} samples, {served} served of {ideal:.0f} at best, "
                f"the smaller share {share:.2f}, healths seen {sorted(samples.healths)}"
            )
            assert share > 0.4
            assert samples.healths <= {"up", "starting"}
