"""Nonsense on every proxied path: a JSON 400, or byte for byte through; never a 500, never text."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lifeboat.core.vocabulary import Capability
from lifeboat.edge.endpoints import ENDPOINTS, BodyKind, Endpoint, ModelRule
from tests.acceptance.engines import HeldEngine
from tests.peers import RawClient, Reply
from tests.running import CHAT, Running, backend, backends_yaml, running_router

M = b'"model": "m"'
DEEP = 50_000

REFUSED: dict[str, bytes] = {
    "empty": b"",
    "blank": b"  \n ",
    "not JSON": b"model=m&prompt=hello",
    "XML": b'<?xml version="1.0"?><model>m</model>',
    "an array": b'[{"model": "m"}]',
    "a string": b'"model"',
    "a number": b"7",
    "null": b"null",
    "true": b"true",
    "NaN alone": b"NaN",
    "an integer model": b'{"model": 7}',
    "a float model": b'{"model": 1e999}',
    "a boolean model": b'{"model": true}',
    "an array model": b'{"model": ["m"]}',
    "an object model": b'{"model": {"id": "m"}}',
    "truncated": b'{"model": "m", "messages": [{"role": "us',
    "truncated in an escape": b'{"model": "m", "x": "\\u12',
    "a trailing comma": b'{"model": "m",}',
    "two documents": b'{"model": "m"} {"model": "m"}',
    "trailing garbage": b'{"model": "m"}}',
    "single quotes": b"{'model': 'm'}",
    "deep arrays": b'{"model": "m", "x": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep objects": b'{"model": "m", "x": ' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
    "deep, never closed": b"[" * DEEP,
    "deep objects, never closed": b'{"model": "m", "x": ' + b'{"a":' * DEEP,
    "UTF-16": '{"model": "m"}'.encode("utf-16"),
    "UTF-32": '{"model": "m"}'.encode("utf-32-le"),
    "broken UTF-8 in a name": b'{"mod\xff\xfeel": "m"}',
    "nulls": b"\x00" * 64,
}
"""Always a JSON 400."""

EITHER: dict[str, bytes] = {
    "lone surrogates": b"{" + M + b', "x": "\\ud800 \\udfff"}',
    "a surrogate for a model": b'{"model": "\\ud800"}',
    "5,000 digits": b"{" + M + b', "x": ' + b"9" * 5000 + b"}",
    "a 5,000-digit exponent": b"{" + M + b', "x": 1e' + b"9" * 5000 + b"}",
    "5,000 decimals": b"{" + M + b', "x": 0.' + b"3" * 5000 + b"}",
    "NaN": b"{" + M + b', "temperature": NaN}',
    "Infinity": b"{" + M + b', "temperature": [Infinity, -Infinity]}',
    "duplicate keys": b'{"model": "x", "messages": [], "model": "m", "messages": 7}',
    "a BOM": b"\xef\xbb\xbf{" + M + b"}",
    "broken UTF-8 in a string": b"{" + M + b', "x": "\xff\xfe"}',
    "raw control characters": b"{" + M + b', "x": "\x01\t\n"}',
    "a null byte in the model": b'{"model": "m\\u0000"}',
    "a model with line ends": b'{"model": "m\\r\\nX-Evil: 1"}',
    "an endless model name": b'{"model": "' + b"m" * 100_000 + b'"}',
    "an empty model": b'{"model": ""}',
    "a null model": b'{"model": null}',
    "no model": b"{}",
    "wrong types everywhere": (
        b"{" + M + b', "messages": 7, "prompt": {"a": [null]}, "input": true, "tools": "x", '
        b'"system": [[]], "query": [], "documents": {}, "stream": "yes", "store": [], '
        b'"instructions": 1, "content": false, "text_1": {}, "text_2": null}'
    ),
    "nulls everywhere": (
        b"{" + M + b', "messages": null, "prompt": null, "input": null, "tools": null, '
        b'"system": null, "query": null, "documents": null}'
    ),
    "strange members": (
        b"{" + M + b', "messages": [null, 7, [], "x", {}, {"content": {}}, '
        b'{"content": [null, 1, [], {"type": 5}, {"type": "image_url", "image_url": 3}]}, '
        b'{"tool_calls": {"a": 1}}], "input": [null, {}, [[[1]]]], "prompt": [[], [null], {}], '
        b'"tools": [1, null, {"function": []}], "documents": [null, {"text": 1}]}'
    ),
    "many keys": b"{" + M + b"".join(b', "k%d": %d' % (i, i) for i in range(10_000)) + b"}",
}
"""A JSON refusal, or byte for byte to the backend."""


@dataclass
class World:
    running: Running
    engine: HeldEngine


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nonsense")


@pytest.fixture
async def world(worlds: Path) -> AsyncIterator[World]:
    """A router whose one backend does everything, so that what is let through arrives."""
    everything = [capability.value for capability in Capability]
    async with HeldEngine(hold_s=0.0) as engine:
        yaml = backends_yaml(backend(engine.url, serves=everything))
        async with running_router(yaml, worlds) as running:
            yield World(running, engine)
            alive = await running.ask()
            assert alive.status == 200
            state = await running.settle()
            assert state["parked_bytes"] == 0


def reads_json(endpoint: Endpoint) -> bool:
    return endpoint.protocol is not None and endpoint.body is not BodyKind.MULTIPART


JSON_PATHS = [row for row in ENDPOINTS if reads_json(row) and row.model is not ModelRule.BY_ID]


async def check(world: World, path: str, name: str, body: bytes, reply: Reply) -> int:
    """Check an answer's form, and that a body which went through is the one that was sent."""
    where = f"{path}: {name}: {reply.first_line!r} {reply.body[:200]!r}"
    assert reply.status != 500, where
    assert reply.clean, where
    assert reply.values(b"content-type")[0].startswith(b"application/json"), where
    if reply.status == 200:
        assert world.engine.asked[-1].body == body, where
    else:
        error = json.loads(reply.body)["error"]
        assert error["message"] and error["type"], where
        assert len(reply.body) < 10_000, where
    return reply.status


