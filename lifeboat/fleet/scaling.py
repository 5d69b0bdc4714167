"""Autoscaling: looks at each scaled pool once a second and has its replicas added or taken away.

What to do is core.scaling's to say; here it is done, by one of two actuators, and what goes wrong
is kept to be shown. A slow or failing actuator never stops the looking. Held by
tests/fleet/test_scaling.py.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Protocol

from lifeboat.core.capacity import FullScale, report_of, slots_per_backend
from lifeboat.core.scaling import (
    Decision,
    Sample,
    SampleRecord,
    ScalingReason,
    ScalingStatus,
    decide,
)
from lifeboat.core.selection import UNGATED_COUNTS_AS
from lifeboat.core.view import GateView, PoolView
from lifeboat.fleet.changes import FleetError
from lifeboat.fleet.fleet import Fleet
from lifeboat.fleet.replicas import Replicas
from lifeboat.settings.shapes import ScalingConfig

log = logging.getLogger(__name__)

LOOK_S = 1.0
RETRY_S = 15.0
"""Pause after a failure, so that a broken command is not run every second."""
OUTPUT_KEPT = 500
"""Characters of a failed command's last words that are shown."""


class ActuatorError(Exception):
    """The replicas could not be changed; the message says why."""


class Actuator(Protocol):
    """What changes the number of replicas. overlapping: whether it may run more than once."""

    name: str
    overlapping: bool

    def members(self, pool: PoolView) -> frozenset[str]:
        """Return the backends of the pool that are its replicas."""
        ...

    async def scale(self, before: int, after: int, wanted: Callable[[], int]) -> None:
        """Change their number. wanted: what is wanted by then. Raises ActuatorError."""
        ...


class SimulatedActuator:
    """Embedded replicas that join after a start-up delay, and leave by draining.

    When to choose it: to try a policy. Cost: each replica is an engine in this process.
    """

    name = "simulated"
    overlapping = True

    def __init__(self, replicas: Replicas, startup_s: float) -> None:
        self._replicas = replicas
        self._startup_s = startup_s

    def members(self, pool: PoolView) -> frozenset[str]:
        """Return the replicas by their names."""
        return frozenset(self._replicas.name(number) for number in self._replicas.numbers())

    async def scale(self, before: int, after: int, wanted: Callable[[], int]) -> None:
        """Add up to `after`, each once it has started, or take the highest numbers away."""
        if after < before:
            for number in sorted(self._replicas.numbers(), reverse=True):
                if number > after:
                    self._replicas.leave(number)
            return
        await asyncio.sleep(self._startup_s)
        try:
            for number in range(1, after + 1):
                # What is no longer wanted by the time it has started does not join.
                if number <= wanted():
                    await self._replicas.join(number)
        except FleetError as error:
            raise ActuatorError(str(error)) from None


class CommandActuator:
    """An operator's command, run without a shell, ended when it takes too long.

    When to choose it: whatever has a command line (kubectl, a cloud's tool, a script). The new
    servers register themselves, or stand in the configuration already. Weakness: it knows no more
    than the exit code; replicas that never come are asked for again after the start-up time.
    """

    name = "command"
    overlapping = False

    def __init__(self, model: str, command: tuple[str, ...], timeout_s: float) -> None:
        self._model = model
        self._command = command
        self._timeout_s = timeout_s

    def members(self, pool: PoolView) -> frozenset[str]:
        """Return every backend of the pool."""
        return frozenset(pool.members)

    async def scale(self, before: int, after: int, wanted: Callable[[], int]) -> None:
        """Run the command, with the placeholders filled in."""
        words = [self._filled(word, before, after) for word in self._command]
        # A file, not a pipe: a server that the command leaves running may hold it open.
        with tempfile.TemporaryFile() as output:
            code = await self._run(words, output)
            if code != 0:
                said = _last_words(output) or "it said nothing"
                raise ActuatorError(f"{words[0]} ended with {code}: {said}")

    async def _run(self, words: list[str], output: IO[bytes]) -> int:
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env=_environment(),
                # A group of its own, so that what it has started is ended with it.
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ActuatorError(f"{words[0]} cannot be run: {error}") from None
        try:
            async with asyncio.timeout(self._timeout_s):
                return await process.wait()
        except TimeoutError:
            raise ActuatorError(
                f"{words[0]} took longer than {self._timeout_s:g} s and was ended"
            ) from None
        finally:
            if process.returncode is None:
                await _end(process)

    def _filled(self, word: str, before: int, after: int) -> str:
        values = {"{model}": self._model, "{desired}": str(after), "{current}": str(before)}
        for placeholder, value in values.items():
            word = word.replace(placeholder, value)
        return word


