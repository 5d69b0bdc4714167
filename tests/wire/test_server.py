"""The server's own errors over raw sockets: JSON always, and no head may take for ever."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import anthropic
import openai
import pytest
from aiohttp import web

from lifeboat.core.modes import Mode
from lifeboat.core.vocabulary import Reason, Refusal
from lifeboat.edge.http_errors import json_errors
from lifeboat.edge.refuse import refusal_response
from tests.peers import PATIENCE_S, RawClient, Reply, serving, serving_app, until


def error_of(reply: Reply) -> dict[str, Any]:
    assert reply.values(b"content-type") == [b"application/json; charset=utf-8"]
    return json.loads(reply.body)["error"]


async def fine(request: web.Request) -> web.StreamResponse:
    return web.Response(text=str(len(await request.read())))


NONSENSE = {
    "no HTTP": b"hello\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "length and chunks": b"POST / HTTP/1.1\r\nHost: r\r\nContent-Length: 3\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: r\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "blank before the colon": b"POST / HTTP/1.1\r\nHost: r\r\nTransfer-Encoding : chunked\r\n\r\n",
    "unknown coding": b"POST / HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: xchunked\r\n\r\n",
    "a header of 100 KB": b"GET / HTTP/1.1\r\nHost: r\r\nX: " + b"x" * (100_000) + b"\r\n\r\n",
    "a path of 100 KB": b"GET /" + b"x" * (100_000) + b" HTTP/1.1\r\nHost: r\r\n\r\n",
    "NUL in a header": b"GET / HTTP/1.1\r\nHost: r\r\nX: a\0b\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/3": b"GET / HTTP/3.9\r\n\r\n",
    "no version": b"GET /\r\nHost: r\r\n\r\n",
    "129 headers": b"GET / HTTP/1.1\r\nHost: r\r\n" + b"X: a\r\n" * 128 + b"\r\n",
}
PLAINLY = {
    "HTTP/2": "speaks HTTP/1.1",
    "HTTP/3": "first line is not METHOD TARGET HTTP/1.1",
    "no version": "speaks HTTP/1.1",
    "129 headers": "more than 128 headers, send fewer",
}
"""What some of it is told: the rule and the remedy, in no parser's words."""


@pytest.mark.parametrize("name", NONSENSE)
async def test_what_is_no_http_gets_a_json_400_and_the_door(name: str) -> None:
    """BUG-142."""
    async with serving(fine) as port:
        client = await RawClient.connect(port)
        await client.send(NONSENSE[name])
        reply = await client.reply()
        assert reply.status == 400
        error = error_of(reply)
        assert error["code"] == "invalid_request"
        assert error["type"] == "invalid_request_error"
        assert "\n" not in error["message"]
        assert PLAINLY.get(name, "") in error["message"]
        # aiohttp answers in HTTP/1.0, where closing is the rule.
        assert reply.first_line.startswith(b"HTTP/1.0")
        async with asyncio.timeout(PATIENCE_S):
            assert await client.reader.read() == b""
        client.close()


async def test_a_header_of_60_kb_is_welcome() -> None:
    async with serving(fine) as port:
        client = await RawClient.connect(port)
        await client.post("/", b"{}", b"Authorization: Bearer " + b"x" * 60_000)
        assert (await client.reply()).body == b"2"
        client.close()


async def test_a_fault_of_a_handler_is_a_json_500_that_tells_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(request: web.Request) -> web.StreamResponse:
        raise RuntimeError("the secret is 42")

    async with serving(broken) as port:
        client = await RawClient.connect(port)
        with caplog.at_level(logging.CRITICAL, logger="aiohttp.server"):
            await client.post("/v1/messages", b"{}", b"X-Request-ID: r-9")
            reply = await client.reply()
        assert reply.status == 500
        assert error_of(reply)["code"] == "internal_error"
        assert json.loads(reply.body)["type"] == "error"
        assert reply.values(b"x-request-id") == [b"r-9"]
        assert b"42" not in reply.body
        client.close()


