"""The settings the gate obeys, as one frozen value: replaced whole when something is changed.

Source: the contract's sections 2 and 3. Held by tests/core/test_rules.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import floor

from lifeboat.core.limits import ROUNDING, LimitRules, shared
from lifeboat.core.modes import MODES, Mode, ModeRow


@dataclass(frozen=True, slots=True)
class PoolRules:
    """What `models:` sets for one pool; None = as the mode says.

    max_depth: ceiling of parked requests, 0 parks nothing. max_requests_per_minute: 0 = no limit.
    hold_when_down: park while it has no live backend, whatever the general rule.
    adaptive: its backends learn their limits, where they do not say otherwise.
    """

    queue_enabled: bool | None = None
    queue_ttl_s: float | None = None
    max_depth: int | None = None
    max_requests_per_minute: int = 0
    hold_when_down: bool = False
    adaptive: bool = False


_NO_POOL_RULES = PoolRules()


@dataclass(frozen=True, slots=True)
class GateRules:
    """Everything configurable that bears on a decision of the gate.

    max_depth: absolute ceiling per pool in every mode, None = by multiplier; 0 parks nothing.
    early_refusal: refuse at once whom the expected wait would leave without a slot.
    pools: by model name; a model named here is known even while it has no backend.
    row: the mode's row of the table.
    """

    mode: Mode = Mode.DEFAULT
    queue_enabled: bool = False
    queue_ttl_s: float = 30.0
    queue_depth_multiplier: float = 4.0
    max_depth: int | None = None
    boost_s: float = 10.0
    queue_all_ttl_s: float = 600.0
    queue_all_depth_multiplier: float = 1000.0
    superfast_cap: int = 4
    share: float = 1.0
    default_max_concurrency: int = 32
    gguf_default_max_concurrency: int = 16
    hold_when_down: bool = False
    early_refusal: bool = False
    max_parked_bytes: int = 1 << 30
    pools: Mapping[str, PoolRules] = field(default_factory=dict[str, PoolRules])
    row: ModeRow = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Look the row up once: every decision reads it several times."""
        object.__setattr__(self, "row", MODES[self.mode])

    @property
    def limits(self) -> LimitRules:
        """What bears on the effective limit of a backend."""
        return LimitRules(
            self.mode,
            self.superfast_cap,
            self.default_max_concurrency,
            self.gguf_default_max_concurrency,
            self.share,
            frozenset(name for name, pool in self.pools.items() if pool.adaptive),
        )

    @property
    def ttl_s(self) -> float:
        """The TTL in force for pools without their own."""
        return self.queue_all_ttl_s if self.row.long_wait else self.queue_ttl_s

    @property
    def depth_multiplier(self) -> float:
        """The ceiling factor in force."""
        return (
            self.queue_all_depth_multiplier if self.row.long_wait else self.queue_depth_multiplier
        )

    def holds(self, pool: str) -> bool:
        """Return whether requests of this pool park while it has no live backend."""
        return self.hold_when_down or self.row.held_when_down or self.of(pool).hold_when_down

    def of(self, pool: str) -> PoolRules:
        """Return what is set for one pool."""
        return self.pools.get(pool, _NO_POOL_RULES)

    def queues(self, pool: str) -> bool:
        """Return whether overflow of this pool parks."""
        own = self.of(pool).queue_enabled
        return self.row.always_queues or (self.queue_enabled if own is None else own)

    def ttl_of(self, pool: str) -> float:
        """Return the TTL in seconds for requests of this pool parked from now on."""
        own = self.of(pool).queue_ttl_s
        return self.ttl_s if own is None else own

    def ceiling(self, pool: str, concurrency: int) -> int:
        """Return the most parked requests of a pool with this configured concurrency.

        A depth or a multiplier of 0 parks nothing; anything else parks at least one.
        """
        own = self.of(pool).max_depth
        absolute = self.max_depth if own is None else own
        if absolute is not None:
            return shared(absolute, self.share)
        most = self.depth_multiplier * concurrency * self.share
        return max(1, floor(most + ROUNDING)) if self.depth_multiplier > 0 else 0
