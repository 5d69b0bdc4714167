"""The limits on heads and bodies that docs/how-to/secure-it.md names, over raw sockets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance.engines import HeldEngine
from tests.peers import RawClient
from tests.running import CHAT, backend, backends_yaml, chat_body, running_router

BODY = json.dumps(chat_body()).encode()
KIB = 1024


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ((b"X-Long: " + b"a" * 60 * KIB,), 200),
        ((b"X-Long: " + b"a" * 66 * KIB,), 400),
        (tuple(b"X-%d: a" % number for number in range(100)), 200),
        # 75 KiB of them; a plain head of up to 64 KiB may have any number.
        (tuple(b"X-%d: %b" % (number, b"a" * 512) for number in range(150)), 400),
        ((b"X-Null: a\x00b",), 400),
        ((b"Content-Length: 3",), 400),
        ((b"Transfer-Encoding: chunked",), 400),
    ],
    ids=["a long header", "too long a one", "many", "too many", "a NUL", "two lengths", "both"],
)
@pytest.mark.parametrize("lane", ["true", "false"], ids=["fast lane", "aiohttp"])
async def test_heads_are_bounded_and_must_be_clear(
    tmp_path: Path, headers: tuple[bytes, ...], status: int, lane: str
) -> None:
    async with HeldEngine(hold_s=0.0) as engine:
        yaml = backends_yaml(backend(engine.url))
        async with running_router(yaml, tmp_path, {"LIFEBOAT_FAST_LANE": lane}) as running:
            client = await RawClient.connect(running.port)
            await client.post(CHAT, BODY, *headers)
            reply = await client.reply()
            client.close()
            assert reply.status == status, reply.body
            assert len(engine.asked) == (1 if status == 200 else 0)


@pytest.mark.parametrize(("size", "status"), [(60 * KIB, 404), (66 * KIB, 400)])
async def test_request_lines_are_bounded(tmp_path: Path, size: int, status: int) -> None:
    async with running_router(backends_yaml(backend("http://127.0.0.1:9")), tmp_path) as running:
        client = await RawClient.connect(running.port)
        await client.post("/" + "a" * size)
        assert (await client.reply()).status == status
        client.close()


@pytest.mark.parametrize("told_in_advance", [True, False])
async def test_bodies_are_bounded_whether_or_not_their_length_is_told(
    tmp_path: Path, told_in_advance: bool
) -> None:
    environ = {"LIFEBOAT_MAX_BODY_BYTES": str(100 * KIB)}
    async with HeldEngine(hold_s=0.0) as engine:
        yaml = backends_yaml(backend(engine.url))
        async with running_router(yaml, tmp_path, environ) as running:
            client = await RawClient.connect(running.port)
            if told_in_advance:
                # Refused by its length: nothing of the body is waited for.
                await client.send(
                    b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
                    % (CHAT.encode(), 100 * KIB + 1)
                )
            else:
                await client.send(
                    b"POST %b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n"
                    % (CHAT.encode(), 101 * KIB, b" " * 101 * KIB)
                )
            reply = await client.reply()
            client.close()
            assert reply.status == 413
            assert json.loads(reply.body)["error"]["code"] == "body_too_large"
            assert not engine.asked