async def test_a_fault_after_the_head_closes_the_connection() -> None:
    async def broken(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half")
        raise RuntimeError("late")

    async with serving(broken) as port:
        logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
        client = await RawClient.connect(port)
        await client.post("/")
        reply = await client.reply()
        assert not reply.clean and reply.body in (b"half", b"")
        client.close()


async def test_aiohttps_own_refusals_become_json() -> None:
    app = web.Application(middlewares=[json_errors(lambda: "fresh")], client_max_size=100)
    app.router.add_post("/known", fine)
    async with serving_app(app) as port:
        client = await RawClient.connect(port)
        await client.post("/unknown?x=1", b"{}", b"X-Request-ID: r-1")
        reply = await client.reply()
        assert (reply.status, error_of(reply)["code"]) == (404, "not_found")
        assert reply.values(b"x-request-id") == [b"r-1"]
        await client.send(b"GET /known HTTP/1.1\r\nHost: r\r\n\r\n")
        reply = await client.reply()
        assert (reply.status, reply.values(b"allow")) == (405, [b"POST"])
        assert error_of(reply)["request_id"] == "fresh"
        await client.post("/known", b"x" * 1000)
        reply = await client.reply()
        assert (reply.status, error_of(reply)["code"]) == (413, "body_too_large")
        client.close()


async def test_a_head_that_never_ends_is_hung_up_on() -> None:
    """BUG-231."""
    async with serving(fine, head_timeout_s=0.1) as port:
        idle, slow = await RawClient.connect(port), await RawClient.connect(port)
        await slow.send(b"GET / HT")
        async with asyncio.timeout(5):
            assert await slow.reader.read() == b""
            assert await idle.reader.read() == b""
        idle.close()
        slow.close()


async def test_the_head_timeout_does_not_touch_a_long_request_or_a_kept_connection() -> None:
    async def long(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(1.0)
        return web.Response(text="ok")

    async with serving(long, head_timeout_s=0.5) as port:
        client = await RawClient.connect(port)
        for _ in range(2):
            await client.post("/")
            assert (await client.reply()).body == b"ok"
        client.close()


async def test_expect_is_answered_here() -> None:
    """BUG-058."""
    async with serving(fine) as port:
        client = await RawClient.connect(port)
        await client.send(
            b"POST / HTTP/1.1\r\nHost: r\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
        )
        first, _ = await client.head()
        assert first == b"HTTP/1.1 100 Continue"
        await client.send(b"abc")
        assert (await client.reply()).body == b"3"
        client.close()


async def test_a_refusal_that_read_no_body_says_that_the_connection_ends() -> None:
    """BUG-046: it arrives whole, and the next request does not go where it would be body."""

    async def refuse(request: web.Request) -> web.StreamResponse:
        return refusal(request)

    async with serving(refuse) as port:
        for _ in range(2):
            client = await RawClient.connect(port)
            await client.post("/v1/chat/completions", b"x" * (2 << 20))
            reply = await client.reply()
            assert (reply.status, reply.values(b"connection")) == (503, [b"close"])
            async with asyncio.timeout(5):
                assert await client.reader.read() == b"", "in order"
            client.close()


async def test_a_refusal_of_a_body_that_came_whole_keeps_the_connection() -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return refusal(request)

    async with serving(refuse) as port:
        client = await RawClient.connect(port)
        for _ in range(2):
            await client.post("/v1/chat/completions", b"x" * 100)
            reply = await client.reply()
            assert (reply.status, reply.values(b"connection")) == (503, [])
        client.close()


async def test_nobody_is_told_what_serves() -> None:
    async with serving(fine) as port:
        for request in (b"GET / HTTP/1.1\r\nHost: r\r\n\r\n", b"nonsense\r\n\r\n"):
            client = await RawClient.connect(port)
            await client.send(request)
            assert not (await client.reply()).values(b"server")
            client.close()


async def test_what_came_behind_an_upgrade_that_nobody_took_is_not_misread() -> None:
    """aiohttp's parser loses it: then the connection must end, for the client to ask again."""
    upgrade = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
    first = b"POST / HTTP/1.1\r\nHost: r\r\n%bContent-Length: 3\r\n\r\nabc" % upgrade
    behind = b"POST / HTTP/1.1\r\nHost: r\r\nContent-Length: 2\r\n\r\n{}"
    async with serving(fine) as port:
        client = await RawClient.connect(port)
        await client.send(first + behind)
        reply = await client.reply()
        assert (reply.status, reply.body, reply.values(b"connection")) == (200, b"3", [b"close"])
        assert await client.reader.read() == b""
        client.close()


@pytest.mark.parametrize("before", [0, 1, 3])
async def test_a_later_head_has_its_time_too(before: int) -> None:
    """before: requests that were served or waited when it began."""
    asked, served = asyncio.Event(), asyncio.Event()

    async def held(request: web.Request) -> web.StreamResponse:
        asked.set()
        await served.wait()
        return web.Response(text="ok")

    async with serving(held, head_timeout_s=0.5, keepalive_timeout=60.0) as port:
        client = await RawClient.connect(port)
        for _ in range(before or 1):
            await client.post("/", b"{}")
            await asked.wait()
        if not before:
            served.set()
            await client.reply()
        await asyncio.sleep(0.05)
        await client.send(b"GET / HT")
        await asyncio.sleep(1.25 if before else 0.0)
        served.set()
        for _ in range(before):
            assert (await client.reply()).body == b"ok", "which waits for no head"
        async with asyncio.timeout(5):
            assert await client.reader.read() == b""
        client.close()


async def test_a_client_that_hangs_up_cancels_its_handler() -> None:
    """Off by default in aiohttp's runners."""
    cancelled = []

    async def wait(request: web.Request) -> web.StreamResponse:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return web.Response()

    async with serving(wait) as port:
        client = await RawClient.connect(port)
        await client.post("/")
        await asyncio.sleep(0.05)
        client.close()
        await until(lambda: bool(cancelled))


def refusal(request: web.Request) -> web.Response:
    return refusal_response(
        Refusal(Reason.GATE, "full", effective_limits={"a": 2}, retry_after_s=0.5),
        mode=Mode.DEFAULT,
        reject_status=503,
        request_id="r-1",
        wait_ms=0,
        path=request.path,
    )


async def test_the_sdks_understand_a_refusal() -> None:
    """Both SDKs see the message, the type and the pause; neither sees a connection error."""

    async def refuse(request: web.Request) -> web.StreamResponse:
        return refusal(request)

    async with serving(refuse) as port:
        url = f"http://127.0.0.1:{port}"
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
            with pytest.raises(openai.InternalServerError) as seen:
                await client.chat.completions.create(model="m", messages=[])
        assert seen.value.type == "overloaded_error"
        assert seen.value.code is None
        assert seen.value.response.headers["retry-after-ms"] == "500"
        async with anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0) as claude:
            with pytest.raises(anthropic.APIStatusError) as said:
                await claude.messages.create(model="m", max_tokens=1, messages=[])
        body = said.value.body
        assert isinstance(body, dict)
        assert body["type"] == "error"
        assert body["error"]["type"] == "overloaded_error"
        assert said.value.request_id is None or said.value.request_id == "r-1"


@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_client_that_takes_nothing_of_an_answer_is_cut_off(goes_on: bool) -> None:
    """Else it would keep its connection, and what waits for it, as long as it likes."""
    transports: list[asyncio.Transport] = []

    async def large(request: web.Request) -> web.Response:
        transports.append(request.transport)
        response = web.Response(body=b"a" * (8 << 20))
        if not goes_on:
            response.force_close()
        return response

    def is_gone() -> bool:
        (transport,) = transports
        return transport.is_closing() and not transport.get_write_buffer_size()

    async with serving(large, write_timeout_s=0.2) as port:
        client = await RawClient.connect(port, receive_buffer=4096)
        client.reader._transport.pause_reading()
        await client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        await until(lambda: bool(transports))
        await until(is_gone)
        client.close()
