"""Which configured backends could serve a request, or the one reason why none can.

What is permanent (501, an unknown name, 413) is decided over all configured and registered
backends, live or not; what is temporary (health, drain, room) is the gate's to ask. The order of
the questions is the contract's (section 5): any server with the capability at all? model known?
this model with this capability? cap covers? I5 is held by tests/core/test_fit.py.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from lifeboat.core.rejections import MISSING_CAPABILITY
from lifeboat.core.vocabulary import (
    UNKNOWN_POOL,
    BackendSpec,
    Capability,
    Estimate,
    Reason,
    Refusal,
)

LONGEST_NAME = 200
"""Characters of a client's model name that a message repeats."""
NEAR_MATCHES = 3
NAMES_LISTED = 20
MATCHED_NAMES = 100
"""Known names compared for near matches, around the asked one in sorted order: comparing one takes
some 50 us, and anybody may ask for any name, with thousands of LoRA adapters about."""
MATCHED_CHARACTERS = 100


@dataclass(frozen=True, slots=True)
class Tier:
    """The backends of a route that cover estimates up to `cap_tokens` (infinite: no cap)."""

    cap_tokens: float
    key: frozenset[str]


@dataclass(frozen=True, slots=True)
class Route:
    """Where requests for one model and capability may go.

    tiers: by ascending cap; the first that covers an estimate holds every backend that does. Empty
        only for a model that is known, or may become so, while nothing serves it yet.
    absent: why there is no tier, in words; None where there are some.
    """

    pool: str
    model: str
    capability: Capability
    tiers: tuple[Tier, ...]
    absent: str | None = None

    def tier(self, tokens: int) -> Tier | None:
        """Return the backends that cover `tokens`; None when the largest cap does not."""
        for tier in self.tiers:
            if tokens <= tier.cap_tokens:
                return tier
        return None

    @property
    def caps(self) -> tuple[int, ...]:
        """The finite caps, ascending: where a refined count could change the answer."""
        return tuple(int(tier.cap_tokens) for tier in self.tiers if tier.cap_tokens != INFINITE)


INFINITE = float("inf")


def cap_of(spec: BackendSpec) -> float:
    """Return a backend's input cap in tokens, infinite where it has none."""
    return float(spec.max_input_tokens) if spec.max_input_tokens > 0 else INFINITE


class Directory:
    """The configured backends and the routes over them; rebuilt when either changes."""

    def __init__(
        self, specs: Iterable[BackendSpec] = (), named_models: frozenset[str] = frozenset()
    ) -> None:
        """specs: every configured or registered backend. named_models: names under `models:`."""
        self.specs: dict[str, BackendSpec] = {spec.name: spec for spec in specs}
        self.named_models = named_models
        self.members: dict[str, list[BackendSpec]] = {model: [] for model in sorted(named_models)}
        for spec in self.specs.values():
            for model in sorted(spec.models or ()):
                self.members.setdefault(model, []).append(spec)
        self.capabilities = frozenset(
            capability for spec in self.specs.values() for capability in spec.serves
        )
        self._routes: dict[tuple[str, Capability], Route | Refusal] = {}

    @property
    def models(self) -> Iterable[str]:
        """Every known model name: listed by a backend, or named in the configuration."""
        return self.members.keys()

    def route(self, model: str, capability: Capability) -> Route | Refusal:
        """Return where such requests may go, or why nowhere. Cached for known models."""
        found = self._routes.get((model, capability))
        if found is None:
            found = self._decide(model, capability)
            if model in self.members:
                self._routes[(model, capability)] = found
        return found

    def _decide(self, model: str, capability: Capability) -> Route | Refusal:
        if capability not in self.capabilities and capability in MISSING_CAPABILITY:
            return Refusal(
                MISSING_CAPABILITY[capability],
                f"no backend at all serves `{capability}`: add one with `serves: [{capability}]`",
                pool=model if model in self.members else UNKNOWN_POOL,
            )
        members = self.members.get(model)
        if not members:
            return self._absent(model, capability, known=members is not None)
        able = [spec for spec in members if capability in spec.serves]
        if not able:
            return _wrong_capability(model, capability, members)
        tiers = tuple(
            Tier(cap, frozenset(spec.name for spec in able if cap_of(spec) >= cap))
            for cap in sorted({cap_of(spec) for spec in able})
        )
        return Route(model, model, capability, tiers)

    def _absent(self, model: str, capability: Capability, *, known: bool) -> Route | Refusal:
        unlisted = frozenset(
            spec.name
            for spec in self.specs.values()
            if spec.models is None and capability in spec.serves
        )
        pool = model if known else UNKNOWN_POOL
        shown = shorten(model)
        if unlisted:
            names = ", ".join(sorted(unlisted)[:NAMES_LISTED])
            reason = f"{shown} may be served by {names}, which did not list any models yet"
            return Route(pool, model, capability, (Tier(INFINITE, unlisted),), reason)
        if known:
            return Route(pool, model, capability, (), f"no backend for {shown} is configured")
        return Refusal(Reason.NO_BACKENDS, self._unknown(model), pool=pool)

    def _unknown(self, model: str) -> str:
        names = sorted(self.members)
        near = _near(model, names)
        text = f"no backend serves a model named {shorten(model)}"
        if near:
            return f"{text}; did you mean {', '.join(shorten(name) for name in near)}?"
        if not names:
            return f"{text}; no backend lists any model"
        listed = ", ".join(shorten(name) for name in names[:NAMES_LISTED])
        more = f" and {len(names) - NAMES_LISTED} more" if len(names) > NAMES_LISTED else ""
        return f"{text}; known: {listed}{more}"


