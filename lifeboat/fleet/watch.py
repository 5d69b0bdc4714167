"""The two loops that look after one backend: is it well and what does it serve; how loaded is it.

They are apart so that a slow page of figures never delays a probe. Probes never touch in-flight.
Held by tests/fleet/test_watch.py.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from lifeboat.core.health import Probe, ProbeResult
from lifeboat.core.vocabulary import EngineReading, Health, Kind
from lifeboat.fleet.engines import (
    METRICS_PATH,
    PROPS_PATH,
    SLOTS_PATH,
    TELLS_LOAD,
    Load,
    Props,
    parse_metrics,
    parse_props,
    parse_slots,
)
from lifeboat.fleet.inquiry import AskError, Inquirer, Reply
from lifeboat.fleet.known import Known
from lifeboat.fleet.listings import MODELS_PATH, NoListingError, parse_listing
from lifeboat.fleet.pace import Pace
from lifeboat.fleet.probes import judge, probe_path
from lifeboat.fleet.roster import Roster
from lifeboat.settings.shapes import Settings

log = logging.getLogger(__name__)

QUIET_S = 15.0
"""A backend that answered a request within this time is not ejected by failed probes, whatever the
threshold; longer where the threshold itself takes longer."""
UNAUTHORIZED = frozenset({401, 403})


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every watch of a fleet shares. settings: those in force now.

    bytes_came_at: when the server at a url last sent bytes of an answer that is still under way, in
    the clock's seconds; None where it sends none.
    """

    roster: Roster
    inquirer: Inquirer
    pace: Pace
    rng: random.Random
    clock: Callable[[], float]
    settings: Callable[[], Settings]
    bytes_came_at: Callable[[str], float | None]


