"""The openai and anthropic SDKs through the router, and what they make of its refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from tests.acceptance.engines import HeldEngine, SayingEngine
from tests.peers import until
from tests.running import Running, backend, backends_yaml, running_router

MODEL = "gpt-oss-20b"
HELLO = [{"role": "user", "content": "Hello"}]
SIMULATED = backends_yaml(
    *(
        {
            "name": name,
            "kind": "simulated",
            "models": [MODEL],
            "serves": ["generate", "embed"],
            "simulate": {"time_scale": 0.1},
        }
        for name in ("sim-a", "sim-b")
    ),
    models={"nick": {"alias_of": MODEL}},
)


@pytest.fixture
async def simulated(tmp_path: Path) -> AsyncIterator[Running]:
    async with running_router(SIMULATED, tmp_path) as running:
        yield running


def openai_sdk(running: Running, **options: object) -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url=f"{running.url}/v1", api_key="none", **{"max_retries": 0, **options}
    )


def anthropic_sdk(running: Running, **options: object) -> AsyncAnthropic:
    return AsyncAnthropic(base_url=running.url, api_key="none", **{"max_retries": 0, **options})


async def test_openai_chat(simulated: Running) -> None:
    async with openai_sdk(simulated) as sdk:
        for model in (MODEL, "nick"):
            answer = await sdk.chat.completions.create(model=model, messages=HELLO, max_tokens=6)
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 6
            stream = await sdk.chat.completions.create(
                model=model, messages=HELLO, max_tokens=6, stream=True
            )
            text = "".join(
                [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
            )
            assert text == answer.choices[0].message.content
        raw = await sdk.chat.completions.with_raw_response.create(
            model=MODEL, messages=HELLO, max_tokens=2, extra_headers={"X-Request-ID": "mine"}
        )
        assert raw.headers["X-Request-ID"] == "mine"
        assert raw.headers["X-Lifeboat-Backend"] in ("sim-a", "sim-b")


async def test_openai_completions_embeddings_responses_and_models(simulated: Running) -> None:
    async with openai_sdk(simulated) as sdk:
        whole = await sdk.completions.create(model=MODEL, prompt=[1, 2, 3], max_tokens=4)
        stream = await sdk.completions.create(
            model=MODEL, prompt=[1, 2, 3], max_tokens=4, stream=True
        )
        assert "".join([part.choices[0].text async for part in stream]) == whole.choices[0].text
        vectors = await sdk.embeddings.create(model=MODEL, input=["sea", "boat"])
        assert len(vectors.data) == 2
        answer = await sdk.responses.create(model=MODEL, input="Hello", max_output_tokens=6)
        assert answer.output_text
        events = [
            event.type
            async for event in await sdk.responses.create(
                model=MODEL, input="Hello", max_output_tokens=6, stream=True
            )
        ]
        assert events[0] == "response.created"
        models = [model.id async for model in sdk.models.list()]
        assert models == [MODEL, "nick"]
        assert (await sdk.models.retrieve(MODEL)).id == MODEL


async def test_anthropic_messages(simulated: Running) -> None:
    async with anthropic_sdk(simulated) as sdk:
        answer = await sdk.messages.create(model=MODEL, messages=HELLO, max_tokens=6)
        assert answer.usage.output_tokens == 6
        async with sdk.messages.stream(model=MODEL, messages=HELLO, max_tokens=6) as stream:
            text = "".join([piece async for piece in stream.text_stream])
        assert text == answer.content[0].text
        counted = await sdk.messages.count_tokens(model=MODEL, messages=HELLO)
        assert counted.input_tokens > 0


async def test_permanent_refusals_are_not_retried_and_have_the_sdks_own_classes(
    simulated: Running,
) -> None:
    async with openai_sdk(simulated, max_retries=5) as sdk:
        with pytest.raises(openai.InternalServerError) as unknown:
            await sdk.chat.completions.create(model="gpt-oss-2b", messages=HELLO)
        assert unknown.value.code == "no_backends"
        assert MODEL in unknown.value.message
        with pytest.raises(openai.InternalServerError) as absent:
            await sdk.images.generate(model=MODEL, prompt="x")
        assert absent.value.status_code == 501
        with pytest.raises(openai.BadRequestError):
            wrong: Any = 7
            await sdk.chat.completions.create(model=wrong, messages=HELLO)
        with pytest.raises(openai.NotFoundError):
            await sdk.models.retrieve("nobody")
    async with anthropic_sdk(simulated, max_retries=5) as sdk:
        with pytest.raises(anthropic.InternalServerError) as refused:
            await sdk.messages.create(model="nobody", messages=HELLO, max_tokens=1)
        assert refused.value.body["error"]["code"] == "no_backends"
    counts = (await simulated.state())["reject_counts"]
    assert (counts["no_backends"], counts["no_diffusion_backend"]) == (2, 1)
    assert counts["invalid_request"] == 1


async def test_a_gate_refusal_is_retried_until_it_fits(tmp_path: Path) -> None:
    async with HeldEngine() as engine:
        yaml = backends_yaml(backend(engine.url, max_concurrency=1))
        async with (
            running_router(yaml, tmp_path) as running,
            openai_sdk(running) as once,
            openai_sdk(running, max_retries=6) as patient,
            asyncio.TaskGroup() as tasks,
        ):
            first = tasks.create_task(running.ask())
            await until(lambda: len(engine.running) == 1)
            with pytest.raises(openai.InternalServerError) as refused:
                await once.chat.completions.create(model="m", messages=HELLO)
            assert (refused.value.status_code, refused.value.code) == (503, None)
            assert refused.value.type == "overloaded_error"
            waiting = tasks.create_task(patient.chat.completions.create(model="m", messages=HELLO))
            await running.until(lambda state: state["reject_counts"]["gate"] >= 2)
            engine.release_all()
            await first
            assert (await waiting).choices[0].message.content == "Hello"


async def test_keys_too_large_timeouts_and_rates_have_the_sdks_own_classes(
    tmp_path: Path,
) -> None:
    async with HeldEngine(hold_s=0.0) as engine:
        yaml = backends_yaml(
            backend(engine.url, max_input_tokens=100, max_concurrency=1),
            models={"m": {"max_requests_per_minute": 3}},
            queue={"enabled": True, "ttl": "100ms"},
        )
        environ = {"LIFEBOAT_API_KEYS": "key-1,key-2", "LIFEBOAT_LB_TOKENIZER": "cl100k_base"}
        async with running_router(yaml, tmp_path, environ) as running:
            async with openai_sdk(running, max_retries=3) as sdk:
                with pytest.raises(openai.AuthenticationError):
                    await sdk.chat.completions.create(model="m", messages=HELLO)
            async with openai_sdk(running) as sdk:
                keyed = sdk.with_options(api_key="key-2")
                answer = await keyed.chat.completions.create(model="m", messages=HELLO)
                assert answer.choices
                assert not engine.asked[-1].values(b"authorization")
                with pytest.raises(openai.APIStatusError) as large:
                    long = [{"role": "user", "content": "word " * 500}]
                    await keyed.chat.completions.create(model="m", messages=long)
                assert (large.value.status_code, large.value.code) == (413, "request_too_large")
                engine.hold_s = None
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(running.ask(headers={"Authorization": "Bearer key-1"}))
                    await until(lambda: len(engine.running) == 1)
                    with pytest.raises(openai.InternalServerError) as expired:
                        await keyed.chat.completions.create(model="m", messages=HELLO)
                    assert (expired.value.status_code, expired.value.code) == (504, "queue_timeout")
                    engine.release_all()
                engine.hold_s = 0.0
                # What expired while it was parked gave its place back.
                assert (await keyed.chat.completions.create(model="m", messages=HELLO)).choices
                with pytest.raises(openai.RateLimitError) as limited:
                    await keyed.chat.completions.create(model="m", messages=HELLO)
                assert limited.value.code == "rate_limited"
            async with anthropic_sdk(running) as sdk:
                with pytest.raises(anthropic.AuthenticationError):
                    await sdk.messages.create(model="m", messages=HELLO, max_tokens=1)
                with pytest.raises(anthropic.RateLimitError):
                    await sdk.with_options(api_key="key-1").messages.create(
                        model="m", messages=HELLO, max_tokens=1
                    )


async def test_a_stream_cut_upstream_is_an_error_for_the_sdk_not_an_end(tmp_path: Path) -> None:
    async def cut(peer, received) -> None:
        await peer.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        await peer.chunk(b'data: {"id":"1","object":"chat.completion.chunk","choices":[]}\n\n')
        await asyncio.sleep(0.05)
        peer.reset()
        raise ConnectionResetError

    async with SayingEngine(cut) as engine:
        async with (
            running_router(backends_yaml(backend(engine.url)), tmp_path) as running,
            openai_sdk(running) as sdk,
        ):
            stream = await sdk.chat.completions.create(model="m", messages=HELLO, stream=True)
            seen = 0
            with pytest.raises(openai.APIConnectionError):
                async for _ in stream:
                    seen += 1
            assert seen == 1
            state = await running.settle()
            assert state["backends"]["a"]["failed"] == 1
            assert len(engine.asked) == 1
