"""`GET /v1/models`: all names of all backends, at once, whatever state each backend is in."""

from __future__ import annotations

import asyncio
import json
import socket

from tests.conformance.lanes import Engine, Lane, answer, says_hello
from tests.peers import Peer, ScriptedBackend
from tests.running import Running

FAST = {
    "LIFEBOAT_PROBE_INTERVAL_SEC": "0.05",
    "LIFEBOAT_PROBE_MODELS_INTERVAL_SEC": "0.05",
    "LIFEBOAT_PROBE_TIMEOUT_SEC": "0.2",
}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


async def silent(peer: Peer) -> None:
    """The script of a server that reads and never answers."""
    await peer.watch()


async def listing(running: Running) -> list[dict]:
    answered = await running.ask("/v1/models", method="GET")
    assert answered.status == 200
    assert answered.json["object"] == "list"
    assert answered.took_s < 5.0
    return answered.json["data"]


async def test_bug_115_the_list_is_the_union_in_a_stable_order(lane: Lane) -> None:
    async with (
        Engine(says_hello, models=("a",)) as first,
        Engine(says_hello, models=("b", "a")) as second,
        lane.router(
            {"name": "b1", "url": first.url}, {"name": "b2", "url": second.url}, environ=FAST
        ) as running,
    ):
        seen = {tuple(entry["id"] for entry in await listing(running)) for _ in range(20)}
        assert seen == {("a", "b")}
        assert all(entry["object"] == "model" for entry in await listing(running))
        # Learned from the backends in their time, never asked for by a client's request.
        await asyncio.sleep(0.2)
        before = len(first.probes) + len(second.probes)
        for _ in range(200):
            await listing(running)
        assert len(first.probes) + len(second.probes) < before + 100
        assert not first.asked and not second.asked


async def test_bug_117_a_backend_that_refuses_or_hangs_delays_no_list(lane: Lane) -> None:
    async with Engine(says_hello, models=("m1",)) as well, ScriptedBackend(silent) as hangs:
        dead = f"http://127.0.0.1:{free_port()}"
        async with lane.router(
            {"name": "b1", "url": well.url},
            {"name": "b2", "url": hangs.url},
            {"name": "b3", "url": dead},
            # Who waited for the one that hangs would wait for this long.
            environ={**FAST, "LIFEBOAT_PROBE_TIMEOUT_SEC": "30"},
        ) as running:
            for _ in range(5):
                assert [entry["id"] for entry in await listing(running)] == ["m1"]
                await asyncio.sleep(0.1)


async def test_bug_117_the_models_of_a_backend_that_went_down_stay_listed(lane: Lane) -> None:
    async with Engine(says_hello, models=("m1",)) as well:
        async with Engine(says_hello, models=("m2",)) as dies:
            router = lane.router(
                {"name": "b1", "url": well.url}, {"name": "b2", "url": dies.url}, environ=FAST
            )
            running = await router.__aenter__()
        try:
            await running.until(lambda state: state["backends"]["b2"]["health"] == "down")
            assert [entry["id"] for entry in await listing(running)] == ["m1", "m2"]
        finally:
            await router.__aexit__(None, None, None)


async def test_bug_118_a_get_needs_no_body_and_no_backend(lane: Lane) -> None:
    async with lane.router() as running:
        assert await listing(running) == []
        missing = await running.ask("/v1/models/x", method="GET")
        assert (missing.status, missing.error["code"]) == (404, "model_not_found")


async def test_bug_118_ids_with_slashes_are_found_encoded_or_not(lane: Lane) -> None:
    async with lane.facing(says_hello, models=["id/with/slash", "m"]) as stage:
        for path, status, shown in (
            (b"/v1/models/id%2Fwith%2Fslash", 200, "id/with/slash"),
            (b"/v1/models/id%2fwith/slash", 200, "id/with/slash"),
            (b"/v1/models/id/with/slash", 200, "id/with/slash"),
            (b"/v1/models/m", 200, "m"),
            (b"/v1/models/m?x=1", 200, "m"),
            (b"/v1/models/nobody", 404, None),
            (b"/v1/models/", 404, None),
            (b"/v1/models/%", 404, None),
            (b"/v1/models/%ff%00", 404, None),
            (b"/v1/models/id%252Fwith%252Fslash", 404, None),
        ):
            client = await stage.client()
            await client.send(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path)
            reply = await client.reply()
            assert reply.status == status, (path, reply.body)
            page = json.loads(reply.body)
            assert page.get("id") == shown
            assert (status == 404) == ("error" in page)
            client.close()


async def test_bug_118_a_body_or_other_methods_do_no_harm(lane: Lane) -> None:
    async with lane.facing(says_hello) as stage:
        with_body = await stage.running.ask("/v1/models", b'{"model": 7', method="GET")
        assert with_body.status == 200
        assert (await stage.running.ask("/v1/models", method="HEAD")).status == 200
        posted = await stage.running.ask("/v1/models", {}, method="POST")
        assert (posted.status, posted.headers["Allow"]) == (405, "GET, HEAD")


async def test_bug_115_entries_that_are_no_models_are_passed_over(lane: Lane) -> None:
    async with Engine(says_hello) as engine:
        odd = {"object": "list", "data": [{"id": "ok"}, {"id": ""}, {"id": 3}, None, {"id": "ok"}]}
        engine.pages["/v1/models"] = engine.pages["/health"] = answer(odd)
        async with lane.router({"name": "b1", "url": engine.url}, environ=FAST) as running:
            assert [entry["id"] for entry in await listing(running)] == ["ok"]
