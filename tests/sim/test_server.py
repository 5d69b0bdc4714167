"""The endpoints, each as a client sees it."""

from __future__ import annotations

import asyncio
import base64
import json
import math
from array import array
from typing import Any

import aiohttp
import pytest

from lifeboat.core.vocabulary import Capability
from lifeboat.sim.config import ConfigError, EngineConfig, Personality
from lifeboat.sim.server import SimulatedServer
from lifeboat.sim.text import count
from tests.sim.serving import CHAT, MODEL, chat, drop, serving


async def test_a_streamed_chat_is_a_role_one_chunk_a_token_a_finish_the_usage_and_done() -> None:
    async with serving() as client:
        body = chat(7, stream=True, stream_options={"include_usage": True})
        seen = await client.post(CHAT, body)
    assert seen.status == 200
    assert seen.is_stream
    role, *tokens, finish, usage, done = seen.events
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(tokens) == 7
    assert all(event["choices"][0]["delta"]["content"] for event in tokens)
    assert finish["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "length",
    }
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 7
    assert done == "[DONE]"
    assert len({event["id"] for event in (role, *tokens, finish, usage)}) == 1


async def test_a_stream_has_no_usage_unless_it_is_asked_for() -> None:
    async with serving() as client:
        seen = await client.post(CHAT, chat(3, stream=True))
    assert not any("usage" in event for event in seen.events[:-1])


async def test_streamed_and_plain_answers_are_the_same_and_deterministic() -> None:
    async with serving() as client:
        plain = [(await client.post(CHAT, chat(20))).json for _ in range(2)]
        streamed = await client.post(CHAT, chat(20, stream=True))
    texts = [answer["choices"][0]["message"]["content"] for answer in plain]
    deltas = [event["choices"][0]["delta"] for event in streamed.events[:-1]]
    joined = "".join(delta.get("content", "") for delta in deltas)
    assert texts[0] == texts[1] == joined


async def test_usage_tokenize_and_the_tokens_charged_agree() -> None:
    async with serving() as client:
        answer = (await client.post(CHAT, chat(20))).json
        messages = chat()["messages"]
        prompt = (await client.post("/tokenize", {"messages": messages})).json
        text = answer["choices"][0]["message"]["content"]
        written = (await client.post("/tokenize", {"prompt": text})).json
        back = (await client.post("/detokenize", {"tokens": written["tokens"]})).json
        metrics = (await client.get("/metrics")).raw.decode()
    assert answer["usage"] == {
        "prompt_tokens": prompt["count"],
        "completion_tokens": written["count"],
        "total_tokens": prompt["count"] + written["count"],
    }
    assert back == {"prompt": text}
    assert f'vllm:prompt_tokens_total{{model_name="{MODEL}"}} {prompt["count"]}.0' in metrics
    assert f'vllm:generation_tokens_total{{model_name="{MODEL}"}} 20.0' in metrics


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("x" * 41, [11]),
        (["x" * 40], [10]),
        ([5, 6, 7], [3]),
        ([[5, 6], [7]], [2, 1]),
        (["a", [1, 2]], [1, 2]),
    ],
)
async def test_a_completion_takes_text_ids_and_lists(prompt: Any, tokens: list[int]) -> None:
    async with serving() as client:
        seen = await client.post(
            "/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": 2}
        )
    assert [choice["index"] for choice in seen.json["choices"]] == list(range(len(tokens)))
    assert seen.json["usage"]["prompt_tokens"] == sum(tokens)
    assert seen.json["usage"]["completion_tokens"] == 2 * len(tokens)


async def test_several_choices_are_streamed_side_by_side() -> None:
    async with serving() as client:
        seen = await client.post(CHAT, chat(4, n=3, stream=True))
    choices = [event["choices"][0] for event in seen.events[:-1]]
    for index in range(3):
        own = [choice for choice in choices if choice["index"] == index]
        assert own[0]["delta"]["role"] == "assistant"
        assert own[-1]["finish_reason"] == "length"
        assert len(own) == 6


