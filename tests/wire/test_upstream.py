"""The upstream leg against scripted backends: exact bytes, honest failures, a clean pool."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lifeboat.core.vocabulary import Verdict
from lifeboat.wire.exchange import HIGH_WATER_BYTES, Exchange
from lifeboat.wire.pool import PooledUpstream
from lifeboat.wire.upstream import Answer, Target, UpstreamError
from tests.peers import Peer, ScriptedBackend, until

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def target(backend: ScriptedBackend, **changes: Any) -> Target:
    return Target("b", backend.url, **changes)


def head_for(backend: ScriptedBackend, body: bytes | None = None) -> list[tuple[bytes, bytes]]:
    length = [] if body is None else [(b"Content-Length", b"%d" % len(body))]
    return [(b"Host", f"127.0.0.1:{backend.port}".encode()), *length]


async def send(
    upstream: PooledUpstream,
    backend: ScriptedBackend,
    body: bytes | None = b"{}",
    **changes: object,
) -> Answer:
    method = "GET" if body is None else "POST"
    return await upstream.send(
        target(backend, **changes), method, "/v1/x", head_for(backend, body), body
    )


async def whole(answer: Answer) -> bytes:
    body = bytearray()
    while piece := await answer.read():
        body += piece
    return bytes(body)


async def echo_ok(peer: Peer) -> None:
    while True:
        await peer.request()
        await peer.send(OK)


async def hold(peer: Peer) -> None:
    await peer.request()
    await peer.watch()


async def test_the_request_that_arrives_is_exactly_what_was_given(upstream: PooledUpstream) -> None:
    headers = [
        (b"HOST", b"h"),
        (b"x-Dup", b"1"),
        (b"A", b"caf\xe9 \xff"),
        (b"x-Dup", b"2"),
        (b"Content-Length", b"3"),
    ]
    async with ScriptedBackend(echo_ok) as backend:
        path = "/v1/models/org%2Fname?x=%2B+y&e="
        answer = await upstream.send(target(backend), "POST", path, headers, b"\x00\xffz")
        assert await whole(answer) == b"hi"
    received = backend.requests[0]
    assert received.head == (
        b"POST /v1/models/org%2Fname?x=%2B+y&e= HTTP/1.1\r\nHOST: h\r\nx-Dup: 1\r\n"
        b"A: caf\xe9 \xff\r\nx-Dup: 2\r\nContent-Length: 3\r\n\r\n"
    )
    assert received.body == b"\x00\xffz"


async def test_a_line_break_in_a_header_never_leaves(upstream: PooledUpstream) -> None:
    async with ScriptedBackend(echo_ok) as backend:
        with pytest.raises(ValueError):
            await upstream.send(target(backend), "GET", "/", [(b"A", b"x\r\nB: y")], None)
        with pytest.raises(ValueError):
            await upstream.send(target(backend), "GET", "/a b\r\nC: d", [(b"A", b"x")], None)
    assert not backend.requests


async def test_status_reason_and_raw_headers_come_back(upstream: PooledUpstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 418 Caf\xe9\r\nX-A: \xe9\r\nx-a: 2\r\nContent-Length: 0\r\n\r\n")

    async with ScriptedBackend(script) as backend:
        answer = await send(upstream, backend)
        assert (answer.status, answer.reason) == (418, b"Caf\xe9")
        assert answer.head.headers == [(b"X-A", b"\xe9"), (b"x-a", b"2"), (b"Content-Length", b"0")]
        assert await answer.read() == b""


async def test_pieces_come_as_they_were_sent(upstream: PooledUpstream) -> None:
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        await peer.chunk(b"one")
        await go_on.wait()
        await peer.chunk(b"two")
        await peer.send(b"0\r\n\r\n")

    async with ScriptedBackend(script) as backend:
        answer = await send(upstream, backend)
        assert await answer.read() == b"one"
        assert not answer.ended
        go_on.set()
        assert await whole(answer) == b"two"
        assert answer.ended


async def test_a_connection_serves_the_next_request(upstream: PooledUpstream) -> None:
    async with ScriptedBackend(echo_ok) as backend:
        for _ in range(5):
            assert await whole(await send(upstream, backend)) == b"hi"
        assert backend.connections == 1


async def test_nothing_limits_how_many_run_at_once(upstream: PooledUpstream) -> None:
    async with ScriptedBackend(hold) as backend:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(send(upstream, backend)) for _ in range(150)]
            await until(lambda: len(backend.requests) == 150)
            for task in tasks:
                task.cancel()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        OK + b"stray",
    ],
)
async def test_a_connection_that_must_not_be_reused_is_not(
    upstream: PooledUpstream, answer: bytes
) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)
        await peer.watch()

    async with ScriptedBackend(script) as backend:
        for _ in range(2):
            assert await whole(await send(upstream, backend)) == b"hi"
        assert backend.connections == 2


async def test_a_body_sent_in_answer_to_head_poisons_nothing(upstream: PooledUpstream) -> None:
    async def script(peer: Peer) -> None:
        received = await peer.request()
        await peer.send(OK)
        if received.method != "HEAD":
            await peer.watch()

    async with ScriptedBackend(script) as backend:
        answer = await upstream.send(target(backend), "HEAD", "/", head_for(backend), None)
        assert (b"Content-Length", b"2") in answer.head.headers
        assert await answer.read() == b""
        assert await whole(await send(upstream, backend)) == b"hi"


async def test_idle_connections_are_closed_before_the_backend_would() -> None:
    upstream = PooledUpstream(keep_idle_s=0.05)
    async with ScriptedBackend(echo_ok) as backend:
        await whole(await send(upstream, backend))
        assert upstream.open_connections == 1
        await until(lambda: upstream.open_connections == 0)
    await upstream.close()


@pytest.mark.parametrize("reset", [False, True])
async def test_a_reused_connection_that_is_closed_gets_one_fresh_try(
    upstream: PooledUpstream, reset: bool
) -> None:
    """The backend closes on the second request, as one does whose idle time just ran out."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        if reset:
            peer.reset()

    async with ScriptedBackend(script) as backend:
        first = await send(upstream, backend)
        assert await whole(first) == b"hi"
        second = await send(upstream, backend)
        assert await whole(second) == b"hi"
        assert (first.fresh_retry, second.fresh_retry) == (False, True)
        assert backend.connections == 2
        assert len(backend.requests) == 3


