"""The 503 of a known model: why each of its backends is not sent this very request."""

from __future__ import annotations

from lifeboat.core.health import Probe, ProbeResult
from lifeboat.core.rules import GateRules
from lifeboat.core.vocabulary import Capability, OperatorState, Reason, Refusal
from tests.core.building import RESET, ask, gate_with, leased, refused, spec


def test_nothing_in_service_says_what_keeps_a_request_from_those_that_are() -> None:
    specs = (spec("small", cap=20), spec("embedder", serves=(Capability.EMBED,)), spec("large"))
    gate = gate_with(*specs, rules=GateRules())
    for one in specs:
        gate.observe_probe(one.name, Probe(ProbeResult.OK), 0.0)
    gate.observe_probe("large", Probe(ProbeResult.REFUSED), 0.0)
    found = refused(gate, 0.0, ask(tokens=35))
    assert (found.reason, found.temporary) == (Reason.NO_BACKENDS, True)
    assert found.message.startswith(
        "no backend for 'm' that can take this request is in service: large is down (connection "
        "refused), small cannot: its max_input_tokens 20 is below the estimate of 35, embedder "
        "cannot: it does not serve `generate`; start or undrain one that can take it, or set "
    )


def test_nothing_in_service_names_who_has_failed_the_request_already() -> None:
    gate = gate_with(spec("a"), spec("b"), rules=GateRules())
    lease = leased(gate, 0.0)
    gate.exclude(lease.place, lease)
    gate.release(lease, RESET, 1.0)
    (other,) = {"a", "b"} - {lease.backend}
    gate.set_operator_state(other, OperatorState.MAINT, 1.0)
    found = gate.admit(lease.ask, 1.0, lease.place)
    assert isinstance(found, Refusal)
    assert f"{other} is in maint, {lease.backend} has failed it" in found.message
