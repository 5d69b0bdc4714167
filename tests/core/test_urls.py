"""The join rule (BUG-199, 201, 202)."""

from __future__ import annotations

import pytest

from lifeboat.core.urls import join, same_server, server_root


@pytest.mark.parametrize(
    ("url", "joined"),
    [
        ("http://h:1", "http://h:1/v1/models"),
        ("http://h:1/", "http://h:1/v1/models"),
        ("http://h:1/v1", "http://h:1/v1/models"),
        ("http://h:1/v1/", "http://h:1/v1/models"),
        ("http://h:1//v1//", "http://h:1/v1/models"),
        ("http://h/llm", "http://h/llm/v1/models"),
        ("http://h/llm/v1", "http://h/llm/v1/models"),
        ("http://h/v1/llm", "http://h/v1/llm/v1/models"),
        ("http://h/xv1", "http://h/xv1/v1/models"),
        ("https://[::1]:8080/v1", "https://[::1]:8080/v1/models"),
    ],
)
def test_a_url_names_the_root_of_the_server_and_v1_is_never_doubled(url: str, joined: str) -> None:
    assert join(url, "/v1/models") == joined
    assert server_root(server_root(url)) == server_root(url)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("http://h:1", "http://h:1/v1/", True),
        ("http://H", "http://h:80", True),
        ("https://h", "https://h:443/", True),
        ("http://[::1]", "http://[::1]:80", True),
        ("http://[::1]:8081", "http://[::1]", False),
        ("http://h", "https://h", False),
        ("http://h/a", "http://h/A", False),
        ("http://h:1", "http://h:2", False),
    ],
)
def test_two_spellings_of_one_server_are_told_from_two_servers(
    one: str, other: str, same: bool
) -> None:
    assert same_server(one, other) is same
