"""Bytes of request bodies held, and whose turn it is to be refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifeboat.core.ledger import READING, BodyLedger


def test_below_the_bound_anybody_may_take() -> None:
    ledger = BodyLedger(100)
    ledger.take("hot", 90)
    assert ledger.has_room("hot", 10)
    assert not ledger.has_room("hot", 11)


def test_at_the_bound_only_those_over_their_equal_share_are_refused() -> None:
    ledger = BodyLedger(100)
    ledger.take("hot", 100)
    assert not ledger.has_room("hot", 1)
    assert ledger.has_room("cold", 50)
    assert not ledger.has_room("cold", 51)
    ledger.take("cold", 50)
    assert ledger.total_bytes == 150
    assert not ledger.has_room("cold", 1)
    assert ledger.has_room("third", 33)


def test_a_body_moves_to_its_pool_once_that_is_known() -> None:
    ledger = BodyLedger(100)
    ledger.take(READING, 40)
    ledger.move(READING, "m", 40)
    assert (ledger.held(READING), ledger.held("m"), ledger.total_bytes) == (0, 40, 40)


@given(st.lists(st.tuples(st.sampled_from(["a", "b", READING]), st.integers(0, 50)), max_size=40))
def test_what_is_given_back_leaves_nothing(takes: list[tuple[str, int]]) -> None:
    ledger = BodyLedger(60)
    for account, count in takes:
        ledger.take(account, count)
        assert ledger.total_bytes == sum(ledger.held(one) for one in ("a", "b", READING))
    for account, count in takes:
        ledger.give_back(account, count)
    assert (ledger.total_bytes, ledger._held) == (0, {})


def test_giving_back_what_was_never_taken_is_a_broken_promise() -> None:
    with pytest.raises(KeyError):
        BodyLedger(10).give_back("m", 1)
