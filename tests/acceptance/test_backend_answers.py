"""What a backend's own answer means, row by row of the contract, over scripted backends.

In each, `a` is asked first (b is full, or is asked only when a failed): a's in-flight share is the
smaller, or ties go in rotation from a.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.engines import (
    OK,
    HeldEngine,
    Move,
    SayingEngine,
    error_answer,
    event,
    hang_up,
    lose,
)
from tests.peers import Peer, Received, until
from tests.running import Answered, Running, backend, backends_yaml, chat_body, running_router

QUEUE = {"enabled": True, "ttl": "5s"}

OVERLOADED = {"error": {"type": "overloaded_error", "message": "busy"}}
BUSY: dict[str, tuple[str, bytes]] = {
    "529": ("openai", error_answer(b"529 Overloaded", {"whatever": 1})),
    "529 without JSON": (
        "openai", b"HTTP/1.1 529 \r\nX-Engine: yes\r\nContent-Length: 4\r\n\r\nbusy"
    ),
    "503 overloaded_error": ("openai", error_answer(b"503 Service Unavailable", OVERLOADED)),
    "429 queue_saturated": (
        "openai", error_answer(b"429 Too Many Requests", {"error": {"code": "queue_saturated"}})
    ),
    "vLLM's busy 503": (
        "vllm",
        error_answer(
            b"503 Service Unavailable",
            {"error": {"message": "full", "type": "Service Unavailable", "code": 503}},
        ),
    ),
}  # fmt: skip
LOADING = error_answer(
    b"503 Service Unavailable",
    {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}},
)
FULL = b'data: {"error": {"message": "full", "code": 503}}\n\ndata: [DONE]\n\n'
"""vLLM's refusal of a streamed request."""
PLAIN_503 = b"HTTP/1.1 503 Nope\r\nX-Engine: yes\r\nContent-Length: 4\r\n\r\nnope"


@dataclass
class Pair:
    """A router over `a`, which misbehaves, and `b`, which holds."""

    running: Running
    a: SayingEngine
    b: HeldEngine

    async def backend(self, name: str = "a") -> dict:
        return (await self.running.state())["backends"][name]


@contextlib.asynccontextmanager
async def pair(
    directory: Path,
    *moves: Move,
    queue: bool = False,
    kind: str = "openai",
    b_cap: int = 8,
    **a_fields: object,
) -> AsyncIterator[Pair]:
    async with SayingEngine(*moves) as a, HeldEngine(hold_s=0.0) as b:
        yaml = backends_yaml(
            backend(a.url, "a", kind=kind, **{"max_concurrency": 8, **a_fields}),
            backend(b.url, "b", max_concurrency=b_cap),
            queue={**QUEUE, "enabled": queue},
        )
        async with running_router(yaml, directory) as running:
            yield Pair(running, a, b)


@contextlib.asynccontextmanager
async def alone(
    directory: Path, *moves: Move, queue: bool = False, kind: str = "openai", **fields: object
) -> AsyncIterator[Pair]:
    async with SayingEngine(*moves) as a, HeldEngine() as nobody:
        yaml = backends_yaml(
            backend(a.url, "a", kind=kind, **fields), queue={**QUEUE, "enabled": queue}
        )
        async with running_router(yaml, directory) as running:
            yield Pair(running, a, nobody)


def relayed_whole(answer: Answered, said: bytes) -> None:
    """The backend's status, headers and bytes, with ours beside and no reject reason."""
    head, _, body = said.partition(b"\r\n\r\n")
    assert answer.status == int(head.split(b" ")[1])
    assert answer.body == body
    assert answer.headers["X-Engine"] == "yes"
    assert answer.headers["X-Lifeboat-Backend"] == "a"
    assert "X-Lifeboat-Reject-Reason" not in answer.headers


def went_over(answer: Answered, attempts: int = 2) -> None:
    assert (answer.status, answer.headers["X-Lifeboat-Backend"]) == (200, "b")
    assert answer.headers["X-Lifeboat-Attempts"] == str(attempts)


