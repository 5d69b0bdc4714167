"""Streams: every event at once, every byte as it came."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import random
import zlib
from itertools import pairwise
from statistics import median

import pytest

from tests.conformance.lanes import (
    LAST_CHUNK,
    SECOND,
    SSE_HEAD,
    Lane,
    Script,
    Stepped,
    answer,
    chat,
    event,
    everything,
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
    """Each is there before the next is sent; and no clock lets them go, which would delay all."""
    loop = asyncio.get_running_loop()
    stream = Stepped()
    async with lane.facing(stream) as stage:
        client = await stage.client()
        await streamed(client)
        await client.head()
        on_the_way_s: list[float] = []
        for number in range(50):
            sent_at = loop.time()
            stream.send(event(number))
            assert await read_chunk(client) == event(number)
            on_the_way_s.append(loop.time() - sent_at)
        stream.end()
        assert await read_chunk(client) == b""
    # A busy machine makes some of them late; what a clock lets go is late nearly always (but for
    # the first, which goes with the head).
    assert median(on_the_way_s) < 0.05


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


OVERLOADED = b'data:{"error":{"message":"busy","type":"overloaded_error","code":503}}'


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
@pytest.mark.parametrize("before", [b"", b": PROCESSING\n\n", b":\r\n\r\n: PROCESSING\r\n\r\n"])
async def test_bug_006_bug_007_the_look_at_a_first_event_knows_every_form_of_one(
    lane: Lane, before: bytes, end: bytes
) -> None:
    """A vLLM engine's refusal within a 200 is found behind comments, whatever its line ends."""
    first = playing(chunk(before) if before else b"", chunk(OVERLOADED + end), LAST_CHUNK)
    async with lane.facing(first, first, kind="vllm") as stage:
        client = await stage.client()
        await streamed(client)
        reply = await client.reply()
        state = await stage.running.state()
    assert len(stage.asked) == 2
    assert (reply.status, reply.body) == (200, before + OVERLOADED + end)
    assert {entry["limit_reason"] for entry in state["backends"].values()} == {"saturated"}


@pytest.mark.parametrize("kind", ["openai", "vllm", "gguf"])
async def test_bug_007_comment_lines_stay_what_they_are(lane: Lane, kind: str) -> None:
    comments = b": PROCESSING\n\n" * 2
    script = playing(chunk(comments), chunk(event(1)), chunk(DONE), LAST_CHUNK, pause_s=0.02)
    async with lane.facing(script, kind=kind) as stage:
        client = await stage.client()
        await streamed(client)
        reply = await client.reply()
    assert (reply.body, reply.clean) == (comments + event(1) + DONE, True)


async def test_bug_009_a_pause_within_an_event_adds_nothing_and_cuts_nothing(lane: Lane) -> None:
    whole = event("long")
    half = len(whole) // 2

    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(SSE_HEAD, chunk(whole[:half]))
        await asyncio.sleep(20 * SECOND)
        await peer.send(chunk(whole[half:]), LAST_CHUNK)

    environ = {
        "LIFEBOAT_UPSTREAM_IDLE_TIMEOUT_SEC": str(30 * SECOND),
        # Waiting for the backend is no slowness of the client.
        "LIFEBOAT_CLIENT_WRITE_TIMEOUT_SEC": str(5 * SECOND),
        "LIFEBOAT_CLIENT_KEEPALIVE_SEC": str(5 * SECOND),
    }
    async with lane.facing(script, environ=environ) as stage:
        client = await stage.client()
        client.patience_s += 20 * SECOND
        await streamed(client)
        reply = await client.reply()
    assert (reply.body, reply.clean) == (whole, True)


async def test_bug_009_a_silence_beyond_the_idle_timeout_is_a_cut(lane: Lane) -> None:
    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(SSE_HEAD, chunk(event(1)))
        await peer.watch()

    environ = {"LIFEBOAT_UPSTREAM_IDLE_TIMEOUT_SEC": str(3 * SECOND)}
    async with lane.facing(script, environ=environ) as stage:
        client = await stage.client()
        await streamed(client)
        await client.head()
        assert await everything(client) == chunk(event(1)), "a last chunk would be a clean end"
        await stage.running.settle()


@pytest.mark.parametrize("last", [DONE, b"data:[DONE]\r\n\r\n", event("no marker"), b""])
async def test_bug_010_the_end_marker_passes_and_is_never_invented(lane: Lane, last: bytes) -> None:
    final = (chunk(last) if last else b"") + LAST_CHUNK
    async with lane.facing(playing(chunk(event(1)), final)) as stage:
        client = await stage.client()
        await streamed(client)
        reply = await client.reply()
    assert (reply.body, reply.clean) == (event(1) + last, True)


