"""Keys and the admin token: who may ask, and who may change.

Source: the contract's section 3. Digests are compared, so that the time of a comparison says
nothing about a key. A web page that an operator happens to look at must change nothing either:
neither by a request to this address from another site (Origin), nor under a name of its own that
it points at this address (Host, DNS rebinding). Held by tests/edge/test_keys.py and
tests/security/test_browsers.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest
from ipaddress import ip_address
from typing import cast

from aiohttp import web

from lifeboat.edge.headers import presented_keys
from lifeboat.edge.targets import host_of, is_own_name

FORWARDED = frozenset({b"forwarded", b"x-real-ip", b"via"})
"""Headers of a proxy in front: such a call is never from loopback, whatever its address says."""
FORWARDED_PREFIX = b"x-forwarded-"


class KeyRing:
    """A set of accepted keys; an empty one admits everybody."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests: tuple[bytes, ...] = ()
        self.accept(keys)

    def accept(self, keys: Iterable[str]) -> None:
        """Accept these keys and no others, from now on."""
        self._digests = tuple(sha256(key.encode("utf-8")).digest() for key in keys)

    @property
    def open(self) -> bool:
        """Whether no key is needed."""
        return not self._digests

    def admits(self, presented: Iterable[bytes]) -> bool:
        """Return whether any of the presented keys is accepted."""
        if not self._digests:
            return True
        accepted = False
        for key in presented:
            digest = sha256(key).digest()
            for known in self._digests:
                accepted |= compare_digest(digest, known)
        return accepted


class AdminGuard:
    """Who may make changes: holders of the token, or loopback where there is none.

    listens_on: names and addresses that the router was told to listen on, without ports: the only
    names besides loopback's own under which it may be called where there is no token.
    """

    def __init__(self, token: str | None, listens_on: Iterable[str] = ()) -> None:
        self._keys: KeyRing | None = None
        self._own_names = frozenset(name.lower() for name in listens_on)
        self.accept(token)

    def accept(self, token: str | None) -> None:
        """Accept this token, or loopback where there is none, from now on."""
        self._keys = None if token is None else KeyRing((token,))

    def objection(self, request: web.BaseRequest) -> tuple[int, str] | None:
        """Return the status and message of a refusal, None when the call may go on."""
        hosts = _values(request, b"host")
        for origin in _values(request, b"origin"):
            if not _is_same_site(origin, hosts):
                return 403, (
                    f"the call comes from a page of another site (Origin {_shown(origin)}); behind "
                    "a proxy: let it pass on the Host that the browser sent"
                )
        if self._keys is not None:
            if self._keys.admits(presented_keys(request.raw_headers)):
                return None
            return 401, "the admin token is missing or wrong: send `Authorization: Bearer TOKEN`"
        if _is_loopback(request):
            if len(hosts) == 1 and is_own_name(
                host_of(hosts[0].decode("latin-1")), self._own_names
            ):
                return None
            return 403, (
                "changes are taken under the name localhost, a loopback address or the address "
                f"listened on, not as {_shown(b', '.join(hosts))}, while LIFEBOAT_ADMIN_TOKEN is "
                "unset: another name may be a web page's own that points here"
            )
        return 403, (
            "changes are taken from loopback only while LIFEBOAT_ADMIN_TOKEN is unset (and never "
            "through a proxy): set it and send it as `Authorization: Bearer TOKEN`"
        )


def _values(request: web.BaseRequest, lower_name: bytes) -> list[bytes]:
    return [value for name, value in request.raw_headers if name.lower() == lower_name]


_DEFAULT_PORTS = {b"http": b":80", b"https": b":443"}


def _is_same_site(origin: bytes, hosts: list[bytes]) -> bool:
    """Return whether an Origin names the one Host; `null`, which stands for nobody, never does."""
    scheme, separator, authority = origin.strip().lower().partition(b"://")
    implied = _DEFAULT_PORTS.get(scheme, b"")
    named = [host.strip().lower().removesuffix(implied) for host in hosts]
    return bool(separator) and named == [authority.removesuffix(implied)]


def _shown(value: bytes) -> str:
    return repr(value.decode("latin-1")[:100])


def _is_loopback(request: web.BaseRequest) -> bool:
    for name, _ in request.raw_headers:
        lower = name.lower()
        if lower in FORWARDED or lower.startswith(FORWARDED_PREFIX):
            return False
    transport = request.transport
    if transport is None:
        return False
    peer: object = transport.get_extra_info("peername")
    if not isinstance(peer, tuple):
        # A Unix socket: its file's permissions decide.
        return True
    host = cast("tuple[object, ...]", peer)[0]
    try:
        address = ip_address(str(host).partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