# -- no connection ----------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """A port whose connections neither open nor fail: its backlog is full."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("queue", [False, True])
async def test_a_refused_connection_goes_to_the_next_and_marks_the_backend_down(
    tmp_path: Path, queue: bool
) -> None:
    async with pair(tmp_path, OK, queue=queue) as both:
        both.a._server.close()
        for peer in both.a.peers:
            peer.reset()
        answers = [await both.running.ask() for _ in range(4)]
        for answer in answers:
            assert (answer.status, answer.headers["X-Lifeboat-Backend"]) == (200, "b")
        # Only the first one met it: it was down at once.
        assert sorted(int(answer.headers["X-Lifeboat-Attempts"]) for answer in answers)[:3] == [
            1, 1, 1,
        ]  # fmt: skip
        state = await both.backend()
        assert (state["health"], state["effective_limit"]) == ("down", 0)
        assert state["limit_reason"] == "down"


async def test_refused_by_all_is_a_502_that_lists_the_attempts(tmp_path: Path) -> None:
    async with alone(tmp_path, OK) as one:
        one.a._server.close()
        for peer in one.a.peers:
            peer.reset()
        refused = await one.running.ask()
        assert (refused.status, refused.error["code"]) == (502, "backend_unreachable")
        assert [attempt["outcome"] for attempt in refused.error["attempts"]] == ["refused"]
        again = await one.running.ask()
        assert (again.status, again.error["code"]) == (503, "no_backends")
        assert "x-should-retry" not in again.headers


