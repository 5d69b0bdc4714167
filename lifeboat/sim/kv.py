"""The KV cache as a count of blocks: who holds how many, and how many are left.

Blocks are interchangeable here, so a count is enough. Law: free + held = total, and free is never
negative (tests/sim/test_scheduler.py).
"""

from __future__ import annotations

BLOCK_TOKENS = 64
"""Positions per block."""


def blocks_for(tokens: int) -> int:
    """Return the blocks that `tokens` positions take."""
    return -(-tokens // BLOCK_TOKENS)


class BlockPool:
    """The blocks of one engine."""

    __slots__ = ("free", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = total

    @property
    def usage(self) -> float:
        """Part of the cache in use, 0 to 1."""
        return 1.0 - self.free / self.total if self.total else 1.0

    def take(self, blocks: int) -> bool:
        """Take `blocks` if they are there; False, and nothing taken, if not."""
        if blocks > self.free:
            return False
        self.free -= blocks
        return True

    def give(self, blocks: int) -> None:
        """Give back what was taken."""
        self.free += blocks
