"""The fleet: which backends there are, where they are, what they serve and how they are.

It owns the knowledge and tells the gate; the gate decides. Every change is one synchronous step
after everything that may fail or wait is done, so no request sees half of it (BUG-195, 198).
Held by tests/fleet/.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from lifeboat.core.gate import Gate
from lifeboat.core.modes import Mode
from lifeboat.core.protocol import Protocol
from lifeboat.core.rules import GateRules
from lifeboat.core.view import GateView
from lifeboat.core.vocabulary import Ask, Capability, EngineReading, Estimate
from lifeboat.door import Door
from lifeboat.fleet.border import Border
from lifeboat.fleet.changes import UNSET, Patch, Registration, Unset
from lifeboat.fleet.engine_room import EngineRoom
from lifeboat.fleet.inquiry import Inquirer
from lifeboat.fleet.members import Member
from lifeboat.fleet.membership import Membership
from lifeboat.fleet.names import Ambiguous, ModelEntry, Resolved
from lifeboat.fleet.pace import Pace
from lifeboat.fleet.pulse import Pulse
from lifeboat.fleet.replicas import Replicas
from lifeboat.fleet.roster import Roster
from lifeboat.fleet.rules import LiveMode, frozen_changes, gate_rules, value_sources
from lifeboat.fleet.state_file import StateFile
from lifeboat.fleet.warnings import fleet_warnings
from lifeboat.fleet.watch import Surroundings
from lifeboat.observe.warnings import NO_RATES, Warned, all_warnings, lingering
from lifeboat.settings.shapes import BackendConfig, Configuration, Settings

log = logging.getLogger(__name__)

USUAL_PACE = Pace()


class Fleet:
    """What the edge, the admin calls and the observers ask about backends, and what they change.

    embedded: starts a simulated engine inside this process and returns its url; stop_embedded:
    ends the one at a url. clock: seconds, monotonic, the door's. wall: seconds since the epoch.
    bytes_came_at: when the server at a url last sent bytes of an answer that still runs, or None.
    expected_rates: requests per second that pools are known to serve at the most, by pool.
    reload_fault: why the last reload changed nothing (fleet.reloader); None after a good one.
    """

    def __init__(
        self,
        configuration: Configuration,
        door: Door,
        *,
        embedded: Callable[[BackendConfig], Awaitable[str]],
        stop_embedded: Callable[[str], Awaitable[None]],
        clock: Callable[[], float],
        rng: random.Random,
        wall: Callable[[], float],
        pace: Pace = USUAL_PACE,
        bytes_came_at: Callable[[str], float | None] = lambda url: None,
        expected_rates: Callable[[GateView], Mapping[str, float]] = lambda view: NO_RATES,
    ) -> None:
        self._expected_rates = expected_rates
        self._configuration = configuration
        self._door = door
        self._live = LiveMode()
        self._inquirer = Inquirer()
        self._border = Border(self._inquirer, clock)
        self._engine_room = EngineRoom(embedded, stop_embedded)
        self._roster = Roster(door, int(wall()))
        self._pace = pace
        around = Surroundings(
            self._roster, self._inquirer, pace, rng, clock, lambda: self.settings, bytes_came_at
        )
        path = configuration.settings.state_file
        self._state_file = None if path is None else StateFile(path)
        self._membership = Membership(around, self._engine_room, self._state_file)
        self._pulse = Pulse(
            around, self._membership, self._engine_room, self._worth_logging, self._lingering
        )
        self._pulse_task: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self._started_with = configuration.settings
        self.reload_fault: str | None = None

    @staticmethod
    def rules(configuration: Configuration) -> GateRules:
        """Return the gate's rules that a configuration means."""
        return gate_rules(configuration)

    # -- life -------------------------------------------------------------------------------

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Let the configured and the remembered backends in and begin to look after them.

        Returns once each has answered its first probe, or after `first_s` at the latest. Raises
        FleetError where an embedded engine or a CA file cannot be used; nothing is in then.
        """
        membership = self._membership
        self._roster.set_models(self._configuration.models)
        plan = await membership.prepare(self._configuration)
        membership.begin(tasks)
        membership.apply(plan)
        membership.recall()
        # Before its warnings are logged: most say what the first answers take back.
        await membership.first_answers()
        self._pulse_task = tasks.create_task(self._pulse.run(), name="fleet pulse")

    async def close(self) -> None:
        """Stop looking, stop the embedded engines, write what must be remembered."""
        if self._pulse_task is not None:
            self._pulse_task.cancel()
        self._membership.end()
        await self._membership.save()
        await self._engine_room.close()
        await self._inquirer.close()

    # -- what requests ask --------------------------------------------------------------------

    def resolve(self, model: str) -> Resolved:
        """Return the pool that a requested model name means (fleet.names). Two look-ups."""
        return self._roster.names.resolve(model)

    def default_model(self, capability: Capability) -> str | Ambiguous:
        """Return the model meant where none is named: the only one, else the one marked default."""
        return self._roster.names.default_model(capability)

    def member(self, name: str) -> Member | None:
        """Return a backend that is present, or has left and still runs requests."""
        return self._roster.member(name)

    async def exact_size(self, ask: Ask, protocol: Protocol, body: bytes) -> Estimate:
        """Return the size by a backend's own tokenizer where `exact_border` wants it; else ask's.

        body: the request's plain JSON. Takes `BUDGET_S` at the most; never raises.
        """
        live = [
            known
            for known in self._roster.names.members(ask.model)
            if (seat := self._roster.seat(known.member.name)) is not None and seat.in_service
        ]
        return await self._border.settle(ask, protocol, body, live)

    def nudge(self, model: str) -> None:
        """Note that a request for a model found nothing in service, or was parked.

        Those of its backends that are down are then probed every second. Cheap and synchronous.
        """
        self._membership.nudge(model)

    def saw_refusal(self, name: str) -> None:
        """Note that a backend refused a request's connection, so that its next probe comes soon."""
        self._membership.look(name)

    # -- what observers ask -------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """The settings in force, as far as they can be changed without a restart."""
        return self._configuration.settings

    @property
    def configuration(self) -> Configuration:
        """The configuration in force: that of the start, or of the last good reload."""
        return self._configuration

    def members(self) -> Mapping[str, Member]:
        """Return every backend by name: those present, then those that left and still run."""
        roster = self._roster
        roster.purge()
        return {
            name: known.member
            for group in (roster.present, roster.leaving)
            for name, known in group.items()
        }

    def configured_pools(self) -> set[str]:
        """Return the model names that the configuration itself holds."""
        configuration = self._configuration
        named = {model.name for model in configuration.models if model.alias_of is None}
        return named.union(*(backend.models or () for backend in configuration.backends))

    def listing(self) -> list[ModelEntry]:
        """Return every name that can be asked for, in order of name."""
        return self._roster.names.listing()

    def engines(self) -> Mapping[str, EngineReading]:
        """Return what each engine last said of itself; nothing for those that never did.

        The input cap of a vLLM server stands in its list of models.
        """
        return {
            name: replace(known.reading, max_input_tokens=known.engine_cap)
            for name, known in self._roster.present.items()
            if known.reading is not None
        }

    def warnings(self) -> dict[str, list[str]]:
        """Return what an operator should know, by backend; "" is about the whole fleet."""
        found = self._found()
        general = [*found.pop("", []), *self._membership.warnings(), *self._reload_warnings()]
        if general:
            found[""] = general
        return found

    def _found(self) -> dict[str, list[str]]:
        roster = self._roster
        return fleet_warnings(
            roster.present.values(),
            roster.at_gate(_in_flight),
            roster.names.hidden_aliases,
            self.settings.gguf_default_max_concurrency,
        )

    def _worth_logging(self) -> list[Warned]:
        """Return the warnings that nobody else logs: ours, and those of the live state."""
        urls = {name: member.url for name, member in self.members().items()}
        ours = [
            Warned(text, name or None) for name, texts in self._found().items() for text in texts
        ]
        view = self._door.view()
        expected = self._expected_rates(view)
        return all_warnings(view, urls, self.engines(), tuple(ours), expected)

    def _lingering(self) -> list[Warned]:
        view = self._door.view()
        return lingering(view, self._expected_rates(view))

    def _reload_warnings(self) -> list[str]:
        texts = [] if self.reload_fault is None else [self.reload_fault]
        frozen = frozen_changes(self._started_with, self.settings)
        if frozen:
            texts.append(f"changed, but in force only after a restart: {', '.join(frozen)}")
        return texts

    def sources(self) -> dict[str, str]:
        """Return where each global value of the state comes from."""
        return value_sources(self.settings, gate_rules(self._configuration, self._live), self._live)

    def backend_sources(self) -> dict[str, dict[str, str]]:
        """Return where each value of each backend comes from."""
        return {
            name: self._membership.sources_of(known) for name, known in self._roster.present.items()
        }

    # -- changes --------------------------------------------------------------------------------

    def set_mode(
        self, mode: Mode | Unset | None = UNSET, queue_enabled: bool | Unset | None = UNSET
    ) -> None:
        """Set the routing mode, the queue, or both, until restart; None resets to configured."""
        live = self._live
        self._live = LiveMode(
            live.mode if isinstance(mode, Unset) else (UNSET if mode is None else mode),
            live.queue_enabled
            if isinstance(queue_enabled, Unset)
            else (UNSET if queue_enabled is None else queue_enabled),
        )
        self._roster.set_rules(gate_rules(self._configuration, self._live))

    def patch(self, name: str, change: Patch) -> None:
        """Change one backend until restart. Raises FleetError (404)."""
        self._membership.patch(name, change)

    async def register(self, registration: Registration) -> bool:
        """Let a backend in, or take its heartbeat; return whether it is new.

        One without `models` is asked for them first, for `first_s` at most. Raises FleetError (400
        for a CA file that cannot be used, 409 while another server holds its name).
        """
        return await self._membership.register(registration)

    def replicas_of(self, base: str) -> Replicas:
        """Return the replicas of an embedded backend, for autoscaling to add to and take from."""
        return Replicas(base, self._membership, self._roster, lambda: self._configuration)

    def remove(self, name: str) -> None:
        """Take a backend out: no new requests at once, its own run on. Raises FleetError (404)."""
        self._membership.remove(name)

    async def reload(self, configuration: Configuration) -> None:
        """Put another configuration in force, all of it or nothing.

        In-flight and parked requests carry over, counters survive, backends that are gone drain.
        What was set or registered by API stays. Raises FleetError, and changes nothing then.
        """
        async with self._changing:
            plan = await self._membership.prepare(configuration)
            self._configuration = configuration
            with self._roster.as_one():
                self._roster.set_rules(gate_rules(configuration, self._live))
                self._roster.set_models(configuration.models)
                self._membership.apply(plan)


def _in_flight(gate: Gate, now: float) -> dict[str, int]:
    return {name: seat.in_flight for name, seat in gate.seats.by_name.items()}