@pytest.mark.parametrize(
    "environ", [{"LIFEBOAT_LB_HOLD_WHEN_DOWN": "true"}, {"LIFEBOAT_LB_MODE": "queue-all"}]
)
async def test_held_while_all_are_down_and_served_once_one_comes_up(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    port = free_port()
    yaml = backends_yaml(backend(f"http://127.0.0.1:{port}", "a"))
    async with running_router(yaml, tmp_path, environ) as running:
        async with asyncio.TaskGroup() as tasks:
            parked = [tasks.create_task(running.ask()) for _ in range(3)]
            await running.until(lambda state: state["queue_total_waiters"] == 3)
            engine = HeldEngine(hold_s=0.0)
            engine._server = await asyncio.start_server(engine._accept, "127.0.0.1", port)
            try:
                # Probed every second while anything waits.
                await asyncio.wait(parked, timeout=3.0)
            finally:
                engine.port = port
                await running.settle()
                await engine.__aexit__(None, None, None)
        assert [ask.result().status for ask in parked] == [200] * 3
        assert min(ask.result().wait_ms for ask in parked) > 0


async def test_held_for_the_whole_ttl_while_all_are_down(tmp_path: Path) -> None:
    yaml = backends_yaml(
        backend(f"http://127.0.0.1:{free_port()}"), queue={"ttl": "300ms"}, hold_when_down=True
    )
    async with running_router(yaml, tmp_path) as running:
        refused = await running.ask()
        assert (refused.status, refused.error["code"]) == (504, "queue_timeout")
        # Its own ttl, and not the 30 s of the default.
        assert 250 <= refused.wait_ms <= 8000


async def test_a_connection_that_does_not_open_in_time_goes_to_the_next(tmp_path: Path) -> None:
    async with HeldEngine(hold_s=0.0) as b:
        with black_hole() as url:
            yaml = backends_yaml(
                backend(url, "a", connect_timeout="150ms"),
                backend(b.url, "b"),
                probe={"timeout": "300ms"},
            )
            async with running_router(yaml, tmp_path) as running:
                answers = [await running.ask() for _ in range(2)]
                slow = [one for one in answers if one.headers["X-Lifeboat-Attempts"] != "1"]
                assert slow
                for answer in slow:
                    went_over(answer)
                    assert answer.took_s > 0.14


# -- lost connections ------------------------------------------------------------------------


async def test_a_stale_connection_is_tried_once_more_on_a_fresh_one(tmp_path: Path) -> None:
    async with alone(tmp_path, OK, hang_up, OK, lose, OK) as one:
        for attempts in (1, 2, 2):
            answer = await one.running.ask()
            assert answer.status == 200
            assert answer.headers["X-Lifeboat-Attempts"] == str(attempts)
        assert len(one.a.asked) == 5
        metrics = await one.running.metrics()
        assert metrics['lifeboat_lb_retries_total{cause="stale_connection"}'] == 2
        state = await one.running.settle()
        assert (state["backends"]["a"]["health"], state["backends"]["a"]["failed"]) == ("up", 0)


@pytest.mark.parametrize("queue", [False, True])
@pytest.mark.parametrize(
    ("path", "fields", "environ", "again"),
    [
        ("/v1/chat/completions", {}, {}, True),
        ("/v1/chat/completions", {"stream": True}, {}, True),
        ("/v1/embeddings", {}, {}, True),
        ("/v1/responses", {"store": False}, {}, True),
        ("/v1/responses", {}, {}, False),
        ("/v1/responses", {"store": True}, {}, False),
        ("/v1/videos", {}, {}, False),
        ("/v1/chat/completions", {}, {"LIFEBOAT_LB_REDISPATCH": "false"}, False),
    ],
)
async def test_a_request_lost_before_its_answer_is_sent_once_more_where_that_is_safe(
    tmp_path: Path,
    path: str,
    fields: dict[str, object],
    environ: dict[str, str],
    queue: bool,
    again: bool,
) -> None:
    async with SayingEngine(lose) as a, HeldEngine(hold_s=0.0) as b:
        serves = ["generate", "embed", "video"]
        yaml = backends_yaml(
            backend(a.url, "a", serves=serves),
            backend(b.url, "b", serves=serves, max_concurrency=1000),
            queue={**QUEUE, "enabled": queue},
        )
        async with running_router(yaml, tmp_path, environ) as running:
            body = {"model": "m", "input": "x", "prompt": "x", "messages": [], **fields}
            while not a.asked:
                answer = await running.ask(path, body)
            assert len(a.asked) == 1
            if again:
                went_over(answer)
            else:
                assert (answer.status, answer.error["code"]) == (502, "backend_unreachable")
                assert answer.error["attempts"][0]["outcome"] == "reset"
            assert not any((await running.settle())["inflight"].values())


@pytest.mark.parametrize("move", [lose, PLAIN_503], ids=["lost", "plain 503"])
async def test_a_request_does_not_go_back_to_the_backend_that_failed_it(
    tmp_path: Path, move: Move
) -> None:
    """Though that one is the emptier: the other one runs something already."""
    async with pair(tmp_path, move) as both:
        both.b.hold_s = None
        async with asyncio.TaskGroup() as tasks:
            await both.running.admin("PATCH", "backends/a", {"state": "drain"})
            tasks.create_task(both.running.ask())
            await until(lambda: len(both.b.running) == 1)
            await both.running.admin("PATCH", "backends/a", {"state": "ready"})
            failed = tasks.create_task(both.running.ask())
            await until(lambda: len(both.b.running) == 2)
            both.b.release_all()
        went_over(failed.result())
        assert len(both.a.asked) == 1


async def test_never_more_than_three_sends_in_all(tmp_path: Path) -> None:
    """A stale connection, its fresh one lost as well, and one re-dispatch that is lost too."""
    async with SayingEngine(OK, hang_up, lose) as a, SayingEngine(OK, hang_up, lose) as b:
        yaml = backends_yaml(backend(a.url, "a"), backend(b.url, "b"))
        async with running_router(yaml, tmp_path) as running:
            for _ in range(2):
                assert (await running.ask()).status == 200
            refused = await running.ask()
            assert (refused.status, refused.error["code"]) == (502, "backend_unreachable")
            assert len(a.asked) + len(b.asked) - 2 == 3


async def test_with_hold_on_a_lost_request_parks_until_its_backend_proves_itself(
    tmp_path: Path,
) -> None:
    environ = {"LIFEBOAT_LB_HOLD_WHEN_DOWN": "true"}
    async with SayingEngine(lose, OK) as a:
        yaml = backends_yaml(backend(a.url, "a"), queue=QUEUE)
        async with running_router(yaml, tmp_path, environ) as running, asyncio.TaskGroup() as tasks:
            lost = tasks.create_task(running.ask(body=chat_body(user="lost")))
            await running.until(lambda state: state["queue_total_waiters"] == 1)
            other = await running.ask(body=chat_body(user="other"))
            assert other.status == 200
            answer = await lost
            assert (answer.status, answer.headers["X-Lifeboat-Attempts"]) == (200, "2")
            assert answer.wait_ms > 0


# -- saturated -------------------------------------------------------------------------------


@pytest.mark.parametrize("queue", [False, True])
@pytest.mark.parametrize("name", BUSY)
async def test_a_busy_backend_is_saturated_not_down_and_another_is_asked(
    tmp_path: Path, name: str, queue: bool
) -> None:
    kind, busy = BUSY[name]
    async with pair(tmp_path, busy, queue=queue, kind=kind) as both:
        answers = [await both.running.ask() for _ in range(3)]
        state = await both.backend()
        assert (state["limit_reason"], state["effective_limit"]) == ("saturated", 0)
        assert state["health"] == "up"
        assert len(both.a.asked) == 1
        assert [answer.status for answer in answers] == [200] * 3
        assert sorted(answer.headers["X-Lifeboat-Attempts"] for answer in answers) == [
            "1",
            "1",
            "2",
        ]
        # It rises again by itself, in steps.
        await both.running.until(lambda state: state["backends"]["a"]["effective_limit"] >= 1)


@pytest.mark.parametrize("name", BUSY)
async def test_a_busy_answer_is_relayed_untouched_where_nothing_parks(
    tmp_path: Path, name: str
) -> None:
    kind, busy = BUSY[name]
    async with alone(tmp_path, busy, kind=kind) as one:
        relayed_whole(await one.running.ask(), busy)
        # While it is closed by its own answer, the gate refuses for it.
        refused = await one.running.ask()
        assert (refused.status, refused.error["code"]) == (503, None)
        assert refused.error["effective_limit"] == {"a": 0}


@pytest.mark.parametrize("name", BUSY)
async def test_a_busy_answer_parks_again_where_the_queue_is_on(tmp_path: Path, name: str) -> None:
    kind, busy = BUSY[name]
    async with alone(tmp_path, busy, busy, OK, queue=True, kind=kind) as one:
        answer = await one.running.ask()
        assert (answer.status, answer.headers["X-Lifeboat-Attempts"]) == (200, "3")
        # A pause of 250 ms, then one of 500 ms: the wait is the sum of both.
        assert 700 <= answer.wait_ms <= 5000
        assert len(one.a.asked) == 3


async def test_a_retry_after_is_the_pause(tmp_path: Path) -> None:
    busy = error_answer(b"529 Overloaded", OVERLOADED, b"Retry-After: 1")
    async with alone(tmp_path, busy, OK, queue=True) as one:
        answer = await one.running.ask()
        assert answer.status == 200
        assert 950 <= answer.wait_ms <= 5000


async def test_no_ttl_left_gets_the_answer_of_the_last_attempt(tmp_path: Path) -> None:
    busy = BUSY["529"][1]
    async with SayingEngine(busy) as a:
        yaml = backends_yaml(backend(a.url, "a"), queue={"enabled": True, "ttl": "600ms"})
        async with running_router(yaml, tmp_path) as running:
            answer = await running.ask()
            # Parked 250 ms, refused, parked again for what was left of its 600 ms: then it expired
            # while parked.
            assert (answer.status, answer.error["code"]) == (504, "queue_timeout")
            assert 550 <= answer.wait_ms <= 8000
            assert len(a.asked) == 2


async def test_a_saturated_backend_keeps_what_it_serves_and_is_not_hammered(
    tmp_path: Path,
) -> None:
    """Two seats behind a limit of eight: each served request costs little more than one send."""
    running_now = 0

    async def two_seats(peer: Peer, received: Received) -> None:
        nonlocal running_now
        if running_now >= 2:
            await peer.send(BUSY["529"][1])
            return
        running_now += 1
        await asyncio.sleep(0.05)
        running_now -= 1
        await peer.send(OK)

    async with alone(tmp_path, two_seats, queue=True, max_concurrency=8) as one:
        answers = await asyncio.gather(*(one.running.ask() for _ in range(30)))
        assert [answer.status for answer in answers] == [200] * 30
        assert len(one.a.asked) <= 30 * 1.7


@pytest.mark.parametrize("queue", [False, True])
async def test_a_vllm_stream_that_begins_with_an_overload_error_goes_elsewhere(
    tmp_path: Path, queue: bool
) -> None:
    refusal = stream_of(FULL)
    async with pair(tmp_path, refusal, queue=queue, kind="vllm") as both:
        answers = [await both.running.ask(body=chat_body(stream=True)) for _ in range(2)]
        assert all(b"[DONE]" in answer.body for answer in answers)
        assert all(b"error" not in answer.body for answer in answers)
        went_over(next(a for a in answers if a.headers["X-Lifeboat-Attempts"] != "1"))
        assert (await both.backend())["limit_reason"] == "saturated"


async def test_a_vllm_stream_that_begins_with_an_overload_error_is_relayed_if_alone(
    tmp_path: Path,
) -> None:
    refusal = stream_of(FULL)
    for kind in ("vllm", "openai"):
        async with alone(tmp_path, refusal, kind=kind) as one:
            answer = await one.running.ask(body=chat_body(stream=True))
            assert answer.status == 200
            assert (
                answer.body
                == b'data: {"error": {"message": "full", "code": 503}}\n\ndata: [DONE]\n\n'
            )
            saturated = (await one.backend())["limit_reason"] == "saturated"
            assert saturated == (kind == "vllm")


async def test_a_vllm_stream_parks_again_where_the_queue_is_on(tmp_path: Path) -> None:
    refusal = stream_of(FULL)
    good = stream_of(event("Hi") + b"data: [DONE]\n\n")
    async with alone(tmp_path, refusal, good, queue=True, kind="vllm") as one:
        answer = await one.running.ask(body=chat_body(stream=True))
        assert answer.body == event("Hi") + b"data: [DONE]\n\n"
        assert answer.wait_ms >= 200
        assert answer.headers["X-Lifeboat-Attempts"] == "2"


def stream_of(body: bytes) -> bytes:
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    )


