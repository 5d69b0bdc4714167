"""Autoscaling: the actuators, and what becomes of what they are told."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lifeboat.core.scaling import ScalingPolicy, ScalingReason
from lifeboat.core.view import GateView, PoolView
from lifeboat.core.vocabulary import Kind
from lifeboat.fleet.rules import gate_rules
from lifeboat.fleet.scaling import ActuatorError, Autoscaler, CommandActuator, Scaler
from lifeboat.settings import BackendConfig, ModelConfig
from lifeboat.settings.shapes import ScalingConfig
from tests.fleet.scripted import configured, house_of, until
from tests.observe.scenes import backend, pool, view

QUICK = ScalingPolicy(
    least=1, most=4, target=0.5, sustain_s=0.2, startup_s=0.1, scale_down_delay_s=0.4
)


def command(*words: str, timeout_s: float = 5.0) -> CommandActuator:
    return CommandActuator("a/m; echo $HOME", words, timeout_s)


async def run(actuator: CommandActuator, before: int = 2, after: int = 5) -> None:
    await actuator.scale(before, after, lambda: after)


# ---- the command --------------------------------------------------------------------------------


async def test_the_command_gets_its_placeholders_filled_in_and_no_shell_sees_them(
    tmp_path: Path,
) -> None:
    told = tmp_path / "told"
    code = "import sys; open(sys.argv[1], 'w').write('|'.join(sys.argv[2:]))"
    words = ("{model}", "--replicas={desired}", "from {current}", "{other}", "$HOME")
    await run(command(sys.executable, "-c", code, str(told), *words))
    assert told.read_text() == "a/m; echo $HOME|--replicas=5|from 2|{other}|$HOME"


async def test_the_routers_own_settings_and_secrets_do_not_reach_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIFEBOAT_ADMIN_TOKEN", "swordfish")
    monkeypatch.setenv("KUBECONFIG", "/there")
    told = tmp_path / "told"
    code = "import os, sys; open(sys.argv[1], 'w').write(' '.join(os.environ))"
    await run(command(sys.executable, "-c", code, str(told)))
    assert "KUBECONFIG" in told.read_text() and "LIFEBOAT" not in told.read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("/nowhere/at/all",), "cannot be run"),
        ((sys.executable, "-c", "import sys; sys.exit('no\\nquota')"), "ended with 1: no quota"),
        ((sys.executable, "-c", "raise SystemExit(3)"), "ended with 3: it said nothing"),
        ((sys.executable, "-c", "print('x' * 9_000_000 + 'end'); raise SystemExit(1)"), "xend"),
    ],
)
async def test_a_failure_says_what_happened(words: tuple[str, ...], told: str) -> None:
    with pytest.raises(ActuatorError) as found:
        await run(command(*words))
    assert told in str(found.value) and len(str(found.value)) < 800


async def test_a_command_that_takes_too_long_is_ended_with_all_it_started(tmp_path: Path) -> None:
    child = tmp_path / "child"
    code = (
        "import subprocess, sys; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
        f"open({str(child)!r}, 'w').write(str(child.pid)); child.wait()"
    )
    started_at = time.monotonic()
    with pytest.raises(ActuatorError, match=r"took longer than 1.5 s and was ended"):
        await run(command(sys.executable, "-c", code, timeout_s=1.5))
    assert time.monotonic() - started_at < 10.0
    await until(lambda: not _runs(int(child.read_text())))


async def test_a_server_that_the_command_leaves_running_is_left_alone(tmp_path: Path) -> None:
    child = tmp_path / "child"
    code = (
        "import subprocess, sys; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(20)']); "
        f"open({str(child)!r}, 'w').write(str(child.pid))"
    )
    await run(command(sys.executable, "-c", code))
    pid = int(child.read_text())
    assert _runs(pid)
    os.kill(pid, 9)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


# ---- what is wanted and what is there -----------------------------------------------------------


class Noted:
    """An actuator that only notes what it is told. fails: how often it does."""

    name = "command"
    overlapping = False

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []
        self.fails = 0

    def members(self, pool: PoolView) -> frozenset[str]:
        return frozenset(pool.members)

    async def scale(self, before: int, after: int, wanted: Callable[[], int]) -> None:
        self.told.append((before, after))
        if self.fails:
            self.fails -= 1
            raise ActuatorError("no quota")


def at(now: float, count: int, in_flight: int) -> GateView:
    names = tuple(f"b{number}" for number in range(count))
    backends = tuple(backend(name, configured_limit=10) for name in names)
    return view(backends, (pool("m", names, in_flight=in_flight),), now=now)


def scaler(actuator: Noted, **policy: Any) -> Scaler:
    whole = ScalingPolicy(**{"most": 8, "target": 0.5, "sustain_s": 10.0, **policy})
    return Scaler("m", ScalingConfig(whole, command=("x",)), actuator)


async def step(one: Scaler, now: float, count: int, in_flight: int) -> None:
    found = one.look(at(now, count, in_flight))
    if found is not None:
        await one.enact(*found, lambda: now)


async def test_a_failed_call_is_shown_and_tried_again_later() -> None:
    actuator = Noted()
    actuator.fails = 2
    one = scaler(actuator)
    for now in range(60):
        await step(one, float(now), 2, 20)
        if now == 12:
            assert one.status.failure == "no quota"
            assert (one.wanted, one.status.reason) == (2, ScalingReason.SUSTAINED)
    assert actuator.told == [(2, 4)] * 3
    assert (one.wanted, one.status.failure) == (4, None)


async def test_replicas_that_never_come_are_asked_for_again_after_their_start_up() -> None:
    actuator = Noted()
    one = scaler(actuator, startup_s=30.0)
    for now in range(70):
        await step(one, float(now), 2, 20)
    assert actuator.told == [(2, 4), (2, 4)]


async def test_what_an_operator_adds_by_hand_is_not_taken_away_at_once() -> None:
    actuator = Noted()
    one = scaler(actuator, startup_s=1.0, scale_down_delay_s=1000.0)
    for now in range(100):
        await step(one, float(now), 2 if now < 20 else 5, 10)
    assert actuator.told == []


async def test_a_pool_that_sleeps_is_woken_at_the_size_its_replicas_had() -> None:
    actuator = Noted()
    one = scaler(actuator, least=0, scale_down_delay_s=5.0)
    await step(one, 0.0, 2, 0)
    await step(one, 6.0, 2, 0)
    assert actuator.told == [(2, 0)]
    asleep = view((), (pool("m", (), queue_depth=11, effective_concurrency=0),), now=7.0)
    assert one.look(asleep) == (0, 3)


async def test_a_pool_that_is_not_there_is_left_alone() -> None:
    assert scaler(Noted()).look(view((), (), now=1.0)) is None


# ---- embedded replicas --------------------------------------------------------------------------


@asynccontextmanager
async def scaled_house(policy: ScalingPolicy = QUICK, replicas: int = 2):
    sim = BackendConfig("sim", Kind.SIMULATED, models=("m",), max_concurrency=4, replicas=replicas)
    models = (ModelConfig("m", scaling=ScalingConfig(policy, backend="sim")),)
    async with house_of(sim, models=models) as house:
        demand = [0]

        def shown() -> GateView:
            found = house.door.view()
            pools = dict(found.pools)
            pools["m"] = replace(pools["m"], in_flight=demand[0])
            return replace(found, pools=pools)

        autoscaler = Autoscaler(house.fleet, shown, house.clock)
        task = asyncio.create_task(autoscaler.run(0.02))
        try:
            yield house, autoscaler, demand
        finally:
            task.cancel()
            await asyncio.wait({task})


async def test_replicas_join_after_their_start_up_and_leave_when_superfluous() -> None:
    async with scaled_house() as (house, autoscaler, demand):
        demand[0] = 7
        await until(lambda: set(house.fleet.members()) == {f"sim-{n}" for n in range(1, 5)})
        assert (autoscaler.status()["m"].wanted, autoscaler.status()["m"].failure) == (4, None)
        assert autoscaler.scales()["m"].most_backends == 4
        assert len(house.engines.running) == 4
        assert house.fleet.backend_sources()["sim-4"]["max_concurrency"] == "scaled"
        demand[0] = 1
        await until(lambda: set(house.fleet.members()) == {"sim-1"})
        await until(lambda: len(house.engines.running) == 1)


async def test_what_is_no_longer_wanted_when_it_has_started_does_not_join() -> None:
    slow = replace(QUICK, startup_s=2.0, scale_down_delay_s=0.3)
    async with scaled_house(slow) as (house, autoscaler, demand):
        demand[0] = 8
        await until(lambda: bool(autoscaler.status()) and autoscaler.status()["m"].wanted == 4)
        demand[0] = 1
        await until(lambda: autoscaler.status()["m"].wanted == 1)
        await asyncio.sleep(2.4)
        assert set(house.fleet.members()) == {"sim-1"}


async def test_a_reload_changes_neither_what_was_added_nor_what_was_taken_away() -> None:
    for load, expected in ((8, {1, 2, 3, 4}), (1, {1})):
        async with scaled_house() as (house, autoscaler, demand):
            demand[0] = load
            wanted = {f"sim-{number}" for number in expected}
            await until(lambda wanted=wanted: set(house.fleet.members()) == wanted)
            await house.fleet.reload(house.fleet.configuration)
            assert set(house.fleet.members()) == wanted
            without = replace(house.fleet.configuration, models=(ModelConfig("m"),))
            await house.fleet.reload(without)
            assert set(house.fleet.members()) == {"sim-1", "sim-2"}
            await until(lambda autoscaler=autoscaler: not autoscaler.status())


async def test_an_engine_that_cannot_start_is_shown_and_stops_nothing() -> None:
    async with scaled_house() as (house, autoscaler, demand):
        house.engines.broken = True
        demand[0] = 8
        await until(lambda: bool(autoscaler.warnings()))
        assert "scaling m failed" in autoscaler.warnings()[0]
        assert "no port is free" in autoscaler.warnings()[0]
        assert set(house.fleet.members()) == {"sim-1", "sim-2"}


def test_a_pool_that_may_sleep_holds_what_arrives() -> None:
    for least, holds in ((0, True), (1, False)):
        scaling = ScalingConfig(replace(QUICK, least=least), backend="sim")
        rules = gate_rules(configured(models=(ModelConfig("m", scaling=scaling), ModelConfig("n"))))
        assert rules.holds("m") is holds
        assert not rules.holds("n")
