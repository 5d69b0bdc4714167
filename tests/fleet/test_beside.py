"""The agent beside a model server, against a stand-in for the router's calls."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner

from lifeboat.cli.agent import agent
from lifeboat.core.seat import Lease
from lifeboat.core.vocabulary import Ask, Capability, Kind, OperatorState, Outcome, Verdict
from lifeboat.fleet import FleetError, Patch, Registration
from lifeboat.fleet.beside import Agent, AgentError, Beside, Learned, registration_of
from lifeboat.sim.config import EngineConfig, Personality
from lifeboat.sim.server import SimulatedServer
from tests.fleet.scripted import House, Server, house_of, serving, until

ASK = Ask("m", Capability.GENERATE)
SIMULATED = {"data": [{"id": "m", "owned_by": "lifeboat-sim"}]}
PROPS = {"total_slots": 4, "default_generation_settings": {"n_ctx": 2048}}


class Desk:
    """The router's calls on `/api/lb/backends`, over a fleet. calls: method and path of each."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.calls: list[str] = []
        self.token: str | None = None
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.calls.append(f"{request.method} {request.path}")
        if self.token is not None and request.headers.get("Authorization") != self.token:
            return web.json_response({"error": {"message": "wrong token"}}, status=401)
        fleet, name = self.house.fleet, request.match_info.get("name", "")
        try:
            if request.method == "POST":
                new = await fleet.register(Registration.from_mapping(await request.json()))
                return web.json_response({}, status=201 if new else 200)
            if request.method == "PATCH":
                fleet.patch(name, Patch.from_mapping(await request.json()))
                return web.json_response({})
            if request.method == "DELETE":
                fleet.remove(name)
                return web.Response(status=204)
        except FleetError as error:
            return web.json_response({"error": {"message": str(error)}}, status=error.status)
        backends = {
            one: {"in_flight": view.in_flight}
            for one, view in self.house.door.view().backends.items()
        }
        return web.json_response({"backends": backends})


