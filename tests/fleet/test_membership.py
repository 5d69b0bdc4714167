"""Joining, retuning, leaving: registrations, heartbeats, patches, removals."""

from __future__ import annotations

import asyncio

import pytest

from lifeboat.core.modes import Mode
from lifeboat.core.seat import Lease
from lifeboat.core.vocabulary import Ask, Capability, Kind, OperatorState, Outcome, Verdict
from lifeboat.fleet import FleetError, Patch, Registration
from lifeboat.settings import BackendConfig
from tests.fleet.scripted import House, Server, backend, house_of, serving, until

ASK = Ask("m", Capability.GENERATE)
DONE = Outcome(Verdict.ANSWERED, 200)


def announced(name: str, server: Server | str, **more: object) -> Registration:
    url = server if isinstance(server, str) else server.url
    return Registration.from_mapping({"name": name, "url": url, **more})


def beating(name: str, server: Server, ttl_s: float) -> Registration:
    """Return a registration with a ttl too short for the outside."""
    return Registration(
        BackendConfig(name, Kind.VLLM, server.url, models=("m",)), ttl_s, frozenset({"models"})
    )


async def taken(house: House) -> Lease:
    lease = await house.door.enter(ASK)
    assert isinstance(lease, Lease)
    return lease


async def test_the_parked_are_served_by_a_newcomer_at_once() -> None:
    async with (
        serving(2) as [old, new],
        house_of(backend("a", old, models=("m",), max_concurrency=1), queue_enabled=True) as house,
    ):
        await taken(house)
        tasks = [asyncio.get_running_loop().create_task(house.door.enter(ASK)) for _ in range(3)]
        await asyncio.sleep(0)
        assert await house.fleet.register(announced("b", new, max_concurrency=2))
        await asyncio.sleep(0.02)
        assert sum(task.done() for task in tasks) == 2
        house.fleet.patch("b", Patch(max_concurrency=3))
        await asyncio.wait(tasks)
        assert {task.result().backend for task in tasks if isinstance(task.result(), Lease)} == {
            "b"
        }


async def test_one_that_names_its_models_serves_before_any_probe() -> None:
    async with serving() as [server], house_of(probe_timeout_s=20.0) as house:
        server.hanging = {"/health", "/v1/models"}
        before = asyncio.get_running_loop().time()
        await house.fleet.register(announced("b", server, models=["m"]))
        assert asyncio.get_running_loop().time() - before < 5.0
        assert (await taken(house)).backend == "b"


async def test_a_second_registration_of_the_same_server_is_its_heartbeat() -> None:
    async with serving() as [server], house_of() as house:
        assert await house.fleet.register(announced("b", server, max_concurrency=2))
        assert not await house.fleet.register(announced("b", server.url + "/v1/"))
        assert house.door.view().backends["b"].effective_limit == 2
        assert not await house.fleet.register(announced("b", server, max_concurrency=5))
        assert house.door.view().backends["b"].effective_limit == 5


async def test_a_held_name_is_refused_to_another_server_until_it_is_empty() -> None:
    async with serving(2) as [one, two], house_of(backend("a", one, models=("m",))) as house:
        with pytest.raises(FleetError, match="is held by") as caught:
            await house.fleet.register(announced("a", two))
        assert caught.value.status == 409
        lease = await taken(house)
        house.fleet.remove("a")
        with pytest.raises(FleetError, match="still has requests"):
            await house.fleet.register(announced("a", two))
        house.door.close(lease, DONE)
        await until(lambda: house.fleet.member("a") is None)
        assert await house.fleet.register(announced("a", two))


async def test_counters_come_back_with_the_same_server_and_not_with_another() -> None:
    async with serving(2) as [one, two], house_of(backend("a", one, models=("m",))) as house:
        lease = await taken(house)
        house.door.reconfigure(lambda gate, now: gate.note_dispatch(lease))
        house.door.close(lease, DONE)
        house.fleet.remove("a")
        await house.fleet.register(announced("a", one))
        assert house.door.view().backends["a"].dispatched == 1
        house.fleet.remove("a")
        await house.fleet.register(announced("a", two))
        assert house.door.view().backends["a"].dispatched == 0


async def test_a_removed_backend_takes_nothing_new_and_its_requests_run_on() -> None:
    async with serving() as [server], house_of(backend("a", server, models=("m",))) as house:
        lease = await taken(house)
        house.fleet.remove("a")
        assert house.fleet.member("a") is not None  # whoever holds a lease finds it
        assert not isinstance(await house.door.enter(ASK), Lease)
        assert house.fleet.listing() == []
        assert house.door.view().backends["a"].in_flight == 1
        house.door.close(lease, DONE)
        await until(lambda: house.fleet.member("a") is None)
        with pytest.raises(FleetError, match="no backend is named 'a'") as caught:
            house.fleet.remove("a")
        assert caught.value.status == 404


