"""Headers: what crosses the router in each direction, and what never does."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.conformance.lanes import Lane, answer, chat, says_hello
from tests.peers import Peer, Received
from tests.running import CHAT


def saying(*headers: bytes) -> object:
    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(answer({}, b"200 OK", *headers))

    return script


async def test_bug_120_five_cookies_arrive_on_five_lines(lane: Lane) -> None:
    cookies = [b"c%d=%d; Path=/; Expires=Mon, 30 Nov 2026 00:00:00 GMT" % (n, n) for n in range(5)]
    async with lane.facing(saying(*(b"Set-Cookie: " + cookie for cookie in cookies))) as stage:
        client = await stage.client()
        await client.post(CHAT, chat(), b"Cookie: a=1", b"Cookie: b=2")
        reply = await client.reply()
        assert reply.values(b"set-cookie") == cookies
        assert stage.asked[0].values(b"cookie") == [b"a=1", b"b=2"]
        # And the router keeps none for later requests, of anybody.
        other = await stage.client()
        for who in (client, other):
            await who.post(CHAT, chat())
            await who.reply()
    assert [asked.values(b"cookie") for asked in stage.asked[1:]] == [[], []]


async def test_bug_121_repeated_headers_keep_count_order_spelling_and_bytes(lane: Lane) -> None:
    said = [
        (b"WWW-Authenticate", b'Basic realm="a, b"'), (b"WWW-Authenticate", b"Bearer"),
        (b"Link", b"</a>; rel=next"), (b"X-Between", b"1"), (b"link", b"</b>; rel=prev"),
        (b"X-Latin", b"caf\xe9"), (b"X-Utf8", "é".encode()), (b"X-Empty", b""),
        (b"vary", b"Accept"), (b"Vary", b"Origin"),
    ]  # fmt: skip
    lines = [name + b": " + value for name, value in said]
    async with lane.facing(saying(*lines)) as stage:
        client = await stage.client()
        sent = [(b"x-a", b"1"), (b"X-A", b"2"), (b"Accept", b"a"), (b"accept", b"b, c"),
                (b"X-Bytes", b"\xff\xfe caf\xe9"), (b"X-None", b"")]  # fmt: skip
        await client.post(CHAT, chat(), *(name + b": " + value for name, value in sent))
        reply = await client.reply()
    names = {name.lower() for name, _ in said}
    assert [header for header in reply.headers if header[0].lower() in names] == said
    sent_names = {name.lower() for name, _ in sent}
    got = [header for header in stage.asked[0].headers if header[0].lower() in sent_names]
    assert got == sent


async def test_bug_123_bug_124_the_host_is_the_backends_own(lane: Lane) -> None:
    async def strict(peer: Peer, asked: Received) -> None:
        if asked.values(b"host") != [b"127.0.0.1:%d" % peer.backend.port]:
            await peer.send(answer({"error": "host"}, b"403 Forbidden"))
        else:
            await says_hello(peer, asked)

    async with lane.facing(strict) as stage:
        client = await stage.client()
        await client.post(CHAT, chat())
        assert (await client.reply()).status == 200
        assert stage.asked[0].values(b"x-forwarded-host") == [b"router.test"]
        # Through a proxy before us, the first host stays the first.
        await client.post(CHAT, chat(), b"X-Forwarded-Host: public.example")
        assert (await client.reply()).status == 200
        assert stage.asked[1].values(b"x-forwarded-host") == [b"public.example"]


async def test_bug_123_a_named_backend_is_asked_by_its_name(lane: Lane) -> None:
    async with lane.facing(says_hello) as stage:
        url = f"http://localhost:{stage.engine.port}"
        await stage.running.admin("PATCH", "backends/a", {"state": "maint"})
        named = {"name": "named", "url": url, "models": ["m"], "kind": "openai"}
        await stage.running.admin("POST", "backends", named)
        assert (await stage.running.ask()).status == 200
    assert stage.asked[0].values(b"host") == [b"localhost:%d" % stage.engine.port]


ROUTER_KEY = {"LIFEBOAT_API_KEYS": "router-key,other-key"}
SHOWN = pytest.mark.parametrize(
    "shown", [b"Authorization: Bearer router-key", b"x-api-key: router-key",
              b"authorization: bearer router-key", b"X-API-Key: other-key"],
)  # fmt: skip


@SHOWN
async def test_bug_126_a_router_key_never_leaves_and_the_backends_takes_its_place(
    lane: Lane, shown: bytes
) -> None:
    for own in ({}, {"api_key": "backend-key"}, {"api_key": ""}):
        async with lane.facing(says_hello, environ=ROUTER_KEY, **own) as stage:
            client = await stage.client()
            await client.post(CHAT, chat(), shown, b"Authorization: Basic abc")
            assert (await client.reply()).status == 200
            asked = stage.asked[0]
            assert b"router-key" not in asked.head
            assert b"other-key" not in asked.head
            expected = [b"Bearer backend-key"] if own.get("api_key") else []
            assert asked.values(b"authorization") == expected


async def test_bug_126_without_a_key_there_is_a_401_and_nothing_is_asked(lane: Lane) -> None:
    async with lane.facing(says_hello, environ=ROUTER_KEY) as stage:
        for shown in ((), (b"Authorization: Bearer wrong",), (b"Authorization: Bearer",),
                      (b"x-api-key: ",), (b"Authorization: router-key",)):  # fmt: skip
            client = await stage.client()
            await client.post(CHAT, chat(), *shown)
            reply = await client.reply()
            assert reply.status == 401
            assert reply.values(b"www-authenticate") == [b"Bearer"]
            assert json.loads(reply.body)["error"]["code"] == "unauthorized"
        assert stage.asked == []


@pytest.mark.parametrize("key", ["${ABSENT_KEY:-}", "${EMPTY_KEY}", ""])
async def test_bug_127_an_empty_backend_key_sends_none_and_not_the_clients(
    lane: Lane, key: str
) -> None:
    """A key that was meant to be there: the client's own credentials must not go in its place."""
    environ = {"EMPTY_KEY": ""}
    async with lane.facing(says_hello, environ=environ, api_key=key) as stage:
        client = await stage.client()
        await client.post(CHAT, chat(), b"Authorization: Bearer client", b"x-api-key: client")
        assert (await client.reply()).status == 200
    assert stage.asked[0].values(b"authorization") == []
    assert stage.asked[0].values(b"x-api-key") == []


