"""Reloading: all or nothing, with everything in progress carried over (BUG-195, 196, 198)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lifeboat.core.modes import Mode
from lifeboat.core.seat import Lease
from lifeboat.core.vocabulary import (
    Ask,
    Capability,
    Kind,
    OperatorState,
    Outcome,
    Refusal,
    Verdict,
)
from lifeboat.fleet import FleetError, Patch, Registration
from lifeboat.fleet.reloader import Reloader
from lifeboat.settings import BackendConfig, Configuration, ModelConfig, load
from tests.fleet.scripted import (
    QUICK,
    House,
    backend,
    configured,
    house_of,
    running,
    serving,
    until,
)

ASK = Ask("m", Capability.GENERATE)
DONE = Outcome(Verdict.ANSWERED, 200)


def embedded(name: str, **simulate: object) -> BackendConfig:
    return BackendConfig(name, Kind.SIMULATED, models=("m",), simulate=simulate)


async def taken(house: House) -> Lease:
    lease = await house.door.enter(ASK)
    assert isinstance(lease, Lease)
    return lease


async def test_limits_and_membership_change_and_what_runs_runs_on() -> None:
    async with (
        serving(3) as [one, two, three],
        house_of(
            backend("a", one, models=("m",), max_concurrency=8),
            backend("b", two, models=("m",), max_concurrency=8),
        ) as house,
    ):
        leases = [await taken(house) for _ in range(10)]
        kept = backend("a", one, models=("m",), max_concurrency=2)
        await house.fleet.reload(configured(kept, backend("c", three, models=("m",))))
        view = house.door.view()
        assert view.backends["a"].in_flight == 5 and view.backends["a"].effective_limit == 2
        assert view.backends["b"].in_flight == 5 and view.backends["b"].effective_limit == 0
        assert (await taken(house)).backend == "c"
        for lease in leases:
            house.door.close(lease, DONE)
        await until(lambda: set(house.fleet.members()) == {"a", "c"})
        assert house.door.view().open_leases == 1


async def test_the_parked_of_a_model_that_moves_to_another_backend_stay_parked() -> None:
    async with (
        serving(2) as [one, two],
        house_of(backend("a", one, models=("m",), max_concurrency=1), queue_enabled=True) as house,
    ):
        await taken(house)
        waiting = asyncio.get_running_loop().create_task(house.door.enter(ASK))
        await asyncio.sleep(0)
        await house.fleet.reload(configured(backend("b", two, models=("m",)), queue_enabled=True))
        lease = await waiting
        assert isinstance(lease, Lease) and lease.backend == "b"


async def turns() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def test_a_renamed_backend_gets_no_more_than_its_server_has_left() -> None:
    async with (
        serving() as [one],
        house_of(backend("a", one, models=("m",), max_concurrency=2), queue_enabled=True) as house,
    ):
        running = [await taken(house) for _ in range(2)]
        waiting = [asyncio.get_running_loop().create_task(house.door.enter(ASK)) for _ in range(2)]
        await asyncio.sleep(0)
        renamed = backend("b", one, models=("m",), max_concurrency=2)
        await house.fleet.reload(configured(renamed, queue_enabled=True))
        await turns()
        new = house.door.view().backends["b"]
        assert (new.in_flight, new.effective_limit, new.limit_reason) == (0, 0, "predecessor")
        for ended in (1, 2):
            house.door.close(running.pop(), DONE)
            await turns()
            assert sum(task.done() for task in waiting) == ended
        assert house.door.view().backends["b"].limit_reason == "configured"


async def test_a_backend_that_takes_the_server_of_another_gets_what_that_one_leaves() -> None:
    async with (
        serving(2) as [one, two],
        house_of(
            backend("a", one, models=("m",), max_concurrency=2),
            backend("b", two, models=("n",), max_concurrency=2),
            hold_when_down=True,
        ) as house,
    ):
        house.door.close(await taken(house), Outcome(Verdict.REFUSED))
        running = [await house.door.enter(Ask("n", Capability.GENERATE)) for _ in range(2)]
        waiting = [asyncio.get_running_loop().create_task(house.door.enter(ASK)) for _ in range(2)]
        await asyncio.sleep(0)
        exchanged = configured(
            backend("a", two, models=("m",), max_concurrency=2),
            backend("b", one, models=("n",), max_concurrency=2),
            hold_when_down=True,
        )
        await house.fleet.reload(exchanged)
        await turns()
        assert not any(task.done() for task in waiting)
        assert house.door.view().backends["a"].limit_reason == "predecessor"
        for lease in running:
            assert isinstance(lease, Lease)
            house.door.close(lease, DONE)
        for task in waiting:
            assert isinstance(await task, Lease)


async def test_what_an_operator_closed_stays_closed_where_its_server_moves() -> None:
    async with (
        serving(2) as [one, two],
        house_of(backend("a", one, models=("m",))) as house,
    ):
        house.fleet.patch("a", Patch(state=OperatorState.MAINT))
        await house.fleet.reload(configured(backend("a", two, models=("m",))))
        assert house.door.view().backends["a"].limit_reason == "maint"
        house.fleet.patch("a", Patch(state=OperatorState.READY))
        await house.fleet.reload(configured(backend("a", one, models=("m",))))
        assert house.door.view().backends["a"].limit_reason == "default"


@pytest.mark.parametrize("fault", ["engine", "ca", "name"])
async def test_a_configuration_that_cannot_be_put_in_force_changes_nothing(fault: str) -> None:
    async with serving(2) as [one, two], house_of(backend("a", one, max_concurrency=8)) as house:
        await house.fleet.register(Registration.from_mapping({"name": "r", "url": two.url}))
        before = house.door.view()
        good = backend("a", one, max_concurrency=2)
        bad = {
            "engine": embedded("sim"),
            "ca": backend("t", "https://127.0.0.1:1", tls_ca_file=Path("/nowhere.pem")),
            "name": backend("r", one),
        }[fault]
        house.engines.broken = fault == "engine"
        running = embedded("fine")
        entries = (good, bad) if fault == "engine" else (good, running, bad)
        with pytest.raises(FleetError):
            await house.fleet.reload(configured(*entries, mode=Mode.SUPERFAST))
        after = house.door.view()
        assert after.mode is before.mode
        assert after.backends["a"].effective_limit == 8
        assert set(after.backends) == {"a", "r"}
        assert house.engines.running == []


async def test_embedded_engines_start_before_and_stop_after_they_are_needed() -> None:
    async with house_of(embedded("s")) as house:
        first = house.fleet.members()["s"].url
        await house.fleet.reload(configured(embedded("s")))
        assert house.fleet.members()["s"].url == first and house.engines.started == 1
        lease = await taken_whatever_its_health(house)
        await house.fleet.reload(configured(embedded("s", max_num_seqs=2)))
        second = house.fleet.members()["s"].url
        assert first != second
        await asyncio.sleep(0.15)
        assert house.engines.running == [first, second]
        house.door.close(lease, DONE)
        await until(lambda: house.engines.running == [second])
        await house.fleet.reload(configured())
        await until(lambda: house.engines.running == [])


async def taken_whatever_its_health(house: House) -> Lease:
    """Take a slot of an engine that does not exist: nothing listens at its url."""
    from lifeboat.core.health import Probe, ProbeResult

    probe = Probe(ProbeResult.OK)
    house.door.reconfigure(lambda gate, now: gate.observe_probe("s", probe, now))
    return await taken(house)


async def test_what_was_set_registered_or_removed_by_api_stays_over_a_reload() -> None:
    async with (
        serving(3) as [one, two, three],
        house_of(backend("a", one, max_concurrency=8), backend("b", two)) as house,
    ):
        fleet = house.fleet
        fleet.set_mode(Mode.QUEUE_ALL)
        fleet.patch("a", Patch(max_concurrency=3))
        fleet.remove("b")
        await fleet.register(Registration.from_mapping({"name": "r", "url": three.url}))
        await fleet.reload(configured(backend("a", one, max_concurrency=6), backend("b", two)))
        assert set(fleet.members()) == {"a", "r"}
        assert house.door.view().backends["a"].effective_limit == 3
        assert house.door.view().mode is Mode.QUEUE_ALL
        assert "'b'" in fleet.warnings()[""][0]
        fleet.patch("a", Patch(max_concurrency=None))
        assert house.door.view().backends["a"].effective_limit == 6
        await fleet.register(Registration.from_mapping({"name": "b", "url": two.url}))
        assert "" not in fleet.warnings()


async def test_aliases_defaults_and_timeouts_follow_a_reload() -> None:
    async with serving() as [server], house_of(backend("a", server)) as house:
        models = (ModelConfig("gpt", alias_of="m"), ModelConfig("m", max_requests_per_minute=5))
        await house.fleet.reload(
            configured(backend("a", server), models=models, idle_timeout_s=7.0)
        )
        assert house.fleet.resolve("gpt").model == "m"
        assert house.fleet.members()["a"].idle_timeout_s == 7.0
        assert [entry.id for entry in house.fleet.listing()] == ["gpt", "m"]


async def test_a_new_url_under_a_name_is_another_server() -> None:
    rarely = {"probe_interval_s": 30.0, "models_interval_s": 30.0}
    async with serving(2) as [one, two], house_of(backend("a", one), **rarely) as house:
        two.lists("n")
        await house.fleet.reload(configured(backend("a", two), **rarely))
        assert house.models("a") is None
        await until(lambda: house.models("a") == {"n"})
        assert house.fleet.members()["a"].url == two.url


async def test_the_parked_of_a_name_of_the_file_stay_when_a_backend_takes_it_over() -> None:
    async with (
        serving() as [server],
        house_of(models=(ModelConfig("m"),), hold_when_down=True) as house,
    ):
        waiting = asyncio.get_running_loop().create_task(house.door.enter(ASK))
        await asyncio.sleep(0)
        await house.fleet.reload(configured(backend("a", server, models=("m",))))
        lease = await waiting
        assert isinstance(lease, Lease)


async def test_a_name_that_left_the_file_is_unknown_again() -> None:
    async with house_of(models=(ModelConfig("m"),)) as house:
        refusal = await house.door.enter(ASK)
        assert isinstance(refusal, Refusal) and refusal.temporary
        await house.fleet.reload(configured())
        refusal = await house.door.enter(ASK)
        assert isinstance(refusal, Refusal) and not refusal.temporary


async def test_requests_never_see_half_of_a_reload() -> None:
    async with serving(3) as servers, house_of(backend("a", servers[0], models=("m",))) as house:
        failed: list[object] = []
        served = 0

        async def client() -> None:
            nonlocal served
            while True:
                lease = await house.door.enter(ASK)
                if not isinstance(lease, Lease) or house.fleet.member(lease.backend) is None:
                    failed.append(lease)
                    return
                await asyncio.sleep(0.001)
                house.door.close(lease, DONE)
                served += 1

        loop = asyncio.get_running_loop()
        clients = [loop.create_task(client()) for _ in range(20)]
        for step in range(60):
            names = ("a", "b", "c")[step % 3 :] + ("a",) * (step % 2)
            entries = [
                backend(name, servers["abc".index(name)], models=("m",), max_concurrency=20 + step)
                for name in dict.fromkeys(names)
            ]
            await house.fleet.reload(configured(*entries))
            await asyncio.sleep(0.003)
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        assert failed == [] and served > 100


# ---- from the file ---------------------------------------------------------------------------

FILE = "backends:\n- {{name: a, url: '{url}', models: [m], max_concurrency: {limit}}}\n"


def read(path: Path) -> Configuration:
    return load({"config": str(path)}, {}, path.parent)


@asynccontextmanager
async def watched(path: Path, poll_s: float) -> AsyncIterator[tuple[House, Reloader]]:
    """Run a fleet by a file that is watched."""
    house = House(read(path), QUICK)
    reloader = Reloader(house.fleet, lambda: read(path), poll_s=poll_s)
    async with running(house), asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(reloader.watch())
        try:
            yield house, reloader
        finally:
            watching.cancel()


async def test_a_changed_file_is_put_in_force_and_a_broken_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "lifeboat.yaml"
    async with serving() as [server]:
        path.write_text(FILE.format(url=server.url, limit=8))
        async with watched(path, 0.03) as (house, reloader):
            path.write_text(FILE.format(url=server.url, limit=12))
            await until(lambda: house.door.view().backends["a"].effective_limit == 12)
            assert (reloader.reloads, reloader.failures) == (1, 0)
            path.write_text("mode: superfast\nbackends: [{name: a}]\n")
            await until(lambda: reloader.failures == 1)
            assert house.door.view().mode is Mode.DEFAULT
            assert "has no url" in house.fleet.warnings()[""][0]
            path.write_text(FILE.format(url=server.url, limit=16))
            await until(lambda: house.door.view().backends["a"].effective_limit == 16)
            assert "" not in house.fleet.warnings()
            path.write_text("port: 1\n" + FILE.format(url=server.url, limit=16))
            await until(lambda: "" in house.fleet.warnings())
            assert "after a restart: port" in house.fleet.warnings()[""][0]


async def test_a_signal_reloads_at_once(tmp_path: Path) -> None:
    path = tmp_path / "lifeboat.yaml"
    async with serving() as [server]:
        path.write_text(FILE.format(url=server.url, limit=8))
        async with watched(path, 60.0) as (house, reloader):
            path.write_text(FILE.format(url=server.url, limit=9))
            reloader.ask()
            await until(lambda: house.door.view().backends["a"].effective_limit == 9)


async def test_a_file_that_vanishes_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lifeboat.yaml"
    path.write_text("backends: []\n")
    async with watched(path, 0.02) as (_, reloader):
        path.unlink()
        await asyncio.sleep(0.1)
        assert (reloader.reloads, reloader.failures) == (0, 0)


async def test_a_file_that_is_still_being_written_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "lifeboat.yaml"
    path.write_text("backends: []\n")
    async with watched(path, 0.05) as (_, reloader):
        for line in range(60):
            path.write_text("backends: []\n" + "# more\n" * line)
            await asyncio.sleep(0.005)
        assert (reloader.reloads, reloader.failures) == (0, 0)
        await until(lambda: reloader.reloads == 1)