@pytest.mark.parametrize("endpoint", JSON_PATHS, ids=lambda row: row.path)
async def test_nonsense_in_a_body(world: World, endpoint: Endpoint) -> None:
    client = await RawClient.connect(world.running.port)
    before = len(world.engine.asked)
    for name, body in REFUSED.items():
        await client.post(endpoint.path, body, b"Content-Type: application/json")
        reply = await client.reply()
        assert await check(world, endpoint.path, name, body, reply) == 400, (name, reply.body)
        assert reply.values(b"x-should-retry") == [b"false"]
        assert reply.values(b"x-lifeboat-reject-reason") == [b"invalid_request"]
    assert len(world.engine.asked) == before
    statuses = {}
    for name, body in EITHER.items():
        await client.post(endpoint.path, body, b"Content-Type: application/json")
        statuses[name] = await check(world, endpoint.path, name, body, await client.reply())
    assert set(statuses.values()) <= {200, 400, 503}
    for name in ("duplicate keys", "a BOM", "lone surrogates", "strange members", "many keys"):
        assert statuses[name] == 200, (name, statuses)
    assert statuses["no model"] == (400 if endpoint.model_required else 200)
    client.close()


@pytest.mark.parametrize(
    "content_type",
    [
        b"text/plain",
        b"application/x-www-form-urlencoded",
        b"multipart/form-data; boundary=x",
        b"application/octet-stream",
        b"application/json; charset=utf-16",
        b"application/json; charset=nonsense",
        b"\xff\xfe",
        b"",
    ],
)
async def test_a_wrong_content_type_is_no_reason_to_fail(world: World, content_type: bytes) -> None:
    """curl -d sends JSON as a form: what parses as JSON is taken as JSON, and passes untouched."""
    body = b'{"model": "m", "messages": []}'
    client = await RawClient.connect(world.running.port)
    await client.post(CHAT, body, b"Content-Type: " + content_type)
    reply = await client.reply()
    client.close()
    assert await check(world, CHAT, repr(content_type), body, reply) in (200, 400)
    if reply.status == 200:
        assert world.engine.asked[-1].values(b"content-type") == [content_type]


MULTIPART_PATHS = [
    row.path for row in ENDPOINTS if row.body in (BodyKind.MULTIPART, BodyKind.EITHER)
]
FORM = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'
FILE = (
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n'
    b"Content-Type: audio/wav\r\n\r\n\x00\xff\r\n--y\r\n\r\n"
)


