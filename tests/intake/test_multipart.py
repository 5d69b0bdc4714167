"""Uploads: the model wherever its field stands, and never from inside a file."""

# ruff: noqa: E501 - a table reads by its rows; wrapped, it no longer does
from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifeboat.core.estimate import quick
from lifeboat.core.protocol import Protocol
from lifeboat.core.vocabulary import EstimateMethod
from lifeboat.edge.bodyscan import BodyError, BodyKind, ParsedBody, splice_model
from lifeboat.edge.multipart import boundary_of, parse_multipart
from tests.intake.slicing import STALL_S, calmest, no_turn

FORM = "multipart/form-data; boundary=XX"


def field(name: str, value: bytes, extra: str = "") -> bytes:
    return (
        f'--XX\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n'.encode()
        + value
        + b"\r\n"
    )


def file(content: bytes, extra: str = '; filename="a.wav"') -> bytes:
    return field("file", content, extra)


END = b"--XX--\r\n"
MODEL = field("model", b"whisper")


async def parse(
    body: bytes, content_type: str = FORM, protocol: Protocol = Protocol.TRANSCRIPTION
) -> ParsedBody:
    return await parse_multipart(body, content_type, protocol, yield_now=no_turn)


AUDIO = bytes(random.Random(1).randbytes(64_000))

FOUND: list[tuple[str, bytes, str | None]] = [
    ("before the file", MODEL + file(AUDIO) + END, "whisper"),
    ("behind the file", file(AUDIO) + MODEL + END, "whisper"),
    ("no model", file(AUDIO) + END, None),
    ("a preamble", b"This is a preamble.\r\n" + MODEL + file(AUDIO) + END, "whisper"),
    ("a preamble that looks like a part",
     b'Content-Disposition: form-data; name="model"\r\n\r\nevil\r\n' + MODEL + END, "whisper"),
    ("an epilogue", MODEL + END + b'--XX\r\nContent-Disposition: form-data; name="model"\r\n\r\nevil\r\n--XX--',
     "whisper"),
    ("a boundary in the audio without CRLF", file(b"a--XX\r\n" + MODEL[6:] + b"b") + MODEL + END, "whisper"),
    ("a longer boundary in the audio", file(b"a\r\n--XXY\r\nb") + MODEL + END, "whisper"),
    ("a boundary in the audio after LF alone", file(b"a\n" + field("model", b"evil")[:-2] + b"b") + MODEL + END,
     "whisper"),
    ("text in the audio", file(b'name="model"\r\n\r\nevil\r\n') + MODEL + END, "whisper"),
    ("a file under the name model", field("model", b"evil", '; filename="m"') + MODEL + END, "whisper"),
    ("only a file under the name model", field("model", b"evil", '; filename="m"') + END, None),
    ("blanks behind the boundary", MODEL.replace(b"--XX\r\n", b"--XX  \t\r\n") + END, "whisper"),
    ("no last hyphens", MODEL + file(AUDIO) + b"--XX\r\n", "whisper"),
    ("no last line end", MODEL + b"--XX--", "whisper"),
    ("cut in the file", MODEL + file(AUDIO)[:-1_000], "whisper"),
    ("cut in the model", file(AUDIO) + MODEL[:-4], None),
    ("two models: the last", field("model", b"first") + MODEL + END, "whisper"),
    ("header names in capitals", MODEL.replace(b"Content-Disposition", b"CONTENT-DISPOSITION") + END, "whisper"),
    ("another header first", MODEL.replace(b"Content-D", b"X-A: b\r\nContent-D") + END, "whisper"),
    ("an unquoted name", MODEL.replace(b'"model"', b"model") + END, "whisper"),
    ("a name like it", field("model_id", b"evil") + MODEL + END, "whisper"),
    ("an empty model", field("model", b"") + END, ""),
    ("a raw UTF-8 file name", file(AUDIO, '; filename="Réunion ř.wav"') + MODEL + END, "whisper"),
    ("an encoded file name", file(AUDIO, "; filename*=UTF-8''R%C3%A9union.wav") + MODEL + END, "whisper"),
    ("a file name with all signs", file(AUDIO, '; filename="a;\\"name=\\"model\\".wav"') + MODEL + END, "whisper"),
    ("a part without headers", b"--XX\r\n\r\nevil\r\n" + MODEL + END, "whisper"),
    ("an empty file", file(b"") + MODEL + END, "whisper"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "model"), [row[1:] for row in FOUND], ids=[row[0] for row in FOUND]
)
async def test_the_model_is_found_where_its_field_stands(body: bytes, model: str | None) -> None:
    parsed = await parse(body)
    assert parsed.model == model
    assert parsed.plain is body
    assert parsed.body_kind is BodyKind.MULTIPART


