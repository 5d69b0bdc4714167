"""Who could serve a request, and the one reason why nobody can (I5)."""

from __future__ import annotations

import time
from difflib import get_close_matches

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifeboat.core.fit import Directory, Route, cap_of, too_large, why_not
from lifeboat.core.vocabulary import (
    UNKNOWN_POOL,
    BackendSpec,
    Capability,
    Estimate,
    Kind,
    Reason,
    Refusal,
)
from tests.core.building import spec

GENERATE, EMBED, RERANK = Capability.GENERATE, Capability.EMBED, Capability.RERANK
TEXT = spec("text", models=("llama",))
VECTORS = spec("vectors", models=("bge",), serves=(EMBED,))
UNLISTED = spec("new", models=None)


@pytest.mark.parametrize(
    ("specs", "model", "capability", "reason"),
    [
        # Any server with the capability at all? It comes before the name.
        ([TEXT], "llama", EMBED, Reason.NO_EMBEDDING_BACKEND),
        ([TEXT], "nobody", EMBED, Reason.NO_EMBEDDING_BACKEND),
        ([], "nobody", EMBED, Reason.NO_EMBEDDING_BACKEND),
        ([TEXT], "llama", Capability.IMAGE, Reason.NO_DIFFUSION_BACKEND),
        ([TEXT], "llama", Capability.VIDEO, Reason.NO_DIFFUSION_BACKEND),
        ([TEXT], "llama", RERANK, Reason.NO_RERANK_BACKEND),
        ([TEXT], "llama", Capability.TRANSCRIBE, Reason.NO_AUDIO_BACKEND),
        ([TEXT], "llama", Capability.SPEECH, Reason.NO_AUDIO_BACKEND),
        # Model known?
        ([TEXT, VECTORS], "nobody", EMBED, Reason.NO_BACKENDS),
        ([TEXT], "nobody", GENERATE, Reason.NO_BACKENDS),
        ([], "nobody", GENERATE, Reason.NO_BACKENDS),
        ([VECTORS], "nobody", GENERATE, Reason.NO_BACKENDS),
        # This model with this capability?
        ([TEXT, VECTORS], "bge", GENERATE, Reason.EMBEDDING_ONLY_POOL),
        ([VECTORS], "bge", GENERATE, Reason.EMBEDDING_ONLY_POOL),
        ([TEXT, VECTORS], "llama", EMBED, Reason.NO_BACKENDS),
        ([TEXT, spec("r", models=("rr",), serves=(RERANK,))], "rr", GENERATE, Reason.NO_BACKENDS),
    ],
)
def test_the_first_question_that_fails_names_the_refusal(
    specs: list[BackendSpec], model: str, capability: Capability, reason: Reason
) -> None:
    found = Directory(specs).route(model, capability)
    assert isinstance(found, Refusal)
    assert (found.reason, found.temporary) == (reason, False)


def test_the_smallest_covering_tier_holds_every_backend_that_covers() -> None:
    directory = Directory([spec("s", cap=10), spec("m", cap=20), spec("x"), spec("m2", cap=20)])
    route = directory.route("m", GENERATE)
    assert isinstance(route, Route)
    assert route.caps == (10, 20)
    keys = {tokens: route.tier(tokens) for tokens in (0, 10, 11, 20, 21)}
    assert {tokens: set(tier.key) for tokens, tier in keys.items() if tier} == {
        0: {"s", "m", "m2", "x"},
        10: {"s", "m", "m2", "x"},
        11: {"m", "m2", "x"},
        20: {"m", "m2", "x"},
        21: {"x"},
    }


def test_above_the_largest_cap_the_refusal_names_it() -> None:
    route = Directory([spec("s", cap=10), spec("m", cap=20)]).route("m", GENERATE)
    assert isinstance(route, Route) and route.tier(21) is None
    refusal = too_large(route, Estimate(21, 21))
    assert refusal.reason is Reason.REQUEST_TOO_LARGE
    assert "21" in refusal.message and "20" in refusal.message
    assert "max_input_tokens" in refusal.message


