"""The step times of the model, against the published figures."""

from __future__ import annotations

import pytest

from lifeboat.sim.catalogue import hardware_names, load_hardware, load_model, model_names
from lifeboat.sim.cost import CostModel, Precision, Work
from lifeboat.sim.kv import BLOCK_TOKENS

WITHIN = 1e-3


def _decode(batch: int, context: int) -> list[Work]:
    return [(1, context)] * batch


def _prefill(batch: int, tokens: int) -> list[Work]:
    return [(tokens, 0)] * batch


STEPS: list[tuple[str, list[Work], float]] = [
    ("one decodes at 132", _decode(1, 132), 0.447836),
    ("8 decode at 132", _decode(8, 132), 1.072960),
    ("24 decode at 132", _decode(24, 132), 1.461540),
    ("one decodes at 232", _decode(1, 232), 0.448143),
    ("8 decode at 232", _decode(8, 232), 1.075418),
    ("24 decode at 232", _decode(24, 232), 1.468913),
    ("4 decode at 116", _decode(4, 116), 0.783179),
    ("16 decode at 116", _decode(16, 116), 1.353918),
    ("32 decode at 116", _decode(32, 116), 1.501462),
    ("64 decode at 116", _decode(64, 116), 1.544636),
    ("128 decode at 116", _decode(128, 116), 1.590995),
    ("256 decode at 116", _decode(256, 116), 1.683007),
    ("24 prompts of 32", _prefill(24, 32), 2.0283),
    ("a prompt of 512", _prefill(1, 512), 1.7661),
    ("a prompt of 4096", _prefill(1, 4096), 7.3890),
    ("a prompt of 8192", _prefill(1, 8192), 16.2441),
]


@pytest.mark.parametrize(("name", "work", "expected_ms"), STEPS, ids=[row[0] for row in STEPS])
def test_a_step_takes_as_long_as_published(name: str, work: list[Work], expected_ms: float) -> None:
    cost = CostModel(load_model("gpt-oss-20b"), load_hardware("b200"))
    assert cost.step_s(work) * 1e3 == pytest.approx(expected_ms, rel=WITHIN)


def test_a_dense_model_decodes_at_the_speed_of_its_weights_through_the_memory() -> None:
    """One token reads 8.03e9 values of two bytes, and next to no cache."""
    cost = CostModel(load_model("llama-3.1-8b"), load_hardware("h100"))
    cache_bytes = 32 * 2 * 8 * 128 * 2 * (132 + 1)
    assert cost.step_s(_decode(1, 132)) == pytest.approx((8.03e9 * 2 + cache_bytes) / 3.35e12)


def test_a_long_prefill_of_a_dense_model_is_bound_by_arithmetic() -> None:
    cost = CostModel(load_model("llama-3.1-8b"), load_hardware("h100"))
    flops = 2 * 8.03e9 * 8192 + 32 * 4 * 32 * 128 * 8192 * 4096
    assert cost.step_s(_prefill(1, 8192)) == pytest.approx(flops / 9.895e14)


def test_two_cards_halve_a_step() -> None:
    model, card = load_model("gpt-oss-20b"), load_hardware("b200")
    work = _decode(24, 132)
    assert CostModel(model, card, 2).step_s(work) == pytest.approx(
        CostModel(model, card).step_s(work) / 2
    )


def test_a_card_without_fp4_arithmetic_works_in_the_next_wider_one() -> None:
    assert load_hardware("h100").rate(Precision.FP4) == 1.979e15


def test_the_cache_is_what_nine_tenths_of_the_memory_leave_beside_the_weights() -> None:
    cost = CostModel(load_model("llama-3.1-8b"), load_hardware("h100"))
    left = 80e9 * 0.9 - 8.03e9 * 2
    assert cost.kv_blocks(BLOCK_TOKENS) == int(left // (64 * 32 * 2 * 8 * 128 * 2))


def test_only_layers_without_a_window_take_cache() -> None:
    cost = CostModel(load_model("gpt-oss-20b"), load_hardware("b200"))
    left = 192e9 * 0.9 - 19_110_297_600 * 0.5 - 1_797_488_640 * 2
    assert cost.kv_blocks(BLOCK_TOKENS) == int(left // (64 * 12 * 2 * 8 * 64 * 2))


@pytest.mark.parametrize("card", hardware_names())
@pytest.mark.parametrize("model", model_names())
def test_every_model_runs_on_every_card(model: str, card: str) -> None:
    cost = CostModel(load_model(model), load_hardware(card))
    assert cost.step_s(_decode(1, 100)) > 0
    assert cost.kv_blocks(BLOCK_TOKENS) > 1000
    assert load_model(model).source != "not given"
    assert load_hardware(card).source != "not given"
