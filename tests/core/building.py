"""Short ways to build what the tests of the core are about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lifeboat.core.gate import Effect, Gate, Granted, Refused
from lifeboat.core.queue import Place, Ticket
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
    Reason,
    Refusal,
    Verdict,
)

OK = Outcome(Verdict.ANSWERED, 200)
FULL = Outcome(Verdict.SATURATED, 529)
REFUSED = Outcome(Verdict.REFUSED)
RESET = Outcome(Verdict.RESET)
GONE = Outcome(Verdict.CLIENT_GONE)

QUEUED = GateRules(queue_enabled=True)
"""Default mode with the queue on."""


def spec(
    name: str = "a",
    max_concurrency: int | None = 1,
    models: Iterable[str] | None = ("m",),
    serves: Iterable[Capability] = (Capability.GENERATE,),
    cap: int = 0,
    kind: Kind = Kind.VLLM,
    server: str = "",
) -> BackendSpec:
    listed = None if models is None else frozenset(models)
    return BackendSpec(name, kind, frozenset(serves), listed, max_concurrency, cap, server=server)


def ask(
    model: str = "m",
    tokens: int = 10,
    priority: Priority = Priority.NORMAL,
    capability: Capability = Capability.GENERATE,
    **more: Any,
) -> Ask:
    return Ask(model, capability, Estimate(tokens, tokens), priority, **more)


def gate_with(*specs: BackendSpec, rules: GateRules = QUEUED, now: float = 0.0) -> Gate:
    gate = Gate(rules, now=now)
    for one in specs:
        gate.put_backend(one, now)
    return gate


def leased(gate: Gate, now: float, wanted: Ask | None = None, place: Place | None = None) -> Lease:
    """Admit and insist on a lease."""
    admission = gate.admit(wanted or ask(), now, place)
    assert isinstance(admission, Lease), admission
    return admission


def parked(gate: Gate, now: float, wanted: Ask | None = None, place: Place | None = None) -> Ticket:
    """Admit and insist on a ticket."""
    admission = gate.admit(wanted or ask(), now, place)
    assert isinstance(admission, Ticket), admission
    return admission


def refused(
    gate: Gate, now: float, wanted: Ask | None = None, place: Place | None = None
) -> Refusal:
    """Admit and insist on a refusal."""
    admission = gate.admit(wanted or ask(), now, place)
    assert isinstance(admission, Refusal), admission
    return admission


def grants(effects: Iterable[Effect]) -> list[tuple[Ticket, Lease]]:
    return [(effect.ticket, effect.lease) for effect in effects if isinstance(effect, Granted)]


def granted(gate: Gate) -> list[Ticket]:
    """Take the effects, all of which must be grants, and return whose they are, in order."""
    effects = gate.take_effects()
    found = grants(effects)
    assert len(found) == len(effects), effects
    return [ticket for ticket, _ in found]


def turned_away(effects: Iterable[Effect]) -> list[tuple[Ticket, Reason]]:
    return [
        (effect.ticket, effect.refusal.reason) for effect in effects if isinstance(effect, Refused)
    ]