REFUSED: list[tuple[str, str, bytes, str]] = [
    ("no boundary", "multipart/form-data", MODEL + END, "names no boundary"),
    ("another boundary", "multipart/form-data; boundary=YY", MODEL + END, "has no line --YY"),
    ("LF lines", FORM, (MODEL + END).replace(b"\r\n", b"\n"), "CRLF"),
    ("nothing", FORM, b"", "has no line"),
    ("no blank line", FORM, b'--XX\r\nContent-Disposition: form-data; name="model"\r\n' + END, "no blank line"),
    ("a delimiter right behind one", FORM, b"--XX\r\n" + MODEL + END, "no blank line"),
    ("too many parts", FORM, field("a", b"") * 2_001 + END, "more than 2,000 parts"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("content_type", "body", "said"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
async def test_what_no_server_would_read_is_refused(
    content_type: str, body: bytes, said: str
) -> None:
    with pytest.raises(BodyError, match=said):
        await parse(body, content_type)


@pytest.mark.parametrize(
    ("header", "boundary"),
    [
        ("multipart/form-data; boundary=abc", b"abc"),
        ('multipart/form-data; boundary="abc"', b"abc"),
        ('multipart/form-data; boundary="--a b:c"', b"--a b:c"),
        ("multipart/form-data; charset=utf-8; Boundary=abc; x=y", b"abc"),
        ("multipart/form-data;boundary=----WebKitFormBoundary7MA4", b"----WebKitFormBoundary7MA4"),
        ('multipart/form-data; x="boundary=no"; boundary=yes', b"yes"),
    ],
)
def test_boundaries_are_read_from_the_header(header: str, boundary: bytes) -> None:
    assert boundary_of(header) == boundary


async def test_a_boundary_with_leading_hyphens_and_quotes_works() -> None:
    body = (file(AUDIO) + MODEL + END).replace(b"--XX", b"----a b")
    assert (await parse(body, 'multipart/form-data; boundary="--a b"')).model == "whisper"


async def test_audio_is_sized_by_the_bytes_of_its_part() -> None:
    estimate = quick((await parse(file(AUDIO) + MODEL + END)).shape)
    assert (estimate.tokens, estimate.method) == (100, EstimateMethod.BYTES)
    prompted = await parse(file(AUDIO) + field("prompt", b"some words to start from") + MODEL + END)
    assert 103 <= quick(prompted.shape).tokens <= 112


async def test_images_cost_the_same_whatever_their_bytes() -> None:
    body = file(AUDIO, '; filename="a.png"') + field("prompt", b"a cat") + MODEL + END
    tokens = quick((await parse(body, protocol=Protocol.IMAGE)).shape).tokens
    assert 2048 <= tokens <= 2052


@pytest.mark.parametrize(
    ("value", "stream"), [(b"true", True), (b"True", True), (b"false", False), (b"", False)]
)
async def test_stream_is_a_field(value: bytes, stream: bool) -> None:
    assert (await parse(MODEL + field("stream", value) + END)).stream is stream


async def test_an_alias_changes_every_model_field_and_no_other_byte() -> None:
    body = field("model", b"a") + file(AUDIO) + field("model", b"bcd") + END
    expected = field("model", b"neu") + file(AUDIO) + field("model", b"neu") + END
    assert splice_model(await parse(body), "neu") == expected


@given(content=st.lists(st.sampled_from([b"\r", b"\n", b"-", b"--XX", b"X", b"\r\n--X", b'name="model"',
                                         b"\r\n\r\n", b"a"])).map(b"".join))  # fmt: skip
async def test_whatever_is_in_a_file_the_model_is_its_fields(content: bytes) -> None:
    if b"\r\n--XX" in b"\r\n" + content + b"\r\n":
        return  # a delimiter it is, then
    assert (await parse(file(content) + MODEL + END)).model == "whisper"
    assert (await parse(MODEL + file(content) + END)).model == "whisper"


@given(st.lists(st.sampled_from([b"--XX", b"\r\n", b"--", b'Content-Disposition: form-data; name="model"',
                                 b"\r\n\r\n", b"x", b" "])).map(b"".join))  # fmt: skip
async def test_no_bytes_raise_anything_but_a_body_error(body: bytes) -> None:
    try:
        await parse(body)
    except BodyError as fault:
        assert str(fault)


@pytest.mark.parametrize("filling", [b"\r\n--X", b"\r\n--XXY", b"\r", b"-", b"\x00"])
@pytest.mark.usefixtures("no_collections")
async def test_a_large_upload_is_scanned_in_short_steps(filling: bytes) -> None:
    body = file(filling * (4_194_304 // len(filling))) + MODEL + END
    parsed, turns = await calmest(
        lambda turns: parse_multipart(body, FORM, yield_now=turns), STALL_S
    )
    assert parsed.model == "whisper"
    assert turns.longest_s < STALL_S
