"""The replicas of one embedded backend: `sim-1`, `sim-2` and so on, as many as are wanted.

Held by tests/fleet/test_scaling.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lifeboat.fleet.changes import INVALID, FleetError
from lifeboat.fleet.membership import Membership
from lifeboat.fleet.roster import Roster
from lifeboat.settings.shapes import BackendConfig, Configuration


class Replicas:
    """Counts them, adds one, takes one away. base: their name without the number."""

    def __init__(
        self,
        base: str,
        membership: Membership,
        roster: Roster,
        configuration: Callable[[], Configuration],
    ) -> None:
        self._base = base
        self._membership = membership
        self._roster = roster
        self._configuration = configuration

    def name(self, number: int) -> str:
        """Return the name of one."""
        return f"{self._base}-{number}"

    def numbers(self) -> set[int]:
        """Return those that are there."""
        start = f"{self._base}-"
        return {
            int(name.removeprefix(start))
            for name, known in self._roster.present.items()
            if name.startswith(start)
            and name.removeprefix(start).isdecimal()
            and known.member.embedded
        }

    async def join(self, number: int) -> None:
        """Start one and let it in. Raises FleetError."""
        await self._membership.join_replica(replace(self._template(), name=self.name(number)))

    def leave(self, number: int) -> None:
        """Take one out; what it runs it finishes."""
        self._membership.leave_replica(self.name(number))

    def _template(self) -> BackendConfig:
        first = self.name(1)
        for config in self._configuration().backends:
            if config.name == first:
                return config
        raise FleetError(INVALID, f"no backend {first!r} is configured, to make replicas of")
