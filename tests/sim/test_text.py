"""The simulator's tokenizer and its answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifeboat.sim.text import answer, count, detokenize, seed_of, tokenize, tokenize_in_slices


@given(st.text())
def test_tokens_are_counted_as_they_are_made_and_lead_back_to_the_text(text: str) -> None:
    ids = tokenize(text)
    assert len(ids) == count(text)
    assert detokenize(ids) == text
    assert all(0 < token < 2**53 for token in ids), "JSON carries such numbers exactly"


def test_a_long_text_is_tokenised_in_parts_that_join_without_a_seam() -> None:
    text = "seam" * 40_000 + "end"
    parts = list(tokenize_in_slices(text))
    assert len(parts) > 2
    assert sum(len(part) for part in parts) == count(text) == 40_001
    assert detokenize(token for part in parts for token in part) == text


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("a", 1), ("four", 1), ("five!", 2), ("日本語", 3), ("x" * 400, 100)],
)
def test_a_token_is_four_bytes(text: str, tokens: int) -> None:
    assert count(text) == tokens


def test_a_lone_surrogate_is_counted_like_any_other_three_bytes() -> None:
    assert count("\ud800") == 1


def test_foreign_ids_become_replacement_characters() -> None:
    assert detokenize([0, -3, 7, 1 << 60]) == "\ufffd" * 4


@given(st.integers(0, 2**32), st.integers(0, 300))
def test_an_answer_is_deterministic_and_as_long_as_it_was_charged(seed: int, tokens: int) -> None:
    text = answer(seed, tokens)
    assert text == answer(seed, tokens)
    assert len(tokenize(text)) == tokens
    assert text.isascii()
    assert '"' not in text
    assert "\\" not in text


def test_the_seed_depends_on_the_prompt_alone() -> None:
    assert seed_of("boat") == seed_of("boat") != seed_of("ship")
    assert seed_of([1, 2]) != seed_of([12])
