"""Streams: every event at once, every byte as it came."""

from __future__ import annotations

import asyncio
import hashlib
import random

import pytest

from tests.conformance.lanes import (
    LAST_CHUNK,
    SECOND,
    SSE_HEAD,
    Lane,
    Script,
    chat,
    event,
    read_chunk,
)
from tests.peers import Peer, RawClient, Received
from tests.running import CHAT

DONE = b"data: [DONE]\n\n"


def playing(*writes: bytes, pause_s: float = 0.0) -> Script:
    """Return a script that makes these writes, after the head of a stream."""

    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(SSE_HEAD, *writes, pause_s=pause_s)

    return script


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def streamed(client: RawClient, *headers: bytes) -> None:
    await client.post(CHAT, chat(stream=True), b"Content-Type: application/json", *headers)


async def test_bug_001_the_head_and_each_event_arrive_as_the_backend_sends_them(
    lane: Lane,
) -> None:
    loop = asyncio.get_running_loop()
    sent: list[float] = []

    async def script(peer: Peer, asked: Received) -> None:
        await asyncio.sleep(0.1 * SECOND)
        await peer.send(SSE_HEAD)
        for number in range(2):
            sent.append(loop.time())
            await peer.chunk(event(number))
            await asyncio.sleep(2.9 * SECOND)
        await peer.send(LAST_CHUNK)

    async with lane.facing(script) as stage:
        client = await stage.client()
        await streamed(client)
        await client.head()
        seen: list[float] = []
        for number in range(2):
            assert await read_chunk(client) == event(number)
            seen.append(loop.time())
    assert max(there - here for here, there in zip(sent, seen, strict=True)) < 0.05


async def test_bug_001_a_head_without_a_body_yet_arrives_at_once(lane: Lane) -> None:
    may_go_on = asyncio.Event()

    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(SSE_HEAD)
        await may_go_on.wait()
        await peer.send(LAST_CHUNK)

    async with lane.facing(script) as stage:
        client = await stage.client()
        await streamed(client)
        first, _ = await client.head()
        assert first == b"HTTP/1.1 200 OK"
        may_go_on.set()
        assert await read_chunk(client) == b""


@pytest.mark.parametrize("writes", [1, 3, 700])
@pytest.mark.parametrize("kib", [140, 700, 5000])
async def test_bug_003_bug_004_a_huge_event_passes_byte_for_byte(
    lane: Lane, kib: int, writes: int
) -> None:
    line = b"data: " + random.Random(kib).randbytes(kib * 512).hex().encode() + b"\n\n"
    whole = chunk(line)
    step = len(whole) // writes + 1
    pieces = [whole[at : at + step] for at in range(0, len(whole), step)]
    async with lane.facing(playing(*pieces, LAST_CHUNK)) as stage:
        client = await stage.client()
        await streamed(client)
        reply = await client.reply()
    assert reply.clean
    assert hashlib.sha256(reply.body).digest() == hashlib.sha256(line).digest()


async def test_bug_006_crlf_events_cut_anywhere_pass_unchanged(lane: Lane) -> None:
    body = b'data:{"a":1}\r\n\r\ndata:[DONE]\r\n\r\n'
    cuts = iter(range(1, len(body)))

    async def script(peer: Peer, asked: Received) -> None:
        cut = next(cuts)
        await peer.send(SSE_HEAD, chunk(body[:cut]), chunk(body[cut:]), LAST_CHUNK)

    async with lane.facing(script) as stage:
        client = await stage.client()
        for _ in range(1, len(body)):
            await streamed(client)
            reply = await client.reply()
            assert (reply.body, reply.clean) == (body, True)