async def test_the_default_is_256_tokens() -> None:
    async with serving(time_scale=0.01) as client:
        body = chat()
        del body["max_tokens"]
        seen = await client.post(CHAT, body)
    assert seen.json["usage"]["completion_tokens"] == 256
    assert seen.json["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("fields", "reason", "tokens"),
    [
        ({}, "stop", 6),
        ({"ignore_eos": True}, "length", 10),
        ({"max_tokens": 6}, "length", 6),
        ({"max_tokens": 4}, "length", 4),
    ],
)
async def test_an_answer_of_natural_length_ends_with_stop(
    fields: dict[str, Any], reason: str, tokens: int
) -> None:
    async with serving(answer_tokens=6) as client:
        answer = (await client.post(CHAT, {**chat(10), **fields})).json
    assert answer["choices"][0]["finish_reason"] == reason
    assert answer["usage"]["completion_tokens"] == tokens


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_stop_string_ends_the_answer_before_itself(streamed: bool) -> None:
    async with serving() as client:
        whole = (await client.post(CHAT, chat(20))).json["choices"][0]["message"]["content"]
        stop = whole[10:17]
        seen = await client.post(CHAT, chat(20, stop=stop, stream=streamed))
    if streamed:
        choices = [event["choices"][0] for event in seen.events[:-1]]
        text = "".join(choice["delta"].get("content", "") for choice in choices)
        reason = choices[-1]["finish_reason"]
    else:
        text = seen.json["choices"][0]["message"]["content"]
        reason = seen.json["choices"][0]["finish_reason"]
        assert seen.json["usage"]["completion_tokens"] == math.ceil(17 / 4)
    assert text == whole[:10]
    assert reason == "stop"


async def test_a_text_stream_ends_with_done() -> None:
    async with serving() as client:
        body = {"model": MODEL, "prompt": [1, 2], "max_tokens": 3, "stream": True}
        seen = await client.post("/v1/completions", body)
    texts = [event["choices"][0]["text"] for event in seen.events[:-1]]
    assert [bool(text) for text in texts] == [True, True, True, False]
    assert seen.events[-1] == "[DONE]"


