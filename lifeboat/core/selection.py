"""Which of the backends with room serves a request.

A policy sees only backends that may take the request now; it never reserves anything, the gate
does that in the same step. Held by tests/core/test_selection.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

UNGATED_COUNTS_AS = 32
"""A disabled gate weighs as the default limit; as ratio 0 it would take all the traffic."""


INFINITE = float("inf")


class Candidate(Protocol):
    """What a policy may look at.

    limit: effective, None = ungated. cap_tokens: input cap, infinite where there is none.
    last_pick: a number that grows with every grant; smaller before the first, by age.
    """

    @property
    def in_flight(self) -> int: ...
    @property
    def limit(self) -> int | None: ...
    @property
    def cap_tokens(self) -> float: ...
    @property
    def last_pick(self) -> int: ...


C = TypeVar("C", bound=Candidate)


class Selection(Protocol):
    """A policy: pick one of at least one candidate, all of which cover the request.

    All have room, unless the request takes no slot: then a limit may be 0 or used up.
    """

    def choose(self, candidates: Sequence[C]) -> C: ...


class LeastUtilised:
    """Least in_flight / effective limit; ties to the tightest covering cap, then in rotation.

    What: evens out utilisation, so that small and large backends fill alike, and keeps roomy
    caps free for the prompts that need them. When: the default. Cost: one pass over the
    candidates. Weakness: it does not know how long a request runs, nor where a prefix is cached.
    Source: the contract's section 2, "Choice among candidates".
    """

    def choose(self, candidates: Sequence[C]) -> C:
        """Return the candidate with the smallest (ratio, cap, last pick)."""
        if len(candidates) == 1:
            return candidates[0]
        return min(candidates, key=_rank)


def _rank(candidate: Candidate) -> tuple[float, float, int]:
    limit = candidate.limit
    if limit == 0:
        # Closed, and offered all the same to a request that takes no slot: the last resort.
        return (INFINITE, candidate.cap_tokens, candidate.last_pick)
    weight = UNGATED_COUNTS_AS if limit is None else limit
    return (candidate.in_flight / weight, candidate.cap_tokens, candidate.last_pick)