@pytest.mark.parametrize("path", MULTIPART_PATHS)
async def test_nonsense_in_an_upload(world: World, path: str) -> None:
    good = {"model first": FORM + FILE + b"--x--\r\n", "model last": FILE + FORM + b"--x--\r\n"}
    bad = {
        "empty": b"",
        "no boundary line": b"hello",
        "never ends": FORM + FILE,
        "headers never end": b"--x\r\nContent-Disposition: form-data",
        "broken disposition": b"--x\r\nContent-Disposition: \xff\r\n\r\nm\r\n--x--\r\n",
        "many parts": FORM * 5000 + b"--x--\r\n",
        "binary": bytes(range(256)) * 40,
        "nested": b"--x\r\nContent-Type: multipart/mixed; boundary=x\r\n\r\n" + FORM + b"--x--\r\n",
    }
    client = await RawClient.connect(world.running.port)
    header = b"Content-Type: multipart/form-data; boundary=x"
    for name, body in good.items():
        await client.post(path, body, header)
        assert await check(world, path, name, body, await client.reply()) == 200
    for name, body in bad.items():
        await client.post(path, body, header)
        assert await check(world, path, name, body, await client.reply()) in (200, 400)
    for broken in (
        b"multipart/form-data",
        b"multipart/form-data; boundary=",
        b'multipart/form-data; boundary="' + b"x" * 5000 + b'"',
        b"multipart/form-data; boundary=\xff",
        b"text/plain",
    ):
        await client.post(path, FORM + b"--x--\r\n", b"Content-Type: " + broken)
        assert await check(world, path, repr(broken), b"", await client.reply()) == 400
    client.close()


async def test_compressed_bodies_arrive_as_they_came_and_broken_ones_are_refused(
    world: World,
) -> None:
    plain = b'{"model": "m", "messages": []}'
    client = await RawClient.connect(world.running.port)
    packed = gzip.compress(plain)
    await client.post(CHAT, packed, b"Content-Encoding: gzip")
    reply = await client.reply()
    assert await check(world, CHAT, "gzip", packed, reply) == 200
    assert world.engine.asked[-1].values(b"content-encoding") == [b"gzip"]
    bomb = gzip.compress(b'{"model": "m", "x": "' + b"x" * (80 << 20) + b'"}')
    bad = {
        "not gzip": (b"gzip", plain),
        "cut": (b"gzip", packed[:-9]),
        "unknown": (b"snappy", plain),
        "many layers": (b", ".join([b"gzip"] * 50), packed),
        "a bomb": (b"gzip", bomb),
        "brotli that is none": (b"br", plain),
    }
    for name, (encoding, body) in bad.items():
        await client.post(CHAT, body, b"Content-Encoding: " + encoding)
        status = await check(world, CHAT, name, body, await client.reply())
        assert status in (400, 413), name
    client.close()


async def test_chunked_bodies_arrive_whole_and_broken_ones_are_refused(world: World) -> None:
    plain = b'{"model": "m", "messages": []}'
    client = await RawClient.connect(world.running.port)
    start = b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % CHAT.encode()
    await client.send(start + b"5;ext=1\r\n" + plain[:5] + b"\r\n")
    await asyncio.sleep(0.05)
    await client.send(b"%x\r\n" % (len(plain) - 5) + plain[5:] + b"\r\n0\r\nX-Trailer: 1\r\n\r\n")
    assert await check(world, CHAT, "chunked", plain, await client.reply()) == 200
    client.close()
    for broken in (b"zz\r\n{}\r\n0\r\n\r\n", b"-1\r\n", b"5\r\n{}", b"ffffffffffffffffff\r\n"):
        client = await RawClient.connect(world.running.port)
        await client.send(start + broken)
        client.writer.write_eof()
        reply = await client_reply_or_none(client)
        if reply is not None:
            assert await check(world, CHAT, repr(broken), b"", reply) == 400
        client.close()


async def client_reply_or_none(client: RawClient) -> Reply | None:
    """A cut body may also just end the connection: there is nobody to answer."""
    try:
        return await client.reply()
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