async def test_embeddings_are_unit_vectors_of_the_text_alone() -> None:
    async with serving() as client:
        texts = ["sea", "boat", "sea"]
        seen = await client.post("/v1/embeddings", {"model": MODEL, "input": texts})
        one, two, three = (row["embedding"] for row in seen.json["data"])
        encoded = await client.post(
            "/v1/embeddings", {"model": MODEL, "input": "sea", "encoding_format": "base64"}
        )
        short = await client.post(
            "/v1/embeddings", {"model": MODEL, "input": [[1, 2, 3]], "dimensions": 8}
        )
    assert one == three != two
    assert len(one) == 384
    assert math.hypot(*one) == pytest.approx(1.0)
    assert seen.json["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    raw = base64.b64decode(encoded.json["data"][0]["embedding"])
    assert array("f", raw).tolist() == one
    assert len(short.json["data"][0]["embedding"]) == 8
    assert short.json["usage"]["prompt_tokens"] == 3


async def test_an_embedding_takes_the_time_of_its_prefill() -> None:
    """8192 tokens prefill in 16.2 ms; ten times slower, 162."""
    loop = asyncio.get_running_loop()
    async with serving(time_scale=10.0) as client:
        begun_s = loop.time()
        await client.post("/v1/embeddings", {"model": MODEL, "input": list(range(8192))})
        took_s = loop.time() - begun_s
    # The next power of ten is what a forgotten scale would make of it.
    assert 0.162 <= took_s < 1.6


async def test_an_embedding_backend_embeds_and_nothing_else() -> None:
    async with serving(serves=frozenset({Capability.EMBED})) as client:
        good = await client.post("/v1/embeddings", {"model": MODEL, "input": "sea"})
        bad = await client.post(CHAT, chat())
        rerank = await client.post("/v1/rerank", {"model": MODEL, "query": "a", "documents": ["b"]})
    assert good.status == 200
    assert (bad.status, bad.json) == (404, {"detail": "Not Found"})
    assert rerank.status == 404


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
async def test_rerank_orders_documents_by_what_they_share_with_the_query(path: str) -> None:
    documents = ["a tree", {"text": "a small boat"}, "a small boat at sea"]
    async with serving() as client:
        body = {"model": MODEL, "query": "small boat sea", "documents": documents, "top_n": 2}
        seen = await client.post(path, body)
    assert [row["index"] for row in seen.json["results"]] == [2, 1]
    assert seen.json["results"][0]["relevance_score"] == 1.0
    charged = sum(count(text) for text in ("a tree", "a small boat", "a small boat at sea"))
    assert seen.json["usage"]["total_tokens"] == charged + 3 * count("small boat sea")


async def test_score_compares_one_with_many_or_pair_by_pair() -> None:
    async with serving() as client:
        many = await client.post(
            "/v1/score", {"model": MODEL, "text_1": "the sea", "text_2": ["the sea", "a tree"]}
        )
        uneven = await client.post(
            "/score", {"model": MODEL, "text_1": ["a", "b"], "text_2": ["a", "b", "c"]}
        )
    assert [row["score"] for row in many.json["data"]] == [1.0, 0.0]
    assert uneven.status == 400


async def test_models_are_listed_with_their_length_under_every_name() -> None:
    async with serving(served_names=("sea", "lake"), max_model_len=4096) as client:
        listed = (await client.get("/v1/models")).json
        one = await client.get("/v1/models/lake")
        none = await client.get("/v1/models/pond")
        answer = await client.post(CHAT, {**chat(), "model": "lake"})
    assert [(m["id"], m["max_model_len"]) for m in listed["data"]] == [
        ("sea", 4096),
        ("lake", 4096),
    ]
    assert one.json["root"] == "sea"
    assert none.status == 404
    assert answer.json["model"] == "lake"


async def test_an_unknown_model_is_404_model_not_found() -> None:
    async with serving() as client:
        seen = await client.post(CHAT, {**chat(), "model": "nothing"})
    assert seen.status == 404
    assert seen.json["error"]["code"] == "model_not_found"


async def test_several_models_have_an_engine_each() -> None:
    small = EngineConfig(served_names=("small",), max_num_seqs=2)
    large = EngineConfig(model="llama-3.1-8b", hardware="h100", max_num_seqs=9)
    async with serving(small, large) as client:
        rows = (await client.get("/control/capacity")).json
        nameless = chat()
        del nameless["model"]
        missing = await client.post(CHAT, nameless)
        named = await client.post(CHAT, {**chat(), "model": "llama-3.1-8b"})
    assert [(row["model"], row["max_num_seqs"]) for row in rows] == [
        ("small", 2),
        ("llama-3.1-8b", 9),
    ]
    assert missing.status == 400
    assert "small, llama-3.1-8b" in missing.json["error"]["message"]
    assert named.json["model"] == "llama-3.1-8b"


def _deep(levels: int) -> bytes:
    return b'{"messages": [{"content": "a"}], "tools": ' + b"[" * levels + b"]" * levels + b"}"


WRONG: list[tuple[str, str, bytes]] = [
    ("not JSON", CHAT, b"{"),
    ("an array", CHAT, b"[]"),
    ("deep nesting", CHAT, b'{"messages":' * 50_000),
    ("a tool as deep as JSON goes", CHAT, _deep(1015)),
    ("no messages", CHAT, b"{}"),
    ("empty messages", CHAT, b'{"messages": []}'),
    ("messages of text", CHAT, b'{"messages": ["hi"]}'),
    ("a model that is a number", CHAT, b'{"model": 7, "messages": [{"role": "user"}]}'),
    ("max_tokens of 0", CHAT, b'{"messages": [{"content": "a"}], "max_tokens": 0}'),
    ("max_tokens of text", CHAT, b'{"messages": [{"content": "a"}], "max_tokens": "5"}'),
    ("n of 0", CHAT, b'{"messages": [{"content": "a"}], "n": 0}'),
    ("n of 1000", CHAT, b'{"messages": [{"content": "a"}], "n": 1000}'),
    ("stop of numbers", CHAT, b'{"messages": [{"content": "a"}], "stop": [1]}'),
    ("no prompt", "/v1/completions", b"{}"),
    ("a prompt of objects", "/v1/completions", b'{"prompt": [{}]}'),
    ("an empty id list", "/v1/completions", b'{"prompt": [[]]}'),
    ("no input", "/v1/embeddings", b"{}"),
    ("dimensions of -1", "/v1/embeddings", b'{"input": "a", "dimensions": -1}'),
    ("no max_tokens", "/v1/messages", b'{"messages": [{"content": "a"}]}'),
    ("an input of nothing", "/v1/responses", b'{"input": []}'),
    ("no documents", "/v1/rerank", b'{"query": "a"}'),
    ("a document that is a number", "/v1/rerank", b'{"query": "a", "documents": [1]}'),
    ("nothing to tokenise", "/tokenize", b"{}"),
    ("ids of text", "/detokenize", b'{"tokens": ["a"]}'),
]


@pytest.mark.parametrize(("name", "path", "raw"), WRONG, ids=[row[0] for row in WRONG])
async def test_a_wrong_body_is_a_400_with_an_envelope(name: str, path: str, raw: bytes) -> None:
    async with serving() as client:
        seen = await client.post(path, None, raw=raw)
    assert seen.status == 400
    assert seen.json["error"]["type"] == "invalid_request_error"
    assert seen.json["error"]["message"]


@pytest.mark.parametrize(
    "content",
    [
        None,
        "plain",
        "\ud800 alone",
        [{"type": "text", "text": "part"}, {"type": "image_url", "image_url": {"url": "data:"}}],
        [{"type": "tool_result", "content": [{"type": "text", "text": "12"}]}],
        {"odd": [1, 2]},
    ],
)
async def test_every_kind_of_content_is_charged_and_answered(content: Any) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "function": {"name": "f"}}],
        },
        {"role": "user", "content": content, "name": "Ann"},
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    async with serving() as client:
        seen = await client.post(CHAT, {**chat(), "messages": messages, "tools": tools})
    assert seen.status == 200
    assert seen.json["usage"]["prompt_tokens"] > 30


