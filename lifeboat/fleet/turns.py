"""The lines of the log about backends whose health turned.

At turns alone, and a backend that flaps gets one line in `LINE_EVERY_S`, which counts what it
leaves out. Held by tests/fleet/test_turns.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from lifeboat.core.health import Standing
from lifeboat.core.vocabulary import Health

LINE_EVERY_S = 5.0
"""A backend that fails every second request turns as often as it is asked."""


@dataclass(slots=True)
class _Told:
    """What was last told of one backend. turns: those of its standing up to then."""

    standing: Standing
    health: Health = Health.STARTING
    turns: int = 0
    at: float = -inf


class Turns:
    """Remembers what was told of each backend, and finds what is to be told now."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}

    def look(self, standings: Mapping[str, Standing], now: float) -> list[str]:
        """Return a line for each backend that turned, and forget those that are gone.

        What turned too soon after a line is told by a later look.
        """
        lines: list[str] = []
        for name in self._told.keys() - standings.keys():
            del self._told[name]
        for name, standing in standings.items():
            told = self._told.setdefault(name, _Told(standing))
            if told.standing is not standing:
                # Another server under the name.
                told.standing, told.turns = standing, 0
            turns = standing.turns - told.turns
            if not turns or now - told.at < LINE_EVERY_S:
                continue
            before, told.health, told.turns = told.health, standing.health, standing.turns
            if turns == 1 and standing.health in (before, _AT_FIRST.get(before)):
                # Nobody was told otherwise: a first answer, of a new backend or a new server.
                continue
            told.at = now
            lines.append(f"backend {name}: {_words(before, standing, turns)}")
        return lines


_AT_FIRST = {Health.STARTING: Health.UP}


def _words(before: Health, standing: Standing, turns: int) -> str:
    words = f"health {before} -> {standing.health}"
    left_out = turns if before is standing.health else turns - 1
    if left_out:
        words += f", {left_out} turn{'s' if left_out > 1 else ''} between not logged"
    if standing.detail is not None:
        return f"{words}: {standing.detail}"
    return f"{words}; it was {standing.trouble}" if left_out and standing.trouble else words