async def test_a_slow_vllm_stream_gets_its_head_after_a_quarter_second(tmp_path: Path) -> None:
    got_head = asyncio.Event()

    async def slow(peer: Peer, received: Received) -> None:
        await peer.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        await got_head.wait()
        await peer.chunk(event("Hi"))
        await peer.send(b"0\r\n\r\n")

    async with alone(tmp_path, slow, kind="vllm") as one:
        loop = asyncio.get_running_loop()
        started = loop.time()
        async with one.running.session.post(
            f"{one.running.url}/v1/chat/completions", json=chat_body(stream=True)
        ) as answer:
            assert loop.time() - started >= 0.2
            got_head.set()
            assert await answer.read() == event("Hi")


# -- other answers ----------------------------------------------------------------------------


@pytest.mark.parametrize("queue", [False, True])
async def test_a_loading_backend_is_out_until_it_has_loaded(tmp_path: Path, queue: bool) -> None:
    async with pair(tmp_path, LOADING, OK, queue=queue, kind="gguf") as both:
        both.a.probe = LOADING
        answers = [await both.running.ask() for _ in range(3)]
        assert [answer.status for answer in answers] == [200] * 3
        assert len(both.a.asked) == 1
        assert (await both.backend())["health"] == "loading"
        both.a.probe = None
        await both.running.until(lambda state: state["backends"]["a"]["health"] == "up")


