"""Request targets: whose a target in absolute form is, and its origin form.

A server must take `GET http://host/path HTTP/1.1`, and go by that host instead of the Host header
(RFC 9112, 3.2.2). It is no proxy for other hosts, though: a target that names none of the router's
own names stays as it came, and is a path that nobody has. Held by tests/edge/test_targets.py and
tests/conformance/test_http_protocol.py.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from ipaddress import ip_address

_ABSOLUTE = re.compile(r"https?://([^/?#@\\\s]+)(/[^#]*|\?[^#]*|)", re.IGNORECASE)
"""No user name (RFC 9110, 4.2.4) and no fragment: a server is sent neither."""


@dataclass(frozen=True, slots=True)
class OriginForm:
    """A target in origin form, or `*`. authority: the host it named, with its port if any."""

    target: str
    authority: str


def origin_form(method: str, target: str) -> OriginForm | None:
    """Return the origin form of a target in absolute form; None for any other."""
    found = _ABSOLUTE.fullmatch(target)
    if found is None:
        return None
    authority, path = found.groups()
    if not path and method == "OPTIONS":
        # RFC 9112, 3.2.4: the server as a whole is meant.
        path = "*"
    elif not path.startswith("/"):
        path = f"/{path}"
    return OriginForm(path, authority)


def host_of(authority: str) -> str:
    """Return the name or address of a Host header's value, without its port and brackets."""
    name = authority.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].removesuffix(".")


def is_own_name(name: str, listens_on: Container[str]) -> bool:
    """Return whether a name can only mean this router: loopback, or what it listens on."""
    if name == "localhost" or name.endswith(".localhost") or name in listens_on:
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