@asynccontextmanager
async def desk_of(house: House) -> AsyncIterator[Desk]:
    desk = Desk(house)
    app = web.Application()
    app.router.add_route("*", "/api/lb/backends", desk.answer)
    app.router.add_route("*", "/api/lb/backends/{name}", desk.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    desk.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield desk
    finally:
        await runner.cleanup()


def beside(desk: Desk, server: Server, **more: Any) -> Beside:
    told = Beside("b", desk.url, server.url, server.url, ttl_s=1.0, grace_s=2.0)
    return replace(told, **more)


@asynccontextmanager
async def running(told: Beside) -> AsyncIterator[asyncio.Event]:
    """Run an agent; it is stopped, and awaited, at the end."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(Agent(told).run(stop))
        try:
            yield stop
        finally:
            stop.set()


async def test_an_agent_registers_what_it_learned_and_drains_it_away_at_the_end() -> None:
    async with serving() as [server], house_of() as house, desk_of(house) as desk:
        server.answers["/props"] = (200, PROPS)
        async with running(beside(desk, server)) as stop:
            await until(lambda: "b" in house.fleet.members())
            view = house.door.view().backends["b"]
            assert (view.spec.kind, view.effective_limit) == (Kind.GGUF, 4)
            await until(lambda: house.models("b") == {"m"})
            lease = await house.door.enter(ASK)
            assert isinstance(lease, Lease)
            stop.set()
            await until(lambda: house.door.view().backends["b"].limit_reason == "drain")
            await asyncio.sleep(1.3)  # longer than its ttl: it beats while it drains
            assert house.door.view().backends["b"].operator_state is OperatorState.DRAIN
            assert house.fleet.listing()  # a backend that left lists nothing
            house.door.close(lease, Outcome(Verdict.ANSWERED, 200))
        assert "b" not in house.fleet.members()
        assert desk.calls[-1] == "DELETE /api/lb/backends/b"


async def test_an_agent_that_is_killed_is_gone_after_its_ttl() -> None:
    async with serving() as [server], house_of() as house, desk_of(house) as desk:
        task = asyncio.get_running_loop().create_task(
            Agent(beside(desk, server)).run(asyncio.Event())
        )
        await until(lambda: "b" in house.fleet.members())
        task.cancel()
        killed_at = house.clock()
        await asyncio.wait([task])
        await until(lambda: "b" not in house.fleet.members())
        assert house.clock() - killed_at > 0.5
        assert not any(call.startswith("DELETE") for call in desk.calls)


async def test_a_router_that_forgot_learns_by_the_next_heartbeat() -> None:
    async with serving() as [server], house_of() as house, desk_of(house) as desk:
        async with running(beside(desk, server)):
            await until(lambda: "b" in house.fleet.members())
            house.fleet.remove("b")
            await until(lambda: "b" in house.fleet.members())


async def test_a_server_that_is_not_ready_yet_is_waited_for() -> None:
    async with serving() as [server], house_of() as house, desk_of(house) as desk:
        loading = (503, {"error": {"message": "Loading model", "type": "unavailable_error"}})
        server.answers |= {"/props": loading, "/v1/models": loading}
        async with running(beside(desk, server)):
            await asyncio.sleep(0.2)
            assert desk.calls == []
            server.answers["/props"] = (200, PROPS)
            await until(lambda: "b" in house.fleet.members())


async def test_a_router_that_is_not_there_yet_is_waited_for() -> None:
    async with serving(2) as [server, absent], house_of() as house, desk_of(house) as desk:
        told = beside(desk, server)
        await absent.down()
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(Agent(replace(told, router=absent.url)).run(stop))
            await asyncio.sleep(0.2)
            stop.set()
        assert house.fleet.members() == {}


async def test_a_wrong_token_ends_the_agent_with_the_routers_words() -> None:
    async with serving() as [server], house_of() as house, desk_of(house) as desk:
        desk.token = "Bearer right"
        with pytest.raises(AgentError, match="wrong token"):
            await Agent(beside(desk, server, token="wrong")).run(asyncio.Event())
        async with running(beside(desk, server, token="right")):
            await until(lambda: "b" in house.fleet.members())


@pytest.mark.parametrize(
    ("answers", "learned"),
    [
        ({"/props": (200, PROPS)}, Learned(Kind.GGUF, 4)),
        ({"/v1/models": (200, {"data": [{"id": "m", "owned_by": "vllm"}]})}, Learned(Kind.VLLM)),
        ({"/v1/models": (200, SIMULATED), "/control/capacity": (200, [])}, Learned(Kind.SIMULATED)),
        ({"/v1/models": (200, SIMULATED)}, Learned(Kind.SIMULATED)),
        ({"/v1/models": (200, {"data": [{"id": "m"}]})}, Learned(Kind.OPENAI)),
        ({"/v1/models": (401, {})}, Learned(Kind.OPENAI)),
        ({"/v1/models": (503, {})}, None),
    ],
)
async def test_what_a_server_is_shows_in_its_own_answers(
    answers: dict[str, tuple[int, object]], learned: Learned | None
) -> None:
    async with serving() as [server]:
        server.answers |= answers
        agent_ = Agent(Beside("b", "http://h", server.url, server.url))
        assert await agent_.learn() == learned
        await agent_.close()


@pytest.mark.parametrize(
    ("personality", "kind", "learned"),
    [
        (Personality.VLLM, None, Learned(Kind.SIMULATED, 5)),
        (Personality.VLLM, Kind.SIMULATED, Learned(Kind.SIMULATED, 5)),
        (Personality.VLLM, Kind.VLLM, Learned(Kind.VLLM)),
        (Personality.GGUF, None, Learned(Kind.GGUF, 2)),
    ],
)
async def test_a_simulated_server_is_known_with_its_seats(
    personality: Personality, kind: Kind | None, learned: Learned
) -> None:
    engine = EngineConfig(personality=personality, max_num_seqs=2, served_names=("m",))
    engines = [engine, replace(engine, max_num_seqs=3, served_names=("n",))]
    # llama.cpp serves one model.
    server = SimulatedServer(engines[:1] if personality is Personality.GGUF else engines)
    url = await server.start()
    try:
        agent_ = Agent(Beside("b", "http://h", url, url, kind))
        assert await agent_.learn() == learned
        await agent_.close()
    finally:
        await server.close()


@pytest.mark.parametrize(
    ("limit", "slots", "sent"), [("auto", 4, 4), ("auto", None, None), (2, 4, 2), (0, 4, 0)]
)
def test_auto_is_the_servers_slots_where_it_tells_them(
    limit: Any, slots: int | None, sent: int | None
) -> None:
    told = replace(Beside("b", "http://r", "http://s", "http://a"), max_concurrency=limit)
    body = registration_of(told, Learned(Kind.GGUF, slots))
    assert body.get("max_concurrency") == sent and body["url"] == "http://a"
    assert Registration.from_mapping(body).ttl_s == 15.0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--router", "ftp://x", "--server", "h:1"],
        ["--router", "h:1", "--server", "h:2", "--max-concurrency", "many"],
        ["--router", "h:1", "--server", "h:2", "--ttl", "0.1"],
        ["--router", "h:1", "--server", "h:2", "--name", "a b"],
        ["--server", "h:2"],
    ],
)
def test_a_wrong_call_says_what_is_wrong_and_starts_nothing(arguments: list[str]) -> None:
    result = CliRunner().invoke(agent, arguments)
    assert result.exit_code == 2 and "Error" in result.output


async def test_the_command_registers_and_drains_on_sigterm() -> None:
    async with serving() as [server], house_of() as house, desk_of(house) as desk:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "from lifeboat.cli.agent import agent; agent()",
            "--router", desk.url, "--server", server.url, "--name", "cli", "--ttl", "2",
            env={**os.environ, "LIFEBOAT_ADMIN_TOKEN": "t"},
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        desk.token = "Bearer t"
        await until(lambda: "cli" in house.fleet.members(), within_s=15.0)
        process.send_signal(signal.SIGTERM)
        _, log = await asyncio.wait_for(process.communicate(), 10.0)
        assert process.returncode == 0, log
        assert "cli" not in house.fleet.members()
        assert b"Bearer" not in log and json.dumps("t").encode() not in log
