"""How fast simulated engines are known to be before any request: against closed loops of them."""

from __future__ import annotations

from typing import Any

import pytest

from lifeboat.core.vocabulary import Capability, OperatorState
from lifeboat.embedded import (
    USUAL_INPUT_TOKENS,
    USUAL_OUTPUT_TOKENS,
    engine_rate,
    expected_rates,
)
from lifeboat.sim.config import EngineConfig
from tests.observe.scenes import backend, pool, view
from tests.sim.virtual import closed_loop


@pytest.mark.parametrize("model", ["gpt-oss-20b", "llama-3.1-8b"])
@pytest.mark.parametrize("running", [1, 4, 16, 64])
def test_the_known_rate_is_that_of_a_closed_loop(model: str, running: int) -> None:
    config = EngineConfig(model=model, max_num_seqs=running)
    measured = closed_loop(
        config.engines()[0],
        users=running,
        prompt_tokens=USUAL_INPUT_TOKENS,
        output_tokens=USUAL_OUTPUT_TOKENS,
    )
    found = engine_rate(config, None)
    assert found == pytest.approx(measured.tokens_per_s / USUAL_OUTPUT_TOKENS, rel=0.01)


def test_limit_seats_replicas_scale_and_length_of_answers_bear_on_it() -> None:
    def rate(limit: int | None = None, **options: Any) -> float:
        found = engine_rate(EngineConfig(max_num_seqs=16, **options), limit)
        assert found is not None
        return found

    assert rate(limit=4) < rate(limit=16) == rate() == rate(limit=1000)
    assert rate(time_scale=10.0) == pytest.approx(rate() / 10)
    assert rate(replicas=2) == pytest.approx(2 * rate())
    assert rate(limit=16, replicas=2) == pytest.approx(2 * rate(limit=8))
    assert rate(answer_tokens=10) > 5 * rate()
    for without in (
        EngineConfig(serves=frozenset({Capability.EMBED})),
        EngineConfig(kv_blocks=4),
        EngineConfig(max_model_len=250),
    ):
        assert engine_rate(without, 4) is None
    assert engine_rate(EngineConfig(max_num_seqs=2, max_waiting=1), 8) is not None


def test_a_pool_has_a_known_rate_where_all_that_is_in_service_has() -> None:
    engine = EngineConfig()
    whole = engine_rate(engine, 32)
    members = (backend("a"), backend("b"))
    one = pool("m", ("a", "b"))
    assert whole is not None
    assert expected_rates(view(members, (one,)), {"a": engine, "b": engine}) == {"m": 2 * whole}
    assert expected_rates(view(members, (one,)), {"a": engine}) == {}
    drained = (backend("a"), backend("b", operator_state=OperatorState.DRAIN))
    assert expected_rates(view(drained, (one,)), {"a": engine}) == {"m": whole}
    # One that is down comes back: what it serves is known all the same.
    down = (backend("a", live=False, effective_limit=0),)
    assert expected_rates(view(down, (pool("m", ("a",)),)), {"a": engine}) == {"m": whole}
    assert expected_rates(view((), (pool("m", ()),)), {"a": engine}) == {}
