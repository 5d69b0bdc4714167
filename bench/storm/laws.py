"""What must hold in any weather: one row a law, with how often it was looked at and broken."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from enum import StrEnum

EXAMPLES = 5


class Law(StrEnum):
    """The laws, in words. A storm that never looked at one of them has not tested it."""

    ENGINE_CAP = "an engine's own count stays within the limits lately in force"
    STATE_CAP = "in-flight rises above no limit in force (a lowered one evicts nobody)"
    NOT_NEGATIVE = "no gauge is negative"
    SUMS = "backends, pools and totals of the state agree with each other"
    CEILING = "a queue is no deeper than its ceiling and what is re-parked"
    MONOTONE = "no counter goes back"
    QUIET = "with everything held, in-flight is each engine's own count"
    IDLE = "with no client left, nothing runs and nothing waits"
    BOUND = "every request ends within its bound"
    DOCUMENTED = "every request ends in a documented outcome"
    EXACT = "a whole answer is the engine's, byte for byte"
    CUT = "an answer is cut for its client only where its engine or its client cut it"
    ONE_LINE = "one terminal event a request, and it says what the client saw"
    RESENT = "sent again only before an answer began, within the bounds"
    THE_GONE = "nothing is sent for a client that had left"
    COUNTED = "the metrics are the sums of the terminal events"
    LOG = "no error in the router's log"
    TASKS = "tasks are back at the baseline"
    DESCRIPTORS = "open files are back at the baseline"
    MEMORY = "memory is flat after the warm-up"
    SERVES = "afterwards it serves as before, and ends cleanly"


class Laws:
    """Counts the looks and the breaches; keeps a few examples of each."""

    def __init__(self) -> None:
        self.looks: Counter[Law] = Counter()
        self.broken: Counter[Law] = Counter()
        self.examples: dict[Law, list[str]] = defaultdict(list)

    def check(self, law: Law, holds: bool, detail: object = "") -> None:
        """Look once. detail: what is shown of a breach."""
        self.looks[law] += 1
        if holds:
            return
        self.broken[law] += 1
        if len(self.examples[law]) < EXAMPLES:
            self.examples[law].append(str(detail)[:500])

    def faults(self) -> list[str]:
        """Return every breach in words, and every law that was never looked at."""
        found = [f"{law.value}: never looked at" for law in Law if not self.looks[law]]
        for law, count in self.broken.items():
            found.append(f"{law.value}: broken {count} times: {self.examples[law]}")
        return found


class Allowed:
    """The limit of one engine as its operator knows it, with its recent past.

    A change is noted twice: before it is sent the higher of both is allowed, once it is confirmed
    only the new one. A grant may take until `since` to be seen.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._steps: list[tuple[float, int]] = [(0.0, limit)]

    def note(self, limit: int, now: float) -> None:
        """From now on this is allowed."""
        self.limit = limit
        self._steps.append((now, limit))
        while len(self._steps) > 1 and self._steps[1][0] < now - 60.0:
            del self._steps[0]

    def most(self, since: float) -> int:
        """Return the highest that was allowed at any moment since then."""
        values = [limit for at, limit in self._steps if at > since]
        before = [limit for at, limit in self._steps if at <= since]
        return max(values + before[-1:])


def differences(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, str]:
    """Return what is not the same in both; absent is 0."""
    return {
        key: f"{one.get(key, 0):g} and {other.get(key, 0):g}"
        for key in sorted({*one, *other})
        if one.get(key, 0) != other.get(key, 0)
    }
