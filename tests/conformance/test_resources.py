"""Resources: no hidden limit, no hidden wait, bounded memory, and time limits that are apart."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import re
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from tests.conformance.holding import Held
from tests.conformance.lanes import (
    COMPLETION,
    LANES,
    SSE_HEAD,
    Engine,
    Lane,
    answer,
    chat,
    says_hello,
)
from tests.peers import Peer, RawClient, Received, until
from tests.running import CHAT, RouterProcess, backend, backends_yaml

FEW_FILES = (
    "sh", "-c", 'ulimit -n 256; exec "$0" -m lifeboat "$@"', sys.executable,
)  # fmt: skip
"""The command under a limit of 256 descriptors, soft and hard."""


@contextlib.asynccontextmanager
async def process(
    lane: Lane,
    directory: Path,
    *entries: dict[str, object],
    command: tuple[str, ...] = (sys.executable, "-m", "lifeboat"),
    environ: dict[str, str] | None = None,
    **top: object,
) -> AsyncIterator[RouterProcess]:
    """Run the real command, for what only a process of its own can show."""
    (directory / "backends.yaml").write_text(backends_yaml(*entries, **top))
    variables = {"LIFEBOAT_LB_TOKENIZER": "quick", **LANES[lane.name], **(environ or {})}
    router = await RouterProcess.start(cwd=directory, environ=variables, command=command)
    try:
        yield router
    finally:
        await router.stop()


async def get(router: RouterProcess, path: str) -> str:
    client = await RawClient.connect(router.port)
    await client.send(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())
    reply = await client.reply()
    client.close()
    assert reply.status == 200
    return reply.body.decode()


async def state(router: RouterProcess) -> dict:
    return json.loads(await get(router, "/api/lb/state"))


def rss_bytes(router: RouterProcess) -> int:
    status = Path(f"/proc/{router.process.pid}/status").read_text()
    found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


async def logged(router: RouterProcess, text: str) -> None:
    """Wait for a line in the log: a thread writes it."""
    await until(lambda: text in router.log.read_text())


def limits_of(router: RouterProcess) -> str:
    return Path(f"/proc/{router.process.pid}/limits").read_text()


def open_files(router: RouterProcess) -> int:
    return len(os.listdir(f"/proc/{router.process.pid}/fd"))


def half_closed(port: int) -> int:
    """Return how many connections of a local port are in CLOSE_WAIT."""
    suffix = f":{port:04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    rows = [line.split() for line in lines]
    return sum(row[3] == "08" and (row[1].endswith(suffix)) for row in rows)


# ---- no limit and no wait but the gate's ---------------------------------------------------------


async def test_bug_222_bug_223_two_hundred_streams_are_two_hundred_connections(lane: Lane) -> None:
    held = [Held(streamed=True), Held(streamed=True)]
    async with lane.facing(*held, max_concurrency=128) as stage:
        clients = [await stage.client() for _ in range(200)]
        for client in clients:
            await client.post(CHAT, chat(stream=True))
        await until(lambda: sum(one.running for one in held) == 200)
        assert [one.running for one in held] == [100, 100]
        assert sum(engine.running for engine in stage.engines) == 200
        assert (await stage.running.state())["inflight"] == {"a": 100, "b": 100}
        waits = []
        for client in clients:
            _, headers = await client.head()
            waits += [int(value) for name, value in headers if name == b"X-Lifeboat-Wait-ms"]
        assert waits == [0] * 200
        # What the header says is true: every one of them has its first event already.
        for client in clients:
            assert b"first" in await client.reader.readuntil(b"\n\n")
        for one in held:
            one.release_all()


async def test_bug_223_without_a_gate_nothing_waits_in_a_pool_either(lane: Lane) -> None:
    held = Held()
    async with lane.facing(held, max_concurrency=0) as stage:
        asked = [asyncio.create_task(stage.running.ask()) for _ in range(300)]
        await until(lambda: held.running == 300)
        held.release_all()
        answers = await asyncio.gather(*asked)
        assert {(one.status, one.wait_ms) for one in answers} == {(200, 0)}


# ---- time limits ---------------------------------------------------------------------------------


async def test_bug_225_a_long_silence_before_the_first_byte_is_no_read_gap(lane: Lane) -> None:
    """Prefill has a limit of its own, apart from the silence within an answer and of clients."""

    async def thinks(peer: Peer, asked: Received) -> None:
        await asyncio.sleep(1.5)
        await peer.send(answer(COMPLETION))

    environ = {
        "LIFEBOAT_UPSTREAM_FIRST_BYTE_TIMEOUT_SEC": "30",
        "LIFEBOAT_UPSTREAM_IDLE_TIMEOUT_SEC": "0.5",
        "LIFEBOAT_UPSTREAM_CONNECT_TIMEOUT_SEC": "0.5",
        "LIFEBOAT_CLIENT_HEAD_TIMEOUT_SEC": "0.5",
        "LIFEBOAT_CLIENT_BODY_TIMEOUT_SEC": "0.5",
        "LIFEBOAT_CLIENT_WRITE_TIMEOUT_SEC": "0.5",
        "LIFEBOAT_CLIENT_KEEPALIVE_SEC": "0.5",
    }
    async with lane.facing(thinks, environ=environ) as stage:
        # On a fresh connection, and on one that has served before.
        client = await stage.client()
        for _ in range(2):
            await client.post(CHAT, chat())
            assert (await client.reply()).status == 200
    short = {"LIFEBOAT_UPSTREAM_FIRST_BYTE_TIMEOUT_SEC": "0.3"}
    async with lane.facing(thinks, environ=short) as stage:
        # Refused, so before the backend was through.
        refused = await stage.running.ask()
        assert (refused.status, refused.error["code"]) == (504, "backend_timeout")
        await stage.running.settle()


@contextlib.contextmanager
def black_hole():
    """Yield a port where connections are neither taken nor refused: its backlog is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