def _near(model: str, names: list[str]) -> list[str]:
    """Return the known names most like `model`, best first; case does not matter."""
    middle = bisect(names, model)
    first = max(0, min(middle - MATCHED_NAMES // 2, len(names) - MATCHED_NAMES))
    by_folded = {name.lower(): name for name in names[first : first + MATCHED_NAMES]}
    asked = model[:MATCHED_CHARACTERS].lower()
    folded = get_close_matches(asked, by_folded, n=NEAR_MATCHES, cutoff=0.5)
    return [by_folded[name] for name in folded]


def too_large(route: Route, estimate: Estimate) -> Refusal:
    """Return the 413 of a request that no cap of its route covers."""
    largest = max(route.caps, default=0)
    return Refusal(
        Reason.REQUEST_TOO_LARGE,
        f"the request is estimated at {estimate.tokens} input tokens ({estimate.method}); the "
        f"largest max_input_tokens of a backend for {shorten(route.model)} is {largest}: raise "
        "that cap or shorten the prompt",
        pool=route.pool,
    )


def shorten(name: str) -> str:
    """Return a model name quoted for a message: printable, at most LONGEST_NAME characters."""
    cut = name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..."
    return ascii(cut) if not cut.isprintable() else f"'{cut}'"


def _wrong_capability(model: str, capability: Capability, members: list[BackendSpec]) -> Refusal:
    served = sorted({has for spec in members for has in spec.serves})
    if capability is Capability.GENERATE and Capability.EMBED in served:
        return Refusal(
            Reason.EMBEDDING_ONLY_POOL,
            f"{shorten(model)} is an embedding model: its backends serve {', '.join(served)} and "
            "none of them generates",
            pool=model,
        )
    return Refusal(
        Reason.NO_BACKENDS,
        f"no backend of {shorten(model)} serves `{capability}`: they serve {', '.join(served)}",
        pool=model,
    )


def why_not(spec: BackendSpec, model: str, capability: Capability, tokens: int) -> str | None:
    """Return why a backend is no candidate for such a request, None if it is one."""
    if spec.models is None:
        return "it has not listed its models yet"
    if model not in spec.models:
        return "it does not serve this model"
    if capability not in spec.serves:
        return f"it does not serve `{capability}`"
    if tokens > cap_of(spec):
        return f"its max_input_tokens {spec.max_input_tokens} is below the estimate of {tokens}"
    return None
