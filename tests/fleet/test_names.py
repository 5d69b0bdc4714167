"""What a model name means (BUG-106, 108, 115, 118)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifeboat.core.vocabulary import Capability, EngineReading, Kind
from lifeboat.fleet import Ambiguous, Origin, Resolved
from lifeboat.fleet.known import Known
from lifeboat.fleet.listings import ListedModel, Listing
from lifeboat.fleet.members import member_of
from lifeboat.fleet.names import Names
from lifeboat.settings import BackendConfig, ModelConfig
from tests.fleet.scripted import configured

SETTINGS = configured().settings


def serving(name: str, *models: str, serves: str = "generate", **listed: int) -> Known:
    config = BackendConfig(name, Kind.VLLM, "http://h:1", serves=frozenset({Capability(serves)}))
    known = Known(config, member_of(config, "http://h:1", SETTINGS, Origin.FILE))
    known.listing = Listing(tuple(ListedModel(model, **listed) for model in models))
    return known


def alias(name: str, target: str) -> ModelConfig:
    return ModelConfig(name, alias_of=target)


@pytest.mark.parametrize(
    ("listed", "asked", "model", "rewrite"),
    [
        (["qwen"], "qwen", "qwen", None),
        (["qwen:latest"], "qwen", "qwen:latest", "qwen:latest"),
        (["qwen"], "qwen:latest", "qwen", "qwen"),
        (["qwen", "qwen:latest"], "qwen", "qwen", None),
        (["qwen", "qwen:latest"], "qwen:latest", "qwen:latest", None),
        (["qwen:latest"], "qwen:27b", "qwen:27b", None),
        (["qwen:latest:latest"], "qwen", "qwen", None),
        (["gemma:27b"], "gemma", "gemma", None),
        (["Qwen"], "qwen", "qwen", None),
        ([":latest"], "", "", None),
        (["qwen"], "gpt", "qwen", "qwen"),
        (["qwen:latest"], "gpt", "qwen:latest", "qwen:latest"),
        ([], "gpt", "qwen", "qwen"),
        (["gpt"], "gpt", "gpt", None),
    ],
)
def test_a_name_means_what_is_listed_then_an_alias_then_its_latest_twin(
    listed: list[str], asked: str, model: str, rewrite: str | None
) -> None:
    names = Names([serving("a", *listed)], [alias("gpt", "qwen")])
    assert names.resolve(asked) == Resolved(model, rewrite)


NAMES = st.text(st.sampled_from("ab:/@# %+é-"), min_size=1, max_size=6) | st.sampled_from(
    ["m", "m:latest", "n", "n:latest"]
)


@given(st.lists(NAMES, max_size=8), st.lists(st.tuples(NAMES, NAMES), max_size=4))
def test_every_name_that_is_listed_can_be_asked_for(
    models: list[str], aliases: list[tuple[str, str]]
) -> None:
    half = len(models) // 2
    backends = [serving("a", *dict.fromkeys(models[:half])), serving("b", *models[half:])]
    entries = {name: alias(name, target) for name, target in aliases if name != target}
    names = Names(backends, list(entries.values()))
    listing = names.listing()
    assert set(models) <= {entry.id for entry in listing}
    for entry in listing:
        assert names.members(names.resolve(entry.id).model), entry.id
        assert entry.backends
    assert [entry.id for entry in listing] == sorted({entry.id for entry in listing})


def test_the_list_is_the_union_without_doubles_and_names_who_serves_what() -> None:
    backends = [serving("one", "b", "a"), serving("two", "c", "a", max_model_len=4096, created=7)]
    names = Names(backends, [alias("z", "c"), alias("nowhere", "gone")], created=5)
    shown = [(e.id, e.backends, e.created, e.max_model_len, e.alias_of) for e in names.listing()]
    assert shown == [
        ("a", ("one", "two"), 7, 4096, None),
        ("b", ("one",), 5, None, None),
        ("c", ("two",), 7, 4096, None),
        ("z", ("two",), 7, 4096, "c"),
    ]


def test_a_context_that_the_list_does_not_tell_is_the_engines_own() -> None:
    known = serving("a", "m")
    known.reading = EngineReading(max_input_tokens=2048)
    assert Names([known]).listing()[0].max_model_len == 2048


@pytest.mark.parametrize(
    ("models", "default", "chosen"),
    [
        (["m"], None, "m"),
        (["m", "n"], None, Ambiguous(("m", "n"))),
        (["m", "n"], "n", "n"),
        (["m", "n:latest"], "n", "n:latest"),
        (["m", "n"], "embedder", Ambiguous(("m", "n"))),
        ([], None, Ambiguous(())),
        ([], "n", "n"),
    ],
)
def test_a_missing_model_means_the_only_one_or_the_one_marked_default(
    models: list[str], default: str | None, chosen: str | Ambiguous
) -> None:
    marked = [] if default is None else [ModelConfig(default, default=True)]
    embedder = serving("e", "embedder", serves="embed")
    names = Names([serving("a", *models), embedder], marked)
    assert names.default_model(Capability.GENERATE) == chosen
    assert names.default_model(Capability.EMBED) == "embedder"


def test_an_alias_that_a_backends_own_model_hides_is_reported() -> None:
    assert Names([serving("a", "gpt")], [alias("gpt", "m")]).hidden_aliases == ("gpt",)
