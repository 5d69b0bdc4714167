"""Estimates: everything a model reads counts, nothing else does, and no input costs the loop."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import AsyncIterator

import pytest

from lifeboat.counting.encodings import load_encoding
from tests.conformance.lanes import COMPLETION, Engine, Lane, Stage, answer, says_hello
from tests.intake.slicing import without_collections
from tests.peers import Peer, Received, Reply, until
from tests.running import CHAT, backend

MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
USER = {"role": "user", "content": "hi"}
CAP = 8192

BUSY_S = 0.05
"""What a request may take of the loop at one time."""

EXACT = {"LIFEBOAT_LB_TOKENIZER": "cl100k_base"}
"""Where a count may decide; elsewhere the quick figure does: the vocabulary takes half a second."""


async def estimate_of(stage: Stage, path: str, body: object) -> dict:
    """Return the estimate that `explain` reports for a request."""
    told = await stage.running.admin("POST", "explain", {"path": path, "body": body})
    assert told.status == 200
    return told.json["estimate"]


async def tokens_of(stage: Stage, path: str, body: object) -> int:
    return (await estimate_of(stage, path, body))["tokens"]


async def post(stage: Stage, path: str, raw: bytes) -> Reply:
    """Send a body of any size from a client of its own."""
    client = await stage.client()
    await client.post(path, raw, b"Content-Type: application/json")
    reply = await client.reply()
    client.close()
    return reply


async def passes(stage: Stage, path: str, body: object) -> None:
    """Send a request and see that it reaches the engine as it is."""
    raw = json.dumps(body, ensure_ascii=False).encode()
    reply = await post(stage, path, raw)
    assert reply.status == 200, (raw[:200], reply.body)
    assert stage.asked[-1].body == raw


async def is_too_large(stage: Stage, path: str, body: object) -> None:
    """Send a request and see that no engine is asked."""
    before = len(stage.asked)
    reply = await post(stage, path, json.dumps(body).encode())
    code = json.loads(reply.body).get("error", {}).get("code")
    assert (reply.status, code) == (413, "request_too_large"), json.dumps(body)[:200]
    assert len(stage.asked) == before


async def the_vocabulary_is_there(stage: Stage) -> None:
    """Wait until counts are exact: until then the quick figure stands."""
    counter = stage.running.router._counter
    assert counter is not None
    await until(lambda: counter.is_loaded, 30.0)


class LoopWatch:
    """busiest_s: the most CPU time that the loop's thread spent between two turns of a task."""

    busiest_s = 0.0


@contextlib.asynccontextmanager
async def watching_the_loop() -> AsyncIterator[LoopWatch]:
    """Measure for the length of a block. CPU time, so that a loaded machine does not count.

    Nor does the rubbish of the tests before: to look through a large heap takes as long.
    """
    watch = LoopWatch()

    async def turn() -> None:
        while True:
            began_s = time.thread_time()
            await asyncio.sleep(0)
            watch.busiest_s = max(watch.busiest_s, time.thread_time() - began_s)

    task = asyncio.create_task(turn())
    with without_collections():
        try:
            yield watch
        finally:
            task.cancel()


# ---- what has no content, or unusual content -----------------------------------------------------


def with_call(arguments: str) -> dict[str, object]:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {"model": "m", "messages": [USER, message]}


async def test_bug_084_arguments_count_where_the_content_is_null(lane: Lane) -> None:
    async with lane.facing(says_hello) as stage:
        short, long = with_call("{}"), with_call(json.dumps({"text": "some words " * 1000}))
        more = await tokens_of(stage, CHAT, long) - await tokens_of(stage, CHAT, short)
        assert 1500 < more < 4500
        await passes(stage, CHAT, short)
        await passes(stage, CHAT, long)


