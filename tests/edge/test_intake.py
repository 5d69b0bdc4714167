"""Reading bodies: within bounds, refused before they are read, given back when they are done."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
from pathlib import Path

import pytest

from tests.acceptance.engines import HeldEngine
from tests.peers import Peer, RawClient, ScriptedBackend, until
from tests.running import CHAT, backend, backends_yaml, chat_body, running_router

MIB = 1 << 20


async def test_a_body_that_is_too_large_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    async with HeldEngine(hold_s=0.0) as engine:
        environ = {"LIFEBOAT_MAX_BODY_BYTES": "1000"}
        async with running_router(backends_yaml(backend(engine.url)), tmp_path, environ) as running:
            for extra in (b"", b"Expect: 100-continue\r\n"):
                client = await RawClient.connect(running.port)
                await client.send(
                    b"POST %b HTTP/1.1\r\nHost: x\r\n%bContent-Length: 1001\r\n\r\n"
                    % (CHAT.encode(), extra)
                )
                reply = await client.reply()
                assert reply.status == 413
                assert reply.values(b"x-lifeboat-reject-reason") == [b"body_too_large"]
                client.close()
            client = await RawClient.connect(running.port)
            await client.send(
                b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                % CHAT.encode()
                + b"400\r\n" + b" " * 1024 + b"\r\n"
            )  # fmt: skip
            assert (await client.reply()).status == 413
            client.close()
            fits = await running.ask(body=b'{"model": "m"}' + b" " * (1000 - 14))
            assert fits.status == 200
        assert len(engine.asked) == 1


@pytest.mark.parametrize("extra", [b"X-Lane: fast", b"TE: trailers"], ids=["lane", "aiohttp"])
@pytest.mark.parametrize(
    ("environ", "status"),
    [
        ({"LIFEBOAT_API_KEYS": "key"}, 401),
        ({"LIFEBOAT_MAX_BODY_BYTES": str(MIB)}, 413),
        ({"LIFEBOAT_LB_MAX_PARKED_BYTES": str(MIB)}, 503),
    ],
)
async def test_who_is_refused_while_still_sending_reads_the_answer(
    tmp_path: Path, environ: dict[str, str], status: int, extra: bytes
) -> None:
    """Closing on bytes that were not read resets the connection, and the answer is lost."""
    async with HeldEngine() as engine:
        async with running_router(backends_yaml(backend(engine.url)), tmp_path, environ) as running:
            for _ in range(5):
                client = await RawClient.connect(running.port)
                # As a plain client does: all of it first, then the answer.
                await client.post(CHAT, b" " * (8 * MIB), extra)
                assert (await client.reply()).status == status
                client.close()
            assert (await running.state())["parked_bytes"] == 0
        assert not engine.asked


async def test_a_refused_client_that_sends_on_for_ever_is_cut_off(tmp_path: Path) -> None:
    async with HeldEngine() as engine:
        environ = {"LIFEBOAT_API_KEYS": "key"}
        async with running_router(backends_yaml(backend(engine.url)), tmp_path, environ) as running:
            client = await RawClient.connect(running.port)
            await client.send(
                b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 50000000\r\n\r\n{" % CHAT.encode()
            )
            reply = await client.reply()
            assert (reply.status, reply.values(b"connection")) == (401, [b"close"])
            # It sends nothing more, and does not leave.
            async with asyncio.timeout(9.0):
                assert await client.reader.read() == b""
            client.close()


async def test_100_continue_is_said_once_the_body_is_wanted(tmp_path: Path) -> None:
    async with HeldEngine(hold_s=0.0) as engine:
        async with running_router(backends_yaml(backend(engine.url)), tmp_path) as running:
            client = await RawClient.connect(running.port)
            await client.send(
                b"POST %b HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 14\r\n\r\n"
                % CHAT.encode()
            )
            assert (await client.head())[0] == b"HTTP/1.1 100 Continue"
            await client.send(b'{"model": "m"}')
            assert (await client.reply()).status == 200
            client.close()
        assert not engine.asked[0].values(b"expect")


async def test_bodies_are_charged_until_the_answer_begins_and_no_longer(tmp_path: Path) -> None:
    async with HeldEngine() as engine:
        async with running_router(backends_yaml(backend(engine.url)), tmp_path) as running:
            body = chat_body("x" * MIB)
            async with asyncio.TaskGroup() as tasks:
                whole = tasks.create_task(running.ask(body=body))
                await until(lambda: len(engine.running) == 1)
                assert (await running.state())["parked_bytes"] > MIB
                streamed = tasks.create_task(running.ask(body={**body, "stream": True}))
                await until(lambda: len(engine.running) == 2)
                # Its head is out, so its body is gone; the other one's is still held.
                await running.until(lambda state: MIB < state["parked_bytes"] < 1.5 * MIB)
                engine.release_all()
            assert (whole.result().status, streamed.result().status) == (200, 200)
            assert (await running.settle())["parked_bytes"] == 0


async def test_a_body_is_out_of_memory_once_its_answer_began(tmp_path: Path) -> None:
    """Not off the books alone: a long stream would hold it all the while."""
    ended = asyncio.Event()

    async def streams(peer: Peer) -> None:
        (await peer.request()).body = b""
        await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await peer.chunk(b"data: x\n\n")
        await ended.wait()

    async with ScriptedBackend(streams) as engine:
        async with running_router(backends_yaml(backend(engine.url)), tmp_path) as running:
            client = await RawClient.connect(running.port)
            tracemalloc.start()
            try:
                await client.post(CHAT, b'{"model": "m"}' + b" " * (32 * MIB))
                await client.head()
                await until(lambda: tracemalloc.get_traced_memory()[0] < 16 * MIB)
            finally:
                tracemalloc.stop()
                ended.set()
                client.close()


async def test_a_body_that_was_unpacked_for_an_alias_is_charged_as_it_is_held(
    tmp_path: Path,
) -> None:
    async with HeldEngine() as engine:
        yaml = backends_yaml(backend(engine.url), models={"alias": {"alias_of": "m"}})
        async with running_router(yaml, tmp_path) as running:
            async with asyncio.TaskGroup() as tasks:
                for held, size in enumerate((1, 4 * MIB)):
                    body = b'{"model": "alias", "user": "%b"}' % (b"x" * size)
                    packed = gzip.compress(body)
                    headers = {"Content-Encoding": "gzip"}
                    before = (await running.state())["parked_bytes"]
                    tasks.create_task(running.ask(body=packed, headers=headers))
                    await until(lambda many=held + 1: len(engine.running) == many)
                    after = (await running.state())["parked_bytes"]
                    assert after - before == len(body) - len("alias") + len("m")
                engine.release_all()
            assert (await running.settle())["parked_bytes"] == 0


async def test_at_the_bound_of_bytes_only_the_pool_over_its_share_is_refused(
    tmp_path: Path,
) -> None:
    async with HeldEngine() as engine:
        yaml = backends_yaml(
            backend(engine.url, models=["hot", "calm"], max_concurrency=100),
            max_parked_bytes=4 * MIB,
        )
        async with running_router(yaml, tmp_path) as running:
            async with asyncio.TaskGroup() as tasks:
                large = chat_body("x" * MIB, model="hot")
                held = [tasks.create_task(running.ask(body=large)) for _ in range(3)]
                await until(lambda: len(engine.running) == 3)
                refused = await running.ask(body=large)
                assert (refused.status, refused.error["code"]) == (503, "queue_full")
                assert "LIFEBOAT_LB_MAX_PARKED_BYTES" in refused.error["message"]
                calm = chat_body("x" * (MIB // 4), model="calm")
                held.append(tasks.create_task(running.ask(body=calm)))
                await until(lambda: len(engine.running) == 4)
                engine.release_all()
            assert [ask.result().status for ask in held] == [200] * 4
            state = await running.settle()
            assert state["parked_bytes"] == 0
            assert state["reject_counts"]["queue_full"] == 1


async def test_a_client_that_leaves_within_its_body_leaves_no_bytes(tmp_path: Path) -> None:
    async with HeldEngine() as engine:
        async with running_router(backends_yaml(backend(engine.url)), tmp_path) as running:
            for leave in (RawClient.close, RawClient.reset):
                client = await RawClient.connect(running.port)
                await client.send(
                    b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n{"
                    % CHAT.encode()
                )
                await running.until(lambda state: state["parked_bytes"] == 1)
                leave(client)
                await running.until(lambda state: state["parked_bytes"] == 0)
            metrics = await running.metrics()
            assert metrics['lifeboat_lb_client_disconnects_total{stage="waiting"}'] == 2
        assert not engine.asked


async def test_without_a_model_the_only_pool_or_the_default_is_meant(tmp_path: Path) -> None:
    async with HeldEngine(hold_s=0.0) as a, HeldEngine(hold_s=0.0) as b:
        one = backends_yaml(backend(a.url, "a", models=["x"]))
        async with running_router(one, tmp_path) as running:
            for body in ({"prompt": "p"}, {"prompt": "p", "model": None}):
                answer = await running.ask("/completion", body)
                assert answer.status == 200
        two = (backend(a.url, "a", models=["x"]), backend(b.url, "b", models=["y"]))
        async with running_router(backends_yaml(*two), tmp_path) as running:
            refused = await running.ask("/completion", {"prompt": "p"})
            assert (refused.status, refused.error["code"]) == (400, "invalid_request")
            assert "x" in refused.error["message"] and "y" in refused.error["message"]
        marked = backends_yaml(*two, models={"y": {"default": True}})
        async with running_router(marked, tmp_path) as running:
            answer = await running.ask("/completion", {"prompt": "p"})
            assert answer.headers["X-Lifeboat-Backend"] == "b"


_CHUNKED = b"Transfer-Encoding: chunked"
_FORM = b"Content-Type: multipart/form-data"


@pytest.mark.parametrize("lane", [b"X-Lane: fast", b"TE: trailers"], ids=["lane", "aiohttp"])
@pytest.mark.parametrize(
    ("path", "header", "body", "advised"),
    [
        (CHAT, b"Content-Length: 9", b'{"m"', "without pauses, or raise LIFEBOAT_CLIENT_BODY_TIME"),
        (CHAT, _CHUNKED, b'4\r\n{"m"', "without pauses, or raise LIFEBOAT_CLIENT_BODY_TIMEOUT_SEC"),
        (CHAT, _CHUNKED, b"4\r\nabcdXX", "its chunks are not those of HTTP/1.1"),
        (CHAT, b"Content-Encoding: gzip\r\nContent-Length: 2", b"{}", "Send the body plain, or"),
        (CHAT, b"Content-Encoding: br\r\nContent-Length: 2", b"{}", "Send the body plain, or"),
        ("/v1/audio/transcriptions", _FORM + b"\r\nContent-Length: 2", b"{}", "its boundary in"),
        (CHAT, b"Content-Length: 2", b"[]", "Send a JSON object with a string `model`."),
    ],
)
async def test_the_advice_of_a_400_is_about_what_is_wrong(
    tmp_path: Path, path: str, header: bytes, body: bytes, advised: str, lane: bytes
) -> None:
    engine = backend("http://127.0.0.1:9", serves=["generate", "transcribe"])
    environ = {"LIFEBOAT_CLIENT_BODY_TIMEOUT_SEC": "1"}
    async with running_router(backends_yaml(engine), tmp_path, environ) as running:
        client = await RawClient.connect(running.port)
        head = b"POST %b HTTP/1.1\r\nHost: x\r\n%b\r\n%b\r\n\r\n" % (path.encode(), lane, header)
        await client.send(head + body)
        reply = await client.reply()
        client.close()
    assert reply.status == 400
    error = json.loads(reply.body)["error"]
    assert error["reason"] == "invalid_request"
    assert advised in error["advice"], error