async def test_a_loading_backend_alone_is_relayed_and_then_temporarily_nobody(
    tmp_path: Path,
) -> None:
    async with alone(tmp_path, LOADING, kind="gguf") as one:
        one.a.probe = LOADING
        relayed_whole(await one.running.ask(), LOADING)
        refused = await one.running.ask()
        assert (refused.status, refused.error["code"]) == (503, "no_backends")
        assert "x-should-retry" not in refused.headers


@pytest.mark.parametrize("queue", [False, True])
async def test_a_clients_own_429_is_the_clients_affair(tmp_path: Path, queue: bool) -> None:
    limited = error_answer(
        b"429 Too Many Requests", {"error": {"code": "rate_limit_exceeded"}}, b"Retry-After: 7"
    )
    async with pair(tmp_path, limited, queue=queue) as both:
        while not both.a.asked:
            answer = await both.running.ask()
        relayed_whole(answer, limited)
        assert answer.headers["Retry-After"] == "7"
        state = await both.backend()
        assert (state["health"], state["limit_reason"]) == ("up", "configured")


@pytest.mark.parametrize("queue", [False, True])
async def test_a_429_earned_by_the_backends_own_key_closes_it_a_while(
    tmp_path: Path, queue: bool
) -> None:
    limited = error_answer(b"429 Too Many Requests", {"error": {}}, b"Retry-After: 1")
    async with pair(tmp_path, limited, OK, queue=queue, api_key="secret") as both:
        answers = [await both.running.ask() for _ in range(3)]
        assert [answer.status for answer in answers] == [200] * 3
        assert len(both.a.asked) == 1
        assert both.a.asked[0].values(b"authorization") == [b"Bearer secret"]
        state = await both.backend()
        assert (state["limit_reason"], state["effective_limit"]) == ("throttled", 0)
        await both.running.until(
            lambda state: state["backends"]["a"]["limit_reason"] == "configured", 3.0
        )


