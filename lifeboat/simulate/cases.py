"""Which settings a run has: the configuration, and what a case changes in it.

A case is `key=value` pairs: the name of any setting that bears on the gate, or a key of the
backends, which then holds for all of them. Held by tests/simulate/test_pieces.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lifeboat.core.gate import Gate
from lifeboat.core.vocabulary import BackendSpec, Kind
from lifeboat.fleet.rules import LIVE, gate_rules
from lifeboat.settings import BackendConfig, Configuration, load
from lifeboat.settings.values import BadValueError, Boolean
from lifeboat.sim.config import EngineConfig
from lifeboat.simulate.figures import SAMPLES, Collector, Figures
from lifeboat.simulate.machines import Machine
from lifeboat.simulate.traces import Arrival
from lifeboat.simulate.world import World


class CaseError(ValueError):
    """A case that cannot be run; the message says why."""


def _whole(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise BadValueError(f"must be a whole number of at least {least}")
        return int(text)

    return parse


_OF_BACKENDS: Mapping[str, Callable[[str], int | bool]] = {
    "max_concurrency": _whole(0),
    "max_input_tokens": _whole(0),
    "adaptive": Boolean().parse,
    "replicas": _whole(1),
}
"""Keys of a case that change every backend; replicas: that many of each."""

_OF_ENGINES = ("max_num_seqs", "max_waiting", "gpus", "hardware", "model")
"""Keys of a case that change every simulated engine."""


@dataclass(frozen=True, slots=True)
class Case:
    """One column of a comparison."""

    name: str
    settings: Mapping[str, str]
    backends: Mapping[str, int | bool]
    engines: Mapping[str, str | int]

    @classmethod
    def parse(cls, text: str) -> Case:
        """Return the case of `key=value` pairs with blanks between; raises CaseError."""
        settings: dict[str, str] = {}
        backends: dict[str, int | bool] = {}
        engines: dict[str, str | int] = {}
        for pair in text.split():
            key, equals, value = pair.partition("=")
            if not equals or not value:
                raise CaseError(f"{pair!r} is not key=value")
            try:
                if key in _OF_BACKENDS:
                    backends[key] = _OF_BACKENDS[key](value)
                elif key in _OF_ENGINES:
                    engines[key] = int(value) if value.isdigit() else value
                elif key in LIVE:
                    settings[key] = value
                else:
                    known = ", ".join(sorted([*_OF_BACKENDS, *_OF_ENGINES, "mode", "queue_ttl_s"]))
                    raise CaseError(f"{key!r} changes nothing here; there are {known} ...")
            except BadValueError as error:
                rule = str(error) or f"must be {Boolean().rule}"
                raise CaseError(f"{pair}: {rule}") from None
        return cls(text or "as configured", settings, backends, engines)


def run_case(
    case: Case,
    trace: Sequence[Arrival],
    config: str | None,
    environ: Mapping[str, str],
    directory: Path,
    objective_s: float,
) -> Figures:
    """Run a trace under one case.

    Raises ConfigErrors, sim.problems.ConfigError, and CaseError where no backend has a model.
    """
    configuration = load({"config": config, **case.settings}, environ, directory)
    world, collector = build_world(case, configuration, trace, objective_s)
    world.play(trace)
    world.run()
    return collector.figures(case.name, world)


def build_world(
    case: Case, configuration: Configuration, trace: Sequence[Arrival], objective_s: float
) -> tuple[World, Collector]:
    """Return a world with everything configured in it, and what watches it."""
    gate = Gate(gate_rules(configuration), None, configuration.settings.probe_failures, 0.0)
    machines: dict[str, Machine] = {}
    for backend in _changed(case, configuration.backends):
        engine = _engine(case, backend)
        machines[backend.name] = Machine(backend.name, engine)
        gate.put_backend(_spec(backend, engine), 0.0)
        if backend.kind is Kind.GGUF:
            gate.set_slots(backend.name, engine.max_num_seqs, 0.0)
    members = gate.seats.directory.members
    model = next((name for name, specs in members.items() if specs), None)
    if model is None:
        raise CaseError("there is no backend to simulate")
    until_s = trace[-1].at_s if trace else 0.0
    collector = Collector(until_s / SAMPLES, objective_s)
    aliases = {one.name: one.alias_of for one in configuration.models if one.alias_of}
    world = World(gate, machines, model, collector.ended, aliases=aliases)
    collector.watch(world, until_s)
    return world, collector


def _changed(case: Case, backends: Sequence[BackendConfig]) -> list[BackendConfig]:
    changes = {key: value for key, value in case.backends.items() if key != "replicas"}
    copies = int(case.backends.get("replicas", 1))
    found: list[BackendConfig] = []
    for backend in backends:
        changed = replace(backend, **changes)
        changed = changed if copies == 1 else replace(changed, replicas=copies)
        found += changed.expanded()
    return found


def _engine(case: Case, backend: BackendConfig) -> EngineConfig:
    options: dict[str, object] = {**backend.simulate, **case.engines}
    if backend.kind is Kind.GGUF:
        options.setdefault("personality", "gguf")
    return EngineConfig.from_mapping(options)


def _spec(backend: BackendConfig, engine: EngineConfig) -> BackendSpec:
    cap = backend.max_input_tokens
    return BackendSpec(
        name=backend.name,
        kind=backend.kind,
        serves=backend.serves,
        models=frozenset(backend.models or engine.names),
        max_concurrency=backend.max_concurrency,
        max_input_tokens=engine.context_tokens if cap == "auto" else cap,
        adaptive=backend.adaptive,
    )
