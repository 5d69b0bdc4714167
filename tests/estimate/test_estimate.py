"""When a figure must be counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifeboat.core.estimate import Bounds, bounds, needs_count, quick
from lifeboat.core.protocol import Protocol
from lifeboat.core.shape import Shape, read_shape
from lifeboat.core.vocabulary import NO_TOKENS, Estimate, EstimateMethod

TEXT = "Some words that any prompt may have in it. " * 30


def test_nothing_to_size_is_no_tokens() -> None:
    assert quick(Shape()) == NO_TOKENS
    assert not needs_count(NO_TOKENS, [1])


@pytest.mark.parametrize(
    ("caps", "needed"),
    [([], False), ([0], False), ([999], False), ([1_000], True), ([1_500], True), ([2_000], False),
     ([0, 10_000, 1_999], True), ([10, 100_000], False)],
)  # fmt: skip
def test_a_count_is_needed_only_where_a_cap_lies_within_the_bounds(
    caps: list[int], needed: bool
) -> None:
    estimate = Estimate(1_200, 1_200, EstimateMethod.QUICK, 0.9)
    assert needs_count(estimate, caps, Bounds(1_000, 2_000)) is needed


def test_without_bounds_the_relative_error_stands_in() -> None:
    estimate = Estimate(1_000, 1_000, EstimateMethod.QUICK, 0.5)
    assert needs_count(estimate, [500])
    assert needs_count(estimate, [1_499])
    assert not needs_count(estimate, [499])
    assert not needs_count(estimate, [1_500])


@pytest.mark.parametrize(
    "method", [EstimateMethod.IDS, EstimateMethod.TOKENIZER, EstimateMethod.BYTES]
)
def test_an_exact_figure_is_never_counted(method: EstimateMethod) -> None:
    assert not needs_count(Estimate(1_000, 1_000, method, 0.0), [1_000])


@given(cap=st.integers(1, 5_000), true=st.integers(100, 3_000))
def test_where_no_count_is_needed_the_figure_decides_as_the_truth_would(
    cap: int, true: int
) -> None:
    around = Bounds(100, 3_000)
    estimate = Estimate(1_000, 1_000, EstimateMethod.QUICK, 2.0)
    if not needs_count(estimate, [cap], around):
        assert (true <= cap) == (estimate.tokens <= cap)


def test_the_error_covers_both_bounds() -> None:
    shape = read_shape({"messages": [{"role": "user", "content": TEXT}]}, Protocol.CHAT)
    estimate, around = quick(shape), bounds(shape)
    assert estimate.tokens * (1 - estimate.error) <= around.low + 1e-6
    assert estimate.tokens * (1 + estimate.error) >= around.high - 1e-6
    assert estimate.error < 1.05  # English: half to twice the figure, no more
