"""Health: busy is not down, down is not for ever, and suspicion never takes the last backend."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

import lifeboat.fleet.watch
from tests.conformance.holding import Held
from tests.conformance.lanes import (
    LAST_CHUNK,
    SSE_HEAD,
    Engine,
    Lane,
    Stage,
    answer,
    chat,
    event,
    says_hello,
)
from tests.conformance.probed import FAST, Probed, hangs, says
from tests.peers import Peer, Received, ScriptedBackend, until
from tests.running import CHAT, Running, backend

LIVE = {"up", "starting"}
WELL = says(answer({"object": "list", "data": [{"id": "m"}], "status": "ok"}))


@contextlib.contextmanager
def quiet_time(monkeypatch: pytest.MonkeyPatch, seconds: float):
    """Shorten the time for which an answered request speaks for its backend."""
    with monkeypatch.context() as patch:
        patch.setattr(lifeboat.fleet.watch, "QUIET_S", seconds)
        yield


async def health(running: Running, name: str = "a") -> str:
    return (await running.state())["backends"][name]["health"]


async def probed(engine: Engine, more: int) -> None:
    """Wait for so many further probes."""
    wanted = len(engine.probes) + more
    await until(lambda: len(engine.probes) >= wanted)


def streams_for(seconds: float):
    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(SSE_HEAD)
        for number in range(int(seconds / 0.02)):
            await peer.chunk(event(number))
            await asyncio.sleep(0.02)
        await peer.send(LAST_CHUNK)

    return script


@pytest.mark.parametrize("kind", ["vllm", "openai"])
async def test_bug_171_a_backend_that_streams_is_not_down_however_slow_its_health(
    lane: Lane, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Nothing has ended there for longer than the quiet time, but bytes come."""
    with quiet_time(monkeypatch, 0.3):
        async with lane.facing(
            Probed(WELL, streams_for(1.3)), Probed(WELL), environ=FAST, kind=kind
        ) as stage:
            busy = stage.engine
            assert isinstance(busy, Probed)
            client = await stage.client()
            await client.post(CHAT, chat(stream=True))
            await stage.asked_for(1)
            busy = next(engine for engine in stage.engines if engine.asked)
            assert isinstance(busy, Probed)
            if busy is not stage.engine:
                busy.answering(streams_for(1.3))
            name = "a" if busy is stage.engine else "b"
            busy.probe = hangs
            while busy.running:
                assert await health(stage.running, name) in LIVE
                await asyncio.sleep(0.05)
            assert len(busy.probes) > 5
            assert (await client.reply()).clean


async def test_bug_171_it_takes_several_failures_in_a_row(lane: Lane) -> None:
    async with lane.facing(Probed(WELL), Probed(WELL), environ=FAST, kind="vllm") as stage:
        first = stage.engine
        assert isinstance(first, Probed)
        await probed(first, 3)
        seen: list[str] = []
        pages = [hangs, hangs, WELL]

        async def mostly_hangs(peer: Peer, asked: Received) -> None:
            if asked.target == "/health":
                await pages[len(seen) % 3](peer, asked)
                seen.append(asked.target)
            else:
                await WELL(peer, asked)

        first.probe = mostly_hangs
        while len(seen) < 9:
            assert await health(stage.running) == "up"
            await asyncio.sleep(0.03)
        # Without one that succeeds among them, they do take it out.
        first.probe = hangs
        await stage.running.until(lambda state: state["backends"]["a"]["health"] == "down")


