"""What `explain` tells is what `admit` then does, and telling it changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings

from lifeboat.core.explain import Explanation, explain
from lifeboat.core.queue import Place, Ticket
from lifeboat.core.seat import Lease
from lifeboat.core.snapshot import take_view
from lifeboat.core.vocabulary import Ask, OperatorState, Refusal
from tests.core.building import ask, gate_with, leased, parked, spec
from tests.core.driving import GateDriver


class ExplainedMachine(GateDriver):
    """Every first arrival is explained before it is admitted."""

    def __init__(self) -> None:
        super().__init__()
        self.told: Explanation | None = None

    def admit(self, ask: Ask, place: Place | None = None) -> None:
        self.told = None
        if place is None:
            # As the door does: what is due comes first.
            self.step(lambda: self.gate.advance(self.now))
            before = take_view(self.gate, self.now)
            self.told = explain(self.gate, ask, self.now)
            assert take_view(self.gate, self.now) == before
        super().admit(ask, place)

    def after_admission(
        self, ask: Ask, place: Place | None, found: Lease | Ticket | Refusal
    ) -> None:
        told = self.told
        if told is None:
            return
        assert [told.backend is not None, told.parked, told.refusal is not None].count(True) == 1
        if isinstance(found, Lease):
            assert (told.backend, told.pool) == (found.backend, found.pool_name)
            mine = next(part for part in told.backends if part.name == found.backend)
            # A slot is taken where there is room; what takes none needs no room.
            assert mine.candidate and (mine.with_room or not ask.gated)
        elif isinstance(found, Ticket):
            assert told.parked and told.pool == found.pool_name
            assert told.ahead == self.gate.pools[found.pool_name].depth - 1
        else:
            assert told.refusal == found


TestExplain = ExplainedMachine.TestCase
TestExplain.settings = settings(
    max_examples=120,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestExplain.pytestmark = [pytest.mark.timeout(300)]


def test_each_backend_says_its_part() -> None:
    gate = gate_with(
        spec("small", 2, cap=5),
        spec("other", 2, models=["n"]),
        spec("full", 1),
        spec("shut", 3),
    )
    gate.set_operator_state("shut", OperatorState.DRAIN, 0.0)
    leased(gate, 1.0)
    parked(gate, 2.0)
    told = explain(gate, ask(), 3.0)
    assert told.parked and told.ahead == 1
    said = {part.name: (part.candidate, part.with_room, part.why) for part in told.backends}
    assert said["small"][:2] == (False, False) and "5" in said["small"][2]
    assert said["other"][:2] == (False, False) and "m" in said["other"][2]
    assert said["full"] == (True, False, "1 in flight, effective limit 1 (configured)")
    assert said["shut"] == (True, False, "it is in drain")


def test_a_request_for_its_maker_has_that_one_candidate() -> None:
    gate = gate_with(spec("maker", 2), spec("other", 2))
    gate.put_backend(replace(spec("maker", 2), models=None), 0.0)
    told = explain(gate, replace(ask(), backend="maker"), 1.0)
    assert told.backend == "maker"
    said = {part.name: (part.candidate, part.with_room, part.why) for part in told.backends}
    assert said["maker"][:2] == (True, True)
    assert said["other"][:2] == (False, False) and "maker" in said["other"][2]