async def test_bug_234_a_backend_that_takes_no_connection_costs_seconds_and_no_request(
    lane: Lane,
) -> None:
    environ = {
        "LIFEBOAT_UPSTREAM_CONNECT_TIMEOUT_SEC": "0.3", "LIFEBOAT_PROBE_TIMEOUT_SEC": "0.1",
    }  # fmt: skip
    with black_hole() as port:
        async with Engine(says_hello) as engine:
            hole = backend(f"http://127.0.0.1:{port}", "hole")
            async with lane.router(hole, backend(engine.url), environ=environ) as running:
                slowest = 0.0
                for _ in range(6):
                    answered = await running.ask()
                    assert answered.status == 200
                    assert answered.headers["X-Lifeboat-Backend"] == "a"
                    slowest = max(slowest, answered.took_s)
                # At least one went there first, and it cost the connect timeout, not more: not
                # the 5 s of the default, and not the minutes of the kernel.
                assert 0.25 < slowest < 4.5
        async with lane.router(hole, environ=environ) as running:
            refused = await running.ask()
            assert (refused.status, refused.error["code"]) == (502, "backend_unreachable")
            assert refused.took_s < 4.5


async def test_bug_234_a_backend_that_accepts_and_reads_nothing_has_the_other_limit(
    lane: Lane,
) -> None:
    """It may have the request: no second one gets it, and its silence has a limit of its own."""

    async def never_reads(peer: Peer) -> None:
        peer.writer.transport.pause_reading()
        await asyncio.sleep(60)

    environ = {
        "LIFEBOAT_UPSTREAM_CONNECT_TIMEOUT_SEC": "0.2",
        "LIFEBOAT_UPSTREAM_FIRST_BYTE_TIMEOUT_SEC": "0.6",
    }
    deaf = Engine(says_hello)
    deaf.script = never_reads
    async with deaf, lane.router(backend(deaf.url), environ=environ) as running:
        for text in ("small", "large " * 1_000_000):
            client = await RawClient.connect(running.port)
            await client.post(CHAT, chat(text))
            reply = await client.reply()
            assert reply.status == 504
            assert json.loads(reply.body)["error"]["code"] == "backend_timeout"
            client.close()
        await running.settle()


SLOW = {"LIFEBOAT_CLIENT_HEAD_TIMEOUT_SEC": "0.4", "LIFEBOAT_CLIENT_KEEPALIVE_SEC": "0.6"}


async def ends(client: RawClient, within_s: float) -> bytes:
    """Return what comes until the connection is closed, in this time."""
    async with asyncio.timeout(within_s):
        with contextlib.suppress(ConnectionError):
            return await client.reader.read()
    return b""