async def test_bug_172_the_only_backend_is_never_taken_out_by_probes(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held()
    with quiet_time(monkeypatch, 0.1):
        async with lane.facing(Probed(hangs, held), environ=FAST, kind="gguf") as stage:
            client = await stage.client()
            await client.post(CHAT, chat())
            await until(lambda: held.running == 1)
            await probed(stage.engine, 8)
            assert await health(stage.running) in LIVE
            second = await stage.client()
            await second.post(CHAT, chat())
            await until(lambda: held.running == 2)
            held.release_all()
            assert [(await one.reply()).status for one in (client, second)] == [200, 200]


async def test_bug_174_when_every_probe_is_slow_no_cascade_takes_all(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    with quiet_time(monkeypatch, 0.1):
        async with lane.facing(
            Probed(WELL), Probed(WELL), Probed(WELL), environ=FAST, kind="vllm"
        ) as stage:
            assert (await stage.running.ask()).status == 200
            for engine in stage.engines:
                assert isinstance(engine, Probed)
                engine.probe = hangs
            least = 3
            for _ in range(40):
                state = await stage.running.state()
                live = [one for one in state["backends"].values() if one["health"] in LIVE]
                least = min(least, len(live))
                assert (await stage.running.ask()).status == 200
                await asyncio.sleep(0.03)
            assert least >= 1


async def test_bug_174_a_backend_that_serves_is_kept_whatever_its_probes_say(lane: Lane) -> None:
    """With traffic on all of them, none is ejected: answers are better proof than probes."""
    async with lane.facing(Probed(WELL), Probed(WELL), environ=FAST, kind="vllm") as stage:
        for _ in range(4):
            assert (await stage.running.ask()).status == 200
        for engine in stage.engines:
            assert isinstance(engine, Probed)
            engine.probe = hangs
        await probed(stage.engine, 8)
        assert {await health(stage.running, name) for name in "ab"} == {"up"}


@pytest.mark.parametrize("kind", ["vllm", "gguf", "openai"])
async def test_bug_175_after_a_connect_failure_a_backend_comes_back_by_itself(
    lane: Lane, kind: str
) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        entry = backend(f"http://127.0.0.1:{port}", kind=kind)
        async with lane.router(entry, environ=FAST) as running:
            refused = await running.ask()
            assert (refused.status, refused.error["code"]) == (503, "no_backends")
            assert "x-should-retry" not in refused.headers
            assert await health(running) == "down"
            reserved.close()
            engine = Probed(WELL)
            server = await asyncio.start_server(engine._accept, "127.0.0.1", port)
            async with server:
                # Asked for, it is probed every second.
                # And not in the 30 s that the pauses grow to.
                async with asyncio.timeout(10.0):
                    while (await running.ask()).status != 200:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                assert await health(running) == "up"


async def test_bug_175_a_request_that_found_it_closed_does_not_condemn_it(lane: Lane) -> None:
    """It refuses one connection between two probes that find it well."""
    engine = Probed(WELL)
    async with engine:
        entry = backend(engine.url, kind="vllm")
        async with lane.router(
            entry, environ={**FAST, "LIFEBOAT_PROBE_INTERVAL_SEC": "5"}
        ) as running:
            assert (await running.ask()).status == 200
            port = engine.port
            engine._server.close()
            for peer in engine.peers:
                peer.writer.transport.abort()
            await asyncio.sleep(0.05)
            assert (await running.ask()).status == 502
            assert await health(running) == "down"
            again = await asyncio.start_server(engine._accept, "127.0.0.1", port)
            async with again:
                async with asyncio.timeout(10.0):
                    while (await running.ask()).status != 200:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)


SLOTS_TAKEN = answer({"status": "no slot available"}, b"503 Service Unavailable")
SLOT_ERROR = answer(
    {"error": {"message": "Slot unavailable", "type": "unavailable_error", "code": 503}},
    b"503 Service Unavailable",
)
LOADING = answer(
    {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}},
    b"503 Service Unavailable",
)
LOADING_ONCE = answer({"status": "loading model"}, b"503 Service Unavailable")
"""llama.cpp before April 2024."""


@pytest.mark.parametrize("page", [SLOTS_TAKEN, SLOT_ERROR])
async def test_bug_177_no_free_slot_is_busy_and_not_down(lane: Lane, page: bytes) -> None:
    async with lane.facing(Probed(says(page)), Probed(WELL), environ=FAST, kind="gguf") as stage:
        await probed(stage.engine, 8)
        assert await health(stage.running) == "up"
        for _ in range(4):
            assert (await stage.running.ask()).status == 200
        assert stage.engine.asked


@pytest.mark.parametrize("page", [LOADING, LOADING_ONCE])
async def test_bug_177_a_model_that_loads_is_not_ready_and_then_is(lane: Lane, page: bytes) -> None:
    async with lane.facing(Probed(says(page)), environ=FAST, kind="gguf") as stage:
        assert await health(stage.running) == "loading"
        refused = await stage.running.ask()
        assert (refused.status, refused.error["code"]) == (503, "no_backends")
        assert "x-should-retry" not in refused.headers
        assert not stage.engine.asked
        assert isinstance(stage.engine, Probed)
        stage.engine.probe = WELL
        await stage.running.until(lambda state: state["backends"]["a"]["health"] == "up")
        assert (await stage.running.ask()).status == 200


