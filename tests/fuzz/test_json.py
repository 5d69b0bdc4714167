"""JSON of every shape, from bytes to the figure: a figure or a refusal, at a fair cost.

Beside this: any bytes are read or refused (tests/intake/test_parse_json.py), any parsed value has a
shape (tests/estimate/test_shape.py), named long bodies read in slices are sized as at once
(tests/intake/test_longjson.py), and sizing a text is linear (tests/estimate/test_textsize.py). Here
the whole way is walked with bodies that look like requests, of each protocol.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from lifeboat.core.estimate import bounds, quick
from lifeboat.core.protocol import Protocol
from lifeboat.edge import bodyscan, longjson
from lifeboat.edge.bodyscan import BodyError, ParsedBody, parse_json
from tests.fuzz.budget import examples
from tests.fuzz.request_grammar import knocked, knocks
from tests.intake.slicing import no_turn

NAMES = (
    "model", "messages", "role", "content", "type", "text", "input", "prompt", "stream", "store",
    "tools", "function", "name", "description", "parameters", "arguments", "tool_calls", "query",
    "documents", "text_1", "text_2", "image_url", "url", "input_audio", "data", "source", "system",
    "instructions", "response_format", "json_schema", "schema", "mod\u0065l", "", "é",
)  # fmt: skip
KINDS = ("text", "image_url", "input_audio", "tool_use", "tool_result", "reasoning", "user", "m")
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(KINDS)
    | st.text(max_size=40) | st.just("word " * 60) | st.just("data:image/png;base64," + "QUJD" * 30)
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
        | st.integers(1, 12).flatmap(lambda count: inner.map(lambda one: [one] * count))
    ),
    max_leaves=12,
)
TINY = {
    "LONG_STRING_BYTES": 40, "CROWDED_NODES": 3, "CROWDED_BYTES": 90, "_CHUNK_NODES": 2,
    "_WINDOW": 7, "_STRUCTURE_WINDOW": 5, "_JUMP_BYTES": 41, "_STEP_TOKENS": 2,
}  # fmt: skip
"""Bounds of longjson, so low that a body of a hundred bytes meets most of them."""


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """An object that may be a request, in one of the ways to write it, perhaps damaged."""
    fields = draw(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=8))
    if draw(st.booleans()):
        fields["model"] = draw(st.text(max_size=9))
        fields["stream"] = draw(st.booleans())
    body = json.dumps(
        fields, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from((None, 1)))
    ).encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 4)) == 0:
        body = knocked(body, draw(st.lists(knocks(len(body)), max_size=2)))
    return body


def read(body: bytes, protocol: Protocol) -> ParsedBody | None:
    """Return what a body says; None where it is refused. Anything else is raised."""
    try:
        parse_json(body, protocol, yield_now=no_turn).send(None)
    except StopIteration as done:
        return done.value
    except BodyError as refusal:
        note(f"refused: {refusal}")
        return None
    raise AssertionError("it waits for something")


def only_slices(patch: pytest.MonkeyPatch) -> None:
    """Read small bodies as large ones are."""
    patch.setattr(bodyscan, "AT_ONCE_BYTES", 0)
    patch.setattr(bodyscan, "_is_small", lambda body: False)


@pytest.fixture(scope="module")
def sliced() -> Iterator[pytest.MonkeyPatch]:
    patch = pytest.MonkeyPatch()
    yield patch
    patch.undo()


@given(body=bodies(), protocol=st.sampled_from(list(Protocol)))
@examples(200)
def test_a_body_in_slices_is_read_as_one_at_once(
    sliced: pytest.MonkeyPatch, body: bytes, protocol: Protocol
) -> None:
    """The slices end at every few bytes: what a text is cut into changes the figure a little.

    So do the blanks of printed JSON, which a slice leaves in place: here a dozen, of a few tokens.
    A long text is left in place unread: what is wrong within it is the backend's to refuse.
    """
    at_once = read(body, protocol)
    with sliced.context() as patch:
        only_slices(patch)
        for name, value in TINY.items():
            patch.setattr(longjson, name, value)
        in_slices = read(body, protocol)
    if at_once is None:
        return
    assert in_slices is not None
    assert (at_once.model, at_once.stream, at_once.store) == (
        in_slices.model, in_slices.stream, in_slices.store,
    )  # fmt: skip
    assert at_once.model_spans == in_slices.model_spans
    one, other = quick(at_once.shape), quick(in_slices.shape)
    around = bounds(at_once.shape)
    assert 0 <= around.low <= around.high
    assert 0 <= one.tokens <= one.total_tokens
    assert one.method is other.method
    assert other.tokens == pytest.approx(one.tokens, rel=0.6, abs=16)


@given(body=bodies(), protocol=st.sampled_from(list(Protocol)))
@examples(15)
def test_what_a_body_costs_grows_as_it_does(
    sliced: pytest.MonkeyPatch, body: bytes, protocol: Protocol
) -> None:
    """A list of so many of it: eight times as many may not cost as much as by the square."""

    def cost_s(count: int) -> float:
        whole = b'{"messages":[%b],"input":[%b]}' % ((b",".join([body] * count),) * 2)
        best = 1e9
        for _ in range(2):
            began = time.process_time()
            read(whole, protocol)
            best = min(best, time.process_time() - began)
        return best

    few = max(1, 2_000 // max(1, len(body)))
    with sliced.context() as patch:
        only_slices(patch)
        assert cost_s(8 * few) < 8 * 4 * cost_s(few) + 0.02
