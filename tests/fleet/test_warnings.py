"""What an operator is told of each backend, and what is remembered to tell it."""

from __future__ import annotations

from typing import Any

import pytest

from lifeboat.core.vocabulary import EngineReading, Kind
from lifeboat.fleet import Origin
from lifeboat.fleet.known import Known
from lifeboat.fleet.listings import ListedModel, Listing
from lifeboat.fleet.members import member_of
from lifeboat.fleet.warnings import fleet_warnings
from lifeboat.settings import BackendConfig
from tests.fleet.scripted import configured

SETTINGS = configured().settings


def known_of(kind: Kind = Kind.VLLM, url: str = "http://h:1", **config: Any) -> Known:
    entry = BackendConfig("a", kind, url, **config)
    known = Known(entry, member_of(entry, url, SETTINGS, Origin.FILE))
    known.listing = Listing((ListedModel("m"),))
    return known


def told(known: Known, in_flight: int = 0) -> list[str]:
    return fleet_warnings([known], {"a": in_flight}, (), 16).get("a", [])


def test_a_backend_of_which_nothing_is_to_be_said_has_no_warning() -> None:
    assert told(known_of()) == []
    assert fleet_warnings([], {}, (), 16) == {}


@pytest.mark.parametrize(
    ("kind", "limit", "slots", "warned"),
    [
        (Kind.GGUF, None, None, True),
        (Kind.GGUF, None, 4, False),
        (Kind.GGUF, 4, None, False),
        (Kind.VLLM, None, None, False),
    ],
)
def test_unknown_slots_are_warned_of_where_the_limit_hangs_on_them(
    kind: Kind, limit: int | None, slots: int | None, warned: bool
) -> None:
    known = known_of(kind, max_concurrency=limit)
    known.reading = EngineReading(slots=slots)
    assert ["slots are unknown" in text for text in told(known)] == [True] * warned


@pytest.mark.parametrize(
    ("cap", "own", "said"),
    [
        ("auto", None, "its own cap is unknown"),
        ("auto", 100, None),
        (100, 100, None),
        (101, 100, "101 is above its own cap of 100"),
        (0, 100, None),
        (101, None, None),
    ],
)
def test_a_cap_that_the_engine_does_not_have_is_warned_of(
    cap: Any, own: int | None, said: str | None
) -> None:
    known = known_of(max_input_tokens=cap)
    known.reading = EngineReading(max_input_tokens=own)
    texts = told(known)
    assert texts == [] if said is None else said in texts[0]
    assert known.spec.max_input_tokens == ((own or 0) if cap == "auto" else cap)


def test_a_list_that_fails_says_whether_anything_is_known() -> None:
    known = known_of()
    known.listing_fault = "no answer"
    assert told(known) == ["its models may be out of date: no answer"]
    known.listing = None
    assert told(known) == ["its models are not known: no answer"]
    assert known.spec.models is None


def test_an_empty_list_and_unusable_entries_are_told() -> None:
    known = known_of()
    known.listing = Listing((), 0)
    assert "lists no models" in told(known)[0]
    known.listing = Listing((ListedModel("m"),), 3)
    assert told(known) == ["3 entries of its model list cannot be used"]


def test_requests_of_others_are_told_only_when_they_last() -> None:
    known = known_of()
    known.reading = EngineReading(running=3, waiting=2)
    known.foreign = 2
    assert told(known, in_flight=1) == []
    known.foreign = 3
    assert "holds 5 requests, 1 of them" in told(known, in_flight=1)[0]


def test_an_alias_without_effect_concerns_the_whole_fleet() -> None:
    assert "'gpt'" in fleet_warnings([], {}, ("gpt",), 16)[""][0]


def test_a_key_is_in_no_representation_of_a_backend() -> None:
    known = known_of(api_key="sesame")
    assert "sesame" not in repr(known.member) + repr(known.config) + repr(known.spec)