HTML = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 21\r\n\r\n<html>Hello!!!</html>"
)


@pytest.mark.parametrize("kind", ["vllm", "gguf", "openai"])
async def test_bug_178_a_page_of_html_is_no_model_server(lane: Lane, kind: str) -> None:
    """It answers, so it is up; but it lists no models, so nothing is ever sent to it."""
    async with Probed(says(HTML)) as web_server, Engine(says_hello) as engine:
        async with lane.router(
            {"name": "web", "url": web_server.url, "kind": kind},
            {"name": "a", "url": engine.url},
            environ=FAST,
        ) as running:
            await probed(web_server, 6)
            for _ in range(6):
                answered = await running.ask()
                assert (answered.status, answered.headers["X-Lifeboat-Backend"]) == (200, "a")
            state = await running.state()
            assert state["backends"]["web"]["models"] in ([], None)
            assert any("web" in str(one) and "model" in str(one) for one in state["warnings"])
            listed = await running.ask("/v1/models", method="GET")
            assert [entry["id"] for entry in listed.json["data"]] == ["m"]
            assert not web_server.asked


async def test_bug_180_failures_far_apart_never_add_up(lane: Lane) -> None:
    """One request in four fails, for ever: with a success between, nothing is counted twice."""
    counted = 0

    async def sometimes_fails(peer: Peer, asked: Received) -> None:
        nonlocal counted
        counted += 1
        if counted % 4 == 0:
            await peer.send(answer({"error": {"message": "boom"}}, b"500 Internal Server Error"))
        else:
            await says_hello(peer, asked)

    async with lane.facing(sometimes_fails, says_hello) as stage:
        for _ in range(80):
            await stage.running.ask()
            assert await health(stage.running) in LIVE
        assert len(stage.engines[0].asked) > 30


async def test_bug_180_probes_that_fail_now_and_then_never_add_up(lane: Lane) -> None:
    async with lane.facing(Probed(WELL), Probed(WELL), environ=FAST, kind="vllm") as stage:
        first = stage.engine
        assert isinstance(first, Probed)

        async def sometimes_fails(peer: Peer, asked: Received) -> None:
            bad = len(first.probes) % 3 == 0
            await (says(answer({}, b"500 Internal Server Error")) if bad else WELL)(peer, asked)

        first.probe = sometimes_fails
        for _ in range(40):
            assert await health(stage.running) == "up"
            await asyncio.sleep(0.02)


async def test_bug_171_bug_172_a_silent_server_beside_a_well_one_is_left_for_it(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy: with another to serve, one that answers nothing is out, and its work goes on."""
    held = Held()
    with quiet_time(monkeypatch, 0.1):
        async with lane.facing(
            Probed(WELL, held), Probed(WELL), environ=FAST, kind="vllm"
        ) as stage:
            state = await _one_in_flight_at_a(stage)
            assert state["backends"]["a"]["in_flight"] == 1
            assert isinstance(stage.engine, Probed)
            stage.engine.probe = hangs
            await stage.running.until(lambda state: state["backends"]["a"]["health"] == "down")
            for _ in range(4):
                answered = await stage.running.ask()
                assert answered.headers["X-Lifeboat-Backend"] == "b"
            held.release_all()
            assert (await stage.clients[-1].reply()).status == 200


async def _one_in_flight_at_a(stage: Stage) -> dict:
    """Send requests until one of them is held at `a`."""
    while not stage.engine.asked:
        client = await stage.client()
        await client.post(CHAT, chat())
        await asyncio.sleep(0.05)
    return await stage.running.state()


async def test_bug_175_a_server_that_was_never_there_delays_nobody(lane: Lane) -> None:
    async def closes(peer: Peer) -> None:
        peer.reset()

    async with ScriptedBackend(closes) as broken, Engine(says_hello) as engine:
        async with lane.router(
            backend(broken.url, "x", kind="vllm"), backend(engine.url), environ=FAST
        ) as running:
            for _ in range(10):
                answered = await running.ask()
                assert answered.status == 200
                assert answered.took_s < 5.0
