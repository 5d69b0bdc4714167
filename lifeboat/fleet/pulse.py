"""The fleet's second hand: heartbeats that stopped, hints from the traffic, turns of health to log,
the empty to forget.

One loop over all backends, cheap for those in service. Held by tests/fleet/test_watch.py.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable

from lifeboat.core.gate import Gate
from lifeboat.core.vocabulary import UNKNOWN_POOL
from lifeboat.fleet.engine_room import EngineRoom
from lifeboat.fleet.membership import Membership
from lifeboat.fleet.turns import Turns
from lifeboat.fleet.watch import Surroundings
from lifeboat.observe.warnings import Warned

log = logging.getLogger(__name__)

_NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")

BEATS_PER_LOG = 5
"""Warnings are logged this rarely: finding them costs a view of the gate."""

LOOKS_TO_FORGET = 12
"""A warning that was logged is logged again only after so many looks without it, a minute: what
comes and goes with every reading of an engine would else fill the log."""


class Pulse:
    """What is looked at every second.

    warnings: those that stand now; lingering: those that may have stood and are not clearly over.
    """

    def __init__(
        self,
        around: Surroundings,
        membership: Membership,
        engine_room: EngineRoom,
        warnings: Callable[[], list[Warned]],
        lingering: Callable[[], list[Warned]],
    ) -> None:
        self._around = around
        self._membership = membership
        self._engine_room = engine_room
        self._warnings = warnings
        self._lingering = lingering
        self._unseen_looks: dict[_Key, int] = {}
        self._turns = Turns()
        self._beats = 0

    async def run(self) -> None:
        """Beat until cancelled; a fault of one beat is logged and the next one comes."""
        while True:
            try:
                await self.beat()
            except Exception:
                log.exception("the fleet's pulse failed")
            await asyncio.sleep(self._around.pace.soonest_s)

    async def beat(self) -> None:
        """Look at everything once."""
        membership, roster = self._membership, self._around.roster
        membership.expire()
        roster.at_gate(self._hint)
        for line in roster.at_gate(self._find_turns):
            log.warning("%s", line)
        roster.purge()
        await self._engine_room.sweep(self._is_busy)
        await membership.save()
        if self._beats % BEATS_PER_LOG == 0:
            self._log_warnings()
        self._beats += 1

    def _hint(self, gate: Gate, now: float) -> None:
        """Tell the watches of backends out of service whether anybody wants them."""
        roster = self._around.roster
        for name, watch in self._membership.watches.items():
            seat = gate.seats.by_name.get(name)
            known = roster.present.get(name)
            if seat is None or known is None:
                continue
            if seat.standing.live:
                watch.note(live=True, traffic=0, parked=0)
                continue
            models: Iterable[str] = (UNKNOWN_POOL,) if known.models is None else known.models
            pools = [pool for model in models if (pool := gate.pools.get(model)) is not None]
            watch.note(
                live=False,
                traffic=sum(pool.dispatched + sum(pool.rejected.values()) for pool in pools),
                parked=sum(pool.depth for pool in pools),
            )

    def _find_turns(self, gate: Gate, now: float) -> list[str]:
        seats = gate.seats.by_name.items()
        return self._turns.look({name: seat.standing for name, seat in seats}, now)

    def _is_busy(self, name: str) -> bool:
        seat = self._around.roster.seat(name)
        return seat is not None and seat.in_flight > 0

    def _log_warnings(self) -> None:
        """Log each warning once, and again only after it was gone for long; its figures may
        change."""
        unseen = self._unseen_looks
        for key in unseen:
            unseen[key] += 1
        for warned in self._warnings():
            key = _key(warned)
            if key not in unseen:
                about = f"backend {warned.backend}: " if warned.backend else ""
                log.warning("%s%s", about, warned.message)
            unseen[key] = 0
        unseen.update((key, 0) for key in map(_key, self._lingering()) if key in unseen)
        self._unseen_looks = {key: n for key, n in unseen.items() if n < LOOKS_TO_FORGET}


_Key = tuple[str | None, str]


def _key(warned: Warned) -> _Key:
    return warned.backend, _NUMBER.sub("#", warned.message)
