"""Another configuration for a running router: all of it or nothing, and no request sees half."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import aiohttp
import pytest

from tests.conformance.holding import Held
from tests.conformance.lanes import LANES, Engine, Lane, Stage, chat, says_hello
from tests.conformance.reloading import reloads, rewrite
from tests.peers import RawClient, until
from tests.running import CHAT, RouterProcess, Running, backend, backends_yaml


def entries(stage: Stage, **fields: object) -> list[dict[str, object]]:
    return [
        backend(engine.url, "abcdefgh"[at], **fields) for at, engine in enumerate(stage.engines)
    ]


async def send(stage: Stage, *, stream: bool = False) -> RawClient:
    client = await stage.client()
    await client.post(CHAT, chat(stream=stream))
    return client


# ---- all or nothing ------------------------------------------------------------------------------

BAD: dict[str, str] = {
    "an invalid backend": '{"name": "z", "url": "ftp://x", "models": ["m"]}',
    "two of one name": '{"name": "a", "url": "http://127.0.0.1:9", "models": ["m"]}',
    "a key that does not exist": '{"name": "z", "url": "http://127.0.0.1:9", "nmodels": 3}',
    "a CA file that is not there":
        '{"name": "z", "url": "https://127.0.0.1:9", "tls": {"ca_file": "/no/such/file"}}',
    "no YAML": "{{{",
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD)
async def test_bug_195_a_faulty_file_changes_nothing_of_what_is_right_in_it(
    lane: Lane, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with lane.facing(says_hello, max_concurrency=8) as stage:
        running = stage.running
        before = await running.state()
        # A legal change of the route, of the limit and of the mode, beside the fault.
        right = json.dumps({**entries(stage)[0], "models": ["m", "n"], "max_concurrency": 3})
        text = f'{{"mode": "queue-all", "backends": [{right}, {BAD[fault]}]}}'
        assert not await rewrite(running, text)
        after = await running.state()
        for key in ("routing_mode", "queue_enabled"):
            assert after[key] == before[key]
        assert after["backends"].keys() == before["backends"].keys()
        assert after["backends"]["a"]["max_concurrency"] == 8
        assert (await running.ask()).status == 200
        assert (await running.ask(CHAT, chat(model="n"))).status == 503
        # Why, where an operator looks: in the state, in the log, in the metrics.
        assert any("not reloaded" in str(one) for one in after["warnings"])
        assert any(record.levelname == "ERROR" for record in caplog.records)
        assert await reloads(running) == (0, 1)
        # The next good one takes the complaint away.
        good = {**entries(stage)[0], "models": ["m", "n"], "max_concurrency": 3}
        assert await rewrite(running, backends_yaml(good))
        state = await running.state()
        assert not any("not reloaded" in str(one) for one in state["warnings"])
        assert (await running.ask(CHAT, chat(model="n"))).status == 200
        assert state["backends"]["a"]["max_concurrency"] == 3


async def test_bug_195_a_file_that_is_gone_is_a_fault_and_no_empty_configuration(
    lane: Lane, tmp_path: Path
) -> None:
    async with Engine(says_hello) as engine:
        path = tmp_path / "backends.yaml"
        path.write_text(backends_yaml(backend(engine.url)))
        router = await RouterProcess.start(cwd=tmp_path, environ=LANES[lane.name])
        try:
            path.unlink()
            router.process.send_signal(signal.SIGHUP)
            async with aiohttp.ClientSession() as session:
                await _page_has(
                    session, f"{router.url}/metrics", 'reloads_total{result="failure"} 1'
                )
                async with session.post(f"{router.url}{CHAT}", data=chat()) as answered:
                    assert answered.status == 200
        finally:
            assert await router.stop() == 0


async def _page_has(session: aiohttp.ClientSession, url: str, text: str) -> None:
    async def page() -> str:
        async with session.get(url) as answered:
            return await answered.text()

    async with asyncio.timeout(8.0):
        while text not in await page():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_bug_195_a_file_that_is_being_written_is_waited_for(lane: Lane) -> None:
    """Truncated, then written: what stands there in between is no configuration."""
    async with lane.facing(says_hello) as stage:
        running = stage.running
        path = running.router.configuration.path
        assert path is not None
        good = backends_yaml(*entries(stage, max_concurrency=5))
        before = await reloads(running)
        path.write_text("")
        running.router.ask_to_reload()
        for length in range(0, len(good), len(good) // 6):
            path.write_text(good[:length])
            await asyncio.sleep(0.02)
            assert (await running.ask()).status == 200
        path.write_text(good)
        running.router.ask_to_reload()
        await running.until(lambda state: state["backends"]["a"]["max_concurrency"] == 5)
        assert (await reloads(running))[0] == before[0] + 1
        # And one that stays empty is refused.
        assert not await rewrite(running, "")
        assert (await running.ask()).status == 200
        assert await rewrite(running, "backends: []\n")
        assert (await running.ask()).status == 503


async def test_bug_195_a_signal_and_a_changed_file_are_both_enough(
    lane: Lane, tmp_path: Path
) -> None:
    async with Engine(says_hello) as engine:
        path = tmp_path / "backends.yaml"
        path.write_text(backends_yaml(backend(engine.url)))
        router = await RouterProcess.start(cwd=tmp_path, environ=LANES[lane.name])
        try:
            async with aiohttp.ClientSession() as session:
                state = f"{router.url}/api/lb/state"
                path.write_text(backends_yaml(backend(engine.url, max_concurrency=5)))
                router.process.send_signal(signal.SIGHUP)
                await _page_has(session, state, '"max_concurrency":5')
                # Nobody says anything: the file is looked at.
                path.write_text(backends_yaml(backend(engine.url, max_concurrency=6)))
                await _page_has(session, state, '"max_concurrency":6')
        finally:
            assert await router.stop() == 0


# ---- what a change does to what runs -------------------------------------------------------------


async def test_bug_196_a_removed_backend_finishes_its_streams_and_gets_no_new_ones(
    lane: Lane,
) -> None:
    held = Held(streamed=True)
    async with lane.facing(held, says_hello) as stage:
        running = stage.running
        one, other = entries(stage)
        assert await rewrite(running, backends_yaml(one))
        clients = [await send(stage, stream=True) for _ in range(2)]
        await until(lambda: held.running == 2)
        assert await rewrite(running, backends_yaml(other))
        for _ in range(6):
            answered = await running.ask()
            assert (answered.status, answered.headers["X-Lifeboat-Backend"]) == (200, "b")
        assert len(stage.engine.asked) == 2
        assert (await running.state())["inflight"]["a"] == 2
        held.release_all()
        for client in clients:
            reply = await client.reply()
            assert (reply.status, reply.clean) == (200, True)
        state = await running.settle()
        assert "a" not in state["backends"]


@pytest.mark.parametrize("by", ["file", "API", "API, the old one drained first"])
async def test_an_engine_that_gets_another_name_never_holds_more_than_its_cap(
    lane: Lane, by: str
) -> None:
    """The old name drains while the new one fills, and both are one engine."""
    held = Held()
    top = {"queue": {"enabled": True}}
    async with lane.facing(held, max_concurrency=3, top=top) as stage:
        running = stage.running
        clients = [await send(stage) for _ in range(9)]
        await running.until(lambda state: state["queue_total_waiters"] == 6)
        renamed = backend(f"{stage.engine.url}/v1", "renamed", max_concurrency=3)
        if by == "file":
            assert await rewrite(running, backends_yaml(renamed, **top))
        elif by == "API":
            assert (await running.admin("DELETE", "backends/a")).status == 202
            assert (await running.admin("POST", "backends", renamed)).status == 201
        else:
            drain = {"state": "drain"}
            assert (await running.admin("PATCH", "backends/a", drain)).status == 200
            assert (await running.admin("POST", "backends", renamed)).status == 201
        state = await running.state()
        one = state["backends"]["renamed"]
        assert (one["effective_limit"], one["limit_reason"]) == (0, "predecessor")
        assert any("instead of 3" in str(warning) for warning in state["warnings"])
        for answered in range(1, 10):
            held.release()
            await clients[answered - 1].reply()
            await until(lambda: len(stage.asked) == min(9, 3 + answered))  # noqa: B023
            assert held.running == min(3, 9 - answered)
        assert held.most_running == 3
        one = (await running.settle())["backends"]["renamed"]
        assert (one["effective_limit"], one["limit_reason"]) == (3, "configured")


async def test_bug_196_a_lowered_limit_holds_as_soon_as_the_count_falls(lane: Lane) -> None:
    held = Held()
    async with lane.facing(held, max_concurrency=8) as stage:
        running = stage.running
        clients = [await send(stage) for _ in range(5)]
        await until(lambda: held.running == 5)
        assert await rewrite(running, backends_yaml(*entries(stage, max_concurrency=2)))
        # Nobody is cut off, and nobody is let in until one of two places is free.
        for left in (5, 4, 3, 2):
            assert held.running == left
            assert (await running.state())["backends"]["a"]["effective_limit"] == 2
            assert (await running.ask()).status == 503
            held.release()
            await until(lambda left=left: held.running == left - 1)
            await running.until(lambda state, left=left: state["inflight"]["a"] == left - 1)
        late = await send(stage)
        await until(lambda: held.running == 2)
        assert (await running.ask()).status == 503
        held.release_all()
        assert [(await one.reply()).status for one in (*clients, late)] == [200] * 6


async def test_bug_196_a_raised_limit_and_a_new_backend_wake_the_parked_at_once(lane: Lane) -> None:
    first, second = Held(), Held()
    async with lane.facing(first, second, max_concurrency=1, top={"mode": "queue-all"}) as stage:
        running = stage.running
        mode = {"mode": "queue-all"}
        assert await rewrite(running, backends_yaml(entries(stage, max_concurrency=1)[0], **mode))
        clients = [await send(stage) for _ in range(6)]
        await running.until(lambda state: state["queue_total_waiters"] == 5)
        assert await rewrite(running, backends_yaml(entries(stage, max_concurrency=3)[0], **mode))
        await until(lambda: first.running == 3)
        assert await rewrite(running, backends_yaml(*entries(stage, max_concurrency=3), **mode))
        await until(lambda: second.running == 3)
        assert (first.most_running, second.most_running) == (3, 3)
        first.release_all()
        second.release_all()
        assert {(await client.reply()).status for client in clients} == {200}


async def test_bug_196_parked_requests_keep_their_place_when_their_backend_moves(
    lane: Lane,
) -> None:
    first, second = Held(), Held()
    async with lane.facing(first, second, max_concurrency=1, top={"mode": "queue-all"}) as stage:
        running = stage.running
        one, other = entries(stage, max_concurrency=1)
        assert await rewrite(running, backends_yaml(one, mode="queue-all"))
        clients = [await send(stage) for _ in range(3)]
        await running.until(lambda state: state["queue_total_waiters"] == 2)
        # The model moves to another server altogether.
        assert await rewrite(running, backends_yaml(other, mode="queue-all"))
        await until(lambda: second.running == 1)
        second.release_all()
        first.release_all()
        assert {(await client.reply()).status for client in clients} == {200}
        assert len(stage.engines[1].asked) == 2


# ---- every setting that can change does ----------------------------------------------------------


async def _with(running: Running, stage: Stage, **top: object) -> None:
    assert await rewrite(running, backends_yaml(*entries(stage, max_concurrency=1), **top))


async def test_bug_196_settings_hold_for_requests_that_come_later(lane: Lane) -> None:
    async with lane.facing(says_hello, max_concurrency=1) as stage:
        running = stage.running
        await _with(running, stage, max_body_bytes=1000)
        refused = await running.ask(CHAT, chat("x" * 2000))
        assert (refused.status, refused.error["code"]) == (413, "body_too_large")

        await _with(running, stage, api_keys=["k1", "k2"])
        assert (await running.ask(CHAT, chat("x" * 2000))).status == 401
        mine = {"Authorization": "Bearer k2"}
        assert (await running.ask(headers=mine)).status == 200
        # The router's key is not shown to the backend, from the same moment on.
        assert not stage.engine.asked[-1].values(b"authorization")
        await _with(running, stage, api_keys=["k3"])
        assert (await running.ask(headers=mine)).status == 401
        await _with(running, stage)
        assert (await running.ask(headers=mine)).status == 200
        assert stage.engine.asked[-1].values(b"authorization") == [b"Bearer k2"]

        await _with(running, stage, admin_token="t1")
        assert (await running.admin("PUT", "mode", {"mode": "superfast"})).status == 401
        await _with(running, stage)
        assert (await running.admin("PUT", "mode", {"mode": None})).status == 200

        await _with(running, stage, ready_needs_backend=True)
        assert (await running.ask("/ready", method="GET")).status == 200

        await _with(running, stage, estimate={"image_tokens": 7})
        part = {"type": "image_url", "image_url": {"url": "http://x/y.png"}}
        body = {"model": "m", "messages": [{"role": "user", "content": [part]}]}
        told = await running.admin("POST", "explain", {"path": CHAT, "body": body})
        assert told.json["estimate"]["tokens"] < 50


async def test_bug_196_modes_limits_and_statuses_change_too(lane: Lane) -> None:
    held = Held()
    async with lane.facing(held, max_concurrency=1) as stage:
        running = stage.running
        holder = await send(stage)
        await until(lambda: held.running == 1)
        await _with(running, stage, reject_status=529)
        assert (await running.ask()).status == 529
        assert (await running.state())["routing_mode"] == "default"
        await _with(running, stage, queue={"enabled": True, "ttl": "50ms"})
        expired = await running.ask()
        assert (expired.status, expired.error["code"]) == (504, "queue_timeout")
        await _with(running, stage, queue={"enabled": True, "max_depth": 0})
        assert (await running.ask()).error["code"] == "queue_full"
        await _with(running, stage, mode="queue-all")
        parked = asyncio.create_task(running.ask())
        await running.until(lambda state: state["queue_total_waiters"] == 1)
        # The parked one keeps its place and its deadline under the new rules.
        await _with(running, stage, mode="superfast", queue={"enabled": True, "max_depth": 0})
        held.release_all()
        assert (await parked).status == 200
        assert (await holder.reply()).status == 200


async def test_bug_196_timeouts_of_clients_and_backends_change_too(lane: Lane) -> None:
    held = Held()
    async with lane.facing(held) as stage:
        running = stage.running
        await _with(
            running, stage,
            upstream={"first_byte_timeout": "100ms"},
            client={"head_timeout": "200ms", "body_timeout": "150ms"},
        )  # fmt: skip
        late = await running.ask()
        assert (late.status, late.error["code"]) == (504, "backend_timeout")
        slow_head = await stage.client()
        await slow_head.send(b"POST / HT")
        slow_body = await stage.client()
        await slow_body.send(b"POST %b HTTP/1.1\r\nHost: x\r\n" % CHAT.encode())
        await slow_body.send(b"Content-Length: 100\r\n\r\n{")
        # They were 30 s and a minute.
        async with asyncio.timeout(15.0):
            assert (await slow_body.reply()).status in (400, 408)
            assert b"200 OK" not in await slow_head.reader.read()


async def test_bug_196_what_was_set_by_api_wins_over_a_reload(lane: Lane) -> None:
    async with lane.facing(says_hello, max_concurrency=8) as stage:
        running = stage.running
        assert (await running.admin("PATCH", "backends/a", {"max_concurrency": 3})).status == 200
        assert (await running.admin("PUT", "mode", {"mode": "superfast"})).status == 200
        await _with(running, stage, mode="queue-all")
        state = await running.state()
        assert state["routing_mode"] == "superfast"
        assert state["backends"]["a"]["max_concurrency"] == 3
        await running.admin("PATCH", "backends/a", {"max_concurrency": None})
        await running.admin("PUT", "mode", {"mode": None})
        state = await running.state()
        assert state["routing_mode"] == "queue-all"
        assert state["backends"]["a"]["max_concurrency"] == 1


@pytest.mark.parametrize(
    ("top", "named"),
    [
        ({"host": "127.0.0.2"}, "host"),
        ({"admin_addr": "127.0.0.1:0"}, "admin_addr"),
        ({"log": {"format": "json"}}, "log.format"),
    ],
)
async def test_bug_196_what_needs_a_restart_is_said(
    lane: Lane, top: dict[str, object], named: str
) -> None:
    async with lane.facing(says_hello) as stage:
        await _with(stage.running, stage, **top)
        assert (await stage.running.ask()).status == 200
        told = [str(one) for one in (await stage.running.state())["warnings"]]
        assert any("restart" in one and named in one for one in told)
        await _with(stage.running, stage)
        told = [str(one) for one in (await stage.running.state())["warnings"]]
        assert not any("restart" in one for one in told)


# ---- reloads under traffic -----------------------------------------------------------------------


async def test_bug_198_fifty_reloads_a_second_disturb_no_request(lane: Lane) -> None:
    async with lane.facing(says_hello, says_hello, says_hello) as stage:
        running = stage.running
        path = running.router.configuration.path
        assert path is not None
        a, b, c = entries(stage)
        everything = [
            backends_yaml(a, b),
            backends_yaml(a, c, models={"alias": {"alias_of": "m"}}),
            backends_yaml({**a, "max_concurrency": 4}, b, c, mode="queue-all"),
            backends_yaml({**b, "url": c["url"]}, a, queue={"enabled": True}),
            backends_yaml(a, {**b, "max_input_tokens": 4096}),
        ]
        stopped = asyncio.Event()
        statuses: set[int] = set()
        count = 0

        async def traffic(*, streamed: bool) -> None:
            nonlocal count
            while not stopped.is_set():
                answered = await running.ask(CHAT, chat(stream=streamed))
                statuses.add(answered.status)
                count += 1

        async with asyncio.TaskGroup() as tasks:
            for number in range(6):
                tasks.create_task(traffic(streamed=number % 2 == 0))
            number, good = 0, 0
            while number < 100 or count <= 100 or good <= 30:
                number += 1
                fresh = path.with_suffix(".new")
                fresh.write_text(everything[number % len(everything)])
                fresh.replace(path)
                running.router.ask_to_reload()
                await asyncio.sleep(0.02)
                if number % 100 == 0:
                    good, _ = await reloads(running)
            stopped.set()
        _, bad = await reloads(running)
        assert statuses == {200}
        assert bad == 0
        await running.settle()