@pytest.mark.parametrize(
    ("line", "status", "allow"),
    [
        (b"GET /v1/chat/completions HTTP/1.1", 405, [b"POST"]),
        (b"DELETE /v1/embeddings HTTP/1.1", 405, [b"POST"]),
        (b"POST /health HTTP/1.1", 405, [b"GET, HEAD"]),
        (b"PUT /metrics HTTP/1.1", 405, [b"GET, HEAD"]),
        (b"DELETE /v1/models HTTP/1.1", 405, [b"GET, HEAD"]),
        (b"POST /api/lb/state HTTP/1.1", 405, [b"GET, HEAD"]),
        (b"DELETE /api/lb/mode HTTP/1.1", 405, [b"GET, HEAD, PUT"]),
        (b"PUT /api/lb/backends/a HTTP/1.1", 405, [b"DELETE, PATCH"]),
        (b"OPTIONS /v1/chat/completions HTTP/1.1", 405, [b"POST"]),
        (b"GET /nothing HTTP/1.1", 404, []),
        (b"GET /v1 HTTP/1.1", 404, []),
        (b"POST /v1/chat/completions/ HTTP/1.1", 404, []),
        (b"POST //v1/chat/completions HTTP/1.1", 404, []),
        (b"POST /v1/chat%2Fcompletions HTTP/1.1", 404, []),
        (b"POST /v1/./chat/completions HTTP/1.1", 404, []),
        (b"POST /v1/x/../chat/completions HTTP/1.1", 404, []),
        (b"POST /V1/CHAT/COMPLETIONS HTTP/1.1", 404, []),
        (b"POST /%76%31/chat/completions HTTP/1.1", 404, []),
        (b"GET /v1/responses/resp_1 HTTP/1.1", 404, []),
        (b"GET /v1/responses/.. HTTP/1.1", 404, []),
        (b"GET /v1/responses/%2e%2e HTTP/1.1", 404, []),
        (b"GET /v1/videos/a//b HTTP/1.1", 404, []),
        (b"GET /v1/models/nobody HTTP/1.1", 404, []),
        (b"GET /v1/models/ HTTP/1.1", 404, []),
        (b"GET /v1/models/%ff%fe HTTP/1.1", 404, []),
        (b"GET /%ff%00%zz HTTP/1.1", 404, []),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1", 404, []),
        (b"DELETE /api/lb/backends/nobody HTTP/1.1", 404, []),
    ],
    ids=lambda value: repr(value)[:60],
)
async def test_wrong_methods_and_unknown_paths_are_told_in_json(
    world: World, line: bytes, status: int, allow: list[bytes]
) -> None:
    client = await RawClient.connect(world.running.port)
    await client.send(line + b"\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n\r\n{}")
    reply = await client.reply()
    client.close()
    assert (reply.status, reply.values(b"allow")) == (status, allow)
    assert reply.values(b"content-type")[0].startswith(b"application/json")
    assert json.loads(reply.body)["error"]["message"]
    assert not world.engine.asked


@pytest.mark.parametrize(
    "raw",
    [
        (
            b"POST http://example.com/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2"
            b"\r\n\r\n{}"
        ),
        b"CONNECT example.com:443 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
        b"GET /nothing\r\n\r\n",
        b"BREW /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nBad Header: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n: 1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: abc\r\n\r\n",
        (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
            b"Content-Length: 2\r\nContent-Length: 3\r\n"
            b"\r\n{}"
        ),
        (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        ),
        b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
        b"GET /\x00\x01 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=lambda raw: repr(raw)[:50],
)
async def test_broken_http_is_told_in_json(world: World, raw: bytes) -> None:
    client = await RawClient.connect(world.running.port)
    await client.send(raw)
    reply = await client_reply_or_none(client)
    client.close()
    assert not world.engine.asked
    assert reply is not None, "the connection just closed"
    assert reply.status in (400, 404, 405, 426, 431, 505), reply.first_line
    assert reply.values(b"content-type")[0].startswith(b"application/json")
    assert json.loads(reply.body)["error"]["message"]


async def test_a_body_that_stops_is_refused_after_the_body_timeout(tmp_path: Path) -> None:
    async with HeldEngine(hold_s=0.0) as engine:
        yaml = backends_yaml(backend(engine.url))
        environ = {"LIFEBOAT_CLIENT_BODY_TIMEOUT_SEC": "0.3"}
        async with running_router(yaml, tmp_path, environ) as running:
            client = await RawClient.connect(running.port)
            await client.send(
                b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"mo'
            )
            reply = await client.reply()
            client.close()
            assert reply.status == 400
            assert b"LIFEBOAT_CLIENT_BODY_TIMEOUT_SEC" in reply.body
            assert (await running.state())["parked_bytes"] == 0
        assert not engine.asked