MESSAGES_WITHOUT_CONTENT: tuple[object, ...] = (
    {"role": "tool", "tool_call_id": "c1"},
    {"role": "user"},
    {"role": "assistant", "content": None},
    {"role": "user", "content": []},
    {"role": "user", "content": [None]},
    {"role": "user", "content": [{}]},
    {"role": "user", "content": [{"type": "text"}]},
    {"role": "user", "content": [{"type": "text", "text": None}]},
    {"role": "user", "content": {}},
    {"role": "user", "content": 7},
    {"role": "user", "content": True},
    {"role": "assistant", "tool_calls": None},
    {"role": "assistant", "tool_calls": [None]},
    {"role": "assistant", "tool_calls": [{"function": None}]},
    {"role": "assistant", "tool_calls": {"function": []}},
    {"role": None},
    {},
)


async def test_bug_085_a_message_without_content_weighs_next_to_nothing(lane: Lane) -> None:
    async with lane.facing(says_hello, max_input_tokens=CAP) as stage:
        for message in MESSAGES_WITHOUT_CONTENT:
            body = {"model": "m", "messages": [message]}
            assert await tokens_of(stage, CHAT, body) <= 20, message
            await passes(stage, CHAT, body)


async def test_bug_085_messages_that_are_none_do_not_stumble(lane: Lane) -> None:
    async with lane.facing(says_hello, max_input_tokens=CAP) as stage:
        for messages in (None, [], [None], "text", 5, {}, [[]], [[[]]], ["a", 1]):
            await passes(stage, CHAT, {"model": "m", "messages": messages})
        await passes(stage, CHAT, {"model": "m"})


# ---- everything that a model reads counts --------------------------------------------------------

LONG = "many words of text " * 3000
BLOCKS = {
    "system": {"system": [{"type": "text", "text": LONG}], "messages": [USER]},
    "system string": {"system": LONG, "messages": [USER]},
    "tool_result": {"messages": [{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t", "content": LONG}]}]},
    "tool_result blocks": {"messages": [{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t", "content": [
            {"type": "text", "text": LONG}]}]}]},
    "tool_use": {"messages": [{"role": "assistant", "content": [
        {"type": "tool_use", "id": "t", "name": "f", "input": {"text": LONG}}]}]},
    "thinking": {"messages": [{"role": "assistant", "content": [
        {"type": "thinking", "thinking": LONG, "signature": "x"}]}]},
    "text document": {"messages": [{"role": "user", "content": [
        {"type": "document", "source": {"type": "text", "media_type": "text/plain",
                                        "data": LONG}}]}]},
    "search_result": {"messages": [{"role": "user", "content": [
        {"type": "search_result", "source": "s", "title": "t", "content": [
            {"type": "text", "text": LONG}]}]}]},
    "tools": {"messages": [USER], "tools": [
        {"name": "f", "description": LONG, "input_schema": {"type": "object"}}]},
}  # fmt: skip


async def test_bug_087_a_system_and_a_tool_result_beyond_the_cap_are_refused(lane: Lane) -> None:
    body = {
        "model": "m",
        "system": [{"type": "text", "text": "ab cd " * 6700}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t", "content": "line of text " * 15_400}
                ],
            }
        ],
    }
    async with lane.facing(says_hello, max_input_tokens=CAP) as stage:
        await is_too_large(stage, MESSAGES, body)


async def test_bug_087_every_kind_of_block_counts(lane: Lane) -> None:
    async with lane.facing(says_hello, max_input_tokens=CAP) as stage:
        for fields in BLOCKS.values():
            await is_too_large(stage, MESSAGES, {"model": "m", "max_tokens": 9, **fields})