async def test_one_whose_heartbeat_stops_leaves_and_one_that_beats_stays() -> None:
    async with serving(2) as [one, two], house_of() as house:
        await house.fleet.register(beating("gone", one, 1.0))
        await house.fleet.register(beating("here", two, 1.0))
        lease = await taken(house)
        for _ in range(16):
            await asyncio.sleep(0.1)
            await house.fleet.register(beating("here", two, 1.0))
        kept = set(house.fleet.members()) - {lease.backend}
        assert kept <= {"here"} and "here" in house.fleet.members()
        house.door.close(lease, DONE)
        await until(lambda: set(house.fleet.members()) == {"here"})


async def test_a_drained_backend_stays_drained_through_its_heartbeats() -> None:
    async with serving() as [server], house_of() as house:
        await house.fleet.register(beating("b", server, 5.0))
        house.fleet.patch("b", Patch(state=OperatorState.DRAIN))
        await house.fleet.register(beating("b", server, 5.0))
        assert house.door.view().backends["b"].limit_reason == "drain"
        house.fleet.patch("b", Patch(state=None))
        assert house.door.view().backends["b"].limit_reason != "drain"


async def test_a_patch_wins_over_the_file_until_it_is_reset_and_says_so() -> None:
    async with (
        serving() as [server],
        house_of(backend("a", server, max_concurrency=8, max_input_tokens=100)) as house,
    ):
        assert house.fleet.backend_sources()["a"]["max_concurrency"] == "file"
        house.fleet.patch("a", Patch(max_concurrency=2, max_input_tokens=0))
        assert house.door.view().backends["a"].effective_limit == 2
        assert house.fleet.backend_sources()["a"] == {
            "max_concurrency": "api", "max_input_tokens": "api", "state": "default",
        }  # fmt: skip
        house.fleet.patch("a", Patch(max_concurrency=None, max_input_tokens=None))
        view = house.door.view().backends["a"]
        assert (view.effective_limit, view.spec.max_input_tokens) == (8, 100)
        assert house.fleet.backend_sources()["a"]["max_concurrency"] == "file"


async def test_raising_a_limit_wakes_exactly_as_many_as_fit() -> None:
    async with (
        serving() as [server],
        house_of(
            backend("a", server, models=("m",), max_concurrency=1), queue_enabled=True
        ) as house,
    ):
        await taken(house)
        tasks = [asyncio.get_running_loop().create_task(house.door.enter(ASK)) for _ in range(4)]
        await asyncio.sleep(0)
        house.fleet.patch("a", Patch(max_concurrency=3))
        await asyncio.sleep(0)
        assert sum(task.done() for task in tasks) == 2
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_the_mode_set_by_api_wins_until_it_is_reset_and_says_so() -> None:
    async with serving() as [server], house_of(backend("a", server)) as house:
        fleet = house.fleet
        fleet.set_mode(Mode.SUPERFAST, True)
        view = house.door.view()
        assert (view.mode, view.queue_enabled) == (Mode.SUPERFAST, True)
        assert view.backends["a"].effective_limit == 4
        assert fleet.sources()["routing_mode"] == fleet.sources()["queue_enabled"] == "api"
        fleet.set_mode(queue_enabled=None)
        assert house.door.view().mode is Mode.SUPERFAST
        fleet.set_mode(None)
        assert house.door.view().backends["a"].effective_limit == 32
        assert fleet.sources()["routing_mode"] == "default"


async def test_a_ca_file_that_cannot_be_used_refuses_a_registration() -> None:
    async with house_of() as house:
        entry = announced("b", "https://127.0.0.1:1", tls={"ca_file": "/nowhere.pem"})
        with pytest.raises(FleetError, match=r"/nowhere\.pem"):
            await house.fleet.register(entry)
        assert house.fleet.members() == {}


async def test_a_registration_of_a_configured_backend_changes_nothing() -> None:
    async with serving() as [server], house_of(backend("a", server, max_concurrency=8)) as house:
        assert not await house.fleet.register(announced("a", server, ttl=1, max_concurrency=3))
        assert house.door.view().backends["a"].effective_limit == 8
        assert house.fleet.members()["a"].origin == "file"
        assert house.fleet.members()["a"].ttl_s is None