async def test_a_429_of_the_own_key_without_retry_after_is_relayed(tmp_path: Path) -> None:
    limited = error_answer(b"429 Too Many Requests", {"error": {}})
    async with alone(tmp_path, limited, api_key="secret") as one:
        relayed_whole(await one.running.ask(), limited)


@pytest.mark.parametrize("queue", [False, True])
async def test_a_plain_503_is_tried_elsewhere_and_counts_against_health(
    tmp_path: Path, queue: bool
) -> None:
    async with pair(tmp_path, PLAIN_503, queue=queue) as both:
        answers = [await both.running.ask() for _ in range(8)]
        assert [answer.status for answer in answers] == [200] * 8
        assert len(both.a.asked) == 3
        state = await both.backend()
        assert (state["health"], state["failed"]) == ("suspect", 3)


async def test_a_plain_503_is_relayed_if_nobody_else_can_be_asked(tmp_path: Path) -> None:
    for queue in (False, True):
        async with alone(tmp_path, PLAIN_503, queue=queue) as one:
            relayed_whole(await one.running.ask(), PLAIN_503)
            assert len(one.a.asked) == 1


@pytest.mark.parametrize("status", [b"500 Oops", b"502 Bad Gateway", b"504 Gateway Timeout"])
async def test_a_500_is_relayed_once_and_three_make_a_suspect(
    tmp_path: Path, status: bytes
) -> None:
    broken = error_answer(status, {"error": {"message": "CUDA"}})
    async with pair(tmp_path, broken, queue=True) as both:
        failures = 0
        loop = asyncio.get_running_loop()
        suspect_at = loop.time()
        while failures < 3:
            suspect_at = loop.time()
            answer = await both.running.ask()
            if answer.status != 200:
                failures += 1
                relayed_whole(answer, broken)
        assert len(both.a.asked) == 3
        state = await both.backend()
        assert (state["health"], state["limit_reason"]) == ("suspect", "suspect")
        answers = [await both.running.ask() for _ in range(4)]
        went_to_a = [one for one in answers if one.headers["X-Lifeboat-Backend"] == "a"]
        # It gets one trial after a second and the next after two more, on a slow machine here.
        took_s = loop.time() - suspect_at
        assert len(went_to_a) <= (took_s > 1.0) + (took_s > 3.0)


