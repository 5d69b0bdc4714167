"""Coming and going: the configured, the registered, what was changed by API, and their watches.

Everything that may fail or wait comes first (`prepare`, a CA file read); then one synchronous step
changes all. Who wins: what was set or removed by API, until restart; then the configuration.
Held by tests/fleet/test_membership.py and test_reload.py.
"""

from __future__ import annotations

import asyncio
import logging

from lifeboat.core.urls import same_server, server_root
from lifeboat.core.vocabulary import OperatorState
from lifeboat.fleet.changes import (
    CONFLICT,
    INVALID,
    UNSET,
    FleetError,
    Patch,
    Registration,
    Unset,
)
from lifeboat.fleet.engine_room import EngineRoom
from lifeboat.fleet.inquiry import AskError
from lifeboat.fleet.known import Known
from lifeboat.fleet.members import Member, Origin, member_of
from lifeboat.fleet.plan import Plan, scales
from lifeboat.fleet.rules import API
from lifeboat.fleet.state_file import Remembered, StateFile
from lifeboat.fleet.watch import Surroundings, Watch
from lifeboat.settings.shapes import BackendConfig, Configuration

log = logging.getLogger(__name__)


class Membership:
    """Who is in, by whose word, and who looks after them."""

    def __init__(
        self, around: Surroundings, engine_room: EngineRoom, state_file: StateFile | None
    ) -> None:
        self._around = around
        self._roster = around.roster
        self._engine_room = engine_room
        self._state_file = state_file
        self._tasks: asyncio.TaskGroup | None = None
        self._removed_by_api: set[str] = set()
        self._scaled_away: set[str] = set()
        self.watches: dict[str, Watch] = {}

    # -- life -------------------------------------------------------------------------------

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Take the group that owns the watches."""
        self._tasks = tasks

    def end(self) -> None:
        """Stop every watch."""
        for watch in self.watches.values():
            watch.stop()
        self.watches.clear()
        self._tasks = None

    async def first_answers(self) -> None:
        """Wait until each backend has answered its first probe, `first_s` at the most."""
        await self._await_first(list(self.watches.values()))

    def nudge(self, model: str) -> None:
        """Have the backends of a model, or those that listed none yet, probed soon if down."""
        members = self._roster.names.members(model)
        if not members:
            members = [known for known in self._roster.present.values() if known.models is None]
        for known in members:
            watch = self.watches.get(known.member.name)
            if watch is not None:
                watch.want()

    def look(self, name: str) -> None:
        """Have a backend's pace thought over at once."""
        watch = self.watches.get(name)
        if watch is not None:
            watch.look()

    # -- the configuration --------------------------------------------------------------------

    async def prepare(self, configuration: Configuration) -> Plan:
        """Do all of a configuration that can fail. Raises FleetError with nothing changed."""
        started: list[str] = []
        urls: dict[str, str] = {}
        try:
            for config in configuration.backends:
                if self._stays_out(config.name, configuration):
                    continue
                url, is_new = await self._url_of(config)
                urls[config.name] = url
                if is_new:
                    started.append(url)
                await self._check_trust(member_of(config, url, configuration.settings, Origin.FILE))
                held = self._roster.present.get(config.name)
                if held is not None and held.member.origin is Origin.REGISTERED:
                    self._roster.check_free(config.name, url)
        except BaseException:
            for url in started:
                await self._engine_room.stop(url)
            raise
        return Plan(configuration, urls)

    def apply(self, plan: Plan) -> None:
        """Put a prepared configuration in force.

        The new come in before the old go, so that a model that only moves is served throughout.
        """
        configuration = plan.configuration
        usual = Origin.DEFAULT if configuration.simulated_by_default else Origin.FILE
        for config in configuration.backends:
            url = plan.urls.get(config.name)
            if url is not None and not self._stays_out(config.name, configuration):
                member = member_of(config, url, configuration.settings, usual)
                self._take_configured(config, member)
        wanted = {config.name for config in configuration.backends}
        for name, known in list(self._roster.present.items()):
            origin = known.member.origin
            if plan.keeps(origin):
                known.member = member_of(
                    known.config,
                    known.member.url,
                    configuration.settings,
                    origin,
                    known.member.ttl_s,
                )
            elif name not in wanted:
                self._leave(name)

    def _stays_out(self, name: str, configuration: Configuration) -> bool:
        scaled_away = name in self._scaled_away and scales(configuration)
        return scaled_away or name in self._removed_by_api

    # -- replicas that autoscaling adds and takes away ------------------------------------------

    async def join_replica(self, config: BackendConfig) -> None:
        """Let one more embedded backend in; does nothing for one that is there.

        Raises FleetError (400 where its engine cannot start, 409 while its name is still busy).
        """
        name = config.name
        self._roster.purge()
        if name in self._roster.present:
            return
        if name in self._roster.leaving:
            raise FleetError(CONFLICT, f"requests of the last {name!r} still run")
        url = await self._engine_room.start(config)
        self._scaled_away.discard(name)
        settings = self._around.settings()
        self._join(Known(config, member_of(config, url, settings, Origin.SCALED)))

    def leave_replica(self, name: str) -> None:
        """Take one out: it drains, and its engine stops. Does nothing for one that is not there."""
        if name in self._roster.present:
            self._leave(name)
            self._scaled_away.add(name)

    async def _url_of(self, config: BackendConfig) -> tuple[str, bool]:
        """Return a backend's url, and whether an embedded engine was started for it."""
        if config.url is not None:
            return server_root(config.url), False
        held = self._roster.present.get(config.name)
        if (
            held is not None
            and held.member.embedded
            and held.config.simulate == config.simulate
            and held.config.models == config.models
        ):
            return held.member.url, False
        return await self._engine_room.start(config), True

    async def _check_trust(self, member: Member) -> None:
        path = member.tls_ca_file
        if path is None or not member.tls_verify:
            return
        try:
            await self._around.inquirer.read_trust(path)
        except AskError as error:
            raise FleetError(INVALID, f"backend {member.name!r}: {error.detail}") from None

    def _take_configured(self, config: BackendConfig, member: Member) -> None:
        known = self._roster.present.get(member.name)
        if known is None:
            self._join(Known(config, member))
            return
        before = known.member
        known.config, known.member, known.expires_at = config, member, None
        moved = not same_server(before.url, member.url)
        if moved:
            # Requests that run there finish there, and count here until they do.
            known.forget_server()
            self._engine_room.retire(member.name, before.url)
        self._roster.publish(known)
        if moved or before.kind is not member.kind or before.api_key != member.api_key:
            self._watch(known)

    # -- registration -------------------------------------------------------------------------

    async def register(self, registration: Registration) -> bool:
        """Let a backend in, or take its heartbeat; return whether it is new."""
        settings = self._around.settings()
        config = registration.backend
        assert config.url is not None
        await self._check_trust(member_of(config, config.url, settings, Origin.REGISTERED))
        self._roster.check_free(config.name, config.url)
        held = self._roster.present.get(config.name)
        if held is not None:
            self._renew(held, registration)
            await self.save()
            return False
        known = self._admit(config, registration.ttl_s)
        self._removed_by_api.discard(config.name)
        if known.models is None:
            await self._await_first([self.watches[config.name]])
        await self.save()
        return True

    def recall(self) -> None:
        """Let in what the state file remembers; each has a full ttl to send its next heartbeat."""
        if self._state_file is None:
            return
        for remembered in self._state_file.read():
            config = remembered.backend
            assert config.url is not None
            try:
                self._roster.check_free(config.name, config.url)
            except FleetError as error:
                log.warning("not taken from the state file: %s", error)
                continue
            if config.name not in self._roster.present:
                self._admit(config, remembered.ttl_s)

    async def save(self) -> None:
        """Write the registered backends to the state file, if they have changed."""
        if self._state_file is not None:
            await self._state_file.write(
                [
                    Remembered(known.config, known.member.ttl_s)
                    for known in self._roster.present.values()
                    if known.member.origin is Origin.REGISTERED
                ]
            )

    def _admit(self, config: BackendConfig, ttl_s: float | None) -> Known:
        assert config.url is not None
        member = member_of(config, config.url, self._around.settings(), Origin.REGISTERED, ttl_s)
        known = Known(config, member)
        known.expires_at = None if ttl_s is None else self._around.clock() + ttl_s
        self._join(known)
        return known

    def _renew(self, known: Known, registration: Registration) -> None:
        """Take a heartbeat, and what it says anew.

        A backend of the configuration needs none, and is what the configuration says.
        """
        if known.member.origin is not Origin.REGISTERED:
            return
        before = known.member
        ttl_s = before.ttl_s if registration.ttl_s is None else registration.ttl_s
        known.config = registration.over(known.config)
        member = member_of(
            known.config, before.url, self._around.settings(), Origin.REGISTERED, ttl_s
        )
        known.expires_at = None if ttl_s is None else self._around.clock() + ttl_s
        if member == before:
            return
        known.member = member
        self._roster.publish(known)
        if (before.kind, before.api_key) != (member.kind, member.api_key):
            self._watch(known)

    # -- leaving and retuning -------------------------------------------------------------------

    def remove(self, name: str) -> None:
        """Take a backend out by API. Raises FleetError (404)."""
        origin = self._roster[name].member.origin
        self._leave(name)
        if origin is not Origin.REGISTERED:
            self._removed_by_api.add(name)

    def expire(self) -> None:
        """Take out those whose heartbeat has stopped."""
        now = self._around.clock()
        for name, known in list(self._roster.present.items()):
            if known.expires_at is not None and known.expires_at <= now:
                log.warning("no heartbeat of %s for %g s: it leaves", name, known.member.ttl_s)
                self._leave(name)

    def patch(self, name: str, change: Patch) -> None:
        """Change one backend until restart. Raises FleetError (404)."""
        known = self._roster[name]
        if not isinstance(change.max_concurrency, Unset):
            limit = change.max_concurrency
            known.set_max_concurrency = UNSET if limit is None else limit
        if not isinstance(change.max_input_tokens, Unset):
            cap = change.max_input_tokens
            known.set_input_cap = UNSET if cap is None else cap
        if isinstance(change.state, Unset):
            self._roster.publish(known)
            return
        known.set_state = UNSET if change.state is None else change.state
        state = change.state or OperatorState.READY
        # The one that closes comes first, so that no request slips in between the two.
        if state is OperatorState.READY:
            self._roster.publish(known)
            self._roster.set_state(known, state)
        else:
            self._roster.set_state(known, state)
            self._roster.publish(known)

    def sources_of(self, known: Known) -> dict[str, str]:
        """Return where the values of one backend come from."""
        registered = known.member.origin is Origin.REGISTERED
        defaults = BackendConfig(known.config.name, known.config.kind)

        def source(own: object, configured: object, default: object) -> str:
            if not isinstance(own, Unset):
                return API
            if configured == default:
                return Origin.DEFAULT.value
            return API if registered else known.member.origin.value

        return {
            "max_concurrency": source(
                known.set_max_concurrency,
                known.config.max_concurrency,
                defaults.max_concurrency,
            ),
            "max_input_tokens": source(
                known.set_input_cap, known.config.max_input_tokens, defaults.max_input_tokens
            ),
            "state": source(known.set_state, None, None),
        }

    def warnings(self) -> list[str]:
        """Return what concerns no present backend."""
        texts = [
            f"backend {name!r} of the configuration was removed by API; it stays out until a "
            "restart, or until it is registered"
            for name in sorted(self._removed_by_api)
        ]
        if self._state_file is not None and self._state_file.fault is not None:
            texts.append(self._state_file.fault)
        return texts

    # -- inside -----------------------------------------------------------------------------

    def _join(self, known: Known) -> None:
        self._roster.put(known)
        self._watch(known)

    def _leave(self, name: str) -> None:
        watch = self.watches.pop(name, None)
        if watch is not None:
            watch.stop()
        known = self._roster.remove(name)
        self._engine_room.retire(name, known.member.url)

    def _watch(self, known: Known) -> None:
        """Look after a backend, from now on and afresh."""
        name = known.member.name
        earlier = self.watches.get(name)
        if earlier is not None:
            earlier.stop()
        watch = self.watches[name] = Watch(known, self._around)
        if self._tasks is not None:
            watch.start(self._tasks)

    async def _await_first(self, watches: list[Watch]) -> None:
        try:
            async with asyncio.timeout(self._around.pace.first_s):
                for watch in watches:
                    await watch.first.wait()
        except TimeoutError:
            return
