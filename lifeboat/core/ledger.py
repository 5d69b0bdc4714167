"""The ledger of request bodies held in memory, in bytes, by pool.

A body is charged as its pieces arrive, until the first byte of its answer; one whose length finds
no room is refused before. At the bound only pools over their equal share are refused, so that one
model's backlog cannot close another's queue; the total may then exceed the bound by the shares of
the others. Bodies still being read have no pool yet and share one account. Held by
tests/core/test_ledger.py.
"""

from __future__ import annotations

READING = ""
"""The account of bodies whose pool is not known yet."""


class BodyLedger:
    """Bytes held per account, and whether more may be taken."""

    __slots__ = ("_held", "bound_bytes", "total_bytes")

    def __init__(self, bound_bytes: int) -> None:
        """bound_bytes: bytes held in all above which shares matter."""
        self.bound_bytes = bound_bytes
        self.total_bytes = 0
        self._held: dict[str, int] = {}

    def held(self, account: str) -> int:
        """Return the bytes held for one pool (or for bodies being read)."""
        return self._held.get(account, 0)

    def has_room(self, account: str, more_bytes: int) -> bool:
        """Return whether `more_bytes` may be taken on top of what is held."""
        if self.total_bytes + more_bytes <= self.bound_bytes:
            return True
        accounts = len(self._held) + (0 if account in self._held else 1)
        return self.held(account) + more_bytes <= self.bound_bytes // accounts

    def fits(self, source: str, target: str, count_bytes: int) -> bool:
        """Return whether bytes held in one account may move to another: its share decides."""
        if self.total_bytes <= self.bound_bytes:
            return True
        accounts = len(self._held) + (0 if target in self._held else 1)
        if self.held(source) == count_bytes:
            accounts -= 1
        return self.held(target) + count_bytes <= self.bound_bytes // max(accounts, 1)

    def take(self, account: str, count_bytes: int) -> None:
        """Charge bytes to an account."""
        if count_bytes:
            self._held[account] = self._held.get(account, 0) + count_bytes
            self.total_bytes += count_bytes

    def give_back(self, account: str, count_bytes: int) -> None:
        """Return bytes taken before; an empty account is forgotten."""
        if not count_bytes:
            return
        left = self._held[account] - count_bytes
        self.total_bytes -= count_bytes
        if left:
            self._held[account] = left
        else:
            del self._held[account]

    def move(self, source: str, target: str, count_bytes: int) -> None:
        """Move bytes from one account to another: a body whose pool became known."""
        self.give_back(source, count_bytes)
        self.take(target, count_bytes)