async def test_bug_127_without_any_key_configured_the_clients_own_pass(lane: Lane) -> None:
    async with lane.facing(says_hello) as stage:
        client = await stage.client()
        await client.post(CHAT, chat(), b"Authorization: Bearer client", b"x-api-key: client2")
        assert (await client.reply()).status == 200
    assert stage.asked[0].values(b"authorization") == [b"Bearer client"]
    assert stage.asked[0].values(b"x-api-key") == [b"client2"]


async def test_bug_129_headers_of_one_connection_stay_on_it(lane: Lane) -> None:
    sent = [
        b"Connection: keep-alive, X-Secret", b"connection: x-other", b"X-Secret: 1", b"x-Other: 2",
        b"TE: trailers", b"Keep-Alive: timeout=5", b"Proxy-Authorization: Basic abc",
        b"Proxy-Connection: keep-alive", b"Trailer: X-Sum", b"HTTP2-Settings: abc",
        b"Upgrade: h2c", b"X-Kept: 3",
    ]  # fmt: skip
    dropped = {
        b"x-secret", b"x-other", b"te", b"keep-alive", b"proxy-authorization", b"proxy-connection",
        b"trailer", b"http2-settings", b"upgrade", b"connection", b"transfer-encoding",
    }  # fmt: skip
    back = [b"Connection: X-Hop", b"X-Hop: 1", b"Keep-Alive: timeout=5", b"X-Kept: 4",
            b"Proxy-Authenticate: Basic"]  # fmt: skip
    async with lane.facing(saying(*back)) as stage:
        client = await stage.client()
        await client.post(CHAT, chat(), *sent)
        reply = await client.reply()
    assert not {name.lower() for name, _ in stage.asked[0].headers} & dropped
    assert stage.asked[0].values(b"x-kept") == [b"3"]
    assert reply.values(b"x-hop") == []
    assert reply.values(b"proxy-authenticate") == []
    assert reply.values(b"x-kept") == [b"4"]


async def test_bug_129_connection_close_of_a_client_is_kept_to_that_client(lane: Lane) -> None:
    async with lane.facing(says_hello) as stage:
        for _ in range(2):
            client = await stage.client()
            await client.post(CHAT, chat(), b"Connection: close, X-Secret", b"X-Secret: 1")
            reply = await client.reply()
            assert reply.values(b"connection") == [b"close"]
            assert await client.reader.read() == b""
    assert [asked.values(b"x-secret") for asked in stage.asked] == [[], []]
    assert stage.engine.connections - len(stage.engine.probes) <= 1, "the upstream's was kept"