@pytest.mark.parametrize("accept", [b"gzip", b"gzip, deflate, br, zstd", None])
async def test_bug_012_a_compressed_answer_keeps_its_bytes_and_its_headers(
    lane: Lane, accept: bytes | None
) -> None:
    packed = gzip.compress(b'{"object": "chat.completion"}')

    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(answer(packed, b"200 OK", b"Content-Encoding: gzip", b"Vary: *"))

    async with lane.facing(script) as stage:
        client = await stage.client()
        sent = () if accept is None else (b"Accept-Encoding: " + accept,)
        await client.post(CHAT, chat(), *sent)
        reply = await client.reply()
    assert stage.asked[0].values(b"accept-encoding") == ([] if accept is None else [accept])
    assert reply.body == packed
    assert reply.values(b"content-encoding") == [b"gzip"]
    assert reply.values(b"content-length") == [b"%d" % len(packed)]


async def test_bug_013_events_of_a_compressed_stream_are_readable_as_they_come(
    lane: Lane,
) -> None:
    seen: asyncio.Queue[None] = asyncio.Queue()
    packer = zlib.compressobj(wbits=31)

    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(SSE_HEAD[:-2] + b"Content-Encoding: gzip\r\n\r\n")
        for number in range(3):
            await peer.chunk(packer.compress(event(number)) + packer.flush(zlib.Z_SYNC_FLUSH))
            await seen.get()
        await peer.chunk(packer.flush())
        await peer.send(LAST_CHUNK)

    unpacker = zlib.decompressobj(wbits=31)
    async with lane.facing(script, kind="vllm") as stage:
        client = await stage.client()
        await streamed(client, b"Accept-Encoding: gzip")
        _, headers = await client.head()
        assert (b"Content-Encoding", b"gzip") in headers
        for number in range(3):
            assert unpacker.decompress(await read_chunk(client)) == event(number)
            seen.put_nowait(None)


async def test_bug_015_only_hop_by_hop_headers_differ_from_a_direct_answer(lane: Lane) -> None:
    packed = gzip.compress(b"{}")
    own = (
        b"Content-Encoding: gzip", b"X-Upstream-Encoding: gzip", b'ETag: "abc"', b"Server: x",
        b"Date: Mon, 30 Nov 2026 00:00:00 GMT", b"Vary: Accept-Encoding", b"x-LOWER-Case: \xe9",
        b"Access-Control-Allow-Origin: *", b"Keep-Alive: timeout=5", b"Connection: keep-alive",
    )  # fmt: skip

    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(answer(packed, b"200 OK", *own))

    async with lane.facing(script) as stage:
        client = await stage.client()
        direct = await RawClient.connect(stage.engine.port)
        for who in (client, direct):
            await who.post(CHAT, chat(), b"X-Request-ID: 1")
        through, straight = await client.reply(), await direct.reply()
        direct.close()
    hop_by_hop = {b"keep-alive", b"connection"}
    expected = [header for header in straight.headers if header[0].lower() not in hop_by_hop]
    ours = [header for header in through.headers if header not in expected]
    assert [header for header in through.headers if header in expected] == expected
    assert {name for name, _ in ours} == {
        b"X-Lifeboat-Wait-ms", b"X-Lifeboat-Backend", b"X-Lifeboat-Attempts", b"X-Request-ID",
    }  # fmt: skip


async def test_bug_016_the_pauses_of_a_stream_are_the_backends(lane: Lane) -> None:
    loop = asyncio.get_running_loop()
    pauses_s = [gap * SECOND for gap in (1, 3, 2, 5, 2, 4)]
    sent: list[float] = []

    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(SSE_HEAD)
        for number, pause_s in enumerate((0.0, *pauses_s)):
            await asyncio.sleep(pause_s)
            sent.append(loop.time())
            await peer.chunk(event(number))
        await peer.send(LAST_CHUNK)

    async def listened() -> list[float]:
        seen: list[float] = []
        client = await stage.client()
        await streamed(client)
        await client.head()
        for _ in range(len(pauses_s) + 1):
            await read_chunk(client)
            seen.append(loop.time())
        return seen

    def preserved(seen: list[float]) -> set[int]:
        """Return which of the pauses were the same on both sides."""
        gaps = enumerate(zip(pairwise(sent), pairwise(seen), strict=True))
        return {
            number
            for number, ((before, after), (soon, later)) in gaps
            if abs((later - soon) - (after - before)) < 0.2 * (after - before) + 0.005
        }

    left = set(range(len(pauses_s)))
    async with lane.facing(script) as stage:
        for _ in range(10):
            sent.clear()
            left -= preserved(await listened())
            if not left:
                return
            # A busy machine wakes tasks late; what is held back or joined is so every time.
    raise AssertionError(f"ten streams, and none had the pauses {left} of its backend")


async def test_bug_016_a_stream_is_never_made_from_a_finished_answer(lane: Lane) -> None:
    """Nor the other way round: each is what the backend made of it."""

    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(answer({"whole": True}))

    async with lane.facing(script) as stage:
        client = await stage.client()
        await streamed(client)
        reply = await client.reply()
    assert reply.body == b'{"whole": true}'
    assert reply.values(b"content-type") == [b"application/json"]
