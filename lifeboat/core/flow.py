"""What flowed through a pool of late: taken in, served, refused. The figures behind its capacity.

`FlowRecord` keeps sums per piece of a sliding window, so that a record costs the same memory and a
read the same time whatever the load. Held by tests/core/test_flow.py.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from lifeboat.core.vocabulary import Reason

WINDOW_S = 300.0
"""Served and refused are told over this long: contract, section 8."""

PIECE_S = 5.0
"""The windows move in steps of this."""

REFUSED_RATE_S = 30.0
"""Refusals a second are a mean over this long: a burst of a moment is no demand, and a controller
that waits for minutes has to see an overload early in them."""

MINUTE_S = 60.0

CAPACITY_REASONS = (Reason.GATE, Reason.QUEUE_FULL, Reason.QUEUE_TIMEOUT)
"""Refusals that another backend would have served. A used up rate is a limit somebody chose."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What a record says at one moment.

    served: requests answered in the last 5 minutes; shed: those refused, by reason, without zeros.
    mean_service_s: how long an answered request held its slot, on average; None until one has.
    refused_per_s: refusals for lack of capacity (`CAPACITY_REASONS`), of late.
    admitted_last_minute: requests that were granted or parked.
    """

    served: int = 0
    shed: Mapping[Reason, int] = field(default_factory=dict[Reason, int])
    mean_service_s: float | None = None
    refused_per_s: float = 0.0
    admitted_last_minute: int = 0


NO_FLOW = Flow()


class _Piece:
    """The sums of one piece of the window."""

    __slots__ = ("admitted", "index", "served", "service_s", "shed")

    def __init__(self, index: int) -> None:
        self.index = index
        self.admitted = 0
        self.served = 0
        self.service_s = 0.0
        self.shed: dict[Reason, int] = {}


class FlowRecord:
    """Sums over the last 5 minutes, in pieces of 5 s: 61 small ones at the most.

    A clock that steps back stays in the newest piece.
    """

    __slots__ = ("_last_mean_s", "_pieces")

    def __init__(self) -> None:
        self._pieces: deque[_Piece] = deque()
        self._last_mean_s: float | None = None

    def admitted(self, now: float) -> None:
        """Count a request that was granted or parked."""
        self._piece(now).admitted += 1

    def served(self, now: float, held_s: float) -> None:
        """Count a request that was answered and held its slot for so long."""
        piece = self._piece(now)
        piece.served += 1
        piece.service_s += held_s if held_s > 0.0 else 0.0

    def refused(self, now: float, reason: Reason) -> None:
        """Count a refusal that is being sent."""
        shed = self._piece(now).shed
        shed[reason] = shed.get(reason, 0) + 1

    def read(self, now: float) -> Flow:
        """Return the figures. Costs one look at each piece: microseconds."""
        index = int(now // PIECE_S)
        self._forget(index)
        served, service_s, refused, admitted = 0, 0.0, 0, 0
        shed: dict[Reason, int] = {}
        rate_from = index - int(REFUSED_RATE_S / PIECE_S) + 1
        minute_from = index - int(MINUTE_S / PIECE_S) + 1
        for piece in self._pieces:
            served += piece.served
            service_s += piece.service_s
            for reason, count in piece.shed.items():
                shed[reason] = shed.get(reason, 0) + count
                if piece.index >= rate_from and reason in CAPACITY_REASONS:
                    refused += count
            if piece.index >= minute_from:
                admitted += piece.admitted
        if served:
            self._last_mean_s = service_s / served
        # The newest piece is still being filled: the rate is over what has really passed.
        covered_s = max(now - rate_from * PIECE_S, PIECE_S)
        return Flow(served, shed, self._last_mean_s, refused / covered_s, admitted)

    def _piece(self, now: float) -> _Piece:
        index = int(now // PIECE_S)
        pieces = self._pieces
        if pieces and pieces[-1].index >= index:
            return pieces[-1]
        self._forget(index)
        piece = _Piece(index)
        pieces.append(piece)
        return piece

    def _forget(self, index: int) -> None:
        oldest = index - math.ceil(WINDOW_S / PIECE_S)
        pieces = self._pieces
        while pieces and pieces[0].index <= oldest:
            pieces.popleft()
