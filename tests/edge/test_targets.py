"""Request targets in absolute form."""

from __future__ import annotations

import pytest

from lifeboat.edge.targets import OriginForm, host_of, is_own_name, origin_form


@pytest.mark.parametrize(
    ("method", "target", "path", "authority"),
    [
        ("GET", "http://h/v1/models", "/v1/models", "h"),
        ("GET", "HTTPS://h:8443/v1/models?a=%2F", "/v1/models?a=%2F", "h:8443"),
        ("GET", "http://[::1]:80/", "/", "[::1]:80"),
        ("GET", "http://h", "/", "h"),
        ("GET", "http://h?x=1", "/?x=1", "h"),
        ("GET", "http://h//x/../y", "//x/../y", "h"),
        ("OPTIONS", "http://h", "*", "h"),
        ("OPTIONS", "http://h/", "/", "h"),
    ],
)
def test_an_absolute_target_has_a_path_and_an_authority(
    method: str, target: str, path: str, authority: str
) -> None:
    assert origin_form(method, target) == OriginForm(path, authority)


@pytest.mark.parametrize(
    "target",
    ["/v1/models", "*", "//h/v1/models", "h:443", "http:///v1", "http://u@h/", "http://u:p@h/",
     "http://h/x#y", "http://h#y", "ftp://h/", "file:///etc/passwd", "http:/h/", "http://h\\@o/",
     "http://a b/", ""],
)  # fmt: skip
def test_no_other_target_is_taken_apart(target: str) -> None:
    assert origin_form("GET", target) is None


@pytest.mark.parametrize(
    ("authority", "own"),
    [
        ("localhost", True), ("LOCALHOST:8400", True), ("a.localhost", True), ("127.9.9.9", True),
        ("[::1]:8400", True), ("router.test.", True), ("10.0.0.1", False), ("other", False),
        ("localhost.evil.example", False), ("", False),
    ],
)  # fmt: skip
def test_whose_a_name_is(authority: str, own: bool) -> None:
    assert is_own_name(host_of(authority), {"router.test"}) is own
