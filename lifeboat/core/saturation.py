"""Saturation: an engine that says it has no room closes itself down to what it holds.

On an overload answer the limit becomes what is in flight there after the release, and rises by one
a pause until the configured limit is reached again. A bare cool-off would send the whole backlog
at the engine each time it ends. Source: the contract's section 5 (the 529 row) and
ARCHITECTURE.md, "Saturation". Held by tests/core/test_saturation.py.
"""

from __future__ import annotations

from lifeboat.core.selection import UNGATED_COUNTS_AS

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 5.0
LONGEST_RETRY_AFTER_S = 300.0
"""A Retry-After above this is taken as this (contract, the 429 row; the same bound here)."""


class Saturation:
    """The ceiling that overload answers put on one backend; `ceiling` None = there is none."""

    __slots__ = ("_pause_s", "_proven", "ceiling", "clamped_at", "rise_at")

    def __init__(self) -> None:
        """Start without a ceiling."""
        self.ceiling: int | None = None
        self.rise_at = 0.0
        self.clamped_at = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._proven = 0

    def refuse(
        self, in_flight: int, granted_at: float, retry_after_s: float | None, now: float
    ) -> None:
        """Take in an overload answer; `in_flight` counts what is left there.

        A refusal of a request that was granted before the last clamp belongs to the same burst: it
        lowers the ceiling but does not lengthen the pause.
        """
        again = self.ceiling is not None and granted_at >= self.clamped_at
        if self.ceiling is None:
            self._pause_s = FIRST_PAUSE_S
        elif again:
            self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
        if self.ceiling is None or again:
            self.clamped_at = now
        self.ceiling = in_flight
        self._proven = in_flight
        pause_s = self._pause_s
        if retry_after_s is not None:
            pause_s = min(max(retry_after_s, FIRST_PAUSE_S), LONGEST_RETRY_AFTER_S)
        self.rise_at = max(self.rise_at, now + pause_s)

    def served(self, level: int) -> None:
        """Note an answer to a request that was the `level`-th in flight when it was granted.

        Success above what the last refusal left shows that the engine has more room than thought,
        so the next steps come at the short pause again.
        """
        if self.ceiling is not None and level > self._proven:
            self._proven = level
            self._pause_s = FIRST_PAUSE_S

    def rise(self, configured: int, now: float) -> bool:
        """Raise the ceiling by the steps that are due; return whether it changed.

        configured: the limit before saturation, 0 for a disabled gate, which counts as the default
        limit beyond what the engine held: there is no configured limit to come back to.
        """
        if self.ceiling is None or now < self.rise_at:
            return False
        goal = configured if configured > 0 else self._proven + UNGATED_COUNTS_AS
        self.ceiling += 1
        self.rise_at = now + self._pause_s
        if self.ceiling >= goal:
            self.ceiling = None
        return True
