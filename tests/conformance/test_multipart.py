"""Uploads: the model wherever its field stands, and the bytes as they came."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import pytest

from tests.conformance.lanes import Lane, Stage, says_hello
from tests.peers import Reply
from tests.running import CHAT

AUDIO = "/v1/audio/transcriptions"
PLAIN = b"XboundaryX"
WAV = b"RIFF" + random.Random(75).randbytes(3000)


def part(name: bytes, value: bytes, *more: bytes, boundary: bytes = PLAIN) -> bytes:
    """One part; more: further parameters of its disposition."""
    disposition = b"; ".join([b'form-data; name="%b"' % name, *more])
    return b"--%b\r\nContent-Disposition: %b\r\n\r\n%b\r\n" % (boundary, disposition, value)


def upload(
    *parts: bytes, boundary: bytes = PLAIN, before: bytes = b"", end: bytes | None = None
) -> bytes:
    closing = b"--%b--\r\n" % boundary if end is None else end
    return before + b"".join(parts) + closing


def file_part(
    content: bytes = WAV, filename: bytes = b'filename="a.wav"', boundary: bytes = PLAIN
) -> bytes:
    return part(b"file", content, filename, boundary=boundary)


def model_part(model: bytes = b"m", boundary: bytes = PLAIN) -> bytes:
    return part(b"model", model, boundary=boundary)


async def send(stage: Stage, body: bytes, boundary: bytes = PLAIN, path: str = AUDIO) -> Reply:
    client = await stage.client()
    await client.post(path, body, b"Content-Type: multipart/form-data; boundary=" + boundary)
    return await client.reply()


async def forwarded(stage: Stage, body: bytes, boundary: bytes = PLAIN, path: str = AUDIO) -> None:
    before = len(stage.asked)
    reply = await send(stage, body, boundary, path)
    assert reply.status == 200, reply
    assert len(stage.asked) == before + 1
    asked = stage.asked[-1]
    assert asked.body == body
    content_type = b"multipart/form-data; boundary=" + boundary
    assert asked.values(b"content-type") == [content_type]
    assert asked.values(b"content-length") == [b"%d" % len(body)]


async def refused(stage: Stage, body: bytes, boundary: bytes = PLAIN, status: int = 400) -> None:
    before = len(stage.asked)
    reply = await send(stage, body, boundary)
    assert reply.status == status, reply
    assert reply.values(b"content-type")[0].startswith(b"application/json")
    assert len(stage.asked) == before


SERVES = {"serves": ["transcribe", "image", "video"]}


@pytest.mark.parametrize("size", [0, 3000, 3_000_000])
@pytest.mark.parametrize("order", ["file first", "model first", "between"])
async def test_bug_075_bug_076_the_model_is_found_in_any_order_and_the_body_is_whole(
    lane: Lane, order: str, size: int
) -> None:
    parts = {
        "file first": [file_part(bytes(size)), model_part(), part(b"response_format", b"json")],
        "model first": [model_part(), file_part(bytes(size))],
        "between": [part(b"language", b"en"), model_part(), file_part(bytes(size))],
    }[order]
    async with lane.facing(says_hello, **SERVES) as stage:
        await forwarded(stage, upload(*parts))
        await forwarded(stage, upload(*parts), path="/v1/audio/translations")
        await forwarded(stage, upload(*parts), path="/v1/images/edits")


async def test_bug_075_an_upload_that_comes_in_chunks_is_whole_too(lane: Lane) -> None:
    body = upload(file_part(), model_part())
    async with lane.facing(says_hello, **SERVES) as stage:
        client = await stage.client()
        head = b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n" % AUDIO.encode()
        await client.send(head + b"Content-Type: multipart/form-data; boundary=" + PLAIN)
        await client.send(b"\r\n\r\n")
        for at in range(0, len(body), 97):
            piece = body[at : at + 97]
            await client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        await client.send(b"0\r\n\r\n")
        assert (await client.reply()).status == 200
    assert stage.asked[0].body == body


NAMES = [
    'filename="Réunion.wav"'.encode(),
    b'filename="R\xe9union.wav"',
    b"filename*=UTF-8''R%C3%A9union.wav",
    b"filename=\"R.wav\"; filename*=UTF-8''R%C3%A9union.wav",
    'filename="ř \\"quoted\\"; semi=colon; name=model.wav"'.encode(),
    b'filename="a;b,c.wav"',
    b"filename=bare.wav",
    b'filename=""',
    b'filename="%22%0d%0a.wav"',
    b'filename="x\\\\"',
    'filename="日本語.wav"'.encode(),
]


async def test_bug_078_bug_079_a_filename_of_any_kind_goes_on_as_it_came(lane: Lane) -> None:
    async with lane.facing(says_hello, **SERVES) as stage:
        for filename in NAMES:
            await forwarded(stage, upload(file_part(filename=filename), model_part()))


async def test_bug_081_odd_boundaries_are_understood(lane: Lane) -> None:
    boundary = b"----WebKitFormBoundary7MA4YWxk"
    body = upload(file_part(boundary=boundary), model_part(boundary=boundary), boundary=boundary)
    spaced = b"a b'()+_,-./:=?"
    odd = upload(file_part(boundary=spaced), model_part(boundary=spaced), boundary=spaced)
    async with lane.facing(says_hello, **SERVES) as stage:
        await forwarded(stage, body, boundary)
        await forwarded(stage, body, b'"' + boundary + b'"')
        await forwarded(stage, body, boundary + b"; charset=utf-8")
        await forwarded(stage, odd, b'"' + spaced + b'"')
        plain = upload(file_part(), model_part())
        await forwarded(stage, upload(file_part(), model_part(), before=b"preamble\r\n"))
        await forwarded(stage, plain + b'epilogue with --XboundaryX and name="model"')
        # A last delimiter without its hyphens is forgiven: everything before it is complete.
        await forwarded(stage, plain.removesuffix(b"--\r\n") + b"\r\n")
        # Blanks behind a delimiter are padding (RFC 2046, section 5.1.1).
        await forwarded(stage, plain.replace(b"--XboundaryX\r\n", b"--XboundaryX \t\r\n"))


TRAPS = [
    b"--XboundaryX without a line before it",
    b'\r\n--XboundaryXY\r\nContent-Disposition: form-data; name="model"\r\n\r\nother\r\n',
    b'name="model"\r\n\r\nother',
    b'Content-Disposition: form-data; name="model"\r\n\r\nother\r\n',
    b'\n--XboundaryX\nContent-Disposition: form-data; name="model"\n\nother\n',
    b'{"model": "other"}',
    b"--XboundaryX--",
]


@pytest.mark.parametrize("trap", TRAPS)
async def test_bug_081_nothing_within_a_file_is_taken_for_a_field(lane: Lane, trap: bytes) -> None:
    async with lane.facing(says_hello, **SERVES) as stage:
        inside = file_part(WAV + trap + WAV)
        await forwarded(stage, upload(inside, model_part()))
        await forwarded(stage, upload(model_part(), inside))
        # Without a model of its own it is a 400, whatever stands in the file.
        await refused(stage, upload(inside))


@pytest.mark.parametrize(
    "body",
    [
        upload(file_part(), model_part()).replace(b"\r\n", b"\n"),
        upload(file_part(), model_part(), boundary=b"other"),
        b"",
        b"--XboundaryX",
        b"--XboundaryX--\r\n",
        upload(part(b"model", b"m", b'filename="model.txt"'), file_part()),
        upload(file_part(), b"--XboundaryX\r\nno blank line"),
        upload(file_part(), model_part(), end=b"")[:-40],
    ],
    ids=["LF only", "other boundary", "empty", "start", "end", "a file", "no blank line", "cut"],
)
async def test_bug_081_what_cannot_be_read_is_a_400(lane: Lane, body: bytes) -> None:
    async with lane.facing(says_hello, **SERVES) as stage:
        await refused(stage, body)


@pytest.mark.parametrize(
    "content_type",
    [
        b"multipart/form-data", b"multipart/form-data; boundary=", b"application/json",
        b"text/plain", b'multipart/form-data; boundary="', b"multipart/form-data; Boundary",
    ],
)  # fmt: skip
async def test_bug_081_an_upload_without_a_boundary_is_a_400(
    lane: Lane, content_type: bytes
) -> None:
    async with lane.facing(says_hello, **SERVES) as stage:
        client = await stage.client()
        body = upload(file_part(), model_part())
        await client.post(AUDIO, body, b"Content-Type: " + content_type)
        assert (await client.reply()).status == 400
    assert stage.asked == []


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def staged() -> set[str]:
    """Files that an upload could have been staged in."""
    return set(os.listdir(tempfile.gettempdir()))


async def test_bug_082_uploads_cut_midway_leave_no_file_and_no_handle(
    lane: Lane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = tmp_path / "staging"
    staging.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(staging))
    body = upload(file_part(bytes(1_000_000)), model_part())
    async with lane.facing(says_hello, **SERVES) as stage:
        await stage.running.settle()
        handles = open_files()
        for turn in range(100):
            client = await stage.client()
            head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % (
                AUDIO.encode(), len(body),
            )  # fmt: skip
            await client.send(head + b"Content-Type: multipart/form-data; boundary=" + PLAIN)
            await client.send(b"\r\n\r\n" + body[: 5000 * turn + 1])
            if turn % 2:
                client.reset()
            else:
                client.close()
        await stage.running.until(lambda state: state["parked_bytes"] == 0)
        assert staged() == set()
        assert open_files() <= handles + 5
        assert stage.asked == []
        assert (await stage.running.ask(CHAT)).status in (200, 503)
