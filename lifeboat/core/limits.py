"""The effective limit of a backend: one function of everything that bears on it.

The strictest input wins and names itself as the reason, so that state and metrics can say why a
limit is what it is. None = ungated, 0 = closed. Held by tests/core/test_limits.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import floor
from typing import NamedTuple

from lifeboat.core.modes import Mode, clamp
from lifeboat.core.vocabulary import Health, Kind, OperatorState

ROUNDING = 1e-9
"""Added before rounding down, so that 0.57 x 100 is 57 (in floats it is a hair less)."""


class LimitReason(StrEnum):
    """Which input decided the effective limit; `limit_reason` on the wire."""

    CONFIGURED = "configured"
    DEFAULT = "default"
    GGUF_DEFAULT = "gguf_default"
    ENGINE_SLOTS = "engine_slots"
    UNGATED = "ungated"
    SUPERFAST = "superfast"
    SHARE = "share"
    PREDECESSOR = "predecessor"
    ADAPTIVE = "adaptive"
    SATURATED = "saturated"
    SUSPECT = "suspect"
    THROTTLED = "throttled"
    LOADING = "loading"
    DOWN = "down"
    DRAIN = "drain"
    MAINT = "maint"


class Limit(NamedTuple):
    """A limit and the input that set it."""

    value: int | None
    reason: LimitReason


@dataclass(frozen=True, slots=True)
class LimitRules:
    """The settings that bear on every backend's limit.

    share: the part of every limit this process may use, in (0, 1].
    adaptive_models: names of the pools whose backends learn their limits.
    """

    mode: Mode
    superfast_cap: int = 4
    default_max_concurrency: int = 32
    gguf_default_max_concurrency: int = 16
    share: float = 1.0
    adaptive_models: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LimitInputs:
    """What is known of one backend.

    configured: None where nothing is; 0 disables the gate.
    slots: parallel sequences the engine reports, None while unknown.
    adaptive, saturated: ceilings found by observation, None while there is none.
    lingering: requests that still run on its server for those who take nothing new there.
    suspect: requests a suspect may hold now (0 in its pause, then 1 trial); None while trusted.
    throttled: closed by a 429 that its own key earned.
    """

    kind: Kind
    configured: int | None = None
    slots: int | None = None
    operator_state: OperatorState = OperatorState.READY
    health: Health = Health.UP
    adaptive: int | None = None
    saturated: int | None = None
    suspect: int | None = None
    throttled: bool = False
    lingering: int = 0


def configured_limit(inputs: LimitInputs, rules: LimitRules) -> Limit:
    """Return the limit before mode, share, health and load: 0 = gate disabled, never None.

    A gguf server queues silently above its slots (the slot trap), so its slots stand in for a
    missing setting, and 16 for unknown slots (contract, section 3).
    """
    if inputs.configured is not None:
        return Limit(inputs.configured, LimitReason.CONFIGURED)
    if inputs.kind is Kind.GGUF:
        if inputs.slots is not None and inputs.slots > 0:
            return Limit(inputs.slots, LimitReason.ENGINE_SLOTS)
        return Limit(rules.gguf_default_max_concurrency, LimitReason.GGUF_DEFAULT)
    return Limit(rules.default_max_concurrency, LimitReason.DEFAULT)


def shared(value: int, share: float) -> int:
    """Return this process's part of a limit or ceiling: rounded down, at least 1; 0 stays 0."""
    return max(1, floor(value * share + ROUNDING)) if value > 0 else 0


def effective_limit(inputs: LimitInputs, rules: LimitRules) -> Limit:
    """Return the limit in force now and the input that won (ties go to the earlier, milder one)."""
    closed = _closed(inputs)
    if closed is not None:
        return Limit(0, closed)
    base = configured_limit(inputs, rules)
    limit = Limit(None, LimitReason.UNGATED) if base.value == 0 else base
    clamped = clamp(rules.mode, limit.value, rules.superfast_cap)
    if clamped != limit.value:
        limit = Limit(clamped, LimitReason.SUPERFAST)
    if limit.value is not None and rules.share < 1.0:
        part = shared(limit.value, rules.share)
        if part < limit.value:
            limit = Limit(part, LimitReason.SHARE)
    if inputs.lingering and limit.value is not None:
        # Off the cap of the server, before what was observed of this backend's own requests.
        limit = Limit(max(0, limit.value - inputs.lingering), LimitReason.PREDECESSOR)
    for ceiling, reason in (
        (inputs.adaptive, LimitReason.ADAPTIVE),
        (inputs.saturated, LimitReason.SATURATED),
        (inputs.suspect, LimitReason.SUSPECT),
    ):
        if ceiling is not None and (limit.value is None or ceiling < limit.value):
            limit = Limit(ceiling, reason)
    return limit


def _closed(inputs: LimitInputs) -> LimitReason | None:
    match inputs.operator_state:
        case OperatorState.DRAIN:
            return LimitReason.DRAIN
        case OperatorState.MAINT:
            return LimitReason.MAINT
        case OperatorState.READY:
            pass
    if inputs.health is Health.DOWN:
        return LimitReason.DOWN
    if inputs.health is Health.LOADING:
        return LimitReason.LOADING
    return LimitReason.THROTTLED if inputs.throttled else None
