"""The queues that a configuration means, as `lifeboat check` tells of them.

What is known before any request: ceilings, TTLs, and how fast simulated engines are. Held by
tests/cli/test_commands.py.
"""

from __future__ import annotations

from lifeboat.core.gate import Gate
from lifeboat.core.snapshot import take_view
from lifeboat.core.view import GateView
from lifeboat.core.vocabulary import BackendSpec
from lifeboat.embedded import engine_of, expected_rates
from lifeboat.fleet import Fleet
from lifeboat.observe.warnings import undrainable
from lifeboat.settings.shapes import Configuration
from lifeboat.sim.config import EngineConfig


class Queues:
    """The queues of a configuration whose embedded engines are sound."""

    def __init__(self, configuration: Configuration) -> None:
        self._view, engines = _planned(configuration)
        self._expected = expected_rates(self._view, engines)

    def warnings(self) -> list[str]:
        """Return the ceilings that cannot drain within their TTL."""
        return [warned.message for warned in undrainable(self._view, self._expected)]

    def needs(self) -> list[str]:
        """Return, for each queue, the rate at which it drains within its TTL."""
        return [
            f"queue of {name}: up to {pool.queue_limit} for {pool.queue_ttl_s:g} s each, all "
            f"served in time from {pool.queue_limit / pool.queue_ttl_s:.3g} requests a second on"
            for name, pool in self._view.pools.items()
            if pool.listed and pool.queue_enabled and pool.queue_limit and pool.members
        ]


def _planned(configuration: Configuration) -> tuple[GateView, dict[str, EngineConfig]]:
    """Return the gate with everything that is configured in it, and the embedded engines."""
    gate = Gate(Fleet.rules(configuration))
    engines: dict[str, EngineConfig] = {}
    for backend in (one for group in configuration.backends for one in group.expanded()):
        models = backend.models
        if backend.embedded:
            engine = engines[backend.name] = engine_of(backend)
            models = models or engine.names
        spec = BackendSpec(
            name=backend.name,
            kind=backend.kind,
            serves=backend.serves,
            models=None if models is None else frozenset(models),
            max_concurrency=backend.max_concurrency,
        )
        gate.put_backend(spec, 0.0)
    return take_view(gate, 0.0), engines
