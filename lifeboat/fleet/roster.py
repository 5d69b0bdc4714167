"""Who is in the fleet, and telling the gate of it.

Each step is synchronous: the gate, the names and the roster change together, and a member that left
stays at hand until its last lease ends, so that whoever holds one still finds it (BUG-196, 198).
Held by tests/fleet/test_membership.py and test_fleet_machine.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from lifeboat.core.gate import Gate
from lifeboat.core.rules import GateRules
from lifeboat.core.seat import Seat
from lifeboat.core.urls import same_server
from lifeboat.core.vocabulary import OperatorState
from lifeboat.door import Door
from lifeboat.fleet.changes import CONFLICT, UNKNOWN, FleetError
from lifeboat.fleet.known import Known
from lifeboat.fleet.members import Member
from lifeboat.fleet.names import Names
from lifeboat.settings.shapes import ModelConfig

T = TypeVar("T")


class Roster:
    """The present backends in their order, those that are leaving, and the names they serve."""

    def __init__(self, door: Door, created: int) -> None:
        """created: epoch seconds shown for models whose server tells none."""
        self._door = door
        self._created = created
        self._models: Sequence[ModelConfig] = ()
        self._last_urls: dict[str, str] = {}
        self.present: dict[str, Known] = {}
        self.leaving: dict[str, Known] = {}
        self._names: Names | None = None

    def __getitem__(self, name: str) -> Known:
        """Return a present backend. Raises FleetError (404) that names the known ones."""
        known = self.present.get(name)
        if known is None:
            names = ", ".join(self.present) or "none"
            raise FleetError(UNKNOWN, f"no backend is named {name!r}; known: {names}")
        return known

    def member(self, name: str) -> Member | None:
        """Return a backend that is present, or left while requests of it still run."""
        known = self.present.get(name) or self.leaving.get(name)
        return None if known is None else known.member

    def at_gate(self, act: Callable[[Gate, float], T]) -> T:
        """Read or change the gate in one step."""
        return self._door.reconfigure(act)

    def as_one(self) -> AbstractContextManager[None]:
        """Let the changes of a block take force as one; it must not await."""
        return self._door.as_one()

    def seat(self, name: str) -> Seat | None:
        """Return a backend's seat, to be read at once and not kept; None once it has left."""
        return self.at_gate(lambda gate, now: gate.seats.by_name.get(name))

    def check_free(self, name: str, url: str) -> None:
        """Raise FleetError (409) while a name is held by a server at another url."""
        self.purge()
        held = self.present.get(name) or self.leaving.get(name)
        if held is not None and not same_server(held.member.url, url):
            state = "is held by" if name in self.present else "still has requests running at"
            raise FleetError(
                CONFLICT,
                f"name = {name!r} {state} {held.member.url}, not {url}: choose another name, or "
                "remove that backend and wait until it is empty",
            )

    def put(self, known: Known) -> None:
        """Let a new backend in. Its name must be free (`check_free`)."""
        name = known.member.name
        self.leaving.pop(name, None)
        self.present[name] = known
        self.publish(known)

    def publish(self, known: Known) -> None:
        """Tell the gate what has changed of a present backend, and renew the names."""
        name = known.member.name
        if self.present.get(name) is not known:
            return
        earlier, url = self._last_urls.get(name), known.member.url
        self._last_urls[name] = url
        spec, moved = known.spec, earlier is not None and not same_server(earlier, url)
        if moved or spec != known.published:
            known.published = spec
            self.at_gate(lambda gate, now: gate.put_backend(spec, now, new_server=moved))
        self.rename()

    def remove(self, name: str) -> Known:
        """Take a backend out at once; its leases run on. Raises FleetError (404)."""
        known = self[name]
        del self.present[name]
        self.leaving[name] = known
        known.published = None
        self.rename()
        self.at_gate(lambda gate, now: gate.remove_backend(name, now))
        return known

    def purge(self) -> None:
        """Forget those whose last lease has ended."""
        gone = [name for name in self.leaving if self.seat(name) is None]
        for name in gone:
            del self.leaving[name]
        if gone:
            self._forget_urls()

    def set_state(self, known: Known, state: OperatorState) -> None:
        """Drain, close or reopen a present backend."""
        name = known.member.name
        self.at_gate(lambda gate, now: gate.set_operator_state(name, state, now))

    def set_rules(self, rules: GateRules) -> None:
        """Put settings in force."""
        self.at_gate(lambda gate, now: gate.set_rules(rules, now))

    def set_models(self, models: Sequence[ModelConfig]) -> None:
        """Take other aliases and defaults."""
        self._models = models
        self.rename()

    @property
    def names(self) -> Names:
        """The names they serve now."""
        if self._names is None:
            self._names = Names(self.present.values(), self._models, self._created)
        return self._names

    def rename(self) -> None:
        """Have the names renewed after a change of anything they show.

        Done when they are next asked for: many lists that arrive together cost one renewal.
        """
        self._names = None

    def _forget_urls(self) -> None:
        """Keep the urls of those alone whose counters the gate still keeps."""
        kept = self.at_gate(lambda gate, now: set(gate.seats.retired) | set(gate.seats.by_name))
        self._last_urls = {name: url for name, url in self._last_urls.items() if name in kept}
