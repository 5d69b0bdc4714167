"""The public SDKs against a simulated engine, streamed and not."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from anthropic import AsyncAnthropic
from openai import APIStatusError, AsyncOpenAI

from tests.sim.serving import MODEL, serving

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
async def openai() -> AsyncIterator[AsyncOpenAI]:
    async with (
        serving() as client,
        AsyncOpenAI(base_url=f"{client.url}/v1", api_key="none", max_retries=0) as sdk,
    ):
        yield sdk


@pytest.fixture
async def anthropic() -> AsyncIterator[AsyncAnthropic]:
    async with (
        serving() as client,
        AsyncAnthropic(base_url=client.url, api_key="none", max_retries=0) as sdk,
    ):
        yield sdk


async def test_chat(openai: AsyncOpenAI) -> None:
    answer = await openai.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5)
    assert answer.choices[0].finish_reason == "length"
    stream = await openai.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=5,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == answer.choices[0].message.content
    assert chunks[-1].usage == answer.usage


async def test_completions(openai: AsyncOpenAI) -> None:
    answer = await openai.completions.create(model=MODEL, prompt=[1, 2, 3], max_tokens=4)
    stream = await openai.completions.create(
        model=MODEL, prompt=[1, 2, 3], max_tokens=4, stream=True
    )
    assert "".join([c.choices[0].text async for c in stream]) == answer.choices[0].text
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 3


async def test_embeddings(openai: AsyncOpenAI) -> None:
    """The SDK asks for base64 by itself."""
    answer = await openai.embeddings.create(model=MODEL, input=["sea", "boat"])
    assert [len(row.embedding) for row in answer.data] == [384, 384]


async def test_responses(openai: AsyncOpenAI) -> None:
    answer = await openai.responses.create(
        model=MODEL, input="Hello", instructions="Be brief.", max_output_tokens=6
    )
    assert answer.status == "incomplete"
    assert answer.usage is not None
    assert answer.usage.output_tokens == 6
    stream = await openai.responses.create(
        model=MODEL, input="Hello", instructions="Be brief.", max_output_tokens=6, stream=True
    )
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == answer.output_text
    assert events[-1].type == "response.incomplete"


async def test_the_responses_helper_accumulates_a_whole_answer(openai: AsyncOpenAI) -> None:
    async with openai.responses.stream(model=MODEL, input="Hello") as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    assert final.status == "completed"
    assert len(final.output_text) == 256 * 4


async def test_models(openai: AsyncOpenAI) -> None:
    assert [model.id async for model in openai.models.list()] == [MODEL]


async def test_messages(anthropic: AsyncAnthropic) -> None:
    answer = await anthropic.messages.create(
        model=MODEL, messages=HELLO, system="Be brief.", max_tokens=6
    )
    assert answer.stop_reason == "max_tokens"
    async with anthropic.messages.stream(
        model=MODEL, messages=HELLO, system="Be brief.", max_tokens=6
    ) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    assert text == answer.content[0].text == final.content[0].text
    assert final.usage.input_tokens == answer.usage.input_tokens
    assert final.usage.output_tokens == answer.usage.output_tokens == 6
    counted = await anthropic.messages.count_tokens(model=MODEL, messages=HELLO, system="Be brief.")
    assert counted.input_tokens == answer.usage.input_tokens


async def test_a_stop_sequence_is_named(anthropic: AsyncAnthropic) -> None:
    whole = await anthropic.messages.create(model=MODEL, messages=HELLO, max_tokens=20)
    stop = whole.content[0].text[5:8]
    answer = await anthropic.messages.create(
        model=MODEL, messages=HELLO, max_tokens=20, stop_sequences=[stop]
    )
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)


async def test_an_sdk_sees_the_529_as_a_status() -> None:
    async with (
        serving(enable_faults=True) as client,
        AsyncOpenAI(
            base_url=f"{client.url}/v1",
            api_key="none",
            max_retries=0,
            default_headers={"x-sim-fault": "http_529"},
        ) as sdk,
    ):
        with pytest.raises(APIStatusError) as caught:
            await sdk.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
    assert caught.value.status_code == 529
    assert caught.value.code == "queue_saturated"
