"""Engines with less room than their limit: requests go elsewhere or wait; few are sent in vain."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from tests.acceptance.engines import completion, error_answer, json_answer
from tests.fleet_acceptance.crowd import ask_once
from tests.peers import Peer, RawClient, Received, ScriptedBackend, until
from tests.running import CHAT, Running, backend, backends_yaml, chat_body, running_router

OVERLOADED = error_answer(
    b"529 ", {"error": {"type": "overloaded_error", "message": "no seat is free", "code": 529}}
)


class Seated(ScriptedBackend):
    """An engine with so many seats, whoever sits there, which answers 529 to whom it cannot seat.

    go: while it is not set, those seated stay. sends: the `user` of every request that came, in
    order, those refused among them.
    """

    def __init__(self, seats: int, hold_s: float) -> None:
        super().__init__(self._serve)
        self.seats = seats
        self.hold_s = hold_s
        self.taken = 0
        self.most = 0
        self.refused = 0
        self.sends: list[str] = []
        self.served: list[str] = []
        self.go = asyncio.Event()
        self.go.set()

    async def _serve(self, peer: Peer) -> None:
        while True:
            received = await peer.request()
            if received.method != "POST":
                await peer.send(json_answer({"object": "list", "data": [{"id": "m"}]}))
                continue
            await self._answer(peer, received)

    async def _answer(self, peer: Peer, received: Received) -> None:
        user = json.loads(received.body)["user"]
        self.sends.append(user)
        if self.taken >= self.seats:
            self.refused += 1
            await peer.send(OVERLOADED)
            return
        self.served.append(user)
        self.taken += 1
        self.most = max(self.most, self.taken)
        try:
            await self.go.wait()
            await asyncio.sleep(self.hold_s)
        finally:
            self.taken -= 1
        await peer.send(json_answer(completion()))


def body(number: int) -> dict[str, object]:
    return chat_body(user=str(number))


async def ask_all(running: Running, count: int) -> list[tuple[int, str | None, int]]:
    """Send so many requests at once; return status, backend and attempts of each, in order."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        seen = await asyncio.gather(
            *(ask_once(session, running.url, body(number)) for number in range(count))
        )
    return [(one.status or 0, one.backend, one.attempts) for one in seen]


@pytest.mark.parametrize("queue", [True, False], ids=["queue on", "another has room"])
async def test_twelve_clients_of_an_engine_that_refuses_above_two_are_all_served(
    tmp_path: Path, queue: bool
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        two = await stack.enter_async_context(Seated(2, 0.05))
        entries = [backend(two.url, "two", max_concurrency=32)]
        if not queue:
            roomy = await stack.enter_async_context(Seated(32, 0.05))
            entries.append(backend(roomy.url, "roomy", max_concurrency=32))
        yaml = backends_yaml(*entries, queue={"enabled": queue})
        running = await stack.enter_async_context(running_router(yaml, tmp_path))
        healths: set[str] = set()

        async def look() -> None:
            while True:
                state = await running.state()
                healths.update(one["health"] for one in state["backends"].values())
                await asyncio.sleep(0.01)

        looking = asyncio.create_task(look())
        answers = await ask_all(running, 12)
        looking.cancel()
        assert [status for status, _, _ in answers] == [200] * 12
        assert two.refused > 0, "the engine was never asked for more than it has"
        assert healths == {"up"}
        state = await running.settle()
        assert state["backends"]["two"]["failed"] == 0


async def arrive(running: Running, count: int) -> list[RawClient]:
    """Send so many requests, each once the one before is in the router."""
    clients: list[RawClient] = []
    for number in range(count):
        client = await RawClient.connect(running.port)
        await client.post(CHAT, json.dumps(body(number)).encode())
        clients.append(client)
        await until(lambda: inside(running) == len(clients))
    return clients


def inside(running: Running) -> int:
    view = running.router.view()
    return view.parked + view.open_leases


async def test_two_hundred_parked_before_an_engine_of_two_seats_cost_few_sends_in_vain(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    async with Seated(2, 0.02) as engine:
        engine.go.clear()
        yaml = backends_yaml(
            backend(engine.url, "two", max_concurrency=32),
            queue={"enabled": True, "ttl": "60s", "max_depth": 250},
        )
        # First come, first served, whatever their sizes and however long they wait.
        async with running_router(yaml, tmp_path, {"LIFEBOAT_LB_MODE": "queue-all"}) as running:
            clients = await arrive(running, 200)
            engine.go.set()
            replies = [await client.reply() for client in clients]
            for client in clients:
                client.close()
            assert {reply.status for reply in replies} == {200}
            ratio = len(engine.sends) / 200
            measured(f"{ratio:.3f} sends for each request that was served")
            assert ratio <= 1.5
            assert (engine.most, len(engine.served)) == (2, 200)
            # Whoever was refused found its old place again. With two seats two neighbours, and one
            # on trial beside them, may change places.
            moved = [abs(place - int(user)) for place, user in enumerate(engine.served)]
            assert max(moved) <= 2
            measured(f"{sum(map(bool, moved))} of 200 changed places with a neighbour")


async def test_beside_foreign_load_the_clock_alone_wakes_the_parked(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    loop = asyncio.get_running_loop()
    async with Seated(2, 0.05) as engine:
        engine.taken = 2  # somebody else's, for as long as they like
        yaml = backends_yaml(
            backend(engine.url, "two", max_concurrency=32),
            queue={"enabled": True, "ttl": "30s"},
        )
        async with running_router(yaml, tmp_path) as running:
            asking = asyncio.create_task(ask_all(running, 8))
            await running.until(lambda state: state["queue_total_waiters"] == 8)
            # Nothing of ours runs, so nothing of ours can end: the pauses grow, one trial each.
            at_first = engine.refused
            await asyncio.sleep(2.0)
            trials = engine.refused - at_first
            assert 1 <= trials <= 6
            engine.taken = 0
            freed_at = loop.time()
            answers = await asking
            took_s = loop.time() - freed_at
            measured(f"{trials} trials in 2 s of foreign load; all served {took_s:.2f} s after it")
            assert [status for status, _, _ in answers] == [200] * 8
            # Their pauses end at 5 s, their ttl at 30 s.
            assert took_s < 15.0
            assert (await running.state())["backends"]["two"]["health"] == "up"
