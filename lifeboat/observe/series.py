"""Which series exist, and counters that never fall although their sources come and go.

Invariants, held by tests/observe/test_series.py: labels come from configuration and discovery
only, and discovered names get at most 200 of them; two names never share a label other than
`other`; what is gone keeps its series for an hour; a counter never falls while it exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lifeboat.observe.printable import encodable

OTHER = "other"
"""The label of discovered names beyond the limit."""

DISCOVERED_LIMIT = 200
"""Labels for discovered names: a server with a thousand adapters is no reason for 50,000 series."""

RETENTION_S = 3600.0
"""How long the series of something removed are kept, so that its last values are scraped."""

_LABEL_CHARS = 200


@dataclass(frozen=True, slots=True)
class Gone:
    """What was absent for an hour: its names, and the labels that nothing else uses."""

    names: frozenset[str]
    labels: frozenset[str]


class Labels:
    """The label of each known name, for as long as its series are kept."""

    def __init__(self, discovered_limit: int | None = None) -> None:
        """discovered_limit: labels for names that are not configured; None = no limit."""
        self._limit = discovered_limit
        self._label_of: dict[str, str] = {}
        self._configured: set[str] = set()
        self._missing_since: dict[str, float] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._label_of

    def __getitem__(self, name: str) -> str:
        return self._label_of[name]

    def get(self, name: str) -> str | None:
        """Return the label of a name, None for one that has no series."""
        return self._label_of.get(name)

    def all(self) -> set[str]:
        """Return every label in use."""
        return set(self._label_of.values())

    def admit(self, name: str, configured: bool) -> str:
        """Return the label of a name, giving it one at its first appearance.

        A name that became configured after it was discovered keeps the label it has.
        """
        if configured:
            self._configured.add(name)
        label = self._label_of.get(name)
        if label is None:
            label = self._label_of[name] = self._new_label(name, configured)
        return label

    def _new_label(self, name: str, configured: bool) -> str:
        label = encodable(name)[:_LABEL_CHARS]
        if label in self.all() or (not configured and self._discovered_labels_are_used_up()):
            return OTHER
        return label

    def _discovered_labels_are_used_up(self) -> bool:
        if self._limit is None:
            return False
        discovered = self._label_of.keys() - self._configured
        return sum(self._label_of[name] != OTHER for name in discovered) >= self._limit

    def forget_missing(self, present: Iterable[str], now: float) -> Gone:
        """Drop the names that have been absent for an hour.

        present: the names that exist now. `other` is never among the labels returned: its counts
        belong to many.
        """
        present = set(present)
        for name in self._missing_since.keys() & present:
            del self._missing_since[name]
        for name in self._label_of.keys() - present:
            self._missing_since.setdefault(name, now)
        gone = [name for name, since in self._missing_since.items() if now - since >= RETENTION_S]
        labels: set[str] = set()
        for name in gone:
            del self._missing_since[name]
            self._configured.discard(name)
            labels.add(self._label_of.pop(name))
        return Gone(frozenset(gone), frozenset(labels - self.all() - {OTHER}))


class Totals:
    """Counters read off live objects: each reading adds the growth of its source to a series.

    A source has the names where its series has the labels, in the same positions. A source that
    starts again from a smaller number (removed and added again) adds what it shows, as Prometheus
    itself would take it.
    """

    def __init__(self) -> None:
        self.values: dict[tuple[str, ...], float] = {}
        self._seen: dict[tuple[str, ...], float] = {}

    def ensure(self, series: tuple[str, ...]) -> None:
        """Make a series exist, at 0."""
        self.values.setdefault(series, 0.0)

    def read(self, source: tuple[str, ...], value: float, series: tuple[str, ...]) -> float:
        """Take a reading of one source; return by how much its series grew."""
        seen = self._seen.get(source, 0.0)
        self._seen[source] = value
        growth = value - seen if value >= seen else value
        self.add(series, growth)
        return growth

    def add(self, series: tuple[str, ...], growth: float) -> None:
        """Let a series grow; a negative growth counts as none."""
        self.values[series] = self.values.get(series, 0.0) + max(growth, 0.0)

    def drop(self, position: int, gone: Gone) -> None:
        """Drop the series and the sources of what is gone, which stands at `position` in them."""
        self.values = {key: v for key, v in self.values.items() if key[position] not in gone.labels}
        self._seen = {key: v for key, v in self._seen.items() if key[position] not in gone.names}
