"""Cross-origin requests of browsers: which pages may talk to the public paths.

Off unless LIFEBOAT_CORS_ORIGINS names origins: then what a backend says of the matter passes as it
came, and a preflight is a method like any other. On, the router alone speaks: exactly one allowed
origin, whatever the backend adds (BUG-141), and a preflight is answered at once, without a key, a
model or a slot (BUG-139). Operators' paths are opened to no origin. Source: the Fetch standard,
section 3.2. Held by tests/conformance/test_http_protocol.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lifeboat.wire.headers import Headers, RawHeaders

ANY = "*"
PREFLIGHT_KEPT_S = 600
"""How long a browser may remember the answer to a preflight."""
MAX_ASKED_BYTES = 4096
"""Headers that a page may ask for, in one preflight."""

_ALLOW_PREFIX = b"access-control-"
_ORIGIN = b"Access-Control-Allow-Origin"
_VARY = (b"Vary", b"Origin")
_EXPOSE = (b"Access-Control-Expose-Headers", b"*")


@dataclass(frozen=True, slots=True)
class Cors:
    """The origins that are let in; none: off. `*` alone: every one.

    No credentials are ever allowed: keys travel in headers that a page sets itself, never in
    cookies.
    """

    origins: frozenset[str] = frozenset()

    @property
    def on(self) -> bool:
        """Whether the router speaks for its backends here."""
        return bool(self.origins)

    def answer_headers(self, request_headers: Headers) -> RawHeaders:
        """Return what an answer to this request says of its origin."""
        if ANY in self.origins:
            return [(_ORIGIN, b"*"), _EXPOSE]
        origin = self._admitted(request_headers)
        return [_VARY] if origin is None else [(_ORIGIN, origin), _EXPOSE, _VARY]

    def relayed(self, headers: RawHeaders, request_headers: Headers) -> RawHeaders:
        """Return a relayed answer's headers with our word in place of the backend's."""
        kept = [line for line in headers if not line[0].lower().startswith(_ALLOW_PREFIX)]
        return kept + self.answer_headers(request_headers)

    def preflight(self, request_headers: Headers, methods: Iterable[str]) -> RawHeaders | None:
        """Return what a preflight is told beside `answer_headers`, None when this is none.

        methods: what the path takes. A foreign origin is told nothing, which is a refusal.
        """
        asked_method = request_headers.values(b"access-control-request-method")
        if not self.on or not asked_method or not request_headers.values(b"origin"):
            return None
        if ANY not in self.origins and self._admitted(request_headers) is None:
            return []
        out = [(b"Access-Control-Allow-Methods", ", ".join(methods).encode("ascii"))]
        asked = b", ".join(request_headers.values(b"access-control-request-headers"))
        if 0 < len(asked) <= MAX_ASKED_BYTES:
            out.append((b"Access-Control-Allow-Headers", asked))
        out.append((b"Access-Control-Max-Age", b"%d" % PREFLIGHT_KEPT_S))
        return out

    def _admitted(self, request_headers: Headers) -> bytes | None:
        origins = request_headers.values(b"origin")
        if len(origins) != 1:
            return None
        return origins[0] if origins[0].decode("latin-1") in self.origins else None


OFF = Cors()
