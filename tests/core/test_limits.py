"""The effective limit: what wins, and under which name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifeboat.core.limits import (
    LimitInputs,
    LimitReason,
    LimitRules,
    configured_limit,
    effective_limit,
    shared,
)
from lifeboat.core.modes import Mode
from lifeboat.core.vocabulary import Health, Kind, OperatorState

DEFAULT = LimitRules(Mode.DEFAULT)
SUPERFAST = LimitRules(Mode.SUPERFAST)
HALF = LimitRules(Mode.DEFAULT, share=0.5)


def known(configured: int | None = 8, kind: Kind = Kind.VLLM, **more: Any) -> LimitInputs:
    return LimitInputs(kind, configured, **more)


@pytest.mark.parametrize(
    ("inputs", "rules", "limit", "reason"),
    [
        (known(8), DEFAULT, 8, "configured"),
        (known(None), DEFAULT, 32, "default"),
        (known(None), replace(DEFAULT, default_max_concurrency=7), 7, "default"),
        (known(0), DEFAULT, None, "ungated"),
        (known(None, Kind.GGUF), DEFAULT, 16, "gguf_default"),
        (known(None, Kind.GGUF, slots=4), DEFAULT, 4, "engine_slots"),
        (known(None, Kind.GGUF, slots=0), DEFAULT, 16, "gguf_default"),
        (known(8, Kind.GGUF, slots=4), DEFAULT, 8, "configured"),
        (known(None, Kind.VLLM, slots=4), DEFAULT, 32, "default"),
        (known(32), SUPERFAST, 4, "superfast"),
        (known(3), SUPERFAST, 3, "configured"),
        (known(4), SUPERFAST, 4, "configured"),
        (known(0), SUPERFAST, 4, "superfast"),
        (known(9), HALF, 4, "share"),
        (known(1), HALF, 1, "configured"),
        (known(0), HALF, None, "ungated"),
        (known(8), replace(SUPERFAST, share=0.5), 2, "share"),
        (known(8, adaptive=5), DEFAULT, 5, "adaptive"),
        (known(8, adaptive=8), DEFAULT, 8, "configured"),
        (known(8, adaptive=5, saturated=3), DEFAULT, 3, "saturated"),
        (known(8, adaptive=3, saturated=3), DEFAULT, 3, "adaptive"),
        (known(8, saturated=0), DEFAULT, 0, "saturated"),
        (known(0, saturated=40), DEFAULT, 40, "saturated"),
        (known(8, saturated=12), DEFAULT, 8, "configured"),
        (known(8, lingering=3), DEFAULT, 5, "predecessor"),
        (known(8, lingering=9), DEFAULT, 0, "predecessor"),
        (known(8, lingering=1), SUPERFAST, 3, "predecessor"),
        (known(8, lingering=3), HALF, 1, "predecessor"),
        (known(0, lingering=3), DEFAULT, None, "ungated"),
        (known(8, lingering=3, saturated=4), DEFAULT, 4, "saturated"),
        (known(8, lingering=3, saturated=5), DEFAULT, 5, "predecessor"),
        (known(8, suspect=1), DEFAULT, 1, "suspect"),
        (known(8, suspect=0, saturated=0), DEFAULT, 0, "saturated"),
        (known(8, throttled=True), DEFAULT, 0, "throttled"),
        (known(8, health=Health.DOWN, throttled=True), DEFAULT, 0, "down"),
        (known(8, health=Health.LOADING), DEFAULT, 0, "loading"),
        (known(8, health=Health.STARTING), DEFAULT, 8, "configured"),
        (known(8, health=Health.SUSPECT), DEFAULT, 8, "configured"),
        (known(0, operator_state=OperatorState.DRAIN), DEFAULT, 0, "drain"),
        (known(8, operator_state=OperatorState.MAINT, health=Health.DOWN), DEFAULT, 0, "maint"),
    ],
)
def test_the_strictest_input_wins_and_names_itself(
    inputs: LimitInputs, rules: LimitRules, limit: int | None, reason: str
) -> None:
    assert effective_limit(inputs, rules) == (limit, LimitReason(reason))


@pytest.mark.parametrize(
    ("value", "share", "part"),
    [(10, 1.0, 10), (10, 0.5, 5), (5, 0.5, 2), (1, 0.1, 1), (0, 0.5, 0), (100, 0.57, 57),
     (100, 0.29, 29), (3, 0.999, 2)],
)  # fmt: skip
def test_a_share_is_rounded_down_and_at_least_one(value: int, share: float, part: int) -> None:
    assert shared(value, share) == part


ceilings = st.none() | st.integers(0, 40)


@given(
    st.builds(
        LimitInputs,
        kind=st.sampled_from(Kind),
        configured=ceilings,
        slots=ceilings,
        operator_state=st.sampled_from(OperatorState),
        health=st.sampled_from(Health),
        adaptive=ceilings,
        saturated=ceilings,
        suspect=st.sampled_from([None, 0, 1]),
        throttled=st.booleans(),
    ),
    st.sampled_from(Mode),
    st.floats(0.01, 1.0),
)
def test_no_input_ever_raises_a_limit(inputs: LimitInputs, mode: Mode, share: float) -> None:
    rules = LimitRules(mode, share=share)
    value, _ = effective_limit(inputs, rules)
    configured = configured_limit(inputs, rules).value or None
    for most in (configured, inputs.adaptive, inputs.saturated, inputs.suspect):
        if most is not None:
            assert value is not None and value <= most
    if value is None:
        assert configured is None and mode is not Mode.SUPERFAST
    else:
        assert value >= 0