ITEMS: tuple[dict[str, object], ...] = (
    {"input": LONG},
    {"input": [{"role": "user", "content": [{"type": "input_text", "text": LONG}]}]},
    {"input": "hi", "instructions": LONG},
    {"input": [{"type": "function_call_output", "call_id": "c", "output": LONG}]},
    {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": LONG}]},
    {"input": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": LONG}]}]},
    {"input": "hi", "tools": [{"type": "function", "name": "f", "description": LONG}]},
)


async def test_bug_087_responses_count_the_same_way(lane: Lane) -> None:
    async with lane.facing(says_hello, max_input_tokens=CAP) as stage:
        for fields in ITEMS:
            await is_too_large(stage, RESPONSES, {"model": "m", **fields})


async def test_bug_088_tool_definitions_count(lane: Lane) -> None:
    properties = {
        f"field_{number}": {"type": "string", "description": f"the value of field {number}"}
        for number in range(900)
    }
    schema = {"type": "object", "properties": properties}
    assert len(json.dumps(schema)) > 60_000
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    async with lane.facing(says_hello, max_input_tokens=4096) as stage:
        await is_too_large(stage, CHAT, {"model": "m", "messages": [USER], "tools": [tool]})
        await is_too_large(
            stage, CHAT, {"model": "m", "messages": [USER], "functions": [tool["function"]]}
        )
        await passes(stage, CHAT, {"model": "m", "messages": [USER], "tools": []})


@pytest.mark.parametrize(
    ("cap", "fits"), [(20_000, False), (59_000, False), (60_100, True), (90_000, True)]
)
async def test_bug_088_numbers_on_lines_are_not_underestimated(
    lane: Lane, cap: int, fits: bool
) -> None:
    """Sixty thousand tokens: the count decides where the quick figure could be wrong."""
    body = {"model": "m", "messages": [{"role": "user", "content": "1\n" * 30_000}]}
    async with lane.facing(says_hello, max_input_tokens=cap, environ=EXACT) as stage:
        await the_vocabulary_is_there(stage)
        if fits:
            await passes(stage, CHAT, body)
        else:
            await is_too_large(stage, CHAT, body)


def call(number: int) -> dict[str, object]:
    return {
        "path": f"/src/module_{number}.py",
        "query": "the function that reads the headers of an answer",
        "case_sensitive": False,
    }


def tool_use(number: int) -> dict[str, object]:
    block = {"type": "tool_use", "id": f"toolu_{number}", "name": "grep", "input": call(number)}
    return {"role": "assistant", "content": [block]}


def tool_call(number: int) -> dict[str, object]:
    function = {"name": "grep", "arguments": json.dumps(call(number))}
    calls = [{"id": f"call_{number}", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


async def test_bug_090_fifty_calls_weigh_what_their_json_weighs(lane: Lane) -> None:
    printed = [
        json.dumps({"name": "grep", "input": call(number)}, separators=(",", ":"))
        for number in range(50)
    ]
    by_length = sum(map(len, printed)) / 4
    encoding = load_encoding("cl100k_base")
    truth = sum(len(encoding.encode_ordinary(text)) for text in printed)
    async with lane.facing(says_hello) as stage:
        for path, make in ((MESSAGES, tool_use), (CHAT, tool_call)):
            body = {"model": "m", "messages": [make(number) for number in range(50)]}
            # The template's marks around each message are no part of the blocks.
            tokens = await tokens_of(stage, path, body) - 5 * 50
            assert 0.7 * by_length < tokens < 1.3 * by_length
            assert 0.7 * truth < tokens < 1.3 * truth


# ---- what a model does not read weighs nothing ---------------------------------------------------

SECRET = base64.b64encode(bytes(range(256)) * 300).decode()
"""100 kB of ciphertext."""


CIPHERTEXTS: tuple[tuple[str, dict[str, object]], ...] = (
        (RESPONSES, {"input": [
            {"role": "user", "content": "hi"},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": SECRET}]}),
        (MESSAGES, {"max_tokens": 1, "messages": [USER, {"role": "assistant", "content": [
            {"type": "redacted_thinking", "data": SECRET}]}]}),
        (MESSAGES, {"max_tokens": 1, "messages": [USER, {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "so", "signature": SECRET}]}]}),
        (CHAT, {"messages": [USER, {"role": "assistant", "content": "ok", "reasoning_details": [
            {"type": "reasoning.encrypted", "data": SECRET}]}]}),
)  # fmt: skip


async def test_bug_091_ciphertext_is_never_a_reason_to_refuse(lane: Lane) -> None:
    async with lane.facing(says_hello, max_input_tokens=4096) as stage:
        for path, body in CIPHERTEXTS:
            await passes(stage, path, {"model": "m", **body})


DOCUMENT = "data:application/pdf;base64," + "JVBERi0x" * 50_000
"""400 kB of a document."""


PARTS: tuple[dict[str, object], ...] = (
        {"type": "document_url", "document_url": DOCUMENT},
        {"type": "document_url", "document_url": {"url": DOCUMENT}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": DOCUMENT}},
        {"type": "input_file", "filename": "a.pdf", "file_data": DOCUMENT},
        {"type": "image_url", "image_url": {"url": DOCUMENT}},
        {"type": "image_url", "image_url": DOCUMENT},
        {"type": "input_image", "image_url": DOCUMENT},
        {"type": "video_url", "video_url": {"url": DOCUMENT}},
        {"type": "input_audio", "input_audio": {"data": DOCUMENT[-400_000:], "format": "wav"}},
        {"type": "document", "source": {
            "type": "base64", "media_type": "application/pdf", "data": DOCUMENT}},
        {"type": "image", "source": {"type": "base64", "data": DOCUMENT}},
)  # fmt: skip


async def test_bug_105_a_document_in_base64_is_no_text(lane: Lane) -> None:
    async with lane.facing(says_hello, max_input_tokens=4096) as stage:
        for part in PARTS:
            content = [{"type": "text", "text": "sum this up"}, part]
            body = {"model": "m", "messages": [{"role": "user", "content": content}]}
            await passes(stage, CHAT, body)


# ---- hostile texts cost the loop nothing ---------------------------------------------------------

RUNS = {
    "a": "a" * 200_000, "^": "^" * 200_000, "blank": " " * 200_000, "newline": "\n" * 200_000,
    "letters": "".join(chr(97 + (n * n * 7919 + n // 13) % 26) for n in range(200_000)),
    "digits": "7" * 200_000, "emoji": "\U0001f600" * 100_000, "chinese": "\u6d77" * 200_000,
    "zero width": "\u200b" * 200_000, "half surrogate": "\\ud83d" * 50_000,
}  # fmt: skip


async def run_past(stage: Stage, text: str) -> None:
    """Send a text whose count is asked for, and one that is forwarded; watch the loop."""
    raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    raw = raw.replace(b"\\\\ud83d", b"\\ud83d")
    async with watching_the_loop() as watch:
        reply = await post(stage, CHAT, raw)
    assert reply.status in (200, 413)
    assert watch.busiest_s < BUSY_S
    if reply.status == 200:
        assert raw in [received.body for received in stage.asked]


@contextlib.asynccontextmanager
async def two_caps(lane: Lane, *caps: int) -> AsyncIterator[Stage]:
    """Run a router before backends of these caps, its vocabulary loaded."""
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(Engine(says_hello)) for _ in caps]
        entries = [
            backend(engine.url, f"cap-{cap}", max_input_tokens=cap)
            for engine, cap in zip(engines, caps, strict=True)
        ]
        running = await stack.enter_async_context(lane.router(*entries, environ=EXACT))
        stage = await stack.enter_async_context(Stage(running, engines))
        await the_vocabulary_is_there(stage)
        yield stage


async def test_bug_093_a_long_run_of_one_character_does_not_stop_the_loop(lane: Lane) -> None:
    async with two_caps(lane, 30_000, 150_000) as stage:
        for text in RUNS.values():
            await run_past(stage, text)


async def test_bug_094_bug_096_a_megabyte_of_one_character_ends_no_request(lane: Lane) -> None:
    async with two_caps(lane, 50_000, 250_000) as stage:
        began_s = time.process_time()
        for character, count in (("x", 524_288), ("^", 1_000_000), (" ", 700_000)):
            await run_past(stage, character * count)
        assert time.process_time() - began_s < 20.0
        assert (await stage.running.ask()).status == 200


async def test_bug_097_names_of_special_tokens_are_text(lane: Lane) -> None:
    text = "compare <|endoftext|> and <|im_start|> and <|fim_prefix|> with [INST] and </s>"
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    # The count decides at either cap.
    for cap, fits in ((15, False), (60, True)):
        async with lane.facing(says_hello, max_input_tokens=cap, environ=EXACT) as stage:
            await the_vocabulary_is_there(stage)
            told = await estimate_of(stage, CHAT, body)
            assert 20 <= told["tokens"] <= 60
            await (passes if fits else is_too_large)(stage, CHAT, body)


# ---- tokens that are ids already -----------------------------------------------------------------


async def test_bug_099_nested_ids_are_counted_and_forwarded(lane: Lane) -> None:
    body = {"model": "m", "input": [[20, 344], [321, 111, 233]]}
    async with lane.facing(says_hello, serves=["embed"], max_input_tokens=3) as stage:
        told = await estimate_of(stage, EMBEDDINGS, body)
        # It fits by its longest sequence and is ordered by the sum.
        assert (told["tokens"], told["total_tokens"], told["method"]) == (3, 5, "ids")
        await passes(stage, EMBEDDINGS, body)
        await is_too_large(stage, EMBEDDINGS, {"model": "m", "input": [[1, 2, 3, 4]]})


PROMPTS: tuple[tuple[object, int | None, int | None], ...] = (
    ([1, 2, 3], 3, 3),
    ([[1, 2], [3]], 2, 3),
    (["a", "b"], 1, 2),
    ([], 0, 0),
    ([[]], 0, 0),
    ([1, "a"], None, None),
    ([True], None, None),
    ([[1, "a"], [None]], None, None),
    ([{}], None, None),
    ([1.5, 2], None, None),
    ([[[1, 2]]], None, None),
    (None, None, None),
    (7, None, None),
    ({"a": 1}, None, None),
)
"""A prompt, its longest sequence and the sum of all; None where it only must not stumble."""


async def test_bug_100_a_prompt_may_be_ids_or_lists_of_ids_or_strings(lane: Lane) -> None:
    async with lane.facing(says_hello, max_input_tokens=100) as stage:
        for prompt, longest, total in PROMPTS:
            body = {"model": "m", "prompt": prompt}
            told = await estimate_of(stage, COMPLETIONS, body)
            if longest is not None:
                assert (told["tokens"], told["total_tokens"]) == (longest, total), prompt
            await passes(stage, COMPLETIONS, body)


# ---- large bodies --------------------------------------------------------------------------------


async def test_bug_102_without_a_cap_a_huge_prompt_is_only_sized(lane: Lane) -> None:
    text = "the quick brown fox jumps over the lazy dog and runs on; " * 105_000
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    assert len(body) > 5_900_000
    async with lane.facing(says_hello) as stage:
        async with watching_the_loop() as watch:
            reply = await post(stage, CHAT, body)
        assert reply.status == 200
        assert stage.asked[-1].body == body
        assert watch.busiest_s < BUSY_S


async def test_bug_103_many_large_bodies_leave_room_for_others(lane: Lane) -> None:
    """Counts are bounded in number; beyond that the quick figure stands, and small ones pass."""

    async def drops_the_body(peer: Peer, asked: Received) -> None:
        asked.body = b""
        await peer.send(answer(COMPLETION))

    text = "some text of a very long prompt, " * 4_700
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    assert len(body) > 150_000
    async with lane.facing(
        drops_the_body, max_input_tokens=33_000, max_concurrency=0, environ=EXACT
    ) as stage:
        await the_vocabulary_is_there(stage)
        many = [asyncio.create_task(post(stage, CHAT, body)) for _ in range(64)]
        async with watching_the_loop() as watch:
            small: list[float] = []
            while not all(task.done() for task in many):
                began = time.monotonic()
                answered = await stage.running.ask()
                small.append(time.monotonic() - began)
                assert answered.status == 200
                assert (await stage.running.ask("/health", method="GET")).status == 200
        assert {(await task).status for task in many} <= {200, 413}
        assert watch.busiest_s < 2 * BUSY_S
        # Behind 64 counts one after the other each would take seconds.
        assert sorted(small)[len(small) // 2] < 2.0