def test_a_name_that_an_unlisted_backend_may_serve_is_held_under_the_unknown_pool() -> None:
    route = Directory([TEXT, UNLISTED]).route("nobody", GENERATE)
    assert isinstance(route, Route) and route.absent and "new" in route.absent
    assert route.pool == UNKNOWN_POOL
    vectors = Directory([VECTORS, UNLISTED]).route("nobody", EMBED)
    assert isinstance(vectors, Refusal), "an unlisted generator will not embed"


def test_a_model_named_in_the_configuration_is_known_without_a_backend() -> None:
    route = Directory([TEXT], frozenset({"planned"})).route("planned", GENERATE)
    assert isinstance(route, Route)
    assert (route.pool, route.tiers) == ("planned", ())
    assert route.absent


@pytest.mark.parametrize(
    ("asked", "near"),
    [("gpt-oss-20", "gpt-oss-20b"), ("GPT-OSS-20B", "gpt-oss-20b"), ("lama-3-8b", "llama-3-8b")],
)
def test_an_unknown_name_is_answered_with_the_near_ones(asked: str, near: str) -> None:
    directory = Directory([spec("a", models=("gpt-oss-20b", "llama-3-8b", "bge-m3"))])
    found = directory.route(asked, GENERATE)
    assert isinstance(found, Refusal)
    assert f"did you mean '{near}'" in found.message


def test_a_hostile_name_is_shortened_and_made_printable() -> None:
    found = Directory([TEXT]).route("x" * 10_000 + "\r\n", GENERATE)
    assert isinstance(found, Refusal) and len(found.message) < 600
    found = Directory([TEXT]).route("a\r\nSet-Cookie: b\x1b[2J\ud800", GENERATE)
    assert isinstance(found, Refusal) and found.message.isprintable()
    found.message.encode()


def test_an_unknown_name_costs_little_among_thousands_of_similar_ones() -> None:
    names = [f"org/some-long-model-name-lora-adapter-{number:05d}" for number in range(5000)]
    directory = Directory([spec("a", models=names)])
    directory.route("org/some-long-model-name-lora-adaptor-1", GENERATE)
    wanted = "org/some-long-model-name-lora-adaptor-x1"
    started = time.thread_time()
    get_close_matches(wanted, names)
    plainly_s = time.thread_time() - started
    started = time.thread_time()
    for _ in range(3):
        directory.route(wanted, GENERATE)
    # To compare it with every one of them takes some two hundred milliseconds.
    assert (time.thread_time() - started) / 3 < plainly_s / 4


specs = st.lists(
    st.builds(
        BackendSpec,
        name=st.sampled_from("abcd"),
        kind=st.just(Kind.VLLM),
        serves=st.frozensets(st.sampled_from([GENERATE, EMBED, RERANK]), min_size=1),
        models=st.none() | st.frozensets(st.sampled_from("mno")),
        max_input_tokens=st.sampled_from([0, 5, 10]),
    ),
    max_size=4,
    unique_by=lambda one: one.name,
)


@given(
    specs,
    st.sampled_from(["m", "n", "o", "p"]),
    st.sampled_from([GENERATE, EMBED, RERANK]),
    st.integers(0, 12),
)
def test_the_candidates_are_those_who_fit_and_none_means_one_reason(
    found: list[BackendSpec], model: str, capability: Capability, tokens: int
) -> None:
    route = Directory(found, frozenset("o")).route(model, capability)
    fitting = {one.name for one in found if why_not(one, model, capability, tokens) is None}
    if isinstance(route, Refusal):
        assert not fitting
    elif route.absent is None:
        tier = route.tier(tokens)
        assert (tier.key if tier else frozenset()) == fitting
        if tier is None:
            assert all(
                tokens > cap_of(one)
                for one in found
                if one.models and model in one.models and capability in one.serves
            )
    else:
        assert not fitting


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (UNLISTED, "has not listed"),
        (spec("a", models=("z",)), "does not serve this model"),
        (spec("a", serves=(EMBED,)), "does not serve `generate`"),
        (spec("a", cap=9), "max_input_tokens 9"),
        (spec("a", cap=10), None),
        (spec("a"), None),
    ],
)
def test_why_a_backend_is_no_candidate(one: BackendSpec, words: str | None) -> None:
    why = why_not(one, "m", GENERATE, 10)
    assert (why is None) if words is None else (why is not None and words in why)