class Watch:
    """One backend's loops and what they remember between rounds.

    first: set once the first probe, and the first list with it, came to an end. unauthorized: the
    server refused our key for its list.
    """

    def __init__(self, known: Known, around: Surroundings) -> None:
        self.known = known
        self.first = asyncio.Event()
        self._around = around
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._probed_at = around.clock()
        self._chance = 0.0
        self._wanted_until = self._probed_at
        self._vain_rounds = 0
        self._list_due_at = self._probed_at
        self._traffic: int | None = None
        self._props = Props()
        self._asked_at: float | None = None
        self._props_due_at = self._metrics_due_at = self._slots_due_at = self._probed_at

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Begin looking."""
        name = self.known.member.name
        self._tasks = [
            tasks.create_task(self._probe_for_ever(), name=f"probe {name}"),
            tasks.create_task(self._read_for_ever(), name=f"engine {name}"),
        ]

    def stop(self) -> None:
        """Stop looking; nothing is changed by this watch any more."""
        for task in self._tasks:
            task.cancel()
        self.first.set()

    # -- hints from the traffic -------------------------------------------------------------

    def want(self) -> None:
        """Note that somebody waits for this backend: while it is down, probe every second."""
        pace, now = self._around.pace, self._around.clock()
        if now >= self._wanted_until:
            self._wake.set()
        self._wanted_until = now + 2.5 * pace.soonest_s

    def look(self) -> None:
        """Note that its health has changed, so that the next probe comes when that asks for it."""
        self._wake.set()

    def note(self, *, live: bool, traffic: int, parked: int) -> None:
        """Take in, once a second, what the gate shows.

        traffic: requests that have come to its pools so far. parked: those waiting there now.
        """
        if live:
            self._traffic = None
            return
        if self._traffic is None:
            self.look()
        if parked or (self._traffic is not None and traffic != self._traffic):
            self.want()
        self._traffic = traffic

    # -- is it well, and what does it serve ---------------------------------------------------

    async def _probe_for_ever(self) -> None:
        while True:
            try:
                await self._probe()
            except Exception:
                # A fault of ours must not end the watch over a backend that may come back.
                log.exception("probing %s failed", self.known.member.name)
            if not self.first.is_set():
                # Slots and caps before the first request, where the server tells them quickly.
                await self._read_if_due()
                self.first.set()
            await self._rest()

    async def _probe(self) -> None:
        around, member = self._around, self.known.member
        settings = around.settings()
        was_out = self._health in (Health.DOWN, Health.LOADING)
        path = probe_path(member.kind)
        reply = await self._ask(path, settings.probe_timeout_s)
        probe = judge(reply, member.kind)
        if probe.result is ProbeResult.OK and self._list_due(was_out):
            # Before it is back in service: it may have come back with another model.
            known_already = self.known.models is not None
            timeout_s = settings.probe_timeout_s
            if was_out and known_already:
                timeout_s = min(timeout_s, around.pace.first_s)
            answer = reply if path == MODELS_PATH else await self._ask(MODELS_PATH, timeout_s)
            self._take_listing(answer)
            self._props_due_at = self._metrics_due_at = self._slots_due_at = around.clock()
        if not (isinstance(reply, AskError) and reply.ours):
            self._observe(probe, settings)
        self._probed_at, self._chance = around.clock(), around.rng.random()
        down = self._health is Health.DOWN and not self._is_wanted
        vain = down or self.known.models is None
        self._vain_rounds = self._vain_rounds + 1 if vain else 0

    def _observe(self, probe: Probe, settings: Settings) -> None:
        name = self.known.member.name
        if probe.result is ProbeResult.FAILED:
            self._note_progress()
        quiet_s = max(QUIET_S, settings.probe_failures * settings.probe_interval_s)
        self._around.roster.at_gate(lambda gate, now: gate.observe_probe(name, probe, now, quiet_s))

    def _note_progress(self) -> None:
        """Let the answers that run speak for a backend whose probes fail (BUG-171)."""
        seat = self._around.roster.seat(self.known.member.name)
        came_at = self._around.bytes_came_at(self.known.member.url)
        if seat is not None and came_at is not None:
            seat.standing.observe_progress(max(came_at, seat.standing.last_success_at or came_at))

    async def _rest(self) -> None:
        """Wait for the next probe; what happens meanwhile may bring it forward."""
        around = self._around
        while True:
            self._wake.clear()
            pause_s = around.pace.pause_s(
                self._health,
                around.settings().probe_interval_s,
                self._vain_rounds,
                wanted=self._is_wanted,
                listed=self.known.models is not None,
                chance=self._chance,
            )
            left_s = self._probed_at + pause_s - around.clock()
            if left_s <= 0.0:
                return
            try:
                async with asyncio.timeout(left_s):
                    await self._wake.wait()
            except TimeoutError:
                return

    @property
    def _is_wanted(self) -> bool:
        return self._around.clock() < self._wanted_until

    @property
    def _health(self) -> Health:
        seat = self._around.roster.seat(self.known.member.name)
        return Health.STARTING if seat is None else seat.standing.health

    async def _ask(self, path: str, timeout_s: float) -> Reply | AskError:
        try:
            return await self._around.inquirer.ask(self.known.member, path, timeout_s)
        except AskError as error:
            return error

    # -- its list -----------------------------------------------------------------------------

    def _list_due(self, was_out: bool) -> bool:
        known = self.known
        if not known.discovers and known.member.kind is Kind.GGUF:
            # Its list would tell nothing that is wanted: the cap is in /props.
            return False
        missing = known.discovers and known.listing is None
        return missing or was_out or self._around.clock() >= self._list_due_at

    def _take_listing(self, reply: Reply | AskError) -> None:
        known, around = self.known, self._around
        self._list_due_at = around.clock() + around.settings().models_interval_s
        fault = _fault_of(reply)
        if fault is None and isinstance(reply, Reply):
            try:
                listing = parse_listing(reply.body)
            except NoListingError as error:
                fault = str(error)
            else:
                if listing != known.listing:
                    known.listing = listing
                    around.roster.publish(known)
        if known.discovers:
            known.listing_fault = fault

    # -- how loaded is it -----------------------------------------------------------------------

    async def _read_for_ever(self) -> None:
        await self.first.wait()
        while True:
            await asyncio.sleep(self._around.pace.soonest_s)
            await self._read_if_due()

    async def _read_if_due(self) -> None:
        now = self._around.clock()
        if self._health in (Health.DOWN, Health.LOADING):
            self.known.forget_load()
            self._asked_at = None
        elif self.known.member.kind in TELLS_LOAD and self._is_reading_due(now):
            self._asked_at = now
            try:
                await self._read()
            except Exception:
                log.exception("reading the engine of %s failed", self.known.member.name)

    def _is_reading_due(self, now: float) -> bool:
        """Every second while it holds requests, else as often as it is probed."""
        seat = self._around.roster.seat(self.known.member.name)
        if seat is None:
            return False
        reading = self.known.reading
        busy = reading is not None and (reading.running or reading.waiting)
        return (
            self._asked_at is None
            or bool(seat.in_flight or busy)
            or now >= self._asked_at + self._around.settings().probe_interval_s
        )

    async def _read(self) -> None:
        around, known = self._around, self.known
        timeout_s = around.settings().probe_timeout_s
        if known.member.kind is Kind.GGUF:
            await self._read_props(timeout_s)
        load = await self._read_load(timeout_s)
        if load is None and self._props == Props():
            return
        before = known.engine_cap
        earlier = known.reading or EngineReading()
        known.reading = EngineReading(
            running=earlier.running if load is None else load.running,
            waiting=earlier.waiting if load is None else load.waiting,
            slots=self._props.slots,
            max_input_tokens=self._props.max_input_tokens,
            read_at=earlier.read_at if load is None and known.reading else around.clock(),
        )
        self._compare_load(load)
        if known.member.kind is Kind.GGUF:
            name, slots = known.member.name, self._props.slots
            around.roster.at_gate(lambda gate, now: gate.set_slots(name, slots, now))
        if known.engine_cap != before:
            around.roster.publish(known)

    async def _read_props(self, timeout_s: float) -> None:
        now = self._around.clock()
        if now < self._props_due_at and self._props.slots is not None:
            return
        self._props_due_at = now + self._around.settings().models_interval_s
        reply = await self._ask(PROPS_PATH, timeout_s)
        if isinstance(reply, Reply) and reply.status == 200:
            self._props = parse_props(reply.body)

    async def _read_load(self, timeout_s: float) -> Load | None:
        """Return the load, None where nothing was told. A page that is off is asked for rarely."""
        around, kind = self._around, self.known.member.kind
        pause_s = around.settings().models_interval_s
        if around.clock() >= self._metrics_due_at:
            reply = await self._ask(METRICS_PATH, timeout_s)
            if isinstance(reply, Reply) and reply.status == 200:
                load = parse_metrics(reply.body, kind)
                return None if load == Load() else load
            if isinstance(reply, AskError):
                return None
            self._metrics_due_at = around.clock() + pause_s
        if kind is not Kind.GGUF or around.clock() < self._slots_due_at:
            return None
        reply = await self._ask(SLOTS_PATH, timeout_s)
        if isinstance(reply, Reply) and reply.status == 200 and not reply.cut:
            return parse_slots(reply.body)
        if isinstance(reply, Reply):
            self._slots_due_at = around.clock() + pause_s
        return None

    def _compare_load(self, load: Load | None) -> None:
        """Count readings in a row that show more inside the engine than this router sent."""
        if load is None or load.running is None:
            return
        seat = self._around.roster.seat(self.known.member.name)
        ours = 0 if seat is None else seat.in_flight
        foreign = load.running + (load.waiting or 0) > ours
        self.known.foreign = self.known.foreign + 1 if foreign else 0


def _fault_of(reply: Reply | AskError) -> str | None:
    """Return why an answer is no list, None where it may be one."""
    if isinstance(reply, AskError):
        return reply.detail
    if reply.status in UNAUTHORIZED:
        return (
            f"GET {MODELS_PATH} answered {reply.status}: give its key as api_key, or name its "
            "models under `models`"
        )
    if reply.status != 200:
        return f"GET {MODELS_PATH} answered {reply.status}"
    return f"its answer to GET {MODELS_PATH} is too large" if reply.cut else None
