"""Compressed requests: decoded for routing, within the limit, or refused with the reason."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
import zlib

import pytest
from backports import zstd as zstandard

from lifeboat.edge.bodyscan import BodyError, BodyTooLargeError, decode_body
from lifeboat.edge.faults import UnsupportedEncodingError
from tests.intake.slicing import STALL_S, Turns, calmest, no_turn

BODY = json.dumps({"model": "m", "messages": [{"content": "words " * 50_000}]}).encode()
NOISE = random.Random(2).randbytes(300_000)


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


def zstd(body: bytes) -> bytes:
    return zstandard.compress(body)


PACKED = [
    ("gzip", gzip.compress),
    ("x-gzip", gzip.compress),
    ("GZIP", gzip.compress),
    ("deflate", zlib.compress),
    ("deflate", raw_deflate),
    ("zstd", zstd),
    ("gzip, zstd", lambda body: zstd(gzip.compress(body))),
    ("identity", bytes),
    ("", bytes),
]


@pytest.mark.parametrize(("encoding", "pack"), PACKED)
@pytest.mark.parametrize("body", [BODY, NOISE, b"", b"x"], ids=["text", "noise", "empty", "a byte"])
async def test_every_encoding_is_undone(encoding: str, pack: object, body: bytes) -> None:
    assert callable(pack)
    assert await decode_body(pack(body), encoding, 10**6, yield_now=no_turn) == body


async def test_members_and_frames_one_after_another_are_one_body() -> None:
    two = gzip.compress(b"one ") + gzip.compress(b"two")
    assert await decode_body(two, "gzip", 100, yield_now=no_turn) == b"one two"
    two = zstd(b"one ") + zstd(b"two")
    assert await decode_body(two, "zstd", 100, yield_now=no_turn) == b"one two"


@pytest.mark.parametrize(
    "encoding", ["br", "compress", "aws-chunked", "gzip, gzip, gzip", "gzip, x"]
)
async def test_an_unknown_encoding_is_refused_by_name(encoding: str) -> None:
    with pytest.raises(UnsupportedEncodingError, match="content-encoding"):
        await decode_body(b"x", encoding, 100, yield_now=no_turn)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
async def test_bytes_that_are_not_what_the_header_says_are_refused(encoding: str) -> None:
    with pytest.raises(BodyError):
        await decode_body(b'{"model":"m"}', encoding, 1_000, yield_now=no_turn)


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress),
                                                ("zstd", zstd)])  # fmt: skip
async def test_a_body_cut_short_is_refused(encoding: str, pack: object) -> None:
    assert callable(pack)
    with pytest.raises(BodyError):
        await decode_body(pack(NOISE)[:-20], encoding, 10**6, yield_now=no_turn)


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", raw_deflate),
                                                ("zstd", zstd)])  # fmt: skip
@pytest.mark.usefixtures("no_collections")
async def test_a_bomb_is_cut_off_at_the_limit_and_in_short_steps(
    encoding: str, pack: object
) -> None:
    assert callable(pack)
    bomb = pack(bytes(200_000_000))

    async def cut_off(turns: Turns) -> int:
        tracemalloc.start()
        try:
            with pytest.raises(BodyTooLargeError, match="LIFEBOAT_MAX_BODY_BYTES"):
                await decode_body(bomb, encoding, 4_000_000, yield_now=turns)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak, turns = await calmest(cut_off, STALL_S)
    assert peak < 12_000_000
    assert turns.longest_s < STALL_S


async def test_the_limit_itself_fits() -> None:
    assert (
        len(await decode_body(gzip.compress(bytes(1_000)), "gzip", 1_000, yield_now=no_turn))
        == 1_000
    )
    with pytest.raises(BodyTooLargeError):
        await decode_body(gzip.compress(bytes(1_001)), "gzip", 1_000, yield_now=no_turn)
