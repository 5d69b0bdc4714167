"""The manners of the two real servers, as they were seen."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp
import pytest

from lifeboat.core.vocabulary import Capability
from lifeboat.sim.config import EngineConfig, Personality
from lifeboat.sim.server import SimulatedServer
from tests.peers import PATIENCE_S, until
from tests.sim.serving import CHAT, MODEL, Client, chat, drop, serving

GGUF = Personality.GGUF
VLLM = Personality.VLLM


async def _head_comes_early(client: Client) -> bool:
    """Whether a streamed request that waits for a seat already has its response head."""
    first = asyncio.create_task(client.post(CHAT, chat(5000)))
    await client.until(running=1)
    try:
        async with asyncio.timeout(1.5):
            answer = await client.session.post(client.url + CHAT, json=chat(5, stream=True))
    except TimeoutError:
        return False
    finally:
        await drop(first)
    answer.close()
    return True


@pytest.mark.parametrize(("personality", "early"), [(VLLM, True), (GGUF, False)])
async def test_vllm_sends_the_head_at_once_llamacpp_when_a_slot_frees(
    personality: Personality, early: bool
) -> None:
    async with serving(personality=personality, max_num_seqs=1, time_scale=20.0) as client:
        assert await _head_comes_early(client) is early


async def test_llamacpps_waiting_stream_is_answered_when_the_slot_frees() -> None:
    async with serving(personality=GGUF, max_num_seqs=1) as client:
        seen = await asyncio.gather(*[client.post(CHAT, chat(20, stream=True)) for _ in range(3)])
    assert [len(answer.events) for answer in seen] == [23] * 3


async def test_over_the_context_vllm_names_the_parameter() -> None:
    async with serving(max_model_len=100) as client:
        body = {"model": MODEL, "prompt": list(range(101)), "stream": True}
        prompt = await client.post("/v1/completions", body)
        answer = await client.post(
            "/v1/completions", {**body, "prompt": [1] * 60, "max_tokens": 41}
        )
        fits = await client.post("/v1/completions", {**body, "prompt": [1] * 60, "max_tokens": 40})
    for seen in (prompt, answer):
        assert seen.status == 400
        assert seen.json["error"]["param"] == "input_tokens"
        assert seen.json["error"]["code"] == 400
        assert "maximum context length is 100 tokens" in seen.json["error"]["message"]
    assert fits.status == 200


async def test_over_the_context_llamacpp_gives_both_figures() -> None:
    async with serving(personality=GGUF, max_model_len=100) as client:
        body = {"model": MODEL, "prompt": list(range(100)), "stream": True}
        seen = await client.post("/v1/completions", body)
    assert seen.status == 400
    error = seen.json["error"]
    assert error["type"] == "exceed_context_size_error"
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (100, 100)


async def test_llamacpp_ends_an_answer_where_its_context_ends() -> None:
    async with serving(personality=GGUF, max_model_len=100) as client:
        body = {"model": MODEL, "prompt": [1] * 90, "max_tokens": 1000}
        seen = await client.post("/v1/completions", body)
    assert seen.json["usage"]["completion_tokens"] == 10
    assert seen.json["choices"][0]["finish_reason"] == "length"


async def test_without_max_tokens_the_answer_fits_the_context() -> None:
    async with serving(max_model_len=100) as client:
        seen = await client.post("/v1/completions", {"model": MODEL, "prompt": [1] * 90})
    assert seen.json["usage"]["completion_tokens"] == 10


async def test_llamacpp_tells_its_slots_and_what_is_deferred() -> None:
    options: dict[str, Any] = {"max_num_seqs": 2, "max_model_len": 4096, "time_scale": 20.0}
    async with serving(personality=GGUF, **options) as client:
        tasks = [asyncio.create_task(client.post(CHAT, chat(200))) for _ in range(5)]
        await client.until(running=2, waiting=3)
        props = (await client.get("/props")).json
        slots = (await client.get("/slots")).json
        none_free = await client.get("/slots?fail_on_no_slot=1")
        metrics = (await client.get("/metrics")).raw.decode()
        await drop(*tasks)
    assert props["total_slots"] == 2
    assert props["default_generation_settings"]["n_ctx"] == 4096
    assert [slot["is_processing"] for slot in slots] == [True, True]
    assert none_free.status == 503
    assert "llamacpp:requests_processing 2.0" in metrics
    assert "llamacpp:requests_deferred 3.0" in metrics


async def test_llamacpp_says_loading_on_every_route_until_the_model_is_there() -> None:
    async with serving(personality=GGUF, startup_s=2.0) as client:
        health = await client.get("/health")
        answer = await client.post(CHAT, chat(stream=True))
        models = await client.get("/v1/models")
        unknown = await client.get("/nothing")
        for seen in (health, answer, models, unknown):
            assert seen.status == 503
            assert seen.json["error"] == {
                "message": "Loading model",
                "type": "unavailable_error",
                "code": 503,
            }
        assert not client.server.ready
        await until(lambda: client.server.ready)
        assert (await client.get("/health")).json == {"status": "ok"}
        assert (await client.post(CHAT, chat())).status == 200


async def _listens(client: Client) -> bool:
    try:
        return bool(await client.get("/health"))
    except aiohttp.ClientConnectorError:
        return False


async def test_vllm_does_not_listen_until_the_model_is_there() -> None:
    async with serving(startup_s=0.5, time_scale=3.0) as client:
        with pytest.raises(aiohttp.ClientConnectorError):
            await client.get("/health")
        async with asyncio.timeout(PATIENCE_S):
            while not client.server.ready or not await _listens(client):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        health = await client.get("/health")
        assert (health.status, health.raw) == (200, b"")
        assert (await client.post(CHAT, chat())).status == 200


async def test_a_server_that_still_loads_can_be_closed() -> None:
    for personality in (VLLM, GGUF):
        server = SimulatedServer([EngineConfig(personality=personality, startup_s=60.0)])
        await server.start()
        await asyncio.wait_for(server.close(), 5)


async def test_vllms_own_bound_is_a_503_or_an_event_in_the_stream() -> None:
    """The real one has committed 200 by then: the router must look at the first event."""
    async with serving(max_num_queued_reqs=2, time_scale=20.0) as client:
        held = [asyncio.create_task(client.post(CHAT, chat(200))) for _ in range(2)]
        await client.until(running=2)
        plain = await client.post(CHAT, chat())
        streamed = await client.post(CHAT, chat(stream=True))
        embedding = await client.post("/v1/embeddings", {"model": MODEL, "input": "a"})
        await drop(*held)
    assert plain.status == embedding.status == 503
    assert plain.json["error"]["code"] == 503
    assert (streamed.status, streamed.is_stream) == (200, True)
    event, done = streamed.events
    assert event["error"] == plain.json["error"]
    assert done == "[DONE]"


async def test_an_idle_connection_is_closed_after_five_seconds() -> None:
    async with serving(personality=GGUF) as client:
        host, port = client.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"ok")
        begun_s = time.monotonic()
        rest = await asyncio.wait_for(reader.read(), 20)
        idle_s = time.monotonic() - begun_s
        writer.close()
    assert rest == b'"}'
    assert 4.0 < idle_s < 15.0


async def test_llamacpp_does_not_look_at_the_model_name() -> None:
    async with serving(personality=GGUF) as client:
        seen = await client.post(CHAT, {**chat(), "model": "whatever"})
    assert (seen.status, seen.json["model"]) == (200, "whatever")


async def test_each_server_refuses_in_its_own_words_what_its_model_cannot_do() -> None:
    embed = {"input": "a", "model": MODEL}
    generate, only_embed = frozenset({Capability.GENERATE}), frozenset({Capability.EMBED})
    async with serving(serves=generate) as client:
        vllm = await client.post("/v1/embeddings", embed)
    async with serving(personality=GGUF, serves=generate) as client:
        gguf = await client.post("/v1/embeddings", embed)
    async with serving(personality=GGUF, serves=only_embed) as client:
        chatting = await client.post(CHAT, chat())
    assert (vllm.status, vllm.json) == (404, {"detail": "Not Found"})
    assert (gguf.status, gguf.json["error"]["type"]) == (501, "not_supported_error")
    assert chatting.status == 500


async def test_llamacpps_own_endpoints_answer_in_its_shapes() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    async with serving(personality=GGUF) as client:
        ids = (await client.post("/tokenize", {"content": "Hi there"})).json
        text = (await client.post("/detokenize", ids)).json
        prompt = (await client.post("/apply-template", {"messages": messages})).json
        plain = (await client.post("/completion", {"prompt": "Hi", "n_predict": 3})).json
        streamed = await client.post(
            "/completion", {"prompt": "Hi", "n_predict": 3, "stream": True}
        )
        infill = await client.post(
            "/infill", {"input_prefix": "a", "input_suffix": "b", "n_predict": 2}
        )
        vector = (await client.post("/embedding", {"content": "Hi"})).json
        unknown = await client.get("/nothing")
    assert text == {"content": "Hi there"}
    assert prompt["prompt"].endswith("<|user|>Hi<|end|><|assistant|>")
    assert (plain["stop"], plain["tokens_predicted"], plain["stop_type"]) == (True, 3, "limit")
    assert "".join(event["content"] for event in streamed.events) == plain["content"]
    assert [event["stop"] for event in streamed.events] == [False] * 3 + [True]
    assert infill.json["tokens_predicted"] == 2
    assert len(vector[0]["embedding"][0]) == 384
    assert (unknown.status, unknown.json["error"]["type"]) == (404, "not_found_error")
