"""Small JSON bodies, nonsense included: the right fields, or BodyError and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifeboat.core.estimate import quick
from lifeboat.core.protocol import Protocol
from lifeboat.edge.bodyscan import BodyError, BodyKind, ParsedBody, parse_json, splice_model
from tests.intake.slicing import no_turn


async def parse(body: bytes, protocol: Protocol = Protocol.CHAT) -> ParsedBody:
    return await parse_json(body, protocol, yield_now=no_turn)


def nested(levels: int) -> bytes:
    return b'{"model":"m","messages":' + b"[" * levels + b"]" * levels + b"}"


REFUSED: list[tuple[str, bytes, str]] = [
    ("empty", b"", "not JSON"),
    ("blank", b" \n", "not JSON"),
    ("text", b"hello", "not JSON"),
    ("cut short", b'{"model":"m"', "not JSON"),
    ("two values", b'{"model":"m"}{}', "not JSON"),
    ("array", b'[{"model":"m"}]', "an array"),
    ("string", b'"m"', "a string"),
    ("number", b"5", "a number"),
    ("null", b"null", "null"),
    ("boolean", b"true", "a boolean"),
    ("integer model", b'{"model":5}', "`model` is a number"),
    ("boolean model", b'{"model":true}', "`model` is a boolean"),
    ("object model", b'{"model":{}}', "`model` is an object"),
    ("array model", b'{"model":["m"]}', "`model` is an array"),
    ("50,000 levels", nested(50_000), "levels deep"),
    ("1,100 levels", nested(1_100), "levels deep"),
    ("not UTF-8", b'{"model":"\xff\xfe"}', "not UTF-8"),
    ("UTF-16", '{"model":"m"}'.encode("utf-16"), "not UTF-8"),
    ("a control character", b'{"model":"a\x00b"}', "not JSON"),
    ("a surrogate as bytes", b'{"model":"\xed\xa0\x80"}', "not UTF-8"),
]


@pytest.mark.parametrize(
    ("body", "said"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
async def test_a_body_that_cannot_be_routed_is_refused_with_its_reason(
    body: bytes, said: str
) -> None:
    with pytest.raises(BodyError, match=said):
        await parse(body)


TAKEN: list[tuple[str, bytes, str | None]] = [
    ("plain", b'{"model":"m","messages":[]}', "m"),
    ("no model", b'{"messages":[]}', None),
    ("null model", b'{"model":null}', None),
    ("byte order mark", b'\xef\xbb\xbf{"model":"m"}', "m"),
    ("NaN", b'{"model":"m","temperature":NaN,"top_p":-Infinity}', "m"),
    ("a 5,000-digit number", b'{"model":"m","seed":' + b"9" * 5_000 + b"}", "m"),
    ("a huge exponent", b'{"model":"m","seed":1e99999}', "m"),
    ("duplicate models: the last", b'{"model":"a","model":"b"}', "b"),
    ("an escaped key", b'{"mod\\u0065l":"m"}', "m"),
    ("a nested model is not the model", b'{"x":{"model":"n"},"model":"m"}', "m"),
    ("a lone surrogate in the text", b'{"model":"m","messages":[{"content":"\\ud83d"}]}', "m"),
    ("a lone surrogate in the model", b'{"model":"\\ud800"}', "�"),
    ("a name with quotes", b'{"model":"a\\"b"}', 'a"b'),
    ("an empty name", b'{"model":""}', ""),
    ("an endless name", b'{"model":"' + b"n" * 5_000 + b'"}', "n" * 512 + "…"),
    ("400 levels", nested(400), "m"),
]


@pytest.mark.parametrize(
    ("body", "model"), [row[1:] for row in TAKEN], ids=[row[0] for row in TAKEN]
)
async def test_what_lenient_servers_take_is_taken(body: bytes, model: str | None) -> None:
    parsed = await parse(body)
    assert parsed.model == model
    assert parsed.plain is body
    assert parsed.body_kind is BodyKind.JSON
    (parsed.model or "").encode()  # whatever was sent, it can be logged and sent back


@pytest.mark.parametrize(
    ("fields", "stream", "store"),
    [
        ("", False, None),
        (',"stream":true,"store":false', True, False),
        (',"stream":false,"store":true', False, True),
        (',"stream":1,"store":0', False, None),
        (',"stream":"true","store":null', False, None),
    ],
)
async def test_stream_and_store_are_booleans_or_nothing(
    fields: str, stream: bool, store: bool | None
) -> None:
    parsed = await parse(b'{"model":"m"' + fields.encode() + b"}")
    assert (parsed.stream, parsed.store) == (stream, store)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model":"a"}', b'{"model":"new"}'),
        (b' { "x" : 1 , "model" : "a" , "y":"\xe5\xa5\xbd" } ',
         b' { "x" : 1 , "model" : "new" , "y":"\xe5\xa5\xbd" } '),
        (b'{"model":"a","model":"b"}', b'{"model":"new","model":"new"}'),
        (b'{"mod\\u0065l":"a"}', b'{"mod\\u0065l":"new"}'),
        (b'{"x":{"model":"a"},"messages":[{"model":"a"}],"model":"a"}',
         b'{"x":{"model":"a"},"messages":[{"model":"a"}],"model":"new"}'),
        (b'{"x":"\\"model\\":\\"a\\"","model":"a"}', b'{"x":"\\"model\\":\\"a\\"","model":"new"}'),
        (b'{"x":"model","y":"a","model":"a"}', b'{"x":"model","y":"a","model":"new"}'),
        (b'{"model":5,"model":"a"}', b'{"model":5,"model":"new"}'),
        (b'\xef\xbb\xbf{"model":"a"}', b'\xef\xbb\xbf{"model":"new"}'),
        (b'{"model":"a\\"b\\\\"}', b'{"model":"new"}'),
        (b'{"model":""}', b'{"model":"new"}'),
    ],
)  # fmt: skip
async def test_an_alias_changes_the_model_and_no_other_byte(body: bytes, expected: bytes) -> None:
    assert splice_model(await parse(body), "new") == expected


async def test_a_spliced_name_is_written_as_json() -> None:
    spliced = splice_model(await parse(b'{"model":"a"}'), 'q"ü')
    assert json.loads(spliced) == {"model": 'q"ü'}


plain_text = st.text(st.characters(exclude_categories=["Cs"]))


@given(
    head=st.dictionaries(plain_text, plain_text | st.integers() | st.lists(plain_text)),
    tail=st.dictionaries(plain_text, plain_text | st.none()),
    ascii_only=st.booleans(),
    indent=st.none() | st.just(2),
)
async def test_any_object_is_spliced_at_its_model_only(
    head: dict[str, Any], tail: dict[str, Any], ascii_only: bool, indent: int | None
) -> None:
    fields = {**head, "model": "old name", **tail}
    if not isinstance(fields["model"], str):
        fields["model"] = "old name"
    body = json.dumps(fields, ensure_ascii=ascii_only, indent=indent).encode()
    parsed = await parse(body)
    assert json.loads(splice_model(parsed, "new")) == {**fields, "model": "new"}
    assert len(parsed.model_spans) == 1


@given(st.binary(max_size=200) | st.text('{}[],:"\\mode \n1ul', max_size=60).map(str.encode))
async def test_no_bytes_raise_anything_but_a_body_error(body: bytes) -> None:
    try:
        parsed = await parse(body)
    except BodyError as fault:
        assert str(fault)
        return
    quick(parsed.shape)
    assert isinstance(parsed.model_spans, tuple)