async def test_a_fresh_connection_that_is_closed_gets_no_second_try(
    upstream: PooledUpstream,
) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()

    async with ScriptedBackend(script) as backend:
        with pytest.raises(UpstreamError) as failure:
            await send(upstream, backend)
        assert backend.connections == 1
    error = failure.value
    assert (error.verdict, error.request_sent, error.fresh_retry) == (Verdict.RESET, True, False)
    assert not error.answer_begun


async def test_the_fresh_try_is_the_last(upstream: PooledUpstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        if peer.number == 0:
            await peer.send(OK)
            await peer.request()

    async with ScriptedBackend(script) as backend:
        await whole(await send(upstream, backend))
        with pytest.raises(UpstreamError) as failure:
            await send(upstream, backend)
        assert backend.connections == 2
    assert failure.value.fresh_retry


async def test_a_reused_connection_that_breaks_late_was_not_stale(upstream: PooledUpstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        await asyncio.sleep(1.1)

    async with ScriptedBackend(script) as backend:
        await whole(await send(upstream, backend))
        with pytest.raises(UpstreamError) as failure:
            await send(upstream, backend)
        assert backend.connections == 1
    assert failure.value.verdict is Verdict.RESET


async def test_a_reused_connection_that_answered_a_byte_was_not_stale(
    upstream: PooledUpstream,
) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        await peer.send(b"H")

    async with ScriptedBackend(script) as backend:
        await whole(await send(upstream, backend))
        with pytest.raises(UpstreamError) as failure:
            await send(upstream, backend)
        assert backend.connections == 1
    assert failure.value.verdict is Verdict.RESET


async def test_a_refused_connection_sent_nothing(upstream: PooledUpstream) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    with pytest.raises(UpstreamError) as failure:
        await upstream.send(Target("b", f"http://127.0.0.1:{port}"), "GET", "/", [], None)
    assert (failure.value.verdict, failure.value.request_sent) == (Verdict.REFUSED, False)


async def test_a_name_that_resolves_to_nothing_is_unreachable(upstream: PooledUpstream) -> None:
    with pytest.raises(UpstreamError) as failure:
        await upstream.send(Target("b", "http://nowhere.invalid"), "GET", "/", [], None)
    assert (failure.value.verdict, failure.value.request_sent) == (Verdict.UNREACHABLE, False)


async def test_a_connection_that_never_opens_times_out(upstream: PooledUpstream) -> None:
    """A full accept queue drops further connection attempts, as a dead host would."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(sock.getsockname())
            fillers.append(filler)
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        with pytest.raises(UpstreamError) as failure:
            await upstream.send(Target("b", url, connect_timeout_s=0.1), "GET", "/", [], None)
        for filler in fillers:
            filler.close()
    assert (failure.value.verdict, failure.value.request_sent) == (Verdict.UNREACHABLE, False)


async def test_no_head_in_time_is_a_first_byte_timeout(upstream: PooledUpstream) -> None:
    async with ScriptedBackend(hold) as backend:
        with pytest.raises(UpstreamError) as failure:
            await send(upstream, backend, first_byte_timeout_s=0.1)
        await asyncio.wait_for(backend.peers[0].gone.wait(), 5)
    assert (failure.value.verdict, failure.value.request_sent) == (
        Verdict.FIRST_BYTE_TIMEOUT,
        True,
    )


async def test_a_backend_that_reads_no_body_times_out_too(upstream: PooledUpstream) -> None:
    async def script(peer: Peer) -> None:
        transport: Any = peer.writer.transport
        transport.pause_reading()
        await asyncio.sleep(30)

    async with ScriptedBackend(script) as backend:
        with pytest.raises(UpstreamError) as failure:
            await send(upstream, backend, b"x" * (16 << 20), first_byte_timeout_s=0.2)
    assert failure.value.verdict is Verdict.FIRST_BYTE_TIMEOUT


async def test_silence_within_the_answer_is_an_idle_timeout(upstream: PooledUpstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        await peer.chunk(b"one")
        await peer.watch()

    async with ScriptedBackend(script) as backend:
        answer = await send(upstream, backend, idle_timeout_s=0.15)
        assert await answer.read() == b"one"
        started = asyncio.get_running_loop().time()
        for _ in range(2):
            with pytest.raises(UpstreamError) as failure:
                await answer.read()
            assert failure.value.verdict is Verdict.IDLE_TIMEOUT
            assert failure.value.answer_begun
        # The default would be ten minutes.
        assert 0.14 <= asyncio.get_running_loop().time() - started < 8.0
        await asyncio.wait_for(backend.peers[0].gone.wait(), 5)


async def test_slow_but_steady_is_not_silent(upstream: PooledUpstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        for _ in range(12):
            await asyncio.sleep(0.1)
            await peer.chunk(b"x")
        await peer.send(b"0\r\n\r\n")

    async with ScriptedBackend(script) as backend:
        answer = await send(upstream, backend, idle_timeout_s=0.9)
        assert await whole(answer) == b"x" * 12


async def test_a_pause_of_our_own_is_no_silence_of_the_backend(upstream: PooledUpstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        for _ in range(6):
            await peer.chunk(b"x")
            await asyncio.sleep(0.1)
        await peer.send(b"0\r\n\r\n")
        await peer.request()

    async with ScriptedBackend(script) as backend:
        answer = await send(upstream, backend, idle_timeout_s=0.7)
        assert await answer.read() == b"x"
        await asyncio.sleep(0.9)
        assert await whole(answer) == b"xxxxx"


CUTS = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello",
    "chunked": CHUNKED + b"5\r\nhello\r\n",
    "within a chunk": CHUNKED + b"ff\r\nhello",
    "before the last line": CHUNKED + b"5\r\nhello\r\n0\r\n",
}


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("name", CUTS)
async def test_a_cut_body_raises_after_what_came_and_is_never_pooled(
    upstream: PooledUpstream, name: str, reset: bool
) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CUTS[name])
        await asyncio.sleep(0.05)
        if reset:
            peer.reset()

    async with ScriptedBackend(script) as backend:
        answer = await send(upstream, backend)
        ended = []
        answer.when_ended(lambda: ended.append(True))
        assert await answer.read() == b"hello"
        for _ in range(2):
            with pytest.raises(UpstreamError) as failure:
                await answer.read()
            assert failure.value.verdict is Verdict.RESET
        assert not answer.ended and not ended
        await until(lambda: upstream.open_connections == 0)


async def test_a_reset_ends_no_body_that_lasts_until_the_close(upstream: PooledUpstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\nhello")
        await asyncio.sleep(0.05)
        if peer.number == 0:
            peer.reset()

    async with ScriptedBackend(script) as backend:
        answer = await send(upstream, backend)
        assert await answer.read() == b"hello"
        with pytest.raises(UpstreamError):
            await answer.read()
        assert await whole(await send(upstream, backend)) == b"hello"


async def test_an_answer_before_the_body_was_read_is_taken(upstream: PooledUpstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
        await peer.watch()

    async with ScriptedBackend(script) as backend:
        answer = await send(upstream, backend, b"x" * (16 << 20))
        assert answer.status == 413
        assert await whole(answer) == b"big"
        # What was not sent can never be taken for the next request.
        await until(lambda: upstream.open_connections == 0)


async def test_garbage_is_a_reset(upstream: PooledUpstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"220 smtp.example ESMTP\r\n\r\n")
        await peer.watch()

    async with ScriptedBackend(script) as backend:
        with pytest.raises(UpstreamError) as failure:
            await send(upstream, backend)
    assert failure.value.verdict is Verdict.RESET


@pytest.mark.parametrize("when", ["before the head", "within the body"])
async def test_cancelling_closes_the_connection(upstream: PooledUpstream, when: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        if when == "within the body":
            await peer.send(CHUNKED)
        await peer.watch()

    async def call(backend: ScriptedBackend) -> None:
        answer = await send(upstream, backend)
        try:
            await answer.read()
        finally:
            answer.release()

    async with ScriptedBackend(script) as backend:
        task = asyncio.get_running_loop().create_task(call(backend))
        await until(lambda: bool(backend.requests))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(backend.peers[0].gone.wait(), 5)
        assert upstream.open_connections == 0


async def test_a_cancelled_read_loses_nothing(upstream: PooledUpstream) -> None:
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        await go_on.wait()
        await peer.chunk(b"late")
        await peer.send(b"0\r\n\r\n")

    async with ScriptedBackend(script) as backend:
        answer = await send(upstream, backend)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(answer.read(), 0.05)
        go_on.set()
        assert await whole(answer) == b"late"


async def test_the_end_is_seen_while_the_tail_is_unread(upstream: PooledUpstream) -> None:
    """And the connection serves the next request before that."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n", b"x" * 50000)
        await echo_ok(peer)

    async with ScriptedBackend(script) as backend:
        answer = await send(upstream, backend)
        ended: list[bool] = []
        answer.when_ended(lambda: ended.append(True))
        await until(lambda: answer.ended)
        assert ended == [True]
        assert await whole(await send(upstream, backend)) == b"hi"
        assert backend.connections == 1
        assert len(await whole(answer)) == 50000
        answer.when_ended(lambda: ended.append(False))
        assert ended == [True, False]


async def test_an_answer_that_is_not_read_holds_the_backend_back(upstream: PooledUpstream) -> None:
    sent = 0

    async def script(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(CHUNKED)
        for _ in range(1000):
            await peer.chunk(b"x" * 65536)
            sent += 65536
        await peer.send(b"0\r\n\r\n")

    async with ScriptedBackend(script) as backend:
        answer = await send(upstream, backend)
        await until(lambda: sent > 0)
        await asyncio.sleep(0.3)
        # The kernel's buffers take some megabytes; our own share is bounded.
        assert isinstance(answer, Exchange)
        assert answer._reader.buffered_bytes < HIGH_WATER_BYTES + (1 << 20)
        assert sent < 32 << 20
        assert len(await whole(answer)) == 1000 * 65536


async def test_a_backend_that_speaks_unasked_is_not_used_again(upstream: PooledUpstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await asyncio.sleep(0.05)
        await peer.send(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
        await peer.watch()

    async with ScriptedBackend(script) as backend:
        assert await whole(await send(upstream, backend)) == b"hi"
        await asyncio.wait_for(backend.peers[0].gone.wait(), 5)
        assert await whole(await send(upstream, backend)) == b"hi"
        assert backend.connections == 2


async def test_ipv6_literals_work(upstream: PooledUpstream) -> None:
    async with ScriptedBackend(echo_ok, host="::1") as backend:
        there = target(backend)
        assert there.authority == f"[::1]:{backend.port}"
        answer = await upstream.send(there, "GET", "/", [(b"Host", b"h")], None)
        assert await whole(answer) == b"hi"


async def test_closing_the_pool_closes_what_is_in_use_and_what_is_idle() -> None:
    upstream = PooledUpstream()
    async with ScriptedBackend(hold) as busy, ScriptedBackend(echo_ok) as idle:
        await whole(await send(upstream, idle))
        task = asyncio.get_running_loop().create_task(send(upstream, busy))
        await until(lambda: bool(busy.requests))
        await upstream.close()
        with pytest.raises(UpstreamError):
            await task
        assert upstream.open_connections == 0
        with pytest.raises(UpstreamError):
            await send(upstream, idle)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost that signs itself, with its key, in one PEM file."""
    folder = tmp_path_factory.mktemp("tls")
    pem = folder / "both.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-keyout",
            folder / "key.pem",
            "-out",
            folder / "cert.pem",
        ],
        check=True,
        capture_output=True,
    )
    pem.write_bytes((folder / "key.pem").read_bytes() + (folder / "cert.pem").read_bytes())
    return pem


@pytest.mark.skipif(sys.platform == "win32", reason="needs the openssl command")
async def test_tls_trusts_the_ca_file_or_nobody_or_everybody(
    upstream: PooledUpstream, certificate: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    async with ScriptedBackend(echo_ok, ssl=context) as backend:
        trusted = await send(upstream, backend, ca_file=str(certificate))
        assert await whole(trusted) == b"hi"
        unverified = await send(upstream, backend, verify=False)
        assert await whole(unverified) == b"hi"
        with pytest.raises(UpstreamError) as failure:
            await send(upstream, backend)
        assert failure.value.verdict is Verdict.UNREACHABLE
        with pytest.raises(UpstreamError):
            await send(upstream, backend, ca_file="/nonexistent.pem")


async def test_a_proxy_named_in_the_environment_is_ignored(
    upstream: PooledUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with ScriptedBackend(echo_ok) as backend:
        assert await whole(await send(upstream, backend)) == b"hi"


@pytest.mark.parametrize(
    ("base", "path", "arrives"),
    [
        ("http://h:1", "/v1/chat/completions", "/v1/chat/completions"),
        ("http://h:1/", "/v1/chat/completions", "/v1/chat/completions"),
        ("http://h:1/v1", "/v1/chat/completions", "/v1/chat/completions"),
        ("http://h:1/v1/", "/tokenize", "/tokenize"),
        ("http://h:1/llm", "/v1/x?a=%2F", "/llm/v1/x?a=%2F"),
        ("http://h:1/llm/v1/", "/v1/x", "/llm/v1/x"),
        ("http://h:1/av1", "/v1/x", "/av1/v1/x"),
    ],
)
def test_the_join_rule(base: str, path: str, arrives: str) -> None:
    assert Target("b", base).path_for(path) == arrives


@pytest.mark.parametrize(
    ("base", "authority"),
    [
        ("http://h", "h"),
        ("http://h:80", "h"),
        ("https://h:443/v1", "h"),
        ("http://h:443", "h:443"),
        ("http://[::1]:81", "[::1]:81"),
        ("http://B\u00fccher.example", "xn--bcher-kva.example"),
    ],
)
def test_the_authority_of_a_target(base: str, authority: str) -> None:
    assert Target("b", base).authority == authority


@pytest.mark.parametrize(
    "base",
    [
        "h:1",
        "ftp://h",
        "http://",
        "http://h:x",
        "http://u:p@h",
        "http://h/?a=b",
        "http://h/#f",
        "http://h/a b",
        "http://h:99999",
    ],
)
def test_a_base_url_that_cannot_be_used_says_so(base: str) -> None:
    with pytest.raises(ValueError, match="backend url"):
        Target("b", base)


async def test_cancelled_at_any_moment_of_connecting_nothing_stays_open(
    upstream: PooledUpstream,
) -> None:
    async def silent(peer: Peer) -> None:
        await peer.watch()

    async with ScriptedBackend(silent) as backend:
        for turns in range(1, 60):
            task = asyncio.ensure_future(send(upstream, backend))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await until(lambda: upstream.open_connections == 0)
        async with asyncio.timeout(10.0):
            await upstream.close()


async def test_what_came_unasked_and_is_not_read_yet_is_no_answer(upstream: PooledUpstream) -> None:
    """Bytes that wait in the kernel when the connection is taken would be the next one's answer."""
    late = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"
    async with ScriptedBackend(echo_ok) as backend:
        assert await whole(await send(upstream, backend)) == b"hi"
        # Written in this step: they are there, and the loop has had no turn to read them.
        backend.peers[0].writer.write(late)
        answer = await send(upstream, backend)
        assert (answer.status, await whole(answer)) == (200, b"hi")
        assert backend.connections == 2