async def test_bug_130_nothing_is_added_that_the_client_did_not_send(lane: Lane) -> None:
    body = chat()
    async with lane.facing(says_hello) as stage:
        client = await stage.client()
        await client.post(CHAT, body)
        assert (await client.reply()).status == 200
    names = [name.lower() for name, _ in stage.asked[0].headers]
    added = {b"x-request-id", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"}
    assert set(names) - added == {b"host", b"content-length"}
    assert len(names) == len(set(names))


FORGED = [
    b"X-Lifeboat-Wait-ms: 0", b"X-Lifeboat-Backend: forged", b"X-Lifeboat-Attempts: 77",
    b"X-Lifeboat-Reject-Reason: forged", b"x-lifeboat-anything: forged",
]  # fmt: skip


async def test_bug_132_our_headers_are_ours_in_both_directions(lane: Lane) -> None:
    back = [b"X-Lifeboat-Wait-ms: 999", *FORGED[1:], b"X-Request-ID: backend"]
    environ = {"LIFEBOAT_LB_QUEUE_ENABLED": "true", "LIFEBOAT_LB_QUEUE_TTL_SEC": "2",
               "LIFEBOAT_LB_QUEUE_MAX_DEPTH": "1"}  # fmt: skip
    hold = asyncio.Event()

    async def script(peer: Peer, asked: Received) -> None:
        if b"hold" in asked.body:
            await hold.wait()
        await peer.send(answer({}, b"200 OK", *back))

    async with lane.facing(script, environ=environ, max_concurrency=1) as stage:
        client = await stage.client()
        await client.post(CHAT, chat(), *FORGED, b"X-Request-ID: mine")
        reply = await client.reply()
        assert reply.values(b"x-lifeboat-wait-ms") == [b"0"]
        assert reply.values(b"x-lifeboat-backend") == [b"a"]
        assert reply.values(b"x-lifeboat-attempts") == [b"1"]
        assert reply.values(b"x-lifeboat-reject-reason") == []
        assert reply.values(b"x-lifeboat-anything") == []
        assert reply.values(b"x-request-id") == [b"mine"]
        upstream = [name.lower() for name, _ in stage.asked[0].headers]
        assert not [name for name in upstream if name.startswith(b"x-lifeboat-")]
        # The same on refusals: one value, ours.
        holder = asyncio.create_task(stage.running.ask(body=chat("hold")))
        await stage.asked_for(2)
        parked, full = await stage.client(), await stage.client()
        await parked.post(CHAT, chat(), *FORGED)
        await stage.running.until(lambda state: state["queue_total_waiters"] == 1)
        await full.post(CHAT, chat(), *FORGED)
        for who, status, reason in ((full, 503, b"queue_full"), (parked, 504, b"queue_timeout")):
            refusal = await who.reply()
            assert refusal.status == status
            assert refusal.values(b"x-lifeboat-reject-reason") == [reason]
            [wait_ms] = refusal.values(b"x-lifeboat-wait-ms")
            assert (int(wait_ms) >= 1990) == (who is parked)
        hold.set()
        await holder


@pytest.mark.parametrize(
    "given",
    [
        b"x" * 5000, b"a b", b"\xff\xfe", b"a\tb", b"", b"x" * 129, b"a\x7fb", b'a"b c', b"\x01",
        "é".encode(), b"%0d%0aX-Evil: 1 ",
    ],
)  # fmt: skip
async def test_bug_133_a_request_id_that_is_no_token_is_replaced(
    lane: Lane, given: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with lane.facing(says_hello) as stage:
        client = await stage.client()
        await client.post(CHAT, chat(), b"X-Request-Id: " + given)
        reply = await client.reply()
        if reply.status == 400:
            # A control character in a header is no HTTP at all.
            assert stage.asked == []
            return
        [back] = reply.values(b"x-request-id")
        [on] = stage.asked[0].values(b"x-request-id")
    assert back == on != given
    assert 8 <= len(back) <= 128
    assert back.isalnum()


@pytest.mark.parametrize("given", [b"abc-123", b"x" * 128, b"req_1/2:3", b"%0d%0aX-Evil:1"])
async def test_bug_133_a_sane_request_id_goes_both_ways(lane: Lane, given: bytes) -> None:
    async with lane.facing(says_hello) as stage:
        client = await stage.client()
        await client.post(CHAT, chat(), b"X-Request-Id: " + given)
        reply = await client.reply()
        assert reply.values(b"x-request-id") == [given]
        assert stage.asked[0].values(b"x-request-id") == [given]
        # On refusals and errors of the router's own too.
        for line in (b"POST /nothing", b"PUT %b" % CHAT.encode()):
            head = b" HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nX-Request-Id: "
            await client.send(line + head + given + b"\r\n\r\n")
            assert (await client.reply()).values(b"x-request-id") == [given]
        await client.post(CHAT, b"{}", b"X-Request-Id: " + given)
        refusal = await client.reply()
        assert refusal.values(b"x-request-id") == [given]
        assert json.loads(refusal.body)["error"]["request_id"] == given.decode()


async def test_bug_133_a_forged_line_end_adds_no_header_and_no_log_line(
    lane: Lane, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with lane.facing(says_hello) as stage:
        for evil in (b"a\rX-Evil: 1", b"a\nX-Evil: 1", b"a\x00b", b"a\x0bX-Evil: 1"):
            raw = await stage.exchange(
                b"POST %b HTTP/1.1\r\nHost: x\r\nX-Request-Id: %b\r\nConnection: close\r\n"
                b"Content-Length: 2\r\n\r\n{}" % (CHAT.encode(), evil)
            )
            assert b"X-Evil" not in raw
            assert raw[8:13] == b" 400 "
    assert stage.asked == []
    assert not [record for record in caplog.records if "\n" in record.getMessage()]