async def test_the_last_live_backend_is_never_shut_out(tmp_path: Path) -> None:
    broken = error_answer(b"500 Oops", {"error": {}})
    async with alone(tmp_path, broken) as one:
        for _ in range(8):
            relayed_whole(await one.running.ask(), broken)
        assert len(one.a.asked) == 8


@pytest.mark.parametrize(
    "said",
    [
        error_answer(b"200 Fine", {"ok": 1}),
        error_answer(b"201 Created", {"ok": 1}),
        error_answer(b"302 Found", {"ok": 1}, b"Location: /elsewhere"),
        error_answer(b"307 Temporary Redirect", {"ok": 1}, b"Location: http://127.0.0.1:9/"),
        error_answer(b"400 Bad Request", {"error": {"code": "context_length_exceeded"}}),
        error_answer(b"401 Unauthorized", {"error": {}}, b"WWW-Authenticate: Bearer"),
        error_answer(b"404 Not Found", {"error": {}}, b"X-Lifeboat-Reject-Reason: forged"),
        error_answer(b"418 I'm a teapot", {"error": {}}, b"Set-Cookie: a=1"),
        error_answer(b"422 Unprocessable Entity", {"detail": []}),
        error_answer(b"501 Not Implemented", {"error": {}}),
        error_answer(b"599 Odd", {"error": {}}),
    ],
    ids=lambda said: said.split(b"\r\n")[0].decode(),
)
async def test_any_other_status_is_relayed_untouched(tmp_path: Path, said: bytes) -> None:
    async with alone(tmp_path, said, queue=True) as one:
        async with one.running.session.post(
            f"{one.running.url}/v1/chat/completions", json=chat_body(), allow_redirects=False
        ) as reply:
            answer = Answered(reply.status, reply.headers, await reply.read(), 0.0)
            assert reply.reason == said.split(b"\r\n")[0].decode().partition(" ")[2][4:]
        relayed_whole(answer, said)
        assert len(one.a.asked) == 1


async def test_failing_over_to_a_full_survivor_is_like_any_arrival(tmp_path: Path) -> None:
    for queue in (False, True):
        async with pair(tmp_path, BUSY["529"][1], queue=queue, b_cap=1) as both:
            both.b.hold_s = None
            async with asyncio.TaskGroup() as tasks:
                # The first goes to a, is refused there, and takes b's only slot.
                first = tasks.create_task(both.running.ask())
                await until(lambda: len(both.b.running) == 1)
                second = tasks.create_task(both.running.ask())
                if queue:
                    await both.running.until(lambda state: state["queue_total_waiters"] == 1)
                else:
                    refused = await second
                    assert (refused.status, refused.error["code"]) == (503, None)
                    assert refused.error["effective_limit"] == {"a": 0, "b": 1}
                both.b.release_all()
            went_over(first.result())
            if queue:
                assert second.result().status == 200
                assert second.result().wait_ms > 0
            assert both.b.most_running == 1


@pytest.mark.parametrize("move", [lose, BUSY["529"][1], PLAIN_503], ids=["lost", "529", "503"])
async def test_failing_over_never_lifts_the_survivor_above_its_cap(
    tmp_path: Path, move: Move
) -> None:
    async with pair(tmp_path, move, queue=True, b_cap=2) as both:
        both.b.hold_s = 0.02
        answers = await asyncio.gather(*(both.running.ask() for _ in range(32)))
        assert {answer.status for answer in answers} <= {200, 503}
        assert sum(answer.status == 200 for answer in answers) >= 30
        assert both.b.most_running <= 2
