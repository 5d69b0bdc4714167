"""Request bodies: every one is routed by what it says, forwarded as it came, or refused in JSON."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import zlib
from collections.abc import Callable

import pytest
import zstandard

from tests.conformance.lanes import Lane, Stage, chat, everything, says_hello
from tests.intake.slicing import without_collections
from tests.peers import Reply
from tests.running import CHAT

JSON = b"Content-Type: application/json"


async def refused(
    stage: Stage, body: bytes, *headers: bytes, path: str = CHAT, status: int = 400
) -> dict:
    """Send a body that must be refused; nothing reaches a backend. Returns the error object."""
    before = len(stage.asked)
    client = await stage.client()
    await client.post(path, body, JSON, *headers)
    reply = await client.reply()
    assert reply.status == status, reply
    assert reply.values(b"content-type") == [b"application/json; charset=utf-8"]
    error = json.loads(reply.body)["error"]
    assert error["message"]
    assert len(stage.asked) == before
    assert (await stage.running.state())["inflight"] == {"a": 0}
    return error


async def forwarded(stage: Stage, body: bytes, *headers: bytes, path: str = CHAT) -> Reply:
    """Send a body that must be served, and reach the backend byte for byte."""
    client = await stage.client()
    await client.post(path, body, JSON, *headers)
    reply = await client.reply()
    assert reply.status == 200, reply
    assert stage.asked[-1].body == body
    return reply


@pytest.mark.parametrize("size", [1_300_000, 5_000_000, 60_000_000])
async def test_bug_051_a_long_chat_is_accepted_up_to_the_documented_cap(
    lane: Lane, size: int
) -> None:
    async with lane.facing(says_hello) as stage:
        await forwarded(stage, chat("x" * size))


async def test_bug_051_bug_052_a_body_over_the_cap_is_a_json_413_of_its_own_kind(
    lane: Lane,
) -> None:
    environ = {"LIFEBOAT_MAX_BODY_BYTES": "100000"}
    async with lane.facing(says_hello, environ=environ, max_input_tokens=100) as stage:
        error = await refused(stage, chat("x" * 100_000), status=413)
        assert (error["code"], error["type"]) == ("body_too_large", "invalid_request_error")
        assert "LIFEBOAT_MAX_BODY_BYTES" in error["message"]
        assert "100000" in error["message"]
        too_long = await refused(stage, chat("word " * 10_000), status=413)
        assert too_long["code"] == "request_too_large"
        # Chunked, the size is only known when it is passed.
        client = await stage.client()
        await client.send(chunked_post(chat("x" * 300_000)))
        reply = await client.reply()
        assert (reply.status, json.loads(reply.body)["error"]["code"]) == (413, "body_too_large")
        assert await stage.rejected("body_too_large") == 2
        page = (await stage.running.ask("/api/lb/rejections", method="GET")).json
        row = next(row for row in page["rejections"] if row["reason"] == "body_too_large")
        assert row["count"] == 2


def chunked_post(body: bytes, *headers: bytes, path: str = CHAT, piece: int = 1000) -> bytes:
    lines = [b"POST %b HTTP/1.1" % path.encode(), b"Host: x", JSON, *headers]
    lines.append(b"Transfer-Encoding: chunked")
    out = b"\r\n".join(lines) + b"\r\n\r\n"
    for at in range(0, len(body), piece):
        part = body[at : at + piece]
        out += b"%x\r\n%b\r\n" % (len(part), part)
    return out + b"0\r\n\r\n"


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "zstd": lambda body: zstandard.ZstdCompressor().compress(body),
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "gzip, zstd": lambda body: zstandard.ZstdCompressor().compress(gzip.compress(body)),
    "ZSTD": lambda body: zstandard.ZstdCompressor().compress(body),
}


@pytest.mark.parametrize("encoding", list(PACKERS))
async def test_bug_054_a_compressed_body_is_read_for_routing_and_forwarded_as_it_came(
    lane: Lane, encoding: str
) -> None:
    body = PACKERS[encoding](json.dumps({"model": "m", "input": "hi", "prompt": "hi"}).encode())
    header = b"Content-Encoding: " + encoding.encode()
    async with lane.facing(says_hello) as stage:
        for path in ("/v1/responses", CHAT, "/v1/completions"):
            await forwarded(stage, body, header, path=path)
            assert stage.asked[-1].values(b"content-encoding") == [encoding.encode()]
            assert stage.asked[-1].values(b"content-length") == [b"%d" % len(body)]


@pytest.mark.parametrize("encoding", ["br", "compress", "snappy", "zstd", "gzip", "deflate", "x"])
async def test_bug_054_what_cannot_be_decoded_is_refused_in_json(lane: Lane, encoding: str) -> None:
    async with lane.facing(says_hello) as stage:
        header = b"Content-Encoding: " + encoding.encode()
        error = await refused(stage, b"\xff\xfe{} not it", header)
        assert error["code"] == "invalid_request"
        assert encoding in error["message"]
        if encoding in PACKERS:
            await refused(stage, PACKERS[encoding](chat())[:-6], header)


def raw_zstd_frame(content: bytes) -> bytes:
    """A frame of one uncompressed block (RFC 8878): its content stands there to be read."""
    head = bytes.fromhex("28b52ffd") + bytes([0b1010_0000]) + len(content).to_bytes(4, "little")
    block = (len(content) << 3 | 1).to_bytes(3, "little")
    return head + block + content


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/embeddings", "/tokenize"])
async def test_bug_055_nothing_is_routed_by_a_name_found_in_binary(lane: Lane, path: str) -> None:
    visible = raw_zstd_frame(b'{"model":"m","messages":[{"role":"user","content":"hi"}]}')
    assert zstandard.ZstdDecompressor().decompress(visible)[:1] == b"{"
    async with lane.facing(says_hello, serves=["generate", "embed"]) as stage:
        for body in (visible, gzip.compress(visible), b"\xff" + chat(), chat() + b"\x00junk"):
            error = await refused(stage, body, path=path)
            assert error["code"] == "invalid_request"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd", "gzip, gzip"])
async def test_bug_057_a_bomb_is_refused_before_it_is_inflated_and_blocks_nobody(
    lane: Lane, encoding: str
) -> None:
    zeros = bytes(200_000_000)
    body = {
        "gzip": lambda: gzip.compress(zeros),
        "deflate": lambda: zlib.compress(zeros),
        "zstd": lambda: zstandard.ZstdCompressor().compress(zeros),
        "gzip, gzip": lambda: gzip.compress(gzip.compress(zeros)),
    }[encoding]()
    loop = asyncio.get_running_loop()
    worst_s = 0.0

    async def feel_the_pulse() -> None:
        nonlocal worst_s
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.005)
            # Time of this thread: what other processes take from it is not ours.
            worst_s = max(worst_s, time.thread_time() - before)

    async with lane.facing(says_hello) as stage:
        with without_collections():
            pulse = loop.create_task(feel_the_pulse())
            coding = b"Content-Encoding: " + encoding.encode()
            error = await refused(stage, body, coding, status=413)
            pulse.cancel()
    assert error["code"] == "body_too_large"
    assert worst_s < 0.2


@pytest.mark.parametrize("expect", [b"100-continue", b"100-Continue"])
@pytest.mark.parametrize("version", [b"1.1"])
async def test_bug_058_expect_is_answered_by_the_router_and_goes_no_further(
    lane: Lane, expect: bytes, version: bytes
) -> None:
    body = chat()
    head = b"POST %b HTTP/%b\r\nHost: x\r\nExpect: %b\r\nContent-Length: %d\r\n\r\n"
    async with lane.facing(says_hello) as stage:
        client = await stage.client()
        await client.send(head % (CHAT.encode(), version, expect, len(body)))
        first, headers = await client.head()
        assert first.startswith(b"HTTP/1.1 100")
        assert headers == []
        await client.send(body)
        assert (await client.reply()).status == 200
    assert stage.asked[0].values(b"expect") == []
    assert stage.asked[0].body == body


async def test_bug_058_a_body_that_is_not_wanted_is_refused_instead_of_invited(
    lane: Lane,
) -> None:
    environ = {"LIFEBOAT_MAX_BODY_BYTES": "1000"}
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5000\r\n\r\n"
    async with lane.facing(says_hello, environ=environ) as stage:
        client = await stage.client()
        await client.send(head % CHAT.encode())
        first, _ = await client.head()
        assert first.startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_bug_058_no_other_expectation_is_answered(lane: Lane, version: bytes) -> None:
    """Nor that of an HTTP/1.0 client, which could not tell an interim answer from the answer."""
    body = chat()
    expect = b"100-continue" if version == b"1.0" else b"the-unexpected"
    head = b"POST %b HTTP/%b\r\nHost: x\r\nExpect: %b\r\nContent-Length: %d\r\n\r\n"
    async with lane.facing(says_hello) as stage:
        client = await stage.client()
        await client.send(head % (CHAT.encode(), version, expect, len(body)) + body)
        assert (await client.reply()).status == 200
        assert stage.asked[0].values(b"expect") == []


async def test_bug_058_a_body_that_is_there_already_needs_no_invitation(lane: Lane) -> None:
    async with lane.facing(says_hello) as stage:
        client = await stage.client()
        await client.post(CHAT, chat(), b"Expect: 100-continue")
        first, _ = await client.head()
        if first.startswith(b"HTTP/1.1 100"):
            first, _ = await client.head()
        assert first.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("piece", [1, 7, 1000])
async def test_bug_060_bug_061_a_chunked_body_goes_on_with_its_length(
    lane: Lane, piece: int
) -> None:
    body = chat("chunked " * 300)
    async with lane.facing(says_hello) as stage:
        client = await stage.client()
        await client.send(chunked_post(body, b"Trailer: X-Sum", piece=piece))
        assert (await client.reply()).status == 200
        # With extensions and trailers, as some clients sign their chunks.
        raw = b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % CHAT.encode()
        raw += b"%x;sig=1\r\n%b\r\n0\r\nX-Sum: 1\r\n\r\n" % (len(body), body)
        await client.send(raw)
        assert (await client.reply()).status == 200
    for asked in stage.asked:
        assert asked.body == body
        assert asked.values(b"content-length") == [b"%d" % len(body)]
        assert asked.values(b"transfer-encoding") == []
        assert asked.values(b"trailer") == []
        assert asked.values(b"x-sum") == []


def nested(depth: int, inner: bytes = b"") -> bytes:
    return b"[" * depth + inner + b"]" * depth


DEEP = 20_000


@pytest.mark.parametrize(
    "body",
    [
        nested(DEEP),
        b'{"a":' * DEEP + b"1" + b"}" * DEEP,
        b'{"model":"m","messages":[],"x":' + nested(DEEP) + b"}",
        b'{"x":' + nested(DEEP) + b',"model":"m","messages":[]}',
        b'{"model":"m","messages":' + nested(DEEP) + b"}",
        b'{"model":"m","messages":[{"role":"user","content":' + nested(DEEP) + b"}]}",
        b'{"model":' + nested(DEEP) + b"}",
        b"[" * 5_000_000,
        b'{"model":"m","x":"' + b"y" * 2_000_000 + b'","z":' + nested(DEEP) + b"}",
    ],
    ids=["bare", "objects", "ignored", "before", "messages", "content", "model", "open", "large"],
)
async def test_bug_063_bug_064_deep_nesting_is_refused_or_forwarded_and_never_a_fault(
    lane: Lane, body: bytes
) -> None:
    async with lane.facing(says_hello) as stage:
        client = await stage.client()
        await client.post(CHAT, body, JSON)
        reply = await client.reply()
        assert reply.status in (200, 400), reply
        if reply.status == 200:
            assert stage.asked[0].body == body
        else:
            assert json.loads(reply.body)["error"]["code"] == "invalid_request"
            assert stage.asked == []
        assert (await stage.running.ask()).status == 200, "the router lives"


@pytest.mark.parametrize(
    "content", [rb'"emoji \ud83d"', rb'"\udfff\ud800 x"', rb'"\ud83d\ude00 and \ud83d"']
)
@pytest.mark.parametrize("long", [False, True])
async def test_bug_066_a_lone_surrogate_is_sized_and_forwarded_as_it_came(
    lane: Lane, content: bytes, long: bool
) -> None:
    pad = b'"pad":"' + b"z" * 1_500_000 + b'",' if long else b""
    body = b'{%b"model":"m","messages":[{"role":"user","content":%b}]}' % (pad, content)
    async with lane.facing(says_hello, max_input_tokens=1_000_000) as stage:
        await forwarded(stage, body)


@pytest.mark.parametrize("name", [r"\ud800", r"m\udfff", r"\u0000", r"a\nb: c", r"m\u202e"])
async def test_bug_067_a_model_name_that_cannot_be_encoded_matches_nothing(
    lane: Lane, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with lane.facing(says_hello) as stage:
        body = b'{"model":"%b","messages":[]}' % name.encode()
        error = await refused(stage, body, status=503)
        assert error["code"] == "no_backends"
        async with stage.running.session.get(f"{stage.running.url}/metrics") as page:
            metrics = (await page.read()).decode("utf-8")
        await stage.running.state()
    assert 'lifeboat_lb_rejected_total{pool="unknown",reason="no_backends"} 1.0' in metrics or (
        'lifeboat_lb_rejected_total{reason="no_backends",pool="unknown"} 1.0' in metrics
    )
    assert "\\ud800" not in metrics
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"small","model":"big","messages":[]}',
        b'{"model":"small","messages":[{"model":"small"}],"model":"big"}',
        rb'{"model":"small","mod\u0065l":"big","messages":[]}',
    ],
)
async def test_bug_069_of_two_models_the_gate_reads_the_one_the_backend_reads(
    lane: Lane, body: bytes
) -> None:
    """The last one, as Python's json, orjson and nlohmann's json (llama.cpp) do."""
    assert json.loads(body)["model"] == "big"
    async with lane.facing(says_hello, says_hello) as stage:
        for name, model in (("a", "small"), ("b", "big")):
            await stage.running.admin("PATCH", f"backends/{name}", {"state": "maint"})
            url = stage.engines[0 if name == "a" else 1].url
            new = {"name": f"{name}2", "url": url, "models": [model], "kind": "openai"}
            await stage.running.admin("POST", "backends", new)
        client = await stage.client()
        await client.post(CHAT, body, JSON)
        assert (await client.reply()).status == 200
    assert [len(engine.asked) for engine in stage.engines] == [0, 1]
    assert stage.asked[0].body == body


BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    "path", [CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/completion", "/tokenize"]
)
async def test_bug_070_a_byte_order_mark_is_treated_alike_everywhere(lane: Lane, path: str) -> None:
    body = BOM + b'{"model":"m","prompt":"x","content":"x","messages":[],"input":"x"}'
    async with lane.facing(says_hello) as stage:
        await forwarded(stage, body, path=path)
        await refused(stage, BOM + BOM, path=path)
        for utf16 in ("utf-16", "utf-16-be", "utf-32"):
            await refused(stage, '{"model":"m"}'.encode(utf16), path=path)


ANY_SHAPE = [
    b'{"model":["a"],"messages":[]}', b'{"model":null,"messages":[]}', b'{"model":5}',
    b'{"model":{}}', b'{"model":true}', b'{"model":1.5}', b'{"model":[["m"]]}',
    b'{"messages":[]}', b"{}", b"[]", b"null", b'"x"', b"5", b"true", b"", b" ", b"\0", b"{",
    b'{"model":"m"', b'{"model":"m",}', b"{'model':'m'}", b'{"model":"m"}{"model":"m"}',
    b'{"model":NaN}', b'{"model":"m"} trailing', b"[" , b"NaN", b"undefined",
]  # fmt: skip


async def test_bug_072_a_body_of_any_shape_is_a_json_400(lane: Lane) -> None:
    async with lane.facing(says_hello) as stage:
        for body in ANY_SHAPE:
            for path in (CHAT, "/v1/messages", "/v1/responses"):
                error = await refused(stage, body, path=path)
                assert error["code"] == "invalid_request", (body, path)


async def test_bug_072_an_empty_name_matches_nothing(lane: Lane) -> None:
    async with lane.facing(says_hello) as stage:
        error = await refused(stage, b'{"model":"","messages":[]}', status=503)
        assert error["code"] == "no_backends"


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": 5}, {"messages": "x"}, {"messages": [5, None, "x", [], {}]},
        {"messages": [{"role": 5, "content": {"a": 1}}]}, {"messages": None, "prompt": {"x": []}},
        {"messages": [{"content": [{"type": 5}, 7, {"image_url": 3}, {"text": ["x"]}]}]},
        {"messages": {"role": "user"}, "tools": 5, "stream": "yes"}, {"input": [[["x"]]]},
        {"messages": [], "max_tokens": 10**400}, {"tools": [5], "messages": [{"tool_calls": 5}]},
    ],
)  # fmt: skip
async def test_bug_072_odd_fields_are_the_backends_to_judge(lane: Lane, fields: dict) -> None:
    async with lane.facing(says_hello, max_input_tokens=8000) as stage:
        for path in (CHAT, "/v1/completions", "/v1/responses", "/v1/messages"):
            await forwarded(stage, json.dumps({"model": "m", **fields}).encode(), path=path)


async def test_bug_073_a_truncated_body_takes_no_slot(lane: Lane) -> None:
    whole = chat("x" * 100)
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    async with lane.facing(says_hello) as stage:
        # Cut within the JSON, with a length that agrees.
        for cut in (1, 10, len(whole) // 2, len(whole) - 1):
            error = await refused(stage, whole[:cut])
            assert error["code"] == "invalid_request"
        # Less than the length says, then a half-close, a close and a reset.
        for leave in ("half", "close", "reset"):
            client = await stage.client()
            await client.send(head % (CHAT.encode(), len(whole)) + whole[:50])
            await asyncio.sleep(0.02)
            if leave == "half":
                client.writer.write_eof()
                # A half-closed client counts as gone (documented): 400 or just the end.
                said = await everything(client)
                assert said == b"" or said[8:13] == b" 400 ", said
            elif leave == "close":
                client.close()
            else:
                client.reset()
        state = await stage.running.until(lambda state: state["parked_bytes"] == 0)
        assert state["dispatch_counts"] == {"a": 0}
        assert stage.asked == []
        assert (await stage.running.ask()).status == 200


async def test_bug_073_a_broken_chunked_body_is_refused_and_takes_no_slot(lane: Lane) -> None:
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % CHAT.encode()
    async with lane.facing(says_hello) as stage:
        for broken in (b"zz\r\n{}\r\n0\r\n\r\n", b"-1\r\n\r\n", b"5\r\n{}\r\n0\r\n\r\n",
                       b"2\r\n{}XX0\r\n\r\n", b"fffffffffffffffff\r\n{}"):  # fmt: skip
            client = await stage.client()
            await client.send(head + broken)
            async with asyncio.timeout(5):
                said = await everything(client)
            assert said[8:13] == b" 400 ", (broken, said)
            assert b"application/json" in said
        state = await stage.running.settle()
    assert stage.asked == []
    assert state["dispatch_counts"] == {"a": 0}