@pytest.mark.parametrize(
    "start", [b"", b"G", b"GET / HT", b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-A: b"]
)
async def test_bug_231_a_head_that_does_not_come_is_not_waited_for(
    lane: Lane, start: bytes
) -> None:
    async with lane.facing(says_hello, environ=SLOW) as stage:
        client = await stage.client()
        await client.send(start)
        assert b"200 OK" not in await ends(client, 10.0)


async def test_bug_231_dripping_bytes_buys_no_time(lane: Lane) -> None:
    async with lane.facing(says_hello, environ=SLOW) as stage:
        client = await stage.client()
        head = b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: " + b"a" * 500
        dripped = 0

        async def drip() -> None:
            nonlocal dripped
            with contextlib.suppress(ConnectionError):
                for at in range(len(head)):
                    await client.send(head[at : at + 1])
                    dripped = at
                    await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        await ends(client, 20.0)
        # In 0.4 s some twenty of them get through, and in the second until somebody looks fifty.
        assert dripped < len(head) / 2
        dripping.cancel()


async def test_bug_231_a_later_head_on_a_kept_connection_is_bounded_too(lane: Lane) -> None:
    async with lane.facing(says_hello, environ=SLOW) as stage:
        client = await stage.client()
        await client.post(CHAT, chat())
        assert (await client.reply()).status == 200
        await client.send(b"GET /health HTTP/1.1\r\nHo")
        dripped = 0

        async def drip() -> None:
            nonlocal dripped
            with contextlib.suppress(ConnectionError):
                while True:
                    await asyncio.sleep(0.05)
                    await client.send(b"o")
                    dripped += 1

        dripping = asyncio.create_task(drip())
        await ends(client, 20.0)
        assert dripped < 100
        dripping.cancel()


# ---- memory --------------------------------------------------------------------------------------


async def test_bug_226_a_client_that_reads_nothing_stops_the_backend_not_the_router(
    lane: Lane, tmp_path: Path
) -> None:
    sent = 0

    async def floods(peer: Peer, asked: Received) -> None:
        nonlocal sent
        await peer.send(SSE_HEAD)
        piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        for _ in range(200 * 16):
            await peer.send(piece)
            sent += 65536

    async with Engine(floods) as engine:
        async with process(lane, tmp_path, backend(engine.url)) as router:
            await get(router, "/metrics")
            before = rss_bytes(router)
            clients = [await RawClient.connect(router.port, receive_buffer=4096) for _ in range(2)]
            for client in clients:
                await client.post(CHAT, chat(stream=True))
                client.writer.transport.pause_reading()
            at, still = -1, 0
            while still < 5:
                await asyncio.sleep(0.1)
                still = still + 1 if sent == at else 0
                at = sent
            # The backend is blocked: only what the kernel's buffers hold has left it.
            assert 0 < sent < 60_000_000
            assert rss_bytes(router) - before < 20_000_000
            for client in clients:
                client.reset()
            await until(lambda: engine.running == 0)


@pytest.mark.parametrize("kind", ["openai", "vllm"])
async def test_bug_226_a_client_that_takes_nothing_for_too_long_frees_slot_and_backend(
    lane: Lane, kind: str
) -> None:
    flooding: list[Peer] = []

    async def floods(peer: Peer, asked: Received) -> None:
        flooding.append(peer)
        await peer.send(SSE_HEAD)
        while True:
            await peer.chunk(b"data: " + b"x" * 65536 + b"\n\n")

    environ = {"LIFEBOAT_CLIENT_WRITE_TIMEOUT_SEC": "0.3"}
    async with lane.facing(floods, environ=environ, kind=kind, max_concurrency=1) as stage:
        client = await stage.client(receive_buffer=4096)
        await client.post(CHAT, chat(stream=True))
        client.writer.transport.pause_reading()
        await until(lambda: bool(flooding))
        await until(flooding[0].gone.is_set)
        state = await stage.running.settle()
        assert state["backends"]["a"]["failed"] == 0
        stage.engine.answering(says_hello)
        assert (await stage.running.ask()).status == 200
        metrics = await stage.running.metrics()
    assert metrics['lifeboat_lb_client_disconnects_total{stage="streaming"}'] == 1


OF_MANY = re.compile(r"n[0-9a-f]+-of-many")


async def ask_by_name(port: int, numbers: range) -> None:
    """Send requests that each bring a name of their own: a model, a path, a query, an id."""
    client = await RawClient.connect(port)
    for number in numbers:
        name = f"n{number:x}-of-many"
        marked = [b"X-%b: 1" % name.encode(), b"X-Request-ID: " + name.encode()]
        match number % 4:
            case 0:
                await client.post(f"{CHAT}?trace={name}", chat(model=name))
            case 1:
                await client.post(f"/v1/unknown/{name}", b"")
            case 2:
                await client.post(CHAT, chat(user=name), *marked)
            case _:
                get = b"GET /v1/videos/%b HTTP/1.1\r\nHost: x\r\nCookie: c=%b\r\n\r\n"
                await client.send(get % (name.encode(), name.encode()))
        await client.reply()
    client.close()


async def ask_by_names(port: int, first: int, each: int) -> None:
    """Send so many by each of eight clients, whose requests are of one kind.

    A connection that brings what the fast lane does not serve leaves it for good.
    """
    parts = [range(first + part, first + part + 8 * each, 8) for part in range(8)]
    await asyncio.gather(*(ask_by_name(port, part) for part in parts))


def names_in(held: object) -> set[str]:
    """Return the marked names in a value, and in what it alone refers to."""
    if isinstance(held, bytes):
        held = held.decode("latin-1")
    if isinstance(held, str):
        return set(OF_MANY.findall(held)) if "-of-many" in held else set()
    if gc.is_tracked(held) or isinstance(held, int | float | type | None):
        return set()
    # A tuple or a dict of strings alone is not among the objects that are gone through.
    return set().union(*map(names_in, referents(held)))


def referents(one: object) -> list[object]:
    """Return what an object refers to; of keys that are all strings, gc tells nothing."""
    keys = list(cast("dict[object, object]", one)) if isinstance(one, dict) else []
    return [*keys, *gc.get_referents(one)]


NAMED = (str, bytes, tuple, dict, frozenset)
"""What a name may be, or be alone in: the others are among the objects that are gone through."""


def kept_names() -> Counter[int]:
    """Return how many names this process still knows, by the kind of request they came in."""
    # What was there when the router became ready is frozen, and would not be gone through.
    gc.unfreeze()
    gc.collect()
    found: set[str] = set()
    for one in gc.get_objects():
        for inner in referents(one):
            # Nearly all of the millions that a suite has are told by their type alone.
            if type(inner) in NAMED and (names := names_in(inner)):
                found |= names
    return Counter(int(name[1:].partition("-")[0], 16) % 4 for name in found)


async def test_bug_232_no_object_holds_what_only_a_client_has_named(lane: Lane) -> None:
    async def forgets(peer: Peer, asked: Received) -> None:
        await says_hello(peer, asked)
        stage.engine.requests.clear()
        stage.engine.asked.clear()

    async with lane.facing(forgets) as stage:
        first = 1 << 20
        # More than twice as many of each kind as all caches on the way together have entries.
        await ask_by_names(stage.running.port, first, 600)
        kept = kept_names()
    assert max(kept.values(), default=0) < 600, kept


async def test_bug_232_paths_models_and_ids_leave_nothing_behind(
    lane: Lane, tmp_path: Path
) -> None:
    async with Engine(says_hello) as engine:
        async with process(lane, tmp_path, backend(engine.url)) as router:

            async def many(first: int) -> int:
                await ask_by_names(router.port, first, 200)
                return rss_bytes(router)

            await many(0)
            before = await many(10_000)
            after = await many(20_000)
            after = min(after, await many(30_000))
            # A batch is 1600 requests: what costs more than 600 bytes each would show.
            assert after - before < 1_000_000


# ---- descriptors ---------------------------------------------------------------------------------


async def test_bug_228_out_of_descriptors_it_refuses_and_recovers(
    lane: Lane, tmp_path: Path
) -> None:
    async def closes(peer: Peer, asked: Received) -> None:
        """Answer so that the next request needs a connection of its own."""
        await peer.send(answer(COMPLETION, b"200 OK", b"Connection: close"))
        peer.close()

    async with Engine(closes) as engine:
        entry = backend(engine.url, kind="vllm")
        environ = {"LIFEBOAT_PROBE_INTERVAL_SEC": "0.1", "LIFEBOAT_PROBE_TIMEOUT_SEC": "0.5"}
        other = backend(engine.url, "b", kind="vllm")
        async with process(
            lane, tmp_path, entry, other, command=FEW_FILES, environ=environ
        ) as router:
            usual = open_files(router)
            kept = await RawClient.connect(router.port)
            await kept.post(CHAT, chat())
            assert (await kept.reply()).status == 200

            crowd: list[RawClient] = []
            for _ in range(300):
                with contextlib.suppress(OSError):
                    crowd.append(await RawClient.connect(router.port))
            await asyncio.sleep(1.0)
            assert open_files(router) >= 250

            # The connection that is there is served or told, at once; the backend is not blamed.
            told = 0
            for _ in range(6):
                await kept.post(CHAT, chat())
                reply = await kept.reply()
                assert reply.status in (200, 502)
                if reply.status == 502:
                    told += 1
                    error = json.loads(reply.body)["error"]
                    assert error["code"] == "backend_unreachable"
                    assert "ulimit" in error["message"]
            assert told >= 3
            for client in crowd:
                client.close()
            async with asyncio.timeout(10.0):
                while open_files(router) > usual + 20:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            shown = await state(router)
            assert {one["health"] for one in shown["backends"].values()} == {"up"}
            for _ in range(3):
                client = await RawClient.connect(router.port)
                await client.post(CHAT, chat())
                assert (await client.reply()).status == 200
                client.close()
            await asyncio.sleep(0.1)
            assert half_closed(router.port) == 0
            kept.close()


async def test_bug_229_a_limit_below_what_the_gates_promise_is_said_at_the_start(
    lane: Lane, tmp_path: Path
) -> None:
    entry = backend("http://127.0.0.1:9", max_concurrency=200)
    async with process(lane, tmp_path, entry, command=FEW_FILES) as router:
        warnings = [str(one) for one in (await state(router))["warnings"]]
        assert any("256 file descriptors" in one and "464" in one for one in warnings)
        await logged(router, "256 file descriptors")


async def test_bug_229_queue_all_counts_its_thousandfold_queue(lane: Lane, tmp_path: Path) -> None:
    entry = backend("http://127.0.0.1:9", max_concurrency=32)
    few = ("sh", "-c", 'ulimit -n 2000; exec "$0" -m lifeboat "$@"', sys.executable)
    async with process(lane, tmp_path, entry, command=few) as router:
        assert "file descriptors" not in router.log.read_text()
    async with process(lane, tmp_path, entry, command=few, mode="queue-all") as router:
        await logged(
            router, "2000 file descriptors may be open, but full gates and queues take 32128"
        )


async def test_bug_229_the_soft_limit_is_raised_to_the_hard_one(lane: Lane, tmp_path: Path) -> None:
    entry = backend("http://127.0.0.1:9", max_concurrency=200)
    soft = ("sh", "-c", 'ulimit -Sn 256; ulimit -Hn 4096; exec "$0" -m lifeboat "$@"')
    async with process(lane, tmp_path, entry, command=(*soft, sys.executable)) as router:
        limits = limits_of(router)
        found = re.search(r"^Max open files\s+(\d+)\s+(\d+)", limits, re.MULTILINE)
        assert found is not None
        assert found.groups() == ("4096", "4096")
        assert "file descriptors" not in router.log.read_text()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/lb/explain"), ("PUT", "/api/lb/mode"), ("POST", "/api/lb/backends"),
        ("PATCH", "/api/lb/backends/a"), ("GET", "/v1/models"), ("POST", "/v1/no-such-path"),
        ("POST", CHAT),
    ],
)  # fmt: skip
async def test_bug_231_a_body_that_does_not_come_is_not_waited_for_on_any_path(
    lane: Lane, method: str, path: str
) -> None:
    environ = {**SLOW, "LIFEBOAT_CLIENT_BODY_TIMEOUT_SEC": "0.3"}
    async with lane.facing(says_hello, environ=environ) as stage:
        client = await stage.client()
        await client.send(f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode())
        await client.send(b'Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"a')
        async with asyncio.timeout(9.0):
            reply = await client.reply()
        assert reply.status in (200, 400, 404)
        if path != "/v1/models":
            assert json.loads(reply.body)["error"]["message"]
        assert not stage.asked
        assert (await stage.running.ask()).status == 200


