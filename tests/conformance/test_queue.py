"""The queue: no wake-up lost, no live request stranded, nobody overtaken, every outcome counted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Callable

import pytest

from tests.conformance.holding import Held
from tests.conformance.lanes import COMPLETION, Engine, Lane, Stage, answer, chat, says_hello
from tests.peers import Peer, RawClient, Received, until
from tests.running import CHAT, Answered

QUEUED: dict[str, object] = {"queue": {"enabled": True, "ttl": "20s"}}
QUEUE_ALL: dict[str, object] = {"mode": "queue-all"}
ROUNDS = 15


async def parked(stage: Stage, count: int) -> None:
    await stage.running.until(lambda state: state["queue_total_waiters"] == count)


async def send(stage: Stage, user: str = "", **fields: object) -> RawClient:
    """Send a chat from a client of its own."""
    client = await stage.client()
    await client.post(CHAT, chat(user=user, **fields), b"Content-Type: application/json")
    return client


async def waiting(stage: Stage, *users: str) -> list[RawClient]:
    """Park one request after the other, in this order."""
    before = (await stage.running.state())["queue_total_waiters"]
    clients = []
    for number, user in enumerate(users):
        clients.append(await send(stage, user))
        await parked(stage, before + number + 1)
    return clients


async def status(client: RawClient) -> int:
    return (await client.reply()).status


def users(stage: Stage) -> list[str]:
    return [json.loads(received.body)["user"] for received in stage.asked]


async def balanced(stage: Stage) -> None:
    """See that every slot and every place came back, and that the next request is served."""
    state = await stage.running.settle()
    assert not any(backend["in_flight"] for backend in state["backends"].values())


# ---- a release meets a cancel, in either order ---------------------------------------------------


@pytest.mark.parametrize("cancel_first", [True, False])
@pytest.mark.parametrize("how", ["close", "reset"])
async def test_bug_154_a_release_and_a_cancel_in_one_tick_wake_the_next(
    lane: Lane, cancel_first: bool, how: str
) -> None:
    held = Held()
    async with lane.facing(held, max_concurrency=1, top=QUEUED) as stage:
        for _ in range(ROUNDS):
            holder = await send(stage, "holder")
            await until(lambda: held.running == 1)
            first, second = await waiting(stage, "a", "b")
            leave = first.close if how == "close" else first.reset
            steps: list[Callable[[], None]] = [leave, held.release]
            for step in steps if cancel_first else reversed(steps):
                step()
            assert await status(holder) == 200
            await until(lambda: held.running == 1)
            # Whether `a` got the slot and left it, or was withdrawn: `b` runs at once.
            await until(lambda: users(stage)[-1] == "b")
            held.release()
            assert await status(second) == 200
            await balanced(stage)


async def test_bug_154_many_cancels_and_releases_at_once_strand_nobody(lane: Lane) -> None:
    held = Held()
    async with lane.facing(held, max_concurrency=2, top=QUEUED) as stage:
        for seed in range(5):
            chance = random.Random(seed)
            holders = [await send(stage, "holder") for _ in range(2)]
            await until(lambda: held.running == 2)
            clients = [await send(stage, str(number)) for number in range(8)]
            await parked(stage, 8)
            leaving = chance.sample(clients, 4)
            held.release(chance.choice((1, 2)))
            for client in leaving:
                client.reset()
            staying = [client for client in clients if client not in leaving]

            async def answered() -> list[int]:
                return await asyncio.gather(*map(status, [*holders, *staying]))  # noqa: B023

            everybody = asyncio.create_task(answered())
            async with asyncio.timeout(5.0):
                while not everybody.done():
                    held.release()
                    await asyncio.sleep(0.01)
            assert await everybody == [200] * 6
            assert held.most_running <= 2
            await balanced(stage)


async def test_bug_156_a_timeout_at_the_hand_off_loses_no_slot(lane: Lane) -> None:
    held = Held()
    top: dict[str, object] = {"queue": {"enabled": True, "ttl": "80ms"}}
    async with lane.facing(held, max_concurrency=1, top=top) as stage:
        for number in range(ROUNDS):
            holder = await send(stage)
            await until(lambda: held.running == 1)
            expiring = await send(stage)
            await asyncio.sleep(0.05)
            later = await send(stage)
            await asyncio.sleep(0.03 + (number - ROUNDS / 2) * 0.0005)
            held.release()
            assert await status(holder) == 200
            replies = [asyncio.create_task(status(client)) for client in (expiring, later)]
            async with asyncio.timeout(5.0):
                while not all(reply.done() for reply in replies):
                    held.release()
                    await asyncio.sleep(0.005)
            assert {await reply for reply in replies} <= {200, 504}
            # The slot is there: another one gets it at once.
            next_one = await send(stage)
            await until(lambda: held.running == 1)
            held.release()
            assert await status(next_one) == 200
            await balanced(stage)


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_bug_157_behind_a_cancelled_head_the_next_live_one_is_woken(
    lane: Lane, how: str
) -> None:
    held = Held()
    async with lane.facing(held, max_concurrency=1, top=QUEUED) as stage:
        holder = await send(stage, "holder")
        await until(lambda: held.running == 1)
        clients = await waiting(stage, "a", "b", "c", "d")
        for left, client in enumerate(clients[:3], 1):
            client.close() if how == "close" else client.reset()
            await parked(stage, 4 - left)
        held.release()
        assert await status(holder) == 200
        await until(lambda: users(stage) == ["holder", "d"])
        held.release()
        assert await status(clients[3]) == 200
        metrics = await stage.running.metrics()
        assert metrics['lifeboat_lb_client_disconnects_total{stage="parked"}'] == 3


# ---- order ---------------------------------------------------------------------------------------


async def test_bug_159_a_large_request_is_served_before_its_client_gives_up(lane: Lane) -> None:
    """Small ones keep coming and go first, until the large one is boosted."""
    top: dict[str, object] = {"queue": {"enabled": True, "ttl": "20s", "boost": "300ms"}}

    async def quick(peer: Peer, asked: Received) -> None:
        await asyncio.sleep(0.02)
        await peer.send(answer(COMPLETION))

    async with lane.facing(quick, max_concurrency=1, top=top) as stage:
        stopped = asyncio.Event()

        async def small() -> None:
            while not stopped.is_set():
                assert (await stage.running.ask()).status == 200

        async with asyncio.TaskGroup() as tasks:
            for _ in range(4):
                tasks.create_task(small())
            await asyncio.sleep(0.1)
            async with asyncio.timeout(8.0):
                large = await stage.running.ask(CHAT, chat("word " * 5000))
            stopped.set()
        assert large.status == 200
        # It did wait for its boost: smaller ones went before it. Without one it would still wait,
        # and with the usual one it would wait for 10 s.
        assert 250 <= large.wait_ms < 8000


async def test_bug_159_a_client_that_gave_up_is_never_sent_to_a_backend(lane: Lane) -> None:
    held = Held()
    async with lane.facing(held, max_concurrency=1, top=QUEUED) as stage:
        holder = await send(stage, "holder")
        await until(lambda: held.running == 1)
        (gives_up,) = await waiting(stage, "gone")
        gives_up.close()
        await parked(stage, 0)
        held.release()
        assert await status(holder) == 200
        await balanced(stage)
        assert users(stage) == ["holder"]


async def test_bug_160_among_the_boosted_the_oldest_goes_first(lane: Lane) -> None:
    held = Held()
    top: dict[str, object] = {
        "queue": {"enabled": True, "ttl": "20s", "boost": "200ms", "max_depth": 99}
    }
    async with lane.facing(held, max_concurrency=1, top=top) as stage:
        holder = await send(stage, "holder")
        await until(lambda: held.running == 1)
        # The larger ones first, and of low priority: without the boost they would go last.
        clients = []
        for number in range(8):
            client = await stage.client()
            body = chat("word " * (800 - 100 * number), user=str(number))
            priority = b"low" if number % 2 else b"high"
            await client.post(CHAT, body, b"X-Lifeboat-Priority: " + priority)
            clients.append(client)
            await parked(stage, number + 1)
        await asyncio.sleep(0.3)
        fresh = await send(stage, "fresh")
        await parked(stage, 9)
        for count in range(10):
            await until(lambda count=count: len(stage.asked) == count + 1)
            held.release()
        assert {await status(client) for client in (holder, *clients, fresh)} == {200}
        assert users(stage) == ["holder", *map(str, range(8)), "fresh"]


# ---- parked means served, and shown --------------------------------------------------------------


async def test_bug_162_bug_163_ten_at_once_over_four_slots_are_all_served_and_six_shown(
    lane: Lane,
) -> None:
    held = Held()
    async with lane.facing(held, max_concurrency=4, top=QUEUE_ALL) as stage:
        asked = [asyncio.create_task(stage.running.ask()) for _ in range(10)]
        await parked(stage, 6)
        await until(lambda: held.running == 4)
        state, metrics = await stage.running.state(), await stage.running.metrics()
        assert state["pools"]["m"]["queue_depth"] == 6
        assert metrics['lifeboat_lb_queue_depth{pool="m"}'] == 6
        assert metrics['lifeboat_lb_inflight{backend="a"}'] == 4
        await asyncio.sleep(0.05)
        assert (await stage.running.state())["pools"]["m"]["oldest_wait_sec"] >= 0.05
        held.release_all()
        answers: list[Answered] = await asyncio.gather(*asked)
        assert [one.status for one in answers] == [200] * 10
        assert sum(one.wait_ms > 0 for one in answers) == 6
        assert held.most_running == 4
        metrics = await stage.running.metrics()
        assert metrics['lifeboat_lb_queue_depth{pool="m"}'] == 0
        assert metrics['lifeboat_lb_queue_wait_seconds_count{pool="m"}'] == 6


@pytest.mark.parametrize("backends", [2, 4])
async def test_bug_165_simultaneous_requests_spread_evenly(lane: Lane, backends: int) -> None:
    scripts = [Held() for _ in range(backends)]
    async with lane.facing(*scripts, max_concurrency=32) as stage:
        for each in (4, 7):
            clients = [await stage.client() for _ in range(each * backends)]
            for client in clients:
                client.writer.write(_request())
            await stage.asked_for(each * backends)
            assert [held.running for held in scripts] == [each] * backends
            for held in scripts:
                held.release(each)
            assert {await status(client) for client in clients} == {200}
            await stage.running.settle()
            for engine in stage.engines:
                engine.asked.clear()


async def test_bug_165_the_load_that_counts_is_that_of_this_very_moment(lane: Lane) -> None:
    """Those of a burst see each other: they fill the emptied backend, and not by turns."""
    scripts = [Held() for _ in range(3)]
    async with lane.facing(*scripts, max_concurrency=32) as stage:
        clients = [await stage.client() for _ in range(15)]
        for client in clients[:9]:
            client.writer.write(_request())
        await stage.asked_for(9)
        scripts[1].release(3)
        await stage.running.until(lambda state: state["inflight"] == {"a": 3, "b": 0, "c": 3})
        for client in clients[9:]:
            client.writer.write(_request())
        await stage.asked_for(15)
        assert [held.running for held in scripts] == [4, 4, 4]
        for held in scripts:
            held.release_all()
        assert {await status(client) for client in clients} == {200}


def _request() -> bytes:
    body = chat()
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (
        CHAT.encode(), len(body), body,
    )  # fmt: skip


FREE = (
    ("GET", "/metrics"), ("GET", "/api/lb/state"), ("GET", "/v1/models"), ("GET", "/v1/models/m"),
    ("GET", "/health"), ("GET", "/ready"), ("GET", "/api/lb/rejections"), ("GET", "/api/lb/mode"),
    ("GET", "/api/lb/backends"), ("PUT", "/api/lb/mode"), ("GET", "/"),
)  # fmt: skip


@pytest.mark.parametrize("top", [{}, QUEUE_ALL], ids=["gate", "queue"])
async def test_bug_166_bug_168_what_takes_no_slot_never_waits_for_one(
    lane: Lane, top: dict[str, object]
) -> None:
    held = Held()

    async def script(peer: Peer, asked: Received) -> None:
        await (held if asked.target == CHAT else says_hello)(peer, asked)

    async with lane.facing(script, max_concurrency=2, top=top) as stage:
        clients = [await send(stage) for _ in range(2)]
        await until(lambda: held.running == 2)
        if top:
            clients += await waiting(stage, "p", "q", "r")
        for method, path in FREE:
            body = {"queue_enabled": None} if method == "PUT" else None
            answered = await stage.running.ask(path, body, method=method)
            assert answered.status == 200, path
        # Paths of a backend that do no inference go there at once, too.
        for path, body in (
            ("/tokenize", {"content": "x"}),
            ("/v1/messages/count_tokens", {"model": "m", "messages": []}),
        ):
            answered = await stage.running.ask(path, body)
            assert (answered.status, answered.wait_ms) == (200, 0), path
        assert held.running == 2, "a slot came free, and they may have waited for it"
        held.release_all()
        assert {await status(client) for client in clients} == {200}


# ---- a TTL meets a grant -------------------------------------------------------------------------

POOLS = 100
TTL_S = 0.1


async def test_bug_169_a_ttl_that_meets_a_grant_has_exactly_one_outcome(lane: Lane) -> None:
    """A thousand times, in a hundred pools at once: a slot comes free just as the TTL ends."""
    chance = random.Random(169)
    release_s = TTL_S
    models = [f"m{number}" for number in range(POOLS)]
    finish = {name: asyncio.Event() for name in models}

    async def script(peer: Peer, asked: Received) -> None:
        body = json.loads(asked.body)
        if body["user"] == "holder":
            await finish[body["model"]].wait()
        await peer.send(answer(COMPLETION))

    outcomes: Counter[int] = Counter()
    async with Engine(script) as engine:
        entries = [
            {"name": f"b{name}", "url": engine.url, "models": [name], "max_concurrency": 1}
            for name in models
        ]
        queue = {"enabled": True, "ttl": f"{TTL_S * 1000:.0f}ms"}
        async with lane.router(*entries, queue=queue) as running:

            async def race(model: str) -> None:
                nonlocal release_s
                holder = asyncio.create_task(running.ask(CHAT, chat(model=model, user="holder")))
                await until(lambda: _in(engine, model, "holder"))
                racer = asyncio.create_task(running.ask(CHAT, chat(model=model, user="racer")))
                await asyncio.sleep(release_s + chance.uniform(-0.015, 0.015))
                finish[model].set()
                assert (await holder).status == 200
                got = await racer
                outcomes[got.status] += 1
                # Close on a slow machine, too: where one side wins, the other gets more time.
                release_s += 0.001 if got.status == 200 else -0.001
                # Refused means not sent, and sent means answered.
                assert _in(engine, model, "racer") == (got.status == 200)
                assert got.status in (200, 504), got.body

            for _ in range(1000 // POOLS):
                engine.asked.clear()
                for event in finish.values():
                    event.clear()
                await asyncio.gather(*map(race, models))
            state = await running.settle()
        received = 2000
        assert outcomes[200] + outcomes[504] == 1000
        assert min(outcomes.values()) > 20, "the race was never close"
        dispatched = sum(state["dispatch_counts"].values())
        rejected = sum(state["reject_counts"].values())
        cancelled = sum(backend["cancelled"] for backend in state["backends"].values())
        assert dispatched == 1000 + outcomes[200]
        assert rejected == state["reject_counts"]["queue_timeout"] == outcomes[504]
        assert dispatched + rejected + cancelled == received


def _in(engine: Engine, model: str, user: str) -> bool:
    wanted = f'"model": "{model}"'.encode(), f'"user": "{user}"'.encode()
    return any(all(part in one.body for part in wanted) for one in engine.asked)


async def test_bug_169_clients_that_leave_at_their_ttl_leave_nothing_behind(lane: Lane) -> None:
    held = Held()
    top: dict[str, object] = {"queue": {"enabled": True, "ttl": "60ms"}}
    async with lane.facing(held, max_concurrency=1, top=top) as stage:
        for number in range(ROUNDS):
            holder = await send(stage)
            await until(lambda: held.running == 1)
            leaving = await send(stage)
            await asyncio.sleep(0.06 + (number - ROUNDS / 2) * 0.0005)
            held.release()
            leaving.reset()
            assert await status(holder) == 200
            with contextlib.suppress(TimeoutError):
                await until(lambda: held.running == 0, 1.0)
            await balanced(stage)
