"""The queue over real sockets: ceiling, TTL, order, and who is woken by what."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from tests.acceptance.engines import HeldEngine
from tests.peers import until
from tests.running import Answered, Running, backend, backends_yaml, chat_body, running_router

QUEUE_ON = {"LIFEBOAT_LB_QUEUE_ENABLED": "true"}
QUEUE_ALL = {"LIFEBOAT_LB_MODE": "queue-all"}


class Line:
    """Requests sent one after the other, each parked before the next is sent."""

    def __init__(self, running: Running, tasks: asyncio.TaskGroup) -> None:
        self.running = running
        self.tasks = tasks
        self.asks: list[asyncio.Task[Answered]] = []

    def send(
        self, tag: str, text: str = "Hello", priority: str | None = None
    ) -> asyncio.Task[Answered]:
        headers: Mapping[str, str] = {} if priority is None else {"X-Lifeboat-Priority": priority}
        body = chat_body(text, user=tag)
        ask = self.tasks.create_task(self.running.ask(body=body, headers=headers))
        self.asks.append(ask)
        return ask

    async def fill(self, engine: HeldEngine, *tags: str) -> None:
        """Send requests that an idle engine takes all."""
        for tag in tags:
            self.send(tag)
        await until(lambda: len(engine.running) == len(tags))

    async def park(self, *waiting: tuple[str, str, str | None]) -> None:
        before = self.depth()
        for number, (tag, text, priority) in enumerate(waiting, 1):
            self.send(tag, text, priority)
            await until(lambda wanted=before + number: self.depth() == wanted)

    def depth(self) -> int:
        return self.running.router.view().parked


@contextlib.asynccontextmanager
async def lined(yaml: str, directory: Path, environ: Mapping[str, str]) -> AsyncIterator[Line]:
    """Run a router; whatever was sent to it by the line is waited for at the end."""
    async with (
        running_router(yaml, directory, environ) as running,
        asyncio.TaskGroup() as tasks,
    ):
        yield Line(running, tasks)


def parked(*tags: str) -> list[tuple[str, str, str | None]]:
    return [(tag, "Hello", None) for tag in tags]


async def test_the_ceiling_parks_eight_refuses_the_next_and_expires_the_eight_unseen(
    tmp_path: Path,
) -> None:
    async with HeldEngine() as engine:
        yaml = backends_yaml(backend(engine.url, max_concurrency=2))
        environ = {**QUEUE_ON, "LIFEBOAT_LB_QUEUE_TTL_SEC": "3"}
        async with running_router(yaml, tmp_path, environ) as running:
            async with asyncio.TaskGroup() as tasks:
                line = Line(running, tasks)
                busy = [line.send("run"), line.send("run")]
                await until(lambda: len(engine.running) == 2)
                waiting = [line.send(f"w{number}") for number in range(8)]
                await until(lambda: line.depth() == 8)
                full = await running.ask()
                state = await running.state()
                assert not any(ask.done() for ask in waiting), "refused no sooner than they"
                await asyncio.wait(waiting)
                depth = line.depth()
                engine.release_all()
            assert [ask.result().status for ask in busy] == [200, 200]
        assert (full.status, full.headers["X-Lifeboat-Reject-Reason"]) == (503, "queue_full")
        error = full.error
        assert error["code"] == error["reason"] == "queue_full"
        assert (error["queue_depth"], error["queue_limit"]) == (8, 8)
        assert "8" in error["message"]
        assert error["routing_mode"] == "default"
        assert error["effective_limit"] == {"a": 2}
        assert state["pools"]["m"]["queue_depth"] == state["queue_total_waiters"] == 8
        assert state["pools"]["m"]["queue_limit"] == 8
        for ask in waiting:
            expired = ask.result()
            assert (expired.status, expired.error["code"]) == (504, "queue_timeout")
            assert expired.error["type"] == "timeout_error"
            assert expired.headers["X-Lifeboat-Reject-Reason"] == "queue_timeout"
            # The default would be 30 s.
            assert 2.9 <= expired.took_s <= 10.0
            assert 2900 <= expired.wait_ms <= 10_000
            assert expired.error["wait_ms"] == expired.wait_ms
            assert expired.error["effective_limit"] == {"a": 2}
        assert depth == 0
        assert engine.tags() == ["run", "run"]


ALL_KINDS = [
    ("long", "word " * 300, None),
    ("low", "Hello", "low"),
    ("short", "Hello", None),
    ("high-long", "word " * 300, "high"),
    ("high", "Hello", "high"),
]
"""Tag, text and priority of what is parked, in the order it came."""


@pytest.mark.parametrize(
    ("environ", "waiting", "order"),
    [
        pytest.param(
            QUEUE_ON,
            ALL_KINDS,
            ["high", "high-long", "short", "long", "low"],
            id="class, then smallest",
        ),
        pytest.param(
            QUEUE_ALL,
            ALL_KINDS,
            ["high-long", "high", "long", "short", "low"],
            id="class, then first come",
        ),
        pytest.param(
            QUEUE_ON,
            [("first", "Hello", None), ("odd", "Hello", "urgent"), ("last", "Hello", "NORMAL")],
            ["first", "odd", "last"],
            id="an unknown class is normal, and equals keep their order",
        ),
    ],
)
async def test_the_parked_go_in_the_order_of_the_mode(
    tmp_path: Path,
    environ: dict[str, str],
    waiting: list[tuple[str, str, str | None]],
    order: list[str],
) -> None:
    async with HeldEngine() as engine:
        yaml = backends_yaml(backend(engine.url, max_concurrency=1), queue={"max_depth": 50})
        async with lined(yaml, tmp_path, environ) as line:
            await line.fill(engine, "run")
            await line.park(*waiting)
            engine.release_all()
            await asyncio.wait(line.asks)
            assert [ask.result().status for ask in line.asks] == [200] * len(line.asks)
    assert engine.tags() == ["run", *order]
    assert engine.most_running == 1


async def test_the_boosted_go_first_in_order_of_arrival_whatever_their_class_and_size(
    tmp_path: Path,
) -> None:
    async with HeldEngine() as engine:
        yaml = backends_yaml(backend(engine.url, max_concurrency=1), queue={"max_depth": 50})
        environ = {**QUEUE_ON, "LIFEBOAT_LB_QUEUE_DEADLINE_BOOST_SEC": "1.5"}
        async with lined(yaml, tmp_path, environ) as line:
            await line.fill(engine, "run")
            await line.park(
                ("old-low-long", "word " * 300, "low"),
                ("old-normal", "Hello", None),
                ("old-high", "Hello", "high"),
            )
            await asyncio.sleep(1.6)
            await line.park(("new-normal", "Hello", None), ("new-high", "Hello", "high"))
            engine.release_all()
    assert engine.tags() == [
        "run", "old-low-long", "old-normal", "old-high", "new-high", "new-normal",
    ]  # fmt: skip


async def test_a_raised_limit_wakes_exactly_as_many_as_fit_and_nobody_overtakes(
    tmp_path: Path,
) -> None:
    async with HeldEngine() as engine:
        yaml = backends_yaml(backend(engine.url, max_concurrency=1), queue={"max_depth": 50})
        async with lined(yaml, tmp_path, QUEUE_ON) as line:
            running = line.running
            await line.fill(engine, "run")
            await line.park(*parked("w1", "w2", "w3", "w4", "w5"))
            patched = await running.admin("PATCH", "backends/a", {"max_concurrency": 3})
            fresh = line.send("fresh")
            assert patched.status == 200
            assert patched.json["max_concurrency"] == patched.json["effective_limit"] == 3
            await until(lambda: len(engine.running) == 3)
            await until(lambda: line.depth() == 4)
            await asyncio.sleep(0.1)
            assert engine.tags() == ["run", "w1", "w2"]
            state = await running.state()
            assert state["inflight"] == {"a": 3}
            assert state["backends"]["a"]["sources"]["max_concurrency"] == "api"
            assert not fresh.done()
            engine.release_all()
    assert engine.tags() == ["run", "w1", "w2", "w3", "w4", "w5", "fresh"]
    assert engine.most_running == 3


async def test_a_lowered_limit_drains_and_evicts_nobody(tmp_path: Path) -> None:
    async with HeldEngine() as engine:
        yaml = backends_yaml(backend(engine.url, max_concurrency=3))
        async with lined(yaml, tmp_path, QUEUE_ON) as line:
            running = line.running
            await line.fill(engine, "r0", "r1", "r2")
            await line.park(*parked("w1", "w2"))
            await running.admin("PATCH", "backends/a", {"max_concurrency": 1})
            engine.release(2)
            await running.until(lambda state: state["inflight"]["a"] == 1)
            assert line.depth() == 2
            engine.release(1)
            await until(lambda: "w1" in engine.tags())
            assert (len(engine.running), line.depth()) == (1, 1)
            engine.release_all()
        assert all(ask.result().status == 200 for ask in line.asks)


async def test_a_newly_registered_backend_serves_the_parked_at_once(tmp_path: Path) -> None:
    async with HeldEngine() as first, HeldEngine() as second:
        yaml = backends_yaml(backend(first.url, max_concurrency=1), queue={"max_depth": 50})
        async with lined(yaml, tmp_path, QUEUE_ON) as line:
            running = line.running
            await line.fill(first, "run")
            await line.park(*parked("w1", "w2", "w3"))
            added = await running.admin(
                "POST", "backends", backend(second.url, "b", max_concurrency=2)
            )
            assert added.status == 201, added.body
            await until(lambda: len(second.running) == 2)
            assert second.tags() == ["w1", "w2"]
            assert line.depth() == 1
            renewed = await running.admin(
                "POST", "backends", backend(second.url, "b", max_concurrency=2)
            )
            assert renewed.status == 200
            other = await running.admin(
                "POST", "backends", backend("http://127.0.0.1:9", "b", max_concurrency=2)
            )
            assert other.status == 409
            first.release_all()
            second.release_all()
        waits = [ask.result().wait_ms for ask in line.asks]
        assert waits[0] == 0 and min(waits[1:]) > 0


async def test_a_change_of_mode_wakes_exactly_as_many_as_fit(tmp_path: Path) -> None:
    async with HeldEngine() as engine:
        yaml = backends_yaml(backend(engine.url, max_concurrency=6), queue={"max_depth": 50})
        environ = {**QUEUE_ON, "LIFEBOAT_LB_MODE": "superfast"}
        async with lined(yaml, tmp_path, environ) as line:
            running = line.running
            await line.fill(engine, "r0", "r1", "r2", "r3")
            await line.park(*parked("w1", "w2", "w3", "w4"))
            changed = await running.admin("PUT", "mode", {"mode": "max-concurrency"})
            assert (changed.status, changed.json["mode"]) == (200, "default")
            assert changed.json["sources"]["routing_mode"] == "api"
            await until(lambda: len(engine.running) == 6)
            await asyncio.sleep(0.1)
            assert engine.tags()[4:] == ["w1", "w2"]
            assert line.depth() == 2
            reset = await running.admin("PUT", "mode", {"mode": None})
            assert reset.json["mode"] == "superfast"
            engine.release_all()
        assert all(ask.result().status == 200 for ask in line.asks)
        assert engine.most_running == 6


async def test_turning_the_queue_off_keeps_the_parked_and_refuses_the_fresh(
    tmp_path: Path,
) -> None:
    async with HeldEngine() as engine:
        yaml = backends_yaml(backend(engine.url, max_concurrency=1))
        async with lined(yaml, tmp_path, QUEUE_ON) as line:
            running = line.running
            await line.fill(engine, "run")
            await line.park(*parked("w1"))
            off = await running.admin("PUT", "mode", {"queue_enabled": False})
            assert off.json["queue_enabled"] is False
            fresh = await running.ask()
            assert (fresh.status, fresh.error["code"]) == (503, None)
            engine.release_all()
        assert [ask.result().status for ask in line.asks] == [200, 200]


@pytest.mark.parametrize("state", ["drain", "maint"])
async def test_an_undrained_backend_serves_the_parked_at_once(tmp_path: Path, state: str) -> None:
    async with HeldEngine() as a, HeldEngine() as b:
        yaml = backends_yaml(
            backend(a.url, "a", max_concurrency=1), backend(b.url, "b", max_concurrency=1)
        )
        async with lined(yaml, tmp_path, QUEUE_ON) as line:
            running = line.running
            await running.admin("PATCH", "backends/b", {"state": state})
            await line.fill(a, "run")
            assert (await running.state())["backends"]["b"]["effective_limit"] == 0
            await line.park(*parked("w1"))
            await running.admin("PATCH", "backends/b", {"state": "ready"})
            await until(lambda: b.tags() == ["w1"])
            a.release_all()
            b.release_all()


async def test_one_hot_model_closes_no_other_models_queue(tmp_path: Path) -> None:
    async with HeldEngine() as hot, HeldEngine() as calm:
        yaml = backends_yaml(
            backend(hot.url, "hot", models=["hot"], max_concurrency=1),
            backend(calm.url, "calm", models=["calm"], max_concurrency=1),
        )
        async with (
            running_router(yaml, tmp_path, QUEUE_ON) as running,
            asyncio.TaskGroup() as tasks,
        ):
            asks = [tasks.create_task(running.ask(body=chat_body(model="hot"))) for _ in range(12)]
            await until(lambda: sum(ask.done() for ask in asks) == 7)
            refused = [ask.result() for ask in asks if ask.done()]
            assert {answer.error["code"] for answer in refused} == {"queue_full"}
            others = [
                tasks.create_task(running.ask(body=chat_body(model="calm"))) for _ in range(3)
            ]
            await running.until(lambda state: state["pools"]["calm"]["queue_depth"] == 2)
            calm.release_all()
            await asyncio.wait(others)
            assert [ask.result().status for ask in others] == [200] * 3
            hot.release_all()


async def test_an_ungated_backend_takes_what_the_gated_ones_cannot(tmp_path: Path) -> None:
    async with HeldEngine() as gated, HeldEngine() as open_:
        yaml = backends_yaml(
            backend(gated.url, "a", max_concurrency=1), backend(open_.url, "b", max_concurrency=0)
        )
        async with (
            running_router(yaml, tmp_path, QUEUE_ON) as running,
            asyncio.TaskGroup() as tasks,
        ):
            asks = [tasks.create_task(running.ask()) for _ in range(40)]
            await until(lambda: len(gated.running) + len(open_.running) == 40)
            state = await running.state()
            assert (state["queue_total_waiters"], len(gated.running)) == (0, 1)
            gated.release_all()
            open_.release_all()
        assert all(ask.result().wait_ms == 0 for ask in asks)
