"""Simulated engines that run inside the router: what `kind: simulated` without a url means.

How fast they are is known before any request: `expected_rates`, held by tests/sim/test_expected.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING

from lifeboat.core.capacity import healthy_slots
from lifeboat.core.view import GateView
from lifeboat.core.vocabulary import Capability, OperatorState
from lifeboat.settings.shapes import BackendConfig

if TYPE_CHECKING:
    from lifeboat.sim.config import EngineConfig
    from lifeboat.sim.server import SimulatedServer


def engine_of(config: BackendConfig) -> EngineConfig:
    """Return the engine that an embedded backend means. Raises sim.config.ConfigError."""
    from lifeboat.sim.config import EngineConfig

    options: dict[str, object] = {
        **config.simulate,
        "serves": sorted(can.value for can in config.serves),
    }
    if config.models:
        # One engine under all its names, as with adapters over one base model.
        options["served_name"] = list(config.models)
    return EngineConfig.from_mapping(options)


USUAL_INPUT_TOKENS = 200
USUAL_OUTPUT_TOKENS = 100
"""A request of usual length: what `lifeboat tune` asks for by default."""


def expected_rates(view: GateView, engines: Mapping[str, EngineConfig]) -> dict[str, float]:
    """Return the requests of usual length that pools serve per second with all their slots full.

    engines: by backend name. Pools with a backend that is none of them are left out, and so is one
    with nothing in service. Pools that share an engine are each told the whole of it.
    """
    found: dict[str, float] = {}
    for name, pool in view.pools.items():
        members = [view.backends[member] for member in pool.members if member in view.backends]
        ready = [member for member in members if member.operator_state is OperatorState.READY]
        if not ready or any(member.spec.name not in engines for member in ready):
            continue
        rates = [
            engine_rate(engines[member.spec.name], healthy_slots(member, view)) for member in ready
        ]
        if None not in rates:
            found[name] = sum(rate for rate in rates if rate is not None)
    return found


@lru_cache(maxsize=1024)
def engine_rate(engine: EngineConfig, limit: int | None) -> float | None:
    """Return how many requests of usual length an engine serves per second of wall time.

    limit: requests at once, None = no gate. None where it does not generate, or has no room for
    such a request.
    """
    if Capability.GENERATE not in engine.serves:
        return None
    running = engine.max_num_seqs
    if limit is not None:
        running = min(running, ceil(limit / engine.replicas))
    answer = min(USUAL_OUTPUT_TOKENS, engine.answer_tokens or USUAL_OUTPUT_TOKENS)
    # Imported here: a router without embedded engines needs none of it.
    from lifeboat.sim.pace import requests_per_s

    if engine.context_tokens < USUAL_INPUT_TOKENS + answer:
        return None
    rate = requests_per_s(engine.engines()[0], running, USUAL_INPUT_TOKENS, answer)
    return None if rate is None else engine.replicas * rate / engine.time_scale


class Embedded:
    """The simulated engines that run inside the router, by url."""

    def __init__(self) -> None:
        self._servers: dict[str, SimulatedServer] = {}
        self._engines: dict[str, tuple[str, EngineConfig]] = {}

    async def start(self, config: BackendConfig) -> str:
        """Start the engine of one backend on a free loopback port."""
        # Imported here: a router without embedded engines needs none of it.
        from lifeboat.sim.server import SimulatedServer

        engine = engine_of(config)
        server = SimulatedServer([engine])
        url = await server.start(host="127.0.0.1", port=0)
        self._servers[url] = server
        self._engines[url] = (config.name, engine)
        return url

    def expected_rates(self, view: GateView) -> dict[str, float]:
        """Return what the engines that run here are known to serve at the most, by pool."""
        return expected_rates(view, dict(self._engines.values())) if self._engines else {}

    async def stop(self, url: str) -> None:
        """Stop the engines behind a url; does nothing for one that is not ours."""
        self._engines.pop(url, None)
        server = self._servers.pop(url, None)
        if server is not None:
            await server.close()

    async def close(self) -> None:
        """Stop all."""
        for url in list(self._servers):
            await self.stop(url)