async def test_an_image_is_charged_256_tokens() -> None:
    image = [{"type": "image_url", "image_url": {"url": "data:" + "A" * 100_000}}]
    async with serving() as client:
        empty = await client.post(CHAT, {**chat(), "messages": [{"role": "user", "content": []}]})
        one = await client.post(CHAT, {**chat(), "messages": [{"role": "user", "content": image}]})
    difference = one.json["usage"]["prompt_tokens"] - empty.json["usage"]["prompt_tokens"]
    assert difference == 256


async def test_a_sequence_longer_than_the_whole_cache_is_a_clear_400() -> None:
    async with serving(kv_blocks=2) as client:
        seen = await client.post(CHAT, chat(1000))
        embedding = await client.post("/v1/embeddings", {"model": MODEL, "input": list(range(200))})
    for answer in (seen, embedding):
        assert answer.status == 400
        assert "The KV cache holds 128 tokens" in answer.json["error"]["message"]


async def test_a_client_that_hangs_up_frees_its_seat() -> None:
    async with serving(max_num_seqs=1, time_scale=20.0) as client:
        async with client.session.post(client.url + CHAT, json=chat(10_000, stream=True)) as answer:
            await answer.content.readline()
            assert (await client.capacity())["running"] == 1
            answer.close()
        plain = asyncio.create_task(client.post(CHAT, chat(10_000)))
        await client.until(running=1)
        await drop(plain)
        await client.until(running=0)
        assert client.server.models[0].kv_usage == 0.0


async def test_a_slow_reader_delays_nobody() -> None:
    """It takes no byte of a long answer; another client's answer is on time."""
    async with serving() as client:
        reader, writer = await asyncio.open_connection(
            *client.url.removeprefix("http://").split(":")
        )
        body = json.dumps(chat(10_000, stream=True)).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await reader.readline()
        seen = await client.post(CHAT, chat(200))
        (driver,) = client.server.models[0].drivers
        assert driver.engine.in_flight == 1, (
            "it was on time: the slow one's 10,000 tokens still run"
        )
        writer.close()
    assert seen.status == 200


async def test_when_the_engine_is_gone_everything_is_503() -> None:
    async with serving(time_scale=100.0) as client:
        stream = asyncio.create_task(client.post(CHAT, chat(500, stream=True)))
        plain = asyncio.create_task(client.post(CHAT, chat(500)))
        await client.until(running=2)
        await client.server.stop_engines(MODEL)
        broken, refused = await stream, await plain
        later = await client.post(CHAT, chat(stream=True))
        health = await client.get("/health")
    assert (broken.status, broken.broken) == (200, "ClientPayloadError")
    assert refused.status == later.status == health.status == 503
    assert later.json["error"]["code"] == "engine_gone"
    assert not later.is_stream


async def test_unknown_paths_and_methods_are_json() -> None:
    async with serving() as client:
        path = await client.get("/nothing")
        method = await client.post("/health", {})
        props = await client.get("/props")
    assert (path.status, path.json) == (404, {"detail": "Not Found"})
    assert method.status == 405
    assert "GET" in method.headers["Allow"]
    assert props.status == 404


async def test_metrics_have_vllms_names_and_the_live_figures() -> None:
    async with serving(max_num_seqs=2, time_scale=50.0) as client:
        tasks = [asyncio.create_task(client.post(CHAT, chat(100))) for _ in range(5)]
        await client.until(running=2, waiting=3)
        text = (await client.get("/metrics")).raw.decode()
        await drop(*tasks)
    label = f'{{model_name="{MODEL}"}}'
    assert f"vllm:num_requests_running{label} 2.0" in text
    assert f"vllm:num_requests_waiting{label} 3.0" in text
    assert f"vllm:kv_cache_usage_perc{label} " in text
    assert "llamacpp:" not in text


async def test_the_server_can_be_started_and_closed_again_and_again() -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(3):
            server = SimulatedServer([EngineConfig()])
            url = await server.start()
            async with session.post(url + CHAT, json=chat()) as answer:
                assert answer.status == 200
            await server.close()
            await server.close()
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get(url + "/health")


async def test_a_taken_address_is_an_error_that_leaves_nothing_behind() -> None:
    async with serving() as client:
        port = int(client.url.rsplit(":", 1)[1])
        other = SimulatedServer([EngineConfig()])
        with pytest.raises(OSError, match="in use"):
            await other.start(port=port)
        await other.close()


@pytest.mark.parametrize(
    ("configs", "words"),
    [
        ([], "at least one"),
        ([EngineConfig(), EngineConfig()], "each name is served once"),
        (
            [EngineConfig(), EngineConfig(served_names=("b",), personality=Personality.GGUF)],
            "share one",
        ),
    ],
)
def test_engines_that_cannot_share_a_server_are_refused(
    configs: list[EngineConfig], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        SimulatedServer(configs)
