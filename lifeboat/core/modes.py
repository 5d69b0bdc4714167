"""The routing modes, as one table.

Source: the contract's section 2. Docs, CLI, dashboard and tests read `MODES`; nothing else knows
what a mode does. Held by tests/core/test_modes.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never


class Mode(StrEnum):
    """The global routing mode; its value is the spelling on the wire."""

    DEFAULT = "default"
    SUPERFAST = "superfast"
    QUEUE_ALL = "queue-all"


class ParkedOrder(StrEnum):
    """The order among parked requests that are not boosted, within the same priority class."""

    SMALLEST_FIRST = "smallest estimate first"
    FIFO = "first come, first served"


@dataclass(frozen=True, slots=True)
class ModeRow:
    """What one mode does.

    clamped: the superfast cap applies to every effective limit (a disabled gate becomes the cap).
    always_queues: the queue is on whatever `queue_enabled` says.
    held_when_down: requests park while a known model has no live backend.
    long_wait: TTL and ceiling come from the queue-all pair of settings.
    order: among the parked of one class.
    summary: one sentence for docs and CLI.
    """

    mode: Mode
    clamped: bool
    always_queues: bool
    held_when_down: bool
    long_wait: bool
    order: ParkedOrder
    summary: str


MODES: dict[Mode, ModeRow] = {
    row.mode: row
    for row in (
        ModeRow(
            Mode.DEFAULT,
            clamped=False,
            always_queues=False,
            held_when_down=False,
            long_wait=False,
            order=ParkedOrder.SMALLEST_FIRST,
            summary=(
                "Every backend up to its max concurrency; overflow is refused at once, or"
                " parked when the queue is enabled."
            ),
        ),
        ModeRow(
            Mode.SUPERFAST,
            clamped=True,
            always_queues=False,
            held_when_down=False,
            long_wait=False,
            order=ParkedOrder.SMALLEST_FIRST,
            summary=(
                "Few requests per backend (4 by default), so that each one runs fast; "
                "otherwise as default."
            ),
        ),
        ModeRow(
            Mode.QUEUE_ALL,
            clamped=False,
            always_queues=True,
            held_when_down=True,
            long_wait=True,
            order=ParkedOrder.FIFO,
            summary=(
                "Everything waits its turn, for minutes if need be; nothing is refused "
                "for load short of a very high ceiling."
            ),
        ),
    )
}

MODE_ALIASES: dict[str, Mode] = {"max-concurrency": Mode.DEFAULT}
"""Other names of a mode, in normal spelling."""


class UnknownModeError(ValueError):
    """A mode name that is in no row; the message lists the valid ones."""


def parse_mode(text: str) -> Mode:
    """Return the mode that `text` names; case and `_` for `-` do not matter.

    Raises UnknownModeError, naming the value and the valid modes.
    """
    normal = text.strip().lower().replace("_", "-")
    alias = MODE_ALIASES.get(normal)
    if alias is not None:
        return alias
    try:
        return Mode(normal)
    except ValueError:
        valid = ", ".join(mode.value for mode in Mode)
        aliases = ", ".join(f"{name} = {mode.value}" for name, mode in MODE_ALIASES.items())
        raise UnknownModeError(
            f"unknown routing mode {text!r}: use one of {valid} ({aliases})"
        ) from None


def clamp(mode: Mode, limit: int | None, superfast_cap: int) -> int | None:
    """Apply the mode's clamp to a limit (None = ungated)."""
    match mode:
        case Mode.DEFAULT | Mode.QUEUE_ALL:
            return limit
        case Mode.SUPERFAST:
            return superfast_cap if limit is None else min(limit, superfast_cap)
        case _:
            assert_never(mode)
