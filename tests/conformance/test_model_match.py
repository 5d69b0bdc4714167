"""Model names: opaque, exact, each routable where it is listed; and models asked for the wrong."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import quote

import pytest

from tests.conformance.lanes import Engine, Lane, answer, chat, says_hello
from tests.peers import Peer
from tests.running import CHAT, Running

FAST = {"LIFEBOAT_PROBE_INTERVAL_SEC": "0.05", "LIFEBOAT_PROBE_MODELS_INTERVAL_SEC": "0.05"}


def discovered(engine: Engine, name: str = "a", **fields: object) -> dict[str, object]:
    """Return the entry of a backend that tells its models itself."""
    return {"name": name, "url": engine.url, **fields}


async def ids(running: Running) -> list[str]:
    """Return the names that the router lists."""
    listed = await running.ask("/v1/models", method="GET")
    assert listed.status == 200
    return [entry["id"] for entry in listed.json["data"]]


async def lists(running: Running, *names: str, seconds: float = 5.0) -> None:
    """Wait until these names, and no others, are listed."""
    async with asyncio.timeout(seconds):
        while await ids(running) != sorted(names):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def asked_models(engine: Engine) -> list[str]:
    return [json.loads(received.body)["model"] for received in engine.asked]


@pytest.mark.parametrize(
    ("listed", "requested"),
    [("qwen:latest", "qwen"), ("qwen", "qwen:latest"), ("qwen", "qwen"), ("a/b:latest", "a/b")],
)
async def test_bug_106_the_latest_tag_may_be_there_or_not(
    lane: Lane, listed: str, requested: str
) -> None:
    async with Engine(says_hello, models=(listed,)) as engine:
        async with lane.router(discovered(engine)) as running:
            assert await ids(running) == [listed]
            for name in (requested, listed):
                assert (await running.ask(CHAT, chat(model=name))).status == 200
            # The backend is asked for the name that it listed itself.
            assert asked_models(engine) == [listed, listed]
            one = await running.ask(f"/v1/models/{quote(listed, safe='')}", method="GET")
            assert (one.status, one.json["id"]) == (200, listed)


async def test_bug_106_the_tag_is_added_or_dropped_once_and_no_other_is(lane: Lane) -> None:
    async with Engine(says_hello, models=("qwen:latest", "qwen:7b")) as engine:
        async with lane.router(discovered(engine)) as running:
            for name in (
                "qwen:latest:latest",
                "qwen:7b:latest:latest",
                "qwen:8b",
                "qwe",
                ":latest",
            ):
                refused = await running.ask(CHAT, chat(model=name))
                assert (refused.status, refused.error["code"]) == (503, "no_backends"), name
            assert not engine.asked


async def test_bug_106_both_spellings_listed_are_two_models(lane: Lane) -> None:
    async with (
        Engine(says_hello, models=("qwen",)) as first,
        Engine(says_hello, models=("qwen:latest",)) as second,
        lane.router(discovered(first), discovered(second, "b")) as running,
    ):
        assert await ids(running) == ["qwen", "qwen:latest"]
        await running.ask(CHAT, chat(model="qwen"))
        await running.ask(CHAT, chat(model="qwen:latest"))
        assert (asked_models(first), asked_models(second)) == (["qwen"], ["qwen:latest"])


ODD = (
    "gemma:27b", "org/model", "a/b/c", "m@v1", "m#1", "with space", "50%", "a%2Fb", "a+b",
    "\u6a21\u578b", "mod\u00e8le", "e\u0301", "\U0001f600", "a?b=c&d", "A", "a", "..", ".",
    "c:\\models\\q4.gguf", "it's", '"quoted"', "<b>", "m;x", "m,n", "m|n", "{m}", "$m", "~m", "*",
)  # fmt: skip


async def test_bug_108_a_name_is_opaque_text(lane: Lane) -> None:
    async with (
        Engine(says_hello, models=ODD) as engine,
        Engine(says_hello, models=("gemma", "27b", "model", "m")) as other,
        lane.router(discovered(engine), discovered(other, "b")) as running,
    ):
        assert await ids(running) == sorted((*ODD, *other.models))
        for name in ODD:
            for ascii_only in (True, False):
                body = json.dumps(json.loads(chat(model=name)), ensure_ascii=ascii_only).encode()
                answered = await running.ask(CHAT, body)
                assert answered.status == 200, name
                assert answered.headers["X-Lifeboat-Backend"] == "a", name
                assert engine.asked[-1].body == body
        assert not other.asked


async def test_bug_108_every_name_has_a_page_of_its_own(lane: Lane) -> None:
    async with (
        Engine(says_hello, models=ODD) as engine,
        lane.facing(says_hello) as stage,
    ):
        entry = {"name": "odd", "url": engine.url, "models": list(ODD)}
        registered = await stage.running.admin("POST", "backends", entry)
        assert registered.status == 201, registered.body
        for name in ODD:
            client = await stage.client()
            path = f"/v1/models/{quote(name, safe='')}"
            await client.send(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            reply = await client.reply()
            assert reply.status == 200, (name, reply.body)
            assert json.loads(reply.body)["id"] == name
            client.close()


async def test_bug_109_an_adapter_loaded_later_is_routed_where_it_is_listed(lane: Lane) -> None:
    async with (
        Engine(says_hello, models=("base",)) as first,
        Engine(says_hello, models=("base",)) as second,
        lane.router(discovered(first), discovered(second, "b"), environ=FAST) as running,
    ):
        assert (await running.ask(CHAT, chat(model="lora_1"))).status == 503
        page = {"object": "list", "data": [{"id": "base"}, {"id": "lora_1", "parent": "base"}]}
        for path in ("/v1/models", "/health"):
            second.pages[path] = answer(page)
        await lists(running, "base", "lora_1")
        for _ in range(4):
            answered = await running.ask(CHAT, chat(model="lora_1"))
            assert (answered.status, answered.headers["X-Lifeboat-Backend"]) == (200, "b")
        second.pages.clear()
        await lists(running, "base")
        refused = await running.ask(CHAT, chat(model="lora_1"))
        assert (refused.status, refused.error["code"]) == (503, "no_backends")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}),
    ],
)
async def test_bug_111_generating_with_an_embedding_model_is_refused_by_name(
    lane: Lane, path: str, body: dict[str, object]
) -> None:
    async with lane.facing(says_hello, models=["bge-m3"], serves=["embed"]) as stage:
        refused = await stage.running.ask(path, {"model": "bge-m3", **body})
        assert (refused.status, refused.error["code"]) == (503, "embedding_only_pool")
        assert refused.headers["X-Lifeboat-Reject-Reason"] == "embedding_only_pool"
        assert refused.headers["x-should-retry"] == "false"
        assert not stage.asked


async def test_bug_111_so_it_is_beside_other_models_that_generate(lane: Lane) -> None:
    async with Engine(says_hello) as chats, Engine(says_hello) as embeds:
        async with lane.router(
            {"name": "a", "url": chats.url, "models": ["m"]},
            {"name": "b", "url": embeds.url, "models": ["bge-m3"], "serves": ["embed"]},
        ) as running:
            refused = await running.ask(CHAT, chat(model="bge-m3"))
            assert (refused.status, refused.error["code"]) == (503, "embedding_only_pool")
            assert (await running.ask(CHAT, chat())).status == 200
            embedded = await running.ask("/v1/embeddings", {"model": "bge-m3", "input": "x"})
            assert (embedded.status, embedded.headers["X-Lifeboat-Backend"]) == (200, "b")
            wrong = await running.ask("/v1/embeddings", {"model": "m", "input": "x"})
            assert (wrong.status, wrong.error["code"]) == (503, "no_backends")


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/v1/embeddings", {"input": "x"}, "no_embedding_backend"),
        ("/v1/images/generations", {"prompt": "x"}, "no_diffusion_backend"),
        ("/v1/videos", {"prompt": "x"}, "no_diffusion_backend"),
        ("/v1/rerank", {"query": "x", "documents": ["y"]}, "no_rerank_backend"),
        ("/v1/score", {"text_1": "x", "text_2": "y"}, "no_rerank_backend"),
        ("/v1/audio/speech", {"input": "x", "voice": "v"}, "no_audio_backend"),
    ],
)
async def test_bug_112_an_endpoint_that_no_server_has_is_not_implemented(
    lane: Lane, path: str, body: dict[str, object], reason: str
) -> None:
    async with lane.facing(says_hello) as stage:
        for model in ("m", "no-such-model"):
            refused = await stage.running.ask(path, {"model": model, **body})
            assert (refused.status, refused.error["code"]) == (501, reason)
            assert refused.headers["x-should-retry"] == "false"
        assert not stage.asked


def needs_key(key: str, models: tuple[str, ...]) -> Engine:
    """Return an engine that answers nobody without its key, not even a probe."""

    class Locked(Engine):
        async def _serve(self, peer: Peer) -> None:
            while not peer.writer.is_closing():
                received = await peer.request()
                presented = received.values(b"authorization")
                ours = not received.values(b"x-request-id")
                (self.probes if ours else self.asked).append(received)
                if presented != [b"Bearer " + key.encode()]:
                    wrong = {"error": {"message": "no key", "code": "invalid_api_key"}}
                    await peer.send(answer(wrong, b"401 Unauthorized"))
                elif ours:
                    listing = {"object": "list", "data": [{"id": name} for name in models]}
                    await peer.send(answer(listing))
                else:
                    await says_hello(peer, received)

    return Locked(says_hello)


@pytest.mark.parametrize("kind", ["openai", "vllm", "gguf"])
async def test_bug_114_probes_and_discovery_send_the_configured_key(lane: Lane, kind: str) -> None:
    async with needs_key("k1", ("m",)) as engine:
        async with lane.router(discovered(engine, api_key="k1", kind=kind)) as running:
            assert await ids(running) == ["m"]
            assert (await running.ask()).status == 200
            keys = [received.values(b"authorization") for received in engine.probes]
            assert keys and all(one == [b"Bearer k1"] for one in keys)
            assert (await running.state())["backends"]["a"]["health"] == "up"


@pytest.mark.parametrize("kind", ["openai", "vllm", "gguf"])
async def test_bug_114_a_missing_key_makes_nobody_down_and_is_said(lane: Lane, kind: str) -> None:
    async with needs_key("k1", ("m",)) as engine:
        async with lane.router(discovered(engine, kind=kind), environ=FAST) as running:
            for _ in range(5):
                refused = await running.ask()
                # Temporary: the server may have that model, nobody knows yet.
                assert (refused.status, refused.error["code"]) == (503, "no_backends")
                assert "x-should-retry" not in refused.headers
                await asyncio.sleep(0.1)
            state = await running.state()
            assert state["backends"]["a"]["health"] == "up"
            assert any("401" in str(warning) and "api_key" in str(warning)
                       for warning in state["warnings"])  # fmt: skip


async def test_bug_114_with_its_models_named_the_clients_key_is_enough(lane: Lane) -> None:
    async with needs_key("theirs", ("m",)) as engine:
        async with lane.router(discovered(engine, models=["m"]), environ=FAST) as running:
            await asyncio.sleep(0.3)
            mine = {"Authorization": "Bearer theirs"}
            assert (await running.ask(headers=mine)).status == 200
            refused = await running.ask()
            # The backend's own answer, untouched.
            assert (refused.status, refused.error["code"]) == (401, "invalid_api_key")
            assert "X-Lifeboat-Reject-Reason" not in refused.headers
            assert (await running.state())["backends"]["a"]["health"] == "up"


async def test_bug_108_bug_109_a_list_that_shrank_to_nothing_is_believed(lane: Lane) -> None:
    async with Engine(says_hello, models=("m",)) as engine:
        async with lane.router(discovered(engine), environ=FAST) as running:
            assert (await running.ask()).status == 200
            empty = answer({"object": "list", "data": []})
            engine.pages["/v1/models"] = engine.pages["/health"] = empty
            await lists(running)
            assert (await running.ask()).status == 503


async def test_bug_109_a_broken_list_changes_nothing(lane: Lane) -> None:
    async with Engine(says_hello, models=("m",)) as engine:
        async with lane.router(discovered(engine), environ=FAST) as running:
            for broken in (b"not json", b"[]", b"{}", b'{"data": 7}', b'{"data": [null, 3, {}]}'):
                engine.pages["/v1/models"] = answer(broken)
                await asyncio.sleep(0.15)
                assert (await running.ask()).status == 200, broken
                assert await ids(running) == ["m"]
