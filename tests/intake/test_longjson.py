"""Bodies read in slices: the same result as parsed at once, in short steps, in little memory."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lifeboat.core.estimate import quick
from lifeboat.core.longvalue import LongArray, LongObject, LongText
from lifeboat.core.protocol import Protocol
from lifeboat.edge import bodyscan, jsontext, longjson
from lifeboat.edge.bodyscan import BodyError, ParsedBody, parse_json, splice_model
from lifeboat.edge.jsontext import StringSpan
from lifeboat.edge.longjson import Document, Scanner
from tests.intake.slicing import STALL_S, Turns, calmest, no_turn

MIB = 1_048_576


@pytest.fixture
def tiny_limits() -> Iterator[None]:
    """Every threshold so low that a body of a hundred bytes meets most of them."""
    patch = pytest.MonkeyPatch()
    for name, value in {
        "LONG_STRING_BYTES": 40, "CROWDED_NODES": 3, "CROWDED_BYTES": 90, "SKELETON_NODES": 12,
        "_CHUNK_NODES": 2, "_WINDOW": 7, "_STRUCTURE_WINDOW": 5, "_JUMP_BYTES": 41,
        "_STEP_TOKENS": 2,
    }.items():  # fmt: skip
        patch.setattr(longjson, name, value)
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def frozen_heap() -> Iterator[None]:
    """Keep the collector off what the tests themselves hold: a full collection over pytest's heap
    takes 20 to 50 ms and would be measured as a step of the scanner.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def whole(value: object) -> object:
    """A value with its long parts read back."""
    if isinstance(value, LongText):
        return "".join(value.pieces())
    if isinstance(value, LongArray):
        return [whole(inner) for chunk in value.chunks() for inner in chunk]
    if isinstance(value, LongObject):
        value = list(value.fields())[-1]
    if isinstance(value, dict):
        return {key: whole(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [whole(inner) for inner in value]
    return value


def read_back(body: bytes) -> object:
    scanner = Scanner(Document(body), 0, len(body))
    skeletons = [step for step in scanner.steps() if step is not None]
    assert len(skeletons) == 1
    return whole(list(skeletons[0].parse())[-1])


keys = st.text('abc\\"é', max_size=5)
scalars = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text('ab\\"\n é好😀', max_size=30)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=60,
)


@settings(suppress_health_check=list(HealthCheck), max_examples=100)
@given(
    body=st.dictionaries(keys, values, max_size=6),
    ascii_only=st.booleans(),
    indent=st.none() | st.just(1),
)
def test_what_was_left_in_place_reads_back_as_it_was(
    tiny_limits: None, body: dict[str, Any], ascii_only: bool, indent: int | None
) -> None:
    patch = pytest.MonkeyPatch()
    patch.setattr(longjson, "SKELETON_NODES", 2_000)  # objects beyond twice this become text
    try:
        raw = json.dumps(body, ensure_ascii=ascii_only, indent=indent).encode()
        assert read_back(raw) == body
    finally:
        patch.undo()


WORDS = "Some words that any prompt may have in it. "
SHAPES: list[tuple[str, Protocol, dict[str, Any]]] = [
    ("a long prompt", Protocol.CHAT, {"messages": [{"role": "user", "content": WORDS * 30_000}]}),
    ("many messages", Protocol.CHAT, {"messages": [{"role": "user", "content": WORDS}] * 18_000}),
    ("long tool results", Protocol.MESSAGES,
     {"messages": [{"role": "user", "content": [
         {"type": "tool_result", "tool_use_id": "t", "content": WORDS * 100}]}] * 300}),
    ("an image", Protocol.CHAT, {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "QUJD" * MIB}},
        {"type": "text", "text": "what is it?"}]}]}),
    ("audio", Protocol.CHAT, {"messages": [{"role": "user", "content": [
        {"type": "input_audio", "input_audio": {"data": "QUJD" * MIB, "format": "wav"}}]}]}),
    ("encrypted reasoning", Protocol.RESPONSES,
     {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x" * 2 * MIB}]}),
    ("one prompt of ids", Protocol.COMPLETIONS, {"prompt": list(range(1_000, 300_000))}),
    ("a batch of ids", Protocol.EMBEDDINGS, {"input": [list(range(8_000))] * 40}),
    ("a batch of texts", Protocol.EMBEDDINGS, {"input": [WORDS * 20] * 1_500}),
    ("a batch of words", Protocol.EMBEDDINGS, {"input": ["some words"] * 90_000}),
    ("documents", Protocol.RERANK, {"query": "q", "documents": [{"text": WORDS * 9}] * 3_500}),
    ("tools", Protocol.CHAT, {"messages": [], "tools": [
        {"type": "function", "function": {"name": "f", "description": WORDS * 4}}] * 5_000}),
    ("a response schema", Protocol.CHAT, {"messages": [], "response_format": {
        "type": "json_schema", "json_schema": {"schema": {"enum": [WORDS] * 26_000}}}}),
    ("ids and text", Protocol.LLAMA_COMPLETION, {"prompt": [1, 2, WORDS * 30_000, 3]}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("protocol", "fields"), [row[1:] for row in SHAPES], ids=[row[0] for row in SHAPES]
)
@pytest.mark.usefixtures("no_collections")
async def test_a_sliced_body_is_sized_as_one_parsed_at_once(
    protocol: Protocol, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = json.dumps({**fields, "model": "m", "stream": True}, separators=(",", ":")).encode()
    assert len(raw) > MIB
    sliced, turns = await calmest(lambda turns: parse_json(raw, protocol, yield_now=turns), STALL_S)
    assert turns.longest_s < STALL_S
    monkeypatch.setattr(bodyscan, "SMALL_BODY_BYTES", len(raw))
    monkeypatch.setattr(bodyscan, "SMALL_BODY_NODES", len(raw))
    at_once = await parse_json(raw, protocol, yield_now=no_turn)
    assert (sliced.model, sliced.stream) == ("m", True)
    one, other = quick(sliced.shape), quick(at_once.shape)
    # Only where a text is cut into pieces may differ: a word in two.
    assert one.tokens == pytest.approx(other.tokens, rel=0.01, abs=2)
    assert one.total_tokens == pytest.approx(other.total_tokens, rel=0.01, abs=2)
    assert one.method is other.method
    assert splice_model(sliced, "other") == splice_model(at_once, "other")


def chat_with(filling: bytes, size_bytes: int) -> bytes:
    return b'{"model":"m","messages":[' + filling * (size_bytes // len(filling)) + b"1]}"


HOSTILE: list[tuple[str, bytes, str]] = [
    ("empty arrays", chat_with(b"[],", 4 * MIB), "more than 1,000,000 values"),
    ("empty objects", chat_with(b"{},", 4 * MIB), "more than 1,000,000 values"),
    ("numbers", chat_with(b"1,", 4 * MIB), "more than 1,000,000 values"),
    ("strings", chat_with(b'"",', 4 * MIB), "more than 1,000,000 values"),
    ("fields", b'{"model":"m"' + b',"a":1' * 300_000 + b"}", "more than 20,000 fields"),
    ("nesting", b'{"model":"m","messages":' + b"[" * MIB + b"]" * MIB + b"}", "levels deep"),
    ("an open array", chat_with(b"[1],", 1_600_000)[:-2], "not JSON"),
    ("an open string", b'{"model":"m","x":"' + b"x" * 2 * MIB, "not JSON"),
    ("back slashes to the end", b'{"model":"m","x":"' + b"\\" * 2 * MIB, "not JSON"),
    ("a wrong bracket", b'{"model":"m","x":[' + b"1," * 600_000 + b"1}}", "not JSON"),
    ("a second value", b'{"model":"m"}' + b" " * MIB + b"{}", "not JSON"),
    ("a word behind", b'{"model":"m"}' + b" " * MIB + b"x", "not JSON"),
    ("no object", b"[" + b"1," * MIB + b"1]", "not a JSON object"),
    ("blanks", b" " * 2 * MIB, "no JSON"),
    ("rubbish within", chat_with(b'{"a" 1},', 2 * MIB), "not JSON"),
    ("an integer model", b'{"model":5,"x":"' + b"x" * MIB + b'"}', "`model` is a number"),
    ("an object as model", b'{"model":{"x":"' + b"x" * MIB + b'"}}', "`model` is an object"),
]


@pytest.mark.parametrize(
    ("body", "said"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE]
)
@pytest.mark.usefixtures("no_collections")
async def test_hostile_bodies_are_refused_in_short_steps(body: bytes, said: str) -> None:
    async def refused(turns: Turns) -> None:
        with pytest.raises(BodyError, match=said):
            await parse_json(body, Protocol.CHAT, yield_now=turns)

    _, turns = await calmest(refused, STALL_S)
    assert turns.longest_s < STALL_S


CROWDED: list[tuple[str, bytes]] = [
    ("empty arrays", chat_with(b"[],", MIB + 99)),
    ("small arrays", chat_with(b"[1],", MIB + 99)),
    ("small objects", chat_with(b'{"a":1},', MIB + 99)),
    ("strings", chat_with(b'"ab",', MIB + 99)),
    ("escapes", chat_with(b'"' + b"\\n" * 2 * MIB + b'",', 8 * MIB)),
    ("surrogate halves", chat_with(b'"' + b"\\ud83d" * 200_000 + b'",', 2 * MIB)),
    ("arrays in objects", chat_with(b'{"content":[' + b"1," * 1_100 + b"1]},", MIB + 9)),
]


@pytest.mark.parametrize("body", [row[1] for row in CROWDED], ids=[row[0] for row in CROWDED])
@pytest.mark.usefixtures("no_collections")
async def test_crowded_bodies_are_read_in_short_steps(body: bytes) -> None:
    parsed, turns = await calmest(
        lambda turns: parse_json(body, Protocol.CHAT, yield_now=turns), STALL_S
    )
    assert turns.longest_s < STALL_S
    assert turns.count >= 2
    assert parsed.model == "m"


async def test_a_crowded_body_takes_little_memory_beside_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bodyscan, "SMALL_BODY_BYTES", 0)
    body = chat_with(b"[1],", 400_000)
    tracemalloc.start()
    try:
        await parse_json(body, Protocol.CHAT, yield_now=no_turn)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * MIB  # as objects it would be 7


async def parsed_big(body: bytes) -> ParsedBody:
    return await parse_json(body + b" " * MIB, Protocol.CHAT, yield_now=no_turn)


@pytest.mark.parametrize(
    ("body", "model", "expected"),
    [
        (b'{"model":"a","x":{"model":"b"},"model":"c"}', "c",
         b'{"model":"N","x":{"model":"b"},"model":"N"}'),
        (b'\xef\xbb\xbf {"model":"a"}', "a", b'\xef\xbb\xbf {"model":"N"}'),
        (b'{"mod\\u0065l":"a"}', "a", b'{"mod\\u0065l":"N"}'),
        (b'{"a":"model","b":"x","model":"a"}', "a", b'{"a":"model","b":"x","model":"N"}'),
        (b'{"a":["model","x"],"model":"a"}', "a", b'{"a":["model","x"],"model":"N"}'),
        (b'{"model":"\\ud800"}', "�", b'{"model":"N"}'),
        (b'{"model":null}', None, b'{"model":null}'),
        (b'{"model" :\n "a" }', "a", b'{"model" :\n "N" }'),
    ],
)  # fmt: skip
async def test_big_bodies_have_the_model_of_small_ones(
    body: bytes, model: str | None, expected: bytes
) -> None:
    parsed = await parsed_big(body)
    small = await parse_json(body, Protocol.CHAT, yield_now=no_turn)
    assert parsed.model == small.model == model
    assert splice_model(parsed, "N").rstrip() == splice_model(small, "N") == expected


async def test_numbers_that_look_like_placeholders_stay_numbers() -> None:
    ids = [7_000_000_000_000_000_000 + index for index in range(4)]
    body = json.dumps({"model": "m", "messages": [{"content": "x" * MIB}, *ids]}).encode()
    skeleton = [step for step in Scanner(Document(body), 0, len(body)).steps() if step][-1]
    value: Any = list(skeleton.parse())[-1]
    assert value["messages"][1:] == ids
    assert isinstance(value["messages"][0]["content"], StringSpan)


@given(st.text('ab\\"\n é好😀\ud83d', max_size=60), st.booleans(), st.integers(14, 40))
def test_a_string_read_in_pieces_is_the_string(text: str, ascii_only: bool, piece: int) -> None:
    if not ascii_only:
        text = text.replace("\ud83d", "")
    raw = json.dumps(text, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsontext, "PIECE_CHARS", piece)
        pieces = list(StringSpan(raw, 1, len(raw) - 1).pieces())
    assert "".join(pieces) == json.loads(raw)