class Scaler:
    """One pool: its samples, what is wanted, and what came of it."""

    def __init__(self, model: str, config: ScalingConfig, actuator: Actuator) -> None:
        self.model = model
        self.config = config
        self.actuator = actuator
        self.wanted = 0
        self.fixed = 0
        self.present = 0
        self.failure: str | None = None
        self._record = SampleRecord(config.policy)
        self._decision = Decision(0, 0, ScalingReason.STEADY)
        self._reason = ScalingReason.STEADY
        self._known = False
        self._running = 0
        self._retry_at = 0.0
        self._acted_at = 0.0
        self._slots = float(UNGATED_COUNTS_AS)

    @property
    def status(self) -> ScalingStatus:
        """What is shown."""
        policy = self.config.policy
        return ScalingStatus(
            self.actuator.name,
            policy.least,
            policy.most,
            policy.target,
            self.fixed,
            self.wanted,
            self._decision.raw,
            self._reason,
            self.failure,
        )

    def look(self, view: GateView) -> tuple[int, int] | None:
        """Take a sample; return from and to how many replicas to go, None to leave them."""
        pool = view.pools.get(self.model)
        if pool is None:
            return None
        now = view.now
        replicas = self.actuator.members(pool)
        self.present = len(replicas)
        self.fixed = sum(name not in replicas for name in pool.members)
        if not self._known:
            self._known, self.wanted, self._acted_at = True, self.present, now
        sample = self._sample(pool, view, replicas)
        self._decision = decide(self.config.policy, self._record.add(sample), self.wanted)
        if now < self._retry_at or (self._running and not self.actuator.overlapping):
            return None
        before, after = self.wanted, self._decision.desired
        if after == before:
            overdue = now - self._acted_at > self.config.policy.startup_s + RETRY_S
            if self.present >= self.wanted or self._running or not overdue:
                return None
            # Asked for and never come, or gone since: once more.
            before = self.present
        else:
            self._reason = self._decision.reason
        self.wanted, self._acted_at = after, now
        return before, after

    def _sample(self, pool: PoolView, view: GateView, replicas: frozenset[str]) -> Sample:
        members = [view.backends[name] for name in pool.members if name in view.backends]
        own = [member for member in members if member.spec.name in replicas]
        fixed = [member for member in members if member.spec.name not in replicas]
        if own:
            # Those of a pool that sleeps are taken to be as large as its last ones were.
            self._slots = slots_per_backend(own, view)
        demand = report_of(pool, view).demand
        return Sample(view.now, demand, self._slots, len(fixed) * slots_per_backend(fixed, view))

    async def enact(self, before: int, after: int, clock: Callable[[], float]) -> None:
        """Have the replicas changed; a failure is kept, and tried again by a later look."""
        self._running += 1
        log.warning(
            "scaling %s from %d to %d replicas (%s)", self.model, before, after, self._reason.value
        )
        try:
            await self.actuator.scale(before, after, lambda: self.wanted)
        except ActuatorError as error:
            self._failed(before, str(error), clock())
        except Exception:
            log.exception("scaling %s failed", self.model)
            self._failed(before, "a fault of the router; its log has the cause", clock())
        else:
            self.failure = None
        finally:
            self._running -= 1

    def _failed(self, before: int, failure: str, now: float) -> None:
        if failure != self.failure:
            log.warning("scaling %s failed: %s", self.model, failure)
        self.failure = failure
        self.wanted = before
        self._retry_at = now + RETRY_S


class Autoscaler:
    """All scaled pools of the configuration in force."""

    def __init__(
        self, fleet: Fleet, view: Callable[[], GateView], clock: Callable[[], float]
    ) -> None:
        self._fleet = fleet
        self._view = view
        self._clock = clock
        self._scalers: dict[str, Scaler] = {}

    async def run(self, look_s: float = LOOK_S) -> None:
        """Look, act, look again, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._renew()
                if self._scalers:
                    self._look(tasks)
                await asyncio.sleep(look_s)

    def scales(self) -> Mapping[str, FullScale]:
        """Return what may become of each scaled pool."""
        return {model: scaler.status.scale for model, scaler in self._scalers.items()}

    def status(self) -> Mapping[str, ScalingStatus]:
        """Return what is to be shown of each scaled pool."""
        return {model: scaler.status for model, scaler in self._scalers.items()}

    def warnings(self) -> list[str]:
        """Return what failed, in words."""
        return [
            f"scaling {model} failed: {scaler.failure}"
            for model, scaler in self._scalers.items()
            if scaler.failure is not None
        ]

    def _look(self, tasks: asyncio.TaskGroup) -> None:
        view = self._view()
        for scaler in self._scalers.values():
            step = scaler.look(view)
            if step is not None:
                tasks.create_task(scaler.enact(*step, self._clock), name=f"scaling {scaler.model}")

    def _renew(self) -> None:
        """Follow the configuration in force; a pool whose settings changed starts afresh."""
        wanted = {
            model.name: model.scaling
            for model in self._fleet.configuration.models
            if model.scaling is not None
        }
        for model in list(self._scalers):
            if wanted.get(model) != self._scalers[model].config:
                del self._scalers[model]
        for model, config in wanted.items():
            if model not in self._scalers:
                self._scalers[model] = Scaler(model, config, self._actuator(model, config))

    def _actuator(self, model: str, config: ScalingConfig) -> Actuator:
        if config.backend is None:
            return CommandActuator(model, config.command, config.timeout_s)
        replicas = self._fleet.replicas_of(config.backend)
        return SimulatedActuator(replicas, config.policy.startup_s)


def _environment() -> dict[str, str]:
    """Return the environment for a command: ours, without our settings and their secrets."""
    return {key: value for key, value in os.environ.items() if not key.startswith("LIFEBOAT_")}


def _last_words(output: IO[bytes]) -> str:
    """Return the last of what a command said, on one line."""
    length = output.seek(0, os.SEEK_END)
    output.seek(max(0, length - 4 * OUTPUT_KEPT))
    return " ".join(output.read().decode("utf-8", "replace").split())[-OUTPUT_KEPT:]


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a command that still runs, and all it has started in its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
