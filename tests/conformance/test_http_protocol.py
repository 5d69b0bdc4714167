"""HTTP at its edges: old versions, other methods, smuggled lengths, odd targets."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest

from tests.conformance.lanes import Lane, Stage, answer, chat, everything, says_hello
from tests.peers import Peer, Received
from tests.running import CHAT

BODY = chat()


async def test_bug_135_http_1_0_keep_alive_gets_two_answers_with_lengths(lane: Lane) -> None:
    async with lane.facing(says_hello) as stage:
        client = await stage.client()
        for path in ("/api/lb/state", "/health", "/api/lb/state", "/v1/models", "/nothing"):
            request = b"GET %b HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" % path.encode()
            await client.send(request)
            reply = await client.reply()
            assert reply.first_line.startswith(b"HTTP/1.0 ")
            assert reply.values(b"content-length") == [b"%d" % len(reply.body)]
            assert reply.values(b"connection") == [b"keep-alive"]
        # A proxied answer too, and without keep-alive the connection ends.
        post = b"POST %b HTTP/1.0\r\n%bContent-Length: %d\r\n\r\n%b"
        await client.send(post % (CHAT.encode(), b"Connection: keep-alive\r\n", len(BODY), BODY))
        assert (await client.reply()).values(b"connection") == [b"keep-alive"]
        await client.send(post % (CHAT.encode(), b"", len(BODY), BODY))
        raw = await everything(client)
    assert raw.startswith(b"HTTP/1.0 200 OK\r\n")


async def test_bug_135_http_1_0_gets_no_chunks(lane: Lane) -> None:
    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await peer.chunk(b"one", b"two")
        await peer.send(b"0\r\n\r\n")

    async with lane.facing(script) as stage:
        raw = await stage.exchange(
            b"POST %b HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n%b"
            % (CHAT.encode(), len(BODY), BODY)
        )
    head, _, body = raw.partition(b"\r\n\r\n")
    assert body == b"onetwo"
    assert b"chunked" not in head.lower()
    assert b"connection: close" in head.lower()


async def test_bug_136_a_thousand_http_1_0_posts_are_served_or_refused(lane: Lane) -> None:
    async def post(stage: Stage) -> bytes:
        client = await stage.client()
        await client.send(
            b"POST %b HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (CHAT.encode(), len(BODY), BODY)
        )
        return await everything(client)

    async with lane.facing(says_hello, max_concurrency=64) as stage:
        answers = await asyncio.gather(*(post(stage) for _ in range(1000)))
        statuses = {raw.split(b" ", 2)[1] for raw in answers}
        assert statuses <= {b"200", b"503"}, statuses
        assert b"200" in statuses
        refused = [raw for raw in answers if raw.split(b" ", 2)[1] == b"503"]
        assert all(json.loads(raw.partition(b"\r\n\r\n")[2])["error"] for raw in refused)
        await stage.running.settle()
        assert (await stage.running.ask()).status == 200


async def test_bug_138_head_shows_the_length_and_no_body(lane: Lane) -> None:
    """HEAD is proxied where a GET is: reading a job by its id."""

    async def script(peer: Peer, asked: Received) -> None:
        if asked.method == "POST":
            await peer.send(answer({"id": "video_1", "object": "video"}))
        elif asked.method == "HEAD" and asked.target.endswith("/bad"):
            # A backend that sends a body all the same.
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        elif asked.method == "HEAD":
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: video/mp4\r\n"
                            b"Content-Length: 123456\r\n\r\n")  # fmt: skip
        else:
            await peer.send(answer({"ok": True}))

    async with lane.facing(script, serves=["video"]) as stage:
        client = await stage.client()
        await client.post("/v1/videos", b'{"model": "m"}', b"Content-Type: application/json")
        assert (await client.reply()).status == 200
        for target in (b"/v1/videos/video_1", b"/v1/videos/video_1/content"):
            await client.send(b"HEAD %b HTTP/1.1\r\nHost: x\r\n\r\n" % target)
            reply = await client.reply(bodiless=True)
            assert (reply.status, reply.values(b"content-length")) == (200, [b"123456"])
        for _ in range(3):
            await client.send(b"HEAD /v1/videos/video_1/bad HTTP/1.1\r\nHost: x\r\n\r\n")
            reply = await client.reply(bodiless=True)
            assert (reply.status, reply.values(b"content-length")) == (200, [b"5"])
            await client.send(b"GET /v1/videos/video_1 HTTP/1.1\r\nHost: x\r\n\r\n")
            reply = await client.reply()
            assert (reply.status, json.loads(reply.body)) == (200, {"ok": True})


async def test_bug_138_head_of_our_own_pages_and_of_a_post_path(lane: Lane) -> None:
    async with lane.facing(says_hello) as stage:
        client = await stage.client()
        for path in (b"/health", b"/v1/models", b"/api/lb/state", b"/metrics", b"/nothing"):
            await client.send(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path)
            got = await client.reply()
            await client.send(b"HEAD %b HTTP/1.1\r\nHost: x\r\n\r\n" % path)
            head = await client.reply(bodiless=True)
            assert head.status == got.status
            assert int(head.values(b"content-length")[0]) > 0
        await client.send(b"HEAD %b HTTP/1.1\r\nHost: x\r\n\r\n" % CHAT.encode())
        head = await client.reply(bodiless=True)
        assert (head.status, head.values(b"allow")) == (405, [b"POST"])
        # The connection is in step.
        await client.post(CHAT, BODY)
        assert (await client.reply()).status == 200


PREFLIGHT = (
    b"OPTIONS %b HTTP/1.1\r\nHost: x\r\nOrigin: https://app.example\r\n"
    b"Access-Control-Request-Method: POST\r\n"
    b"Access-Control-Request-Headers: authorization,content-type\r\n\r\n"
)
ORIGINS = {"LIFEBOAT_CORS_ORIGINS": "https://app.example, https://other.example"}


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/audio/transcriptions", "/v1/models", "/v1/models/m",
             "/v1/responses/resp_1"],
)  # fmt: skip
async def test_bug_139_a_preflight_needs_no_key_no_model_and_no_slot(lane: Lane, path: str) -> None:
    environ = {**ORIGINS, "LIFEBOAT_API_KEYS": "secret"}
    hold = asyncio.Event()

    async def script(peer: Peer, asked: Received) -> None:
        await hold.wait()
        await says_hello(peer, asked)

    async with lane.facing(script, environ=environ, max_concurrency=1) as stage:
        busy = asyncio.create_task(stage.running.ask(headers={"Authorization": "Bearer secret"}))
        await stage.asked_for(1)
        client = await stage.client()
        await client.send(PREFLIGHT % path.encode())
        reply = await client.reply(bodiless=True)
        assert reply.status == 204
        assert reply.values(b"access-control-allow-origin") == [b"https://app.example"]
        assert (
            b"POST" in reply.values(b"access-control-allow-methods")[0]
            or "models" in path
            or ("resp_1" in path)
        )
        allowed = reply.values(b"access-control-allow-headers")[0].lower()
        assert b"authorization" in allowed
        assert b"content-type" in allowed
        assert reply.values(b"vary") == [b"Origin"]
        state = await stage.running.state()
        assert state["inflight"] == {"a": 1}
        assert sum(state["reject_counts"].values()) == 0
        hold.set()
        assert (await busy).status == 200
        assert len(stage.asked) == 1


async def test_bug_139_a_foreign_origin_is_told_nothing(lane: Lane) -> None:
    async with lane.facing(says_hello, environ=ORIGINS) as stage:
        client = await stage.client()
        foreign = (PREFLIGHT % CHAT.encode()).replace(b"app.example", b"evil.example")
        await client.send(foreign)
        reply = await client.reply(bodiless=True)
        assert reply.values(b"access-control-allow-origin") == []
        await client.post(CHAT, BODY, b"Origin: https://evil.example")
        reply = await client.reply()
        assert reply.status == 200, "CORS is the browser's to enforce"
        assert reply.values(b"access-control-allow-origin") == []


async def test_bug_139_without_the_setting_a_preflight_is_a_405(lane: Lane) -> None:
    async with lane.facing(says_hello) as stage:
        client = await stage.client()
        await client.send(PREFLIGHT % CHAT.encode())
        reply = await client.reply()
        assert (reply.status, reply.values(b"allow")) == (405, [b"POST"])
        assert reply.values(b"access-control-allow-origin") == []
        await client.post(CHAT, BODY)
        assert (await client.reply()).status == 200


@pytest.mark.parametrize("origins", ["*", "https://app.example"])
@pytest.mark.parametrize(
    "said",
    [
        [b"Access-Control-Allow-Origin: *"],
        [b"access-control-allow-origin: https://backend.example"],
        [b"Access-Control-Allow-Origin: *", b"Access-Control-Allow-Origin: x"],
        [],
    ],
)
async def test_bug_141_an_answer_has_exactly_one_allowed_origin(
    lane: Lane, said: list[bytes], origins: str
) -> None:
    async def script(peer: Peer, asked: Received) -> None:
        more = [b"Access-Control-Allow-Credentials: true", b"Vary: Accept"]
        await peer.send(answer({}, b"200 OK", *said, *more))

    async with lane.facing(script, environ={"LIFEBOAT_CORS_ORIGINS": origins}) as stage:
        client = await stage.client()
        await client.post(CHAT, BODY, b"Origin: https://app.example")
        reply = await client.reply()
        expected = b"*" if origins == "*" else b"https://app.example"
        assert reply.values(b"access-control-allow-origin") == [expected]
        exposed = b",".join(reply.values(b"access-control-expose-headers")).lower()
        assert exposed == b"*", "ours and the backend's rate limits are there to be read"
        assert b"Accept" in reply.values(b"vary")
        # A refusal is readable for the browser's script as well.
        await client.post(CHAT, b"{}", b"Origin: https://app.example")
        refusal = await client.reply()
        assert refusal.status == 400
        assert refusal.values(b"access-control-allow-origin") == [expected]
        await client.send(
            b"GET /v1/models HTTP/1.1\r\nHost: x\r\nOrigin: https://app.example\r\n\r\n"
        )
        assert (await client.reply()).values(b"access-control-allow-origin") == [expected]


async def test_bug_141_without_the_setting_the_backends_own_word_passes(lane: Lane) -> None:
    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(answer({}, b"200 OK", b"Access-Control-Allow-Origin: *"))

    async with lane.facing(script) as stage:
        client = await stage.client()
        await client.post(CHAT, BODY, b"Origin: https://app.example")
        reply = await client.reply()
    assert reply.values(b"access-control-allow-origin") == [b"*"]


async def test_bug_141_operators_pages_are_opened_to_no_origin(lane: Lane) -> None:
    async with lane.facing(says_hello, environ={"LIFEBOAT_CORS_ORIGINS": "*"}) as stage:
        client = await stage.client()
        for path in (b"/api/lb/mode", b"/api/lb/state", b"/metrics"):
            await client.send(PREFLIGHT % path)
            reply = await client.reply()
            assert reply.status == 405
            assert reply.values(b"access-control-allow-origin") == []


SMUGGLED = {
    "length and chunks": b"Content-Length: 4\r\nTransfer-Encoding: chunked",
    "two lengths": b"Content-Length: 4\r\nContent-Length: 40",
    "two lengths in one": b"Content-Length: 4, 40",
    "blank before the colon": b"Transfer-Encoding : chunked",
    "blank before the colon of a length": b"Content-Length : 4",
    "unknown coding": b"Transfer-Encoding: xchunked",
    "coding behind chunked": b"Transfer-Encoding: chunked, identity",
    "twice chunked": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    "negative": b"Content-Length: -4",
    "plus": b"Content-Length: +4",
    "hex": b"Content-Length: 0x4",
    "huge": b"Content-Length: 99999999999999999999999",
    "folded": b"Transfer-Encoding:\r\n chunked",
    "vertical tab": b"Transfer-Encoding: \x0bchunked",
    "bare CR": b"X: 1\rTransfer-Encoding: chunked",
    "NUL": b"X: a\x00b",
    "no colon": b"Transfer-Encoding chunked",
    "a name with a blank": b"X Y: 1",
    "two hosts": b"Host: y\r\nContent-Length: 4",
}


async def test_bug_142_a_request_of_doubtful_length_is_a_400_and_ends_the_connection(
    lane: Lane,
) -> None:
    inner = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (
        CHAT.encode(), len(BODY), BODY,
    )  # fmt: skip
    async with lane.facing(says_hello) as stage:
        for case, headers in SMUGGLED.items():
            raw = b"POST %b HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n" % (CHAT.encode(), headers)
            async with asyncio.timeout(5):
                said = await stage.exchange(raw + b"0\r\n\r\n" + inner)
            assert said[8:13] == b" 400 ", (case, said)
            assert said.count(b"HTTP/1.") == 1, (case, "nothing behind it is a request")
            assert json.loads(said.partition(b"\r\n\r\n")[2])["error"], case
            assert stage.asked == [], case
        assert (await stage.running.ask()).status == 200


async def test_bug_142_the_same_length_twice_reaches_the_backend_once(lane: Lane) -> None:
    async with lane.facing(says_hello) as stage:
        raw = b"POST %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" % CHAT.encode()
        length = b"Content-Length: %d\r\n" % len(BODY)
        said = await stage.exchange(raw + length * 2 + b"\r\n" + BODY)
        assert said[8:13] in (b" 400 ", b" 200 ")
        for asked in stage.asked:
            assert asked.values(b"content-length") == [b"%d" % len(BODY)]


async def test_bug_144_the_raw_path_and_query_are_kept(lane: Lane) -> None:
    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(answer({"id": "resp_1", "object": "response"}))

    targets = [
        b"/v1/chat/completions?x=%2B+y&e=", b"/v1/chat/completions?a=b=c&&;",
        b"/v1/chat/completions?%zz", b"/v1/chat/completions?",
        b"/v1/chat/completions?a[]=1|2{3}^`", b"/v1/chat/completions?x=%2f%2F",
    ]  # fmt: skip
    async with lane.facing(script) as stage:
        for target in targets:
            client = await stage.client()
            head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
            await client.send(head % (target, len(BODY)) + BODY)
            reply = await client.reply()
            assert reply.status == 200, target
            assert stage.asked[-1].head.split(b" ")[1] == target
        # Bytes beyond ASCII have no place there: as they came, or not at all.
        raw = b"POST %b?q=\xc3\xa9 HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
        odd = await stage.client()
        await odd.send(raw % CHAT.encode())
        assert (await odd.reply()).status == 400
        # So are they behind an id.
        await client.post("/v1/responses", BODY)
        assert (await client.reply()).status == 200
        target = b"/v1/responses/resp_1/input_items?x=%2B+y&e=&a[]=%2f"
        await client.send(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % target)
        assert (await client.reply()).status == 200
        assert stage.asked[-1].head.split(b" ")[1] == target


async def test_bug_144_a_model_with_a_slash_is_found_encoded_or_not(lane: Lane) -> None:
    async with lane.facing(says_hello) as stage:
        named = {"name": "b", "url": stage.engine.url, "models": ["org/name", "a b+c%"],
                 "kind": "openai"}  # fmt: skip
        await stage.running.admin("POST", "backends", named)
        client = await stage.client()
        for path in (b"/v1/models/org%2Fname?x=%2B+y&e=", b"/v1/models/org%2fname",
                     b"/v1/models/org/name", b"/v1/models/a%20b%2Bc%25"):  # fmt: skip
            await client.send(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path)
            reply = await client.reply()
            assert reply.status == 200, path
            assert json.loads(reply.body)["id"] in named["models"]


TARGETS = [
    b"//evil.example/v1/models", b"//evil.example/v1/chat/completions", b"http://other/",
    b"http://other/v1/chat/completions", b"https://other:8443/v1/models", b"/\\evil.example/v1",
    b"///v1/models", b"/v1//models", b"/v1/./models", b"/v1/../v1/models", b"/%2e%2e/v1/models",
    b"/v1/chat/completions/", b"/v1/chat%2Fcompletions", b"/V1/models", b"*", b"other:443",
    b"/v1/chat/completions#x", b"file:///etc/passwd", b"/v1/models/..%2f..", b"?x", b"v1/models",
    b"/v1/responses/../chat/completions", b"/v1/videos/%2e%2e/x", b"http:///v1/models", b"//",
    b"@other/v1/models", b"http://other@127.0.0.1/v1/models",
]  # fmt: skip


async def test_bug_145_an_odd_target_contacts_nobody(lane: Lane) -> None:
    async def ask(stage: Stage, target: bytes, method: bytes) -> None:
        async with asyncio.timeout(10):
            said = await stage.exchange(
                b"%b %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
                % (method, target, len(BODY), BODY)
            )
        assert int(said.split(b" ", 2)[1]) in (400, 404, 405), (method, target, said)
        assert b"application/json" in said, (method, target, said)

    async with lane.facing(says_hello) as stage:
        async with asyncio.TaskGroup() as tasks:
            for target in TARGETS:
                for method in (b"GET", b"POST"):
                    tasks.create_task(ask(stage, target, method))
        assert stage.asked == []


@pytest.mark.parametrize("host", ["127.0.0.1:9", "localhost", "[::1]:8400", "LocalHost:80"])
async def test_a_target_in_absolute_form_is_taken_and_its_host_counts(
    lane: Lane, host: str
) -> None:
    """RFC 9112, 3.2.2: a server must accept it, and ignore the Host header."""
    async with lane.facing(says_hello) as stage:
        client = await stage.client()
        for path, headers in ((CHAT, b"Host: evil.example\r\n"), (f"{CHAT}?x=%2F", b"")):
            await client.send(
                b"POST http://%b%b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b"
                % (host.encode(), path.encode(), headers or b"host: a\r\n", len(BODY), BODY)
            )
            assert (await client.reply()).status == 200
            asked = stage.asked[-1]
            assert asked.target == path
            assert asked.values(b"x-forwarded-host") == [host.encode()]
            assert asked.values(b"host") == [f"127.0.0.1:{stage.engine.port}".encode()]
        for path in (b"/v1/models", b"/api/lb/state", b"?x"):
            await client.send(
                b"GET http://%b%b HTTP/1.1\r\nHost: x\r\n\r\n" % (host.encode(), path)
            )
            assert (await client.reply()).status == 200, path
        await client.send(b"GET http://%b/nothing HTTP/1.1\r\nHost: x\r\n\r\n" % host.encode())
        assert (await client.reply()).status == 404
        # The name that a change is asked under is the target's, too.
        change = b'{"mode": "queue-all"}'
        for name, status in ((host.encode(), 200), (b"evil.example", 404)):
            await client.send(
                b"PUT http://%b/api/lb/mode HTTP/1.1\r\nHost: evil.example\r\n"
                b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                % (name, len(change), change)
            )
            assert (await client.reply()).status == status, name


async def test_options_of_the_whole_server_says_what_it_takes(lane: Lane) -> None:
    async with lane.facing(says_hello) as stage:
        client = await stage.client()
        for target in (b"*", b"http://127.0.0.1"):
            await client.send(b"OPTIONS %b HTTP/1.1\r\nHost: x\r\n\r\n" % target)
            reply = await client.reply(bodiless=True)
            assert reply.status == 204
            (allow,) = reply.values(b"allow")
            assert allow.split(b", ") == [
                b"DELETE", b"GET", b"HEAD", b"OPTIONS", b"PATCH", b"POST", b"PUT",
            ]  # fmt: skip
        # A path has methods of its own.
        await client.send(b"OPTIONS http://127.0.0.1/health HTTP/1.1\r\nHost: x\r\n\r\n")
        reply = await client.reply()
        assert (reply.status, reply.values(b"allow")) == (405, [b"GET, HEAD"])


async def test_bug_145_an_odd_method_contacts_nobody(lane: Lane) -> None:
    async with lane.facing(says_hello) as stage:
        for method in (b"CONNECT", b"TRACE", b"PRI", b"BREW", b"post"):
            for target in (CHAT.encode(), b"evil.example:443", b"/nothing"):
                async with asyncio.timeout(5):
                    said = await stage.exchange(
                        b"%b %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % (method, target)
                    )
                assert int(said.split(b" ", 2)[1]) in (400, 404, 405), (method, said)
        assert stage.asked == []


def post(*lines: bytes, body: bytes = b"", first: bytes = b"POST %b HTTP/1.1") -> bytes:
    line = first % CHAT.encode() if b"%b" in first else first
    return b"\r\n".join([line, b"Host: x", *lines]) + b"\r\n\r\n" + body


GOOD = post(b"Content-Length: %d" % len(BODY), body=BODY)
CHUNKED = post(b"Transfer-Encoding: chunked")
BROKEN = {
    "no size": b"zz\r\n",
    "a size with a sign": b"+1\r\n{\r\n",
    "a chunk that is too long": b"1\r\n{}\r\n0\r\n\r\n",
    "a bare line feed": b"%x\r\n%b\n0\r\n\r\n" % (len(BODY), BODY),
    "a bare carriage return": b"%x\r\n%b\r0\r\n\r\n" % (len(BODY), BODY),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("path", [CHAT, "/nothing"])
async def test_a_body_whose_framing_breaks_is_refused_at_once(
    lane: Lane, broken: bytes, path: str
) -> None:
    """Not once the body's timeout is over; and what follows is nobody's request."""
    async with lane.facing(says_hello) as stage:
        for pieces in ((GOOD, CHUNKED, broken + GOOD), (GOOD + CHUNKED + broken + GOOD,)):
            client = await stage.client()
            for piece in pieces:
                await client.send(piece.replace(CHAT.encode(), path.encode()))
                await asyncio.sleep(0.02)
            async with asyncio.timeout(5):
                first, second = await client.reply(), await client.reply()
                assert await everything(client) == b""
            expected = (200, 400) if path == CHAT else (404, 404)
            assert first.status == expected[0]
            assert second.status in (400, expected[1])
            assert len(stage.asked) == (path == CHAT)
            stage.engine.asked.clear()


@pytest.mark.parametrize("nonsense", [b"nonsense\r\n\r\n", b"POST / HTTP/1.1\r\nX : y\r\n\r\n"])
async def test_a_request_is_answered_though_the_next_one_in_the_read_is_broken(
    lane: Lane, nonsense: bytes
) -> None:
    odd = GOOD.replace(b"Host", b"Connection: keep-alive, x\r\nHost")
    async with lane.facing(says_hello) as stage:
        for good in (GOOD, odd):
            behind_head = len(good) + len(good) - len(BODY)
            for cut in (0, *range(behind_head - 4, behind_head + 1)):
                client = await stage.client()
                wire = good + good + nonsense
                await client.send(wire[:cut])
                await asyncio.sleep(0.01)
                await client.send(wire[cut:])
                async with asyncio.timeout(5):
                    statuses = [(await client.reply()).status for _ in range(3)]
                    with suppress(ConnectionResetError):  # what came behind was not read
                        assert await everything(client) == b""
                assert statuses == [200, 200, 400]
        assert len(stage.asked) == 24


@pytest.mark.parametrize("version", [b"", b" HTTP/0.9", b" HTTP/2.0"])
async def test_another_version_is_refused(lane: Lane, version: bytes) -> None:
    """RFC 9112, 2.3. Without one, the parser would take headers and a body all the same."""
    length = b"Content-Length: %d" % len(BODY)
    async with lane.facing(says_hello) as stage:
        async with asyncio.timeout(5):
            said = await stage.exchange(post(length, body=BODY, first=b"POST %b" + version))
        assert b" 400 " in said.partition(b"\r\n")[0]
        assert stage.asked == []


@pytest.mark.parametrize("coding", [b"", b" ", b" identity", b" ,", b" gzip"])
@pytest.mark.parametrize("method", [b"GET", b"POST"])
async def test_what_follows_a_coding_that_is_none_is_no_request(
    lane: Lane, method: bytes, coding: bytes
) -> None:
    async with lane.facing(says_hello) as stage:
        async with asyncio.timeout(5):
            said = await stage.exchange(
                post(b"Transfer-Encoding:" + coding, body=GOOD, first=method + b" %b HTTP/1.1")
            )
        assert b" 400 " in said.partition(b"\r\n")[0]
        assert said.count(b"HTTP/1.") == 1
        assert stage.asked == []


async def test_what_follows_connect_is_no_request(lane: Lane) -> None:
    async with lane.facing(says_hello) as stage:
        async with asyncio.timeout(5):
            said = await stage.exchange(
                post(b"Content-Length: %d" % len(GOOD), body=GOOD, first=b"CONNECT /x HTTP/1.1")
            )
        assert said.count(b"HTTP/1.1 ") == 1
        assert stage.asked == []


async def test_a_head_with_bare_line_feeds_waits_for_nothing(lane: Lane) -> None:
    async with lane.facing(says_hello) as stage:
        async with asyncio.timeout(5):
            said = await stage.exchange(GOOD.replace(b"\r\n", b"\n"))
            later = await stage.exchange(GOOD.replace(b"x\r\n", b"x\n"))
        assert said.startswith(b"HTTP/1.0 400 ") and later.startswith(b"HTTP/1.0 400 ")
        assert stage.asked == []
