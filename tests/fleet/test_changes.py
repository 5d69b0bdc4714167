"""What the outside may ask for, and how it is told what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lifeboat.core.vocabulary import Capability, Kind, OperatorState
from lifeboat.fleet import UNSET, FleetError, Patch, Registration
from lifeboat.settings import BackendConfig


@pytest.mark.parametrize(
    ("body", "patch"),
    [
        ({"max_concurrency": 3}, Patch(3)),
        ({"max_concurrency": 0}, Patch(0)),
        ({"max_concurrency": None}, Patch(None)),
        ({"max_input_tokens": "auto"}, Patch(UNSET, "auto")),
        ({"state": "DRAIN"}, Patch(UNSET, UNSET, OperatorState.DRAIN)),
        ({"state": None, "max_input_tokens": 5}, Patch(UNSET, 5, None)),
    ],
)
def test_a_patch_says_what_it_changes_and_null_resets(body: dict[str, Any], patch: Patch) -> None:
    assert Patch.from_mapping(body) == patch


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "nothing to change"),
        ({"max_concurrency": -1}, "max_concurrency = -1"),
        ({"max_concurrency": True}, "max_concurrency = True"),
        ({"max_concurrency": 1.5}, "whole number from 0"),
        ({"state": "gone"}, "one of ready, drain, maint"),
        ({"url": "http://h"}, "'url' cannot be changed"),
    ],
)
def test_a_faulty_patch_is_refused_with_key_value_and_rule(body: dict[str, Any], said: str) -> None:
    with pytest.raises(FleetError, match=said) as caught:
        Patch.from_mapping(body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_request")


def test_every_fault_of_a_patch_is_named_at_once() -> None:
    with pytest.raises(FleetError) as caught:
        Patch.from_mapping({"max_concurrency": -1, "state": "x", "nonsense": 1})
    assert all(word in str(caught.value) for word in ("max_concurrency", "state", "nonsense"))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"name": "a"}, "url: is missing"),
        ({"url": "ftp://h"}, "http://"),
        ({"url": "http://h", "ttl": 0.5}, "ttl = 0.5"),
        ({"url": "http://h", "ttl": "soon"}, "ttl = 'soon'"),
        ({"url": "http://h", "replicas": 2}, "replicas"),
        ({"url": "http://h", "kind": "simulated", "simulate": {}}, "simulate"),
        ({"url": "http://h", "max_concurency": 2}, "Did you mean max_concurrency"),
        ({"url": "http://h", "serves": ["sing"]}, "serves"),
        ({"url": "http://h", "name": "a b"}, "name"),
    ],
)
def test_a_faulty_registration_is_refused_with_key_and_rule(
    body: dict[str, Any], said: str
) -> None:
    with pytest.raises(FleetError) as caught:
        Registration.from_mapping(body)
    assert caught.value.status == 400 and said in str(caught.value)


def test_a_registration_takes_the_keys_of_the_file_and_a_ttl() -> None:
    registration = Registration.from_mapping(
        {"name": "a", "url": "http://h:1/v1/", "kind": "gguf", "ttl": "15s", "serves": ["embed"],
         "tls": {"ca_file": "/ca.pem"}}
    )  # fmt: skip
    assert registration.ttl_s == 15.0
    assert registration.backend.url == "http://h:1"
    assert registration.backend.kind is Kind.GGUF
    assert registration.backend.serves == {Capability.EMBED}
    assert registration.backend.tls_ca_file == Path("/ca.pem")


def test_an_update_leaves_what_it_does_not_name() -> None:
    earlier = BackendConfig("a", Kind.GGUF, "http://h:1", models=("m",), max_concurrency=4)
    beat = Registration.from_mapping({"name": "a", "url": "http://h:1"})
    assert beat.over(earlier) == earlier
    zero = Registration.from_mapping({"name": "a", "url": "http://h:1", "max_concurrency": 0})
    assert zero.over(earlier).max_concurrency == 0
    assert zero.over(earlier).models == ("m",)
