"""Who among the candidates with room serves."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from lifeboat.core.rules import GateRules
from lifeboat.core.selection import LeastUtilised
from tests.core.building import OK, ask, gate_with, leased, spec


@dataclass
class Seen:
    in_flight: int
    limit: int | None
    cap_tokens: float = float("inf")
    last_pick: int = 0


@pytest.mark.parametrize(
    ("candidates", "chosen"),
    [
        ([Seen(1, 4), Seen(1, 8)], 1),
        ([Seen(3, 4), Seen(6, 8)], 0),
        ([Seen(0, 1), Seen(1, 100)], 0),
        ([Seen(3, None), Seen(1, 8)], 0),
        ([Seen(5, None), Seen(1, 8)], 1),
        ([Seen(1, 4), Seen(1, 4, cap_tokens=100)], 1),
        ([Seen(1, 4, cap_tokens=200), Seen(1, 4, cap_tokens=100)], 1),
        ([Seen(0, 4), Seen(1, 4, cap_tokens=100)], 0),
        ([Seen(1, 4, last_pick=9), Seen(1, 4, last_pick=2), Seen(1, 4, last_pick=5)], 1),
        ([Seen(0, 0), Seen(2, 2)], 1),
        ([Seen(0, 0, last_pick=2), Seen(0, 0, last_pick=1)], 1),
    ],
)
def test_least_utilised_then_tightest_cap_then_longest_unpicked(
    candidates: list[Seen], chosen: int
) -> None:
    assert LeastUtilised().choose(candidates) is candidates[chosen]


def test_ties_go_in_rotation() -> None:
    gate = gate_with(spec("a", 4), spec("b", 4), spec("c", 4), rules=GateRules())
    picked: list[str] = []
    for _ in range(7):
        lease = leased(gate, 0.0)
        picked.append(lease.backend)
        gate.release(lease, OK, 0.0)
    assert picked == ["a", "b", "c", "a", "b", "c", "a"]


def test_small_and_large_backends_fill_alike() -> None:
    gate = gate_with(spec("a", 4), spec("b", 12), rules=GateRules())
    counts = Counter(leased(gate, 0.0).backend for _ in range(8))
    assert counts == {"a": 2, "b": 6}


def test_a_tie_leaves_the_roomy_cap_free() -> None:
    gate = gate_with(spec("wide", 1), spec("tight", 1, cap=100), rules=GateRules())
    assert leased(gate, 0.0, ask(tokens=100)).backend == "tight"
    assert leased(gate, 0.0, ask(tokens=101)).backend == "wide"