@pytest.mark.parametrize(
    ("path", "length"), [(CHAT, 3000), (CHAT, 64 << 20), ("/api/lb/backends", 3000)]
)
async def test_bug_231_dripping_a_body_buys_no_time_and_no_slot(
    lane: Lane, path: str, length: int
) -> None:
    """No silence is ever long enough to end it: the pace of the whole is."""
    environ = {**SLOW, "LIFEBOAT_CLIENT_BODY_TIMEOUT_SEC": "0.5"}
    async with lane.facing(says_hello, environ=environ) as stage:
        client = await stage.client()
        await client.send(b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\n" % path.encode())
        await client.send(b"Content-Length: %d\r\n\r\n" % length)
        replying = asyncio.create_task(client.reply())
        sent = 0
        while not replying.done() and sent < 2900:
            with contextlib.suppress(ConnectionError):
                await client.send(b" ")
            sent += 1
            # At most a hundred a second, below the least pace, and no silence.
            await asyncio.wait({replying}, timeout=0.01)
        reply = await replying
        assert reply.status == 400
        said = json.loads(reply.body)["error"]["message"]
        assert "240 bytes a second" in said or "nothing came" in said
        assert not stage.asked
        state = await stage.running.state()
        assert state["parked_bytes"] == 0
        assert not any(state["inflight"].values())
