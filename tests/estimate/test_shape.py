"""What is read from a body, by protocol, and that nothing breaks the reader."""

# ruff: noqa: E501 - a table reads by its rows; wrapped, it no longer does
from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifeboat.core.content import CALL_TOKENS, MESSAGE_TOKENS, REPLY_TOKENS
from lifeboat.core.estimate import bounds, quick
from lifeboat.core.protocol import Protocol
from lifeboat.core.shape import KEPT_SEQUENCES, Shape, read_shape, shape_of_upload
from lifeboat.core.vocabulary import EstimateMethod
from tests.shared_files import shared_path

WORDS = "Some words that any prompt may have in it. " * 30
IMAGE = 2048


def read(protocol: Protocol, body: Any) -> Shape:
    return read_shape(body, protocol)


def texts(shape: Shape) -> str:
    return " ".join(str(text) for sequence in shape.sequences for text in sequence.texts)


TEXT_IS_FOUND: list[tuple[str, Protocol, Any]] = [
    ("a content string", Protocol.CHAT, {"messages": [{"role": "user", "content": WORDS}]}),
    ("a content part", Protocol.CHAT,
     {"messages": [{"role": "user", "content": [{"type": "text", "text": WORDS}]}]}),
    ("tool call arguments beside a null content", Protocol.CHAT,
     {"messages": [{"role": "assistant", "content": None, "tool_calls": [
         {"id": "c", "type": "function", "function": {"name": "f", "arguments": WORDS}}]}]}),
    ("a tool result", Protocol.CHAT,
     {"messages": [{"role": "tool", "tool_call_id": "c", "content": WORDS}]}),
    ("reasoning", Protocol.CHAT,
     {"messages": [{"role": "assistant", "content": "x", "reasoning_content": WORDS}]}),
    ("a tool's description", Protocol.CHAT,
     {"messages": [], "tools": [{"type": "function", "function": {"name": "f", "description": WORDS}}]}),
    ("a function's parameters", Protocol.CHAT,
     {"messages": [], "functions": [{"name": "f", "parameters": {"properties": {WORDS: {}}}}]}),
    ("an output schema", Protocol.CHAT,
     {"messages": [], "response_format": {"type": "json_schema", "json_schema": {
         "name": "n", "schema": {"description": WORDS}}}}),
    ("a prompt", Protocol.COMPLETIONS, {"prompt": WORDS}),
    ("a prompt in a list", Protocol.COMPLETIONS, {"prompt": [WORDS]}),
    ("a prompt among ids", Protocol.LLAMA_COMPLETION, {"prompt": [1, 2, WORDS, 3]}),
    ("a prompt object", Protocol.LLAMA_COMPLETION, {"prompt": {"prompt_string": WORDS}}),
    ("an embedding input", Protocol.EMBEDDINGS, {"input": WORDS}),
    ("llama.cpp's content", Protocol.LLAMA_EMBEDDING, {"content": WORDS}),
    ("a response's input string", Protocol.RESPONSES, {"input": WORDS}),
    ("instructions", Protocol.RESPONSES, {"input": "x", "instructions": WORDS}),
    ("an input_text item", Protocol.RESPONSES,
     {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": WORDS}]}]}),
    ("a function call item", Protocol.RESPONSES,
     {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": WORDS}]}),
    ("a function call output", Protocol.RESPONSES,
     {"input": [{"type": "function_call_output", "call_id": "c", "output": WORDS}]}),
    ("a reasoning summary", Protocol.RESPONSES,
     {"input": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": WORDS}]}]}),
    ("text.format's schema", Protocol.RESPONSES,
     {"input": "x", "text": {"format": {"type": "json_schema", "schema": {"title": WORDS}}}}),
    ("a system string", Protocol.MESSAGES, {"system": WORDS, "messages": []}),
    ("a system block", Protocol.MESSAGES, {"system": [{"type": "text", "text": WORDS}], "messages": []}),
    ("a tool_use input", Protocol.MESSAGES,
     {"messages": [{"role": "assistant", "content": [
         {"type": "tool_use", "id": "t", "name": "f", "input": {"q": WORDS}}]}]}),
    ("a tool_result string", Protocol.MESSAGES,
     {"messages": [{"role": "user", "content": [
         {"type": "tool_result", "tool_use_id": "t", "content": WORDS}]}]}),
    ("a tool_result block", Protocol.MESSAGES,
     {"messages": [{"role": "user", "content": [
         {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": WORDS}]}]}]}),
    ("thinking", Protocol.MESSAGES,
     {"messages": [{"role": "assistant", "content": [
         {"type": "thinking", "thinking": WORDS, "signature": "s"}]}]}),
    ("a document in the clear", Protocol.MESSAGES,
     {"messages": [{"role": "user", "content": [
         {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": WORDS}}]}]}),
    ("a query", Protocol.RERANK, {"query": WORDS, "documents": ["a"]}),
    ("a document string", Protocol.RERANK, {"query": "q", "documents": ["a", WORDS]}),
    ("a document object", Protocol.RERANK, {"query": "q", "documents": [{"text": WORDS}]}),
    ("text_1", Protocol.SCORE, {"text_1": WORDS, "text_2": ["b"]}),
    ("text_2", Protocol.SCORE, {"text_1": "a", "text_2": WORDS}),
    ("an infill prefix", Protocol.INFILL, {"input_prefix": WORDS, "input_suffix": "x"}),
    ("an infill extra", Protocol.INFILL, {"input_extra": [{"filename": "f", "text": WORDS}]}),
    ("an image prompt", Protocol.IMAGE, {"prompt": WORDS}),
    ("a speech input", Protocol.SPEECH, {"input": WORDS, "voice": "v"}),
    ("a template's messages", Protocol.APPLY_TEMPLATE, {"messages": [{"role": "user", "content": WORDS}]}),
    ("text to tokenize", Protocol.TOKENIZE, {"content": WORDS}),
]  # fmt: skip


@pytest.mark.parametrize(("protocol", "body"), [row[1:] for row in TEXT_IS_FOUND],
                         ids=[row[0] for row in TEXT_IS_FOUND])  # fmt: skip
def test_text_counts_wherever_it_stands(protocol: Protocol, body: Any) -> None:
    assert WORDS in texts(read(protocol, body))
    assert quick(read(protocol, body)).tokens > 250


CIPHER = "gAAAAB" + "x" * 100_000
UNPRINTED: list[tuple[str, Protocol, Any]] = [
    ("encrypted reasoning", Protocol.RESPONSES,
     {"input": [{"type": "reasoning", "summary": [], "encrypted_content": CIPHER}]}),
    ("a thinking signature", Protocol.MESSAGES,
     {"messages": [{"role": "assistant", "content": [
         {"type": "thinking", "thinking": "t", "signature": CIPHER}]}]}),
    ("redacted thinking", Protocol.MESSAGES,
     {"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": CIPHER}]}]}),
    ("encrypted search results", Protocol.MESSAGES,
     {"messages": [{"role": "assistant", "content": [{"type": "web_search_tool_result", "content": [
         {"type": "web_search_result", "url": "u", "title": "t", "encrypted_content": CIPHER}]}]}]}),
    ("metadata", Protocol.CHAT, {"messages": [], "metadata": {"k": CIPHER}}),
    ("a field of another protocol", Protocol.CHAT, {"messages": [], "prompt": CIPHER}),
    ("a user id", Protocol.CHAT, {"messages": [], "user": CIPHER}),
    ("a grammar", Protocol.LLAMA_COMPLETION, {"prompt": "x", "grammar": CIPHER}),
]  # fmt: skip


@pytest.mark.parametrize(("protocol", "body"), [row[1:] for row in UNPRINTED],
                         ids=[row[0] for row in UNPRINTED])  # fmt: skip
def test_what_no_template_prints_weighs_nothing(protocol: Protocol, body: Any) -> None:
    assert quick(read(protocol, body)).tokens < 40


BLOB = "QUJD" * 100_000
MEDIA: list[tuple[str, Protocol, Any]] = [
    ("image_url", Protocol.CHAT,
     {"type": "image_url", "image_url": {"url": "data:image/png;base64," + BLOB}}),
    ("image_url of no type", Protocol.CHAT, {"image_url": "data:image/png;base64," + BLOB}),
    ("image_url as a string", Protocol.CHAT, {"type": "image_url", "image_url": "http://x/y.png"}),
    ("file", Protocol.CHAT, {"type": "file", "file": {"filename": "f", "file_data": BLOB}}),
    ("video", Protocol.CHAT, {"type": "video_url", "video_url": {"url": BLOB}}),
    ("input_image", Protocol.RESPONSES, {"type": "input_image", "image_url": "data:;base64," + BLOB}),
    ("input_file", Protocol.RESPONSES, {"type": "input_file", "file_data": BLOB}),
    ("document_url", Protocol.CHAT,
     {"type": "document_url", "document_url": "data:application/pdf;base64," + BLOB}),
    ("image", Protocol.MESSAGES,
     {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": BLOB}}),
    ("document", Protocol.MESSAGES,
     {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": BLOB}}),
    ("image in a tool result", Protocol.MESSAGES,
     {"type": "tool_result", "tool_use_id": "t", "content": [
         {"type": "image", "source": {"type": "base64", "data": BLOB}}]}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("protocol", "part"), [row[1:] for row in MEDIA], ids=[row[0] for row in MEDIA]
)
def test_media_cost_a_bounded_sum_at_any_depth(protocol: Protocol, part: Any) -> None:
    field = "input" if protocol is Protocol.RESPONSES else "messages"
    shape = read(protocol, {field: [{"role": "user", "content": [part]}]})
    assert IMAGE <= quick(shape).tokens <= IMAGE + 40


def test_audio_costs_by_its_bytes() -> None:
    part = {"type": "input_audio", "input_audio": {"data": "A" * 64_000, "format": "wav"}}
    shape = read(Protocol.CHAT, {"messages": [{"role": "user", "content": [part]}]})
    assert quick(shape).tokens == 64_000 * 3 // 4 // 640 + 1 + MESSAGE_TOKENS + REPLY_TOKENS


IDS: list[tuple[str, Protocol, Any, int, int]] = [
    ("ids", Protocol.COMPLETIONS, {"prompt": [1, 2, 3]}, 3, 3),
    ("lists of ids", Protocol.COMPLETIONS, {"prompt": [[1, 2], [3]]}, 2, 3),
    ("embedding ids", Protocol.EMBEDDINGS, {"input": [[20, 344], [321, 111, 233]]}, 3, 5),
    ("no prompt", Protocol.COMPLETIONS, {"prompt": []}, 0, 0),
    ("booleans", Protocol.COMPLETIONS, {"prompt": [True, False]}, 0, 0),
    ("booleans among ids", Protocol.COMPLETIONS, {"prompt": [1, True, 2]}, 2, 2),
    ("ids to detokenize", Protocol.DETOKENIZE, {"tokens": [5, 6]}, 2, 2),
]


@pytest.mark.parametrize(("protocol", "body", "longest", "total"), [row[1:] for row in IDS],
                         ids=[row[0] for row in IDS])  # fmt: skip
def test_ids_are_exact(protocol: Protocol, body: Any, longest: int, total: int) -> None:
    estimate = quick(read(protocol, body))
    assert (estimate.tokens, estimate.total_tokens, estimate.error) == (longest, total, 0.0)
    expected = EstimateMethod.IDS if longest else EstimateMethod.NONE
    assert estimate.method is expected


def test_a_batch_fits_by_its_longest_and_is_ordered_by_its_sum() -> None:
    one = quick(read(Protocol.EMBEDDINGS, {"input": WORDS}))
    batch = quick(read(Protocol.EMBEDDINGS, {"input": ["x", WORDS, WORDS]}))
    assert batch.tokens == one.tokens
    assert batch.total_tokens == pytest.approx(2 * one.tokens + 1, abs=2)


def test_every_document_of_a_rerank_carries_the_query() -> None:
    alone = quick(read(Protocol.RERANK, {"query": WORDS, "documents": ["a"]}))
    many = quick(read(Protocol.RERANK, {"query": WORDS, "documents": ["a"] * 10}))
    assert many.tokens == alone.tokens
    assert many.total_tokens == pytest.approx(10 * alone.tokens, rel=0.01)


def test_score_pairs_are_pairs_and_a_single_left_side_is_shared() -> None:
    long, short = WORDS, "x"
    crossed = quick(read(Protocol.SCORE, {"text_1": [long, short], "text_2": [short, long]}))
    both = quick(read(Protocol.SCORE, {"text_1": [long, short], "text_2": [long, short]}))
    assert both.tokens > 1.8 * crossed.tokens
    shared = quick(read(Protocol.SCORE, {"text_1": long, "text_2": [short, long]}))
    assert shared.tokens == both.tokens


def test_a_huge_batch_keeps_its_largest_and_sums_all() -> None:
    inputs = ["word"] * (2 * KEPT_SEQUENCES) + [WORDS]
    shape = read(Protocol.EMBEDDINGS, {"input": inputs})
    assert len(shape.sequences) == KEPT_SEQUENCES
    estimate = quick(shape)
    assert estimate.tokens == quick(read(Protocol.EMBEDDINGS, {"input": WORDS})).tokens
    word = quick(read(Protocol.EMBEDDINGS, {"input": ["word"] * 1_000})).total_tokens / 1_000
    expected = 2 * KEPT_SEQUENCES * word + estimate.tokens
    assert estimate.total_tokens == pytest.approx(expected, rel=0.01)


def test_the_template_allowance_counts_messages_and_calls() -> None:
    empty = quick(read(Protocol.CHAT, {"messages": [{"role": "tool"}, {"role": "user"}]}))
    assert empty.tokens == 2 * MESSAGE_TOKENS + REPLY_TOKENS
    blocks = [{"type": "tool_use", "id": "x", "name": "f", "input": {}}] * 50
    calls = read(Protocol.MESSAGES, {"messages": [{"role": "assistant", "content": blocks}]})
    assert calls.sequences[0].fixed == MESSAGE_TOKENS + REPLY_TOKENS + 50 * CALL_TOKENS


def test_fifty_tool_use_blocks_are_near_their_compact_json() -> None:
    block = {"type": "tool_use", "id": "toolu_01", "name": "search_files",
             "input": {"path": "/srv/app/module.py", "pattern": "def handle", "limit": 20}}  # fmt: skip
    body = {"messages": [{"role": "assistant", "content": [block] * 50}]}
    reference = len(json.dumps([block] * 50, separators=(",", ":"))) / 4
    assert quick(read(Protocol.MESSAGES, body)).tokens == pytest.approx(reference, rel=0.3)


def test_an_upload_is_sized_by_its_bytes() -> None:
    estimate = quick(shape_of_upload([], 64_000, 100))
    assert (estimate.tokens, estimate.method) == (100, EstimateMethod.BYTES)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["type", "text", "content", "input", "source", "data", "arguments", "schema",
                         "image_url", "input_audio", "file", "format", "json_schema", "x"]), inner)
    | st.fixed_dictionaries({"type": st.sampled_from(["image", "input_audio", "document", "file",
                                                      "text", "tool_use", "reasoning"])},
                            optional={"source": inner, "data": inner, "text": inner,
                                      "input_audio": inner, "content": inner}),
)  # fmt: skip
FIELDS = ["messages", "input", "prompt", "documents", "query", "text_1", "text_2", "system", "tools",
          "response_format", "text", "content", "tokens", "instructions"]  # fmt: skip


@given(
    protocol=st.sampled_from(list(Protocol)),
    body=st.dictionaries(st.sampled_from(FIELDS), json_values) | json_values,
)
def test_any_json_is_read_and_never_raises(protocol: Protocol, body: Any) -> None:
    shape = read(protocol, body)
    estimate = quick(shape)
    around = bounds(shape)
    assert 0 <= around.low <= around.high
    assert estimate.tokens <= estimate.total_tokens
    assert estimate.error >= 0


def test_deep_nesting_is_read_without_recursion() -> None:
    value: Any = "deep"
    for level in range(50_000):
        value = [value] if level % 2 else {"content": value}
    assert "deep" in texts(read(Protocol.CHAT, {"messages": value}))
    assert "deep" in texts(read(Protocol.CHAT, {"messages": [], "tools": value}))
    while isinstance(value, list | dict):  # let go of it level by level
        value = value[0] if isinstance(value, list) else value.pop("content")


def test_every_captured_request_has_a_figure() -> None:
    protocols = {"chat-completions": Protocol.CHAT, "responses": Protocol.RESPONSES,
                 "anthropic": Protocol.MESSAGES}  # fmt: skip
    lines = shared_path("traces/captured_requests.jsonl").read_text("utf-8").splitlines()
    assert len(lines) > 200
    for line in lines:
        row = json.loads(line)
        estimate = quick(read(protocols[row["api"]], row["body"]))
        assert 0 < estimate.tokens < 20_000, row["case"]
