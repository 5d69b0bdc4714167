"""The composition root: a configuration becomes a running router, and ends as one.

Owns the task group, the reloading and the drain (I13): every task started anywhere belongs to it,
and nothing outlives it. Held by tests/conformance/test_shutdown.py and test_config_reload.py.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress

from lifeboat import __version__
from lifeboat.core.gate import Gate
from lifeboat.core.ledger import BodyLedger
from lifeboat.core.view import GateView
from lifeboat.counting import TokenCounter
from lifeboat.door import Door
from lifeboat.edge import tuning
from lifeboat.edge.admin import Admin
from lifeboat.edge.app import OwnPath, Switchboard, own_paths
from lifeboat.edge.dashboard import Dashboard
from lifeboat.edge.descriptors import soft_limit, too_few_descriptors
from lifeboat.edge.dispatch import Dispatch
from lifeboat.edge.entrance import Entrance
from lifeboat.edge.explain import Explainer
from lifeboat.edge.keys import AdminGuard, KeyRing
from lifeboat.edge.listener import cannot_listen
from lifeboat.edge.makers import Makers
from lifeboat.edge.pages import Pages, Readiness
from lifeboat.edge.proxy import Proxy
from lifeboat.edge.slices import Turnstile
from lifeboat.edge.sweep import PausedSweep
from lifeboat.embedded import Embedded
from lifeboat.fleet import Fleet, FleetError
from lifeboat.fleet.reloader import Reloader
from lifeboat.fleet.scaling import Autoscaler
from lifeboat.observe.access_log import AccessLog
from lifeboat.observe.events import LastRefusals, Observers
from lifeboat.observe.history import SAMPLE_S, History
from lifeboat.observe.log_pipe import set_log_level
from lifeboat.observe.metrics import Metrics
from lifeboat.observe.state import Surroundings
from lifeboat.observe.warnings import Warned
from lifeboat.settings.shapes import Configuration, Settings
from lifeboat.wire.pool import PooledUpstream

_log = logging.getLogger("lifeboat")


class StartError(Exception):
    """The router cannot start: its address is not to be had, or a backend cannot be used."""


class Router:
    """One router: its parts, and their life from start to drain.

    Every part gets its clock, its chance and its settings here.
    """

    def __init__(
        self, configuration: Configuration, reload: Callable[[], Configuration] | None = None
    ) -> None:
        """reload: reads the configuration again, in a thread; None = it never changes."""
        settings = configuration.settings
        self.configuration = configuration
        self.settings = settings
        self.addresses: list[str] = []
        self.admin_addresses: list[str] = []
        self._clock = time.monotonic
        self._started_at = self._clock()
        self._started = False
        self._entrance = Entrance(tuning.entrance_rules(settings), new_request_id)
        self._engines = Embedded()
        rng = random.Random()
        gate = Gate(
            Fleet.rules(configuration), None, settings.probe_failures, self._clock(), rng.random
        )
        self.door = Door(gate, self._clock)
        self._upstream = PooledUpstream()
        self.fleet = Fleet(
            configuration,
            self.door,
            embedded=self._engines.start,
            stop_embedded=self._engines.stop,
            clock=self._clock,
            rng=rng,
            wall=time.time,
            bytes_came_at=self._upstream.bytes_came_at,
            expected_rates=self._engines.expected_rates,
        )
        self._reloader = None if reload is None else Reloader(self.fleet, reload, self._apply)
        self._autoscaler = Autoscaler(self.fleet, self.view, self._clock)
        self.ledger = BodyLedger(settings.max_parked_bytes)
        self._counter = _counter(settings)
        self._makers = Makers()
        self._sweep = PausedSweep()
        self._refusals = LastRefusals()
        self._history = History()
        self.metrics = Metrics(
            self.view,
            version=__version__,
            configured_pools=self.fleet.configured_pools,
            engines=self.fleet.engines,
            reloads=self._reloads,
            scales=self._autoscaler.scales,
        )
        self._observers = Observers((self.metrics, self._refusals, AccessLog()), self._clock)
        self.metrics.watch(self._observers)
        self._dispatch = Dispatch(
            self.door,
            self.fleet,
            self._upstream,
            self._makers,
            time.time,
            tuning.dispatch_rules(settings),
        )
        self._keys = KeyRing(settings.api_keys)
        self._guard = AdminGuard(settings.admin_token, tuning.own_names(settings))
        self.switchboard, self.admin_switchboard = self._switchboards()
        self.switchboard.cors = tuning.cors(settings)

    def _switchboards(self) -> tuple[Switchboard, Switchboard | None]:
        settings = self.settings
        rules = tuning.proxy_rules(settings)
        turnstile = Turnstile()
        proxy = self._proxy = Proxy(
            self.door,
            self.fleet,
            self._dispatch,
            self._counter,
            self.ledger,
            self._makers,
            self._keys,
            self._observers,
            self._sweep,
            rules,
            wall=time.time,
            new_id=new_request_id,
            yield_now=turnstile.turn,
        )
        pages = Pages(
            self.door,
            self.fleet,
            self.metrics,
            self._refusals,
            self.view,
            self.surroundings,
            Readiness(lambda: self._started, lambda: self.settings.ready_needs_backend),
            self._autoscaler.status,
        )
        explainer = Explainer(
            self.door, self.fleet, self._counter, lambda: proxy.rules, turnstile.turn
        )
        admin = Admin(
            self.fleet,
            self._guard,
            explainer,
            self.view,
            self.surroundings,
            lambda: self.settings.client_body_timeout_s,
        )
        dashboard = Dashboard(self.door, self._history, __version__)
        own = own_paths(pages, admin, dashboard)
        if settings.admin_addr is None:
            return Switchboard(own, proxy, new_request_id), None
        public: tuple[OwnPath, ...] = tuple(row for row in own if not row.operators)
        return (
            Switchboard(public, proxy, new_request_id),
            Switchboard(own, None, new_request_id),
        )

    # -- what observers read ----------------------------------------------------------------

    def view(self) -> GateView:
        """Return a snapshot of the gate."""
        return self.door.view(self.ledger.total_bytes)

    def surroundings(self) -> Surroundings:
        """Return what the state shows besides the gate."""
        fleet = self.fleet
        found = [
            Warned(message, backend or None)
            for backend, messages in fleet.warnings().items()
            for message in messages
        ]
        found += [Warned(message, None) for message in self.configuration.warnings]
        found += [Warned(message, None) for message in self._autoscaler.warnings()]
        view = self.view()
        few = too_few_descriptors(view, soft_limit())
        if few is not None:
            found.append(Warned(few, None))
        return Surroundings(
            version=__version__,
            started_at=self._started_at,
            urls={name: member.url for name, member in fleet.members().items()},
            engines=fleet.engines(),
            warnings=tuple(found),
            sources=fleet.sources(),
            backend_sources=fleet.backend_sources(),
            reject_status=self.settings.reject_status,
            expected_rates=self._engines.expected_rates(view),
        )

    # -- another configuration ----------------------------------------------------------------

    def ask_to_reload(self) -> None:
        """Read the configuration again, soon: for a signal handler."""
        if self._reloader is not None:
            self._reloader.ask()

    def _reloads(self) -> tuple[int, int]:
        """Return how often it was put in force again, and how often it was refused."""
        reloader = self._reloader
        return (0, 0) if reloader is None else (reloader.reloads, reloader.failures)

    def _apply(self, configuration: Configuration) -> None:
        """Put in force what the fleet does not: for requests that arrive from now on.

        Runs in the step in which the fleet changes, so that no request sees half of it.
        """
        settings = configuration.settings
        if settings.log_level != self.settings.log_level:
            set_log_level(settings.log_level)
        self.configuration = configuration
        self.settings = settings
        self.ledger.bound_bytes = settings.max_parked_bytes
        self._keys.accept(settings.api_keys)
        self._guard.accept(settings.admin_token)
        self._dispatch.rules = tuning.dispatch_rules(settings)
        self.switchboard.cors = tuning.cors(settings)
        self._proxy.rules = tuning.proxy_rules(settings)
        self._entrance.retune(tuning.entrance_rules(settings))

    # -- life -------------------------------------------------------------------------------

    async def run(
        self, stop: asyncio.Event, on_ready: Callable[[Router], None] = lambda router: None
    ) -> None:
        """Serve until `stop` is set, then drain. on_ready: called once requests are taken.

        Raises StartError when it cannot start.
        """
        failure: StartError | None = None
        async with asyncio.TaskGroup() as tasks:
            try:
                await self._live(tasks, stop, on_ready)
            except StartError as error:
                # Raised out of a group it would come wrapped, and be shown as a traceback.
                failure = error
        if failure is not None:
            raise failure

    async def _live(
        self, tasks: asyncio.TaskGroup, stop: asyncio.Event, on_ready: Callable[[Router], None]
    ) -> None:
        own: list[asyncio.Task[None]] = []
        try:
            await self._listen(tasks)
            own.append(tasks.create_task(self._entrance.keep_time(), name="fast lane's clock"))
            own.append(tasks.create_task(self._sweep.run(), name="sweep of paused connections"))
            own.append(tasks.create_task(self._sample_history(), name="samples of the history"))
            await self._start_fleet(tasks)
            own.append(tasks.create_task(self._autoscaler.run(), name="autoscaling"))
            if self._reloader is not None:
                own.append(tasks.create_task(self._reloader.watch(), name="reloading"))
            self._started = True
            # What exists now stays: a full collection need not look at it again, and would stall
            # the loop for tens of milliseconds if it did.
            gc.freeze()
            on_ready(self)
            if self._counter is not None:
                # After the start: a thread or not, it would take its time from it.
                tasks.create_task(_load(self._counter), name="loading the tokenizer")
            await stop.wait()
            if self._reloader is not None:
                # What drains has no use for another configuration.
                own.pop().cancel()
            await self._drain()
        finally:
            for task in own:
                task.cancel()
            await self._close()

    async def _start_fleet(self, tasks: asyncio.TaskGroup) -> None:
        try:
            await self.fleet.start(tasks)
        except FleetError as error:
            raise StartError(str(error)) from None
        few = too_few_descriptors(self.view(), soft_limit())
        if few is not None:
            _log.warning("%s", few)

    async def _sample_history(self) -> None:
        while True:
            self._history.sample(self.view())
            await asyncio.sleep(SAMPLE_S)

    async def _listen(self, tasks: asyncio.TaskGroup) -> None:
        settings, entrance = self.settings, self._entrance
        host, port = settings.host, settings.port
        knobs = "LIFEBOAT_HOST or --host", "LIFEBOAT_PORT or --port"
        try:
            lane_tasks = tasks if settings.fast_lane else None
            self.addresses = await entrance.open(self.switchboard, host, port, lane_tasks)
            if self.admin_switchboard is not None and settings.admin_addr is not None:
                host, port = settings.admin_addr.host, settings.admin_addr.port
                knobs = ("LIFEBOAT_ADMIN_ADDR or --admin-addr",) * 2
                self.admin_addresses = await entrance.open(self.admin_switchboard, host, port)
        except OSError as error:
            raise StartError(cannot_listen(host, port, error, *knobs)) from None

    async def _drain(self) -> None:
        """Refuse what is new, answer or serve the parked, wait for what runs, up to the grace.

        The listener stays open meanwhile: a health check must see the 503 of `/ready`, and whoever
        arrives is told `shutting_down` rather than met by a closed door.
        """
        settings = self.settings
        self._dispatch.draining = True
        serve_parked = settings.shutdown_serve_parked
        self.door.reconfigure(lambda gate, now: gate.drain(now, serve_parked=serve_parked))
        view = self.view()
        _log.warning(
            "draining: %d requests run, %d are parked, %g s of grace",
            view.open_leases, view.parked, settings.shutdown_grace_s,
        )  # fmt: skip
        with suppress(TimeoutError):
            async with asyncio.timeout(settings.shutdown_grace_s):
                await self._proxy.idle()
        self._dispatch.end_switched()

    async def _close(self) -> None:
        self._started = False
        await self._entrance.close()
        await self.fleet.close()
        await self._upstream.close()
        await self._engines.close()
        if self._counter is not None:
            self._counter.close()
        self.door.stop()


async def _load(counter: TokenCounter) -> None:
    """Load a tokenizer off the loop; its vocabulary stays, so no collection need look at it."""
    await asyncio.to_thread(counter.load)
    gc.freeze()


def _counter(settings: Settings) -> TokenCounter | None:
    return None if settings.tokenizer == "quick" else TokenCounter(settings.tokenizer)


def new_request_id() -> str:
    """Return a fresh request id: 128 random bits. It is no secret, so no system call is made."""
    return f"{_ids.getrandbits(128):032x}"


_ids = random.Random()
