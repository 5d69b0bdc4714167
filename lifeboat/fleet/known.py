"""All that is known of one backend: what is configured, what it said of itself, what was changed.

The one mutable record per backend; `spec` is what the gate is told of it. What a backend said last
(its models, its slots) is remembered while it is down. Held by tests/fleet/test_warnings.py.
"""

from __future__ import annotations

from dataclasses import replace

from lifeboat.core.urls import spelled_out
from lifeboat.core.vocabulary import BackendSpec, EngineReading, OperatorState
from lifeboat.fleet.changes import UNSET, InputCap, Unset
from lifeboat.fleet.listings import Listing
from lifeboat.fleet.members import Member
from lifeboat.settings.shapes import BackendConfig


class Known:
    """One backend's record.

    config: what `member` was made of. listing: its own model list, as last read; None until then.
    listing_fault: why the last reading of it failed, in words. reading: what its engine last said;
    None until it said anything. foreign: readings in a row that showed more requests in the engine
    than ours. expires_at: when it goes without a heartbeat. published: what the gate was told.
    set_*: values set by API, UNSET where none is.
    """

    __slots__ = (
        "config",
        "expires_at",
        "foreign",
        "listing",
        "listing_fault",
        "member",
        "published",
        "reading",
        "set_input_cap",
        "set_max_concurrency",
        "set_state",
    )

    def __init__(self, config: BackendConfig, member: Member) -> None:
        self.config = config
        self.member = member
        self.listing: Listing | None = None
        self.listing_fault: str | None = None
        self.reading: EngineReading | None = None
        self.foreign = 0
        self.expires_at: float | None = None
        self.published: BackendSpec | None = None
        self.set_max_concurrency: int | Unset = UNSET
        self.set_input_cap: InputCap | Unset = UNSET
        self.set_state: OperatorState | Unset = UNSET

    @property
    def discovers(self) -> bool:
        """Whether its models are its own to tell."""
        return self.member.models is None

    @property
    def models(self) -> tuple[str, ...] | None:
        """The models it serves, in its own order; None while nobody knows."""
        if self.member.models is not None:
            return self.member.models
        return None if self.listing is None else self.listing.ids

    @property
    def max_concurrency(self) -> int | None:
        """What is set by API, else configured; None where nothing is; 0 disables its gate."""
        own = self.set_max_concurrency
        return self.member.max_concurrency if isinstance(own, Unset) else own

    @property
    def input_cap(self) -> InputCap:
        """What is set by API, else configured: 0 = no cap, "auto" = the engine's own."""
        own = self.set_input_cap
        return self.member.max_input_tokens if isinstance(own, Unset) else own

    @property
    def state(self) -> OperatorState:
        """What the operator wants of it."""
        own = self.set_state
        return OperatorState.READY if isinstance(own, Unset) else own

    @property
    def engine_cap(self) -> int | None:
        """The engine's own input cap in tokens, None while it has not told."""
        if self.reading is not None and self.reading.max_input_tokens is not None:
            return self.reading.max_input_tokens
        return None if self.listing is None else self.listing.max_input_tokens

    @property
    def spec(self) -> BackendSpec:
        """What the gate needs to know of it now; an unknown `auto` cap is none."""
        cap = self.input_cap
        models = self.models
        return BackendSpec(
            name=self.member.name,
            kind=self.member.kind,
            serves=self.member.serves,
            models=None if models is None else frozenset(models),
            max_concurrency=self.max_concurrency,
            max_input_tokens=(self.engine_cap or 0) if cap == "auto" else cap,
            adaptive=self.config.adaptive,
            server=spelled_out(self.member.url),
        )

    def forget_load(self) -> None:
        """Forget what its engine held: with the server down, nobody knows, and most likely nothing.

        Its slots and its cap are what it is set up for; they are remembered, as its models are.
        """
        if self.reading is not None:
            self.reading = replace(self.reading, running=None, waiting=None)
        self.foreign = 0

    def forget_server(self) -> None:
        """Forget what the server said: another one stands at a new url."""
        self.listing = None
        self.listing_fault = None
        self.reading = None
        self.foreign = 0
