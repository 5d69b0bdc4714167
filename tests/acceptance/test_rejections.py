"""Every row of the rejection table, provoked over real sockets, and one table everywhere."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner

from lifeboat.cli.rejections import rejections
from lifeboat.core.rejections import REJECTIONS
from lifeboat.core.vocabulary import Reason
from tests.acceptance.engines import HeldEngine
from tests.peers import Peer, RawClient, ScriptedBackend, until
from tests.running import (
    CHAT,
    Answered,
    Running,
    backend,
    backends_yaml,
    chat_body,
    running_router,
)

Provoke = Callable[[Running, HeldEngine], Awaitable[Answered]]

CAPACITY = {"routing_mode", "effective_limit", "queue_depth", "queue_limit"}
"""Fields that every rejection for capacity or time carries."""


@dataclass(frozen=True)
class Case:
    """One row: how it comes about and what the client must see."""

    reason: Reason
    status: int
    code: str | None
    type: str
    provoke: Provoke
    retry: str | None = None
    capacity: bool = False
    fields: dict[str, object] = field(default_factory=dict)
    top: dict[str, object] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    says: str = ""


async def when_full(running: Running, engine: HeldEngine) -> Answered:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(running.ask())
        await until(lambda: len(engine.running) == 1)
        refused = await running.ask()
        engine.release_all()
    return refused


async def when_draining(running: Running, engine: HeldEngine) -> Answered:
    """A parked request, at the moment the router is told to stop."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(running.ask())
        await until(lambda: len(engine.running) == 1)
        parked = tasks.create_task(running.ask())
        await running.until(lambda state: state["queue_total_waiters"] == 1)
        running.stop.set()
        refused = await parked
        engine.release_all()
    return refused


def asking(path: str = CHAT, body: object = None, **headers: str) -> Provoke:
    async def ask(running: Running, engine: HeldEngine) -> Answered:
        engine.release_all()
        return await running.ask(path, body, headers=headers)

    return ask


async def second_ask(running: Running, engine: HeldEngine) -> Answered:
    engine.release_all()
    assert (await running.ask()).status == 200
    return await running.ask()


CASES = (
    Case(Reason.GATE, 503, None, "overloaded_error", when_full, capacity=True,
         fields={"max_concurrency": 1}, says="max_concurrency"),
    Case(Reason.QUEUE_FULL, 503, "queue_full", "overloaded_error", when_full, capacity=True,
         fields={"max_concurrency": 1}, top={"queue": {"enabled": True, "max_depth": 0}},
         says="LIFEBOAT_LB_QUEUE_MAX_DEPTH"),
    Case(Reason.QUEUE_TIMEOUT, 504, "queue_timeout", "timeout_error", when_full, capacity=True,
         fields={"max_concurrency": 1}, top={"queue": {"enabled": True, "ttl": "200ms"}},
         says="LIFEBOAT_LB_QUEUE_TTL_SEC"),
    Case(Reason.REQUEST_TOO_LARGE, 413, "request_too_large", "invalid_request_error",
         asking(body=chat_body("word " * 200)), retry="false", fields={"max_input_tokens": 50},
         says="max_input_tokens"),
    Case(Reason.NO_BACKENDS, 503, "no_backends", "overloaded_error",
         asking(body=chat_body(model="n")), retry="false", capacity=True, says="'n'"),
    Case(Reason.EMBEDDING_ONLY_POOL, 503, "embedding_only_pool", "overloaded_error", asking(),
         retry="false", capacity=True, fields={"serves": ["embed"]}, says="embed"),
    Case(Reason.NO_EMBEDDING_BACKEND, 501, "no_embedding_backend", "invalid_request_error",
         asking("/v1/embeddings", {"model": "m", "input": "x"}), retry="false", says="embed"),
    Case(Reason.NO_DIFFUSION_BACKEND, 501, "no_diffusion_backend", "invalid_request_error",
         asking("/v1/images/generations", {"model": "m", "prompt": "x"}), retry="false",
         says="image"),
    Case(Reason.NO_RERANK_BACKEND, 501, "no_rerank_backend", "invalid_request_error",
         asking("/v1/rerank", {"model": "m", "query": "x", "documents": []}), retry="false",
         says="rerank"),
    Case(Reason.NO_AUDIO_BACKEND, 501, "no_audio_backend", "invalid_request_error",
         asking("/v1/audio/speech", {"model": "m", "input": "x", "voice": "v"}), retry="false",
         says="speech"),
    Case(Reason.INVALID_REQUEST, 400, "invalid_request", "invalid_request_error",
         asking(body={"messages": []}), retry="false", says="model"),
    Case(Reason.BODY_TOO_LARGE, 413, "body_too_large", "invalid_request_error",
         asking(body=chat_body("x" * 2000)), retry="false",
         environ={"LIFEBOAT_MAX_BODY_BYTES": "1000"}, says="LIFEBOAT_MAX_BODY_BYTES"),
    Case(Reason.RATE_LIMITED, 429, "rate_limited", "overloaded_error", second_ask, capacity=True,
         top={"models": {"m": {"max_requests_per_minute": 1}}}, says="max_requests_per_minute"),
    Case(Reason.UNAUTHORIZED, 401, "unauthorized", "invalid_request_error",
         asking(Authorization="Bearer wrong"), retry="false",
         environ={"LIFEBOAT_API_KEYS": "right"}, says="LIFEBOAT_API_KEYS"),
    Case(Reason.SHUTTING_DOWN, 503, "shutting_down", "overloaded_error", when_draining,
         capacity=True, fields={"max_concurrency": 1}, top={"queue": {"enabled": True}},
         environ={"LIFEBOAT_SHUTDOWN_GRACE_SEC": "5"}),
)  # fmt: skip


def case_id(case: Case) -> str:
    return case.reason.value


@pytest.mark.parametrize("case", CASES, ids=case_id)
async def test_a_row_of_the_table(tmp_path: Path, case: Case) -> None:
    async with HeldEngine() as engine:
        yaml = backends_yaml(backend(engine.url, **case.fields), **case.top)
        async with running_router(yaml, tmp_path, case.environ) as running:
            refused = await case.provoke(running, engine)
            check(case, refused)
            if case.reason is not Reason.SHUTTING_DOWN:
                await check_counted(case.reason, running)


def check(case: Case, refused: Answered) -> None:
    error = refused.error
    assert refused.status == case.status
    assert refused.headers["Content-Type"].startswith("application/json")
    assert error["code"] == error["reason"] == case.code
    assert error["type"] == case.type
    assert error["param"] is None
    assert case.says in error["message"]
    assert error["advice"] == REJECTIONS[case.reason].advice
    assert error["request_id"] == refused.headers["X-Request-ID"]
    assert error["wait_ms"] == refused.wait_ms
    assert refused.headers.get("X-Lifeboat-Reject-Reason") == case.code
    assert refused.headers.get("x-should-retry") == case.retry
    assert bool(CAPACITY & set(error)) == case.capacity
    if case.capacity:
        assert set(error) >= CAPACITY
        assert error["routing_mode"] == "default"
        assert isinstance(error["effective_limit"], dict)
    if error["retry_after_ms"] is None:
        assert "Retry-After" not in refused.headers
    else:
        assert 1 <= int(refused.headers["Retry-After"]) <= 119
        assert int(refused.headers["retry-after-ms"]) == error["retry_after_ms"]


async def check_counted(reason: Reason, running: Running) -> None:
    state = await running.state()
    assert state["reject_counts"][reason.value] == 1
    assert sum(state["reject_counts"].values()) == 1
    metrics = await running.metrics()
    counted = {
        name: value
        for name, value in metrics.items()
        if name.startswith("lifeboat_lb_rejected_total") and value
    }
    assert list(counted.values()) == [1.0]
    assert f'reason="{reason.value}"' in next(iter(counted))
    table = (await running.admin("GET", "rejections")).json["rejections"]
    row = next(row for row in table if row["reason"] == reason.value)
    assert row["count"] == 1
    assert row["last_seen"]


async def test_rate_limited_says_when_the_next_one_may_come(tmp_path: Path) -> None:
    async with HeldEngine(hold_s=0.0) as engine:
        yaml = backends_yaml(
            backend(engine.url),
            models={"m": {"max_requests_per_minute": 3}, "alias": {"alias_of": "m"}},
        )
        async with running_router(yaml, tmp_path) as running:
            names = ("m", "alias", "m", "alias")
            answers = [await running.ask(body=chat_body(model=name)) for name in names]
            assert [answer.status for answer in answers] == [200, 200, 200, 429]
            assert 1 <= int(answers[3].headers["Retry-After"]) <= 60


async def test_arriving_while_the_router_drains_is_refused_on_open_connections(
    tmp_path: Path,
) -> None:
    async with HeldEngine() as engine:
        yaml = backends_yaml(backend(engine.url))
        environ = {"LIFEBOAT_SHUTDOWN_GRACE_SEC": "5"}
        async with running_router(yaml, tmp_path, environ) as running:
            late = await RawClient.connect(running.port)
            await late.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await late.reply()).status == 200
            async with asyncio.TaskGroup() as tasks:
                run = tasks.create_task(running.ask())
                await until(lambda: len(engine.running) == 1)
                running.stop.set()
                await until(lambda: running.router.door.draining)
                await late.post(CHAT, json.dumps(chat_body()).encode())
                refused = await late.reply()
                engine.release_all()
            late.close()
            assert run.result().status == 200
            assert refused.status == 503
            assert refused.values(b"x-lifeboat-reject-reason") == [b"shutting_down"]
            assert refused.values(b"connection") == [b"close"]


@pytest.mark.parametrize("queue", [False, True])
async def test_backend_unreachable_lists_the_attempts(tmp_path: Path, queue: bool) -> None:
    """Both connections are lost after the request was sent: one re-dispatch, then the 502."""

    async def lose(peer: Peer) -> None:
        received = await peer.request()
        if received.method == "GET":
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        peer.reset()

    async with ScriptedBackend(lose) as a, ScriptedBackend(lose) as b:
        yaml = backends_yaml(
            backend(a.url, "a"), backend(b.url, "b"), backend(b.url, "c"), queue={"enabled": queue}
        )
        async with running_router(yaml, tmp_path) as running:
            refused = await running.ask()
            posts = [got for got in a.requests + b.requests if got.method == "POST"]
            assert len(posts) == 2
            assert (refused.status, refused.error["code"]) == (502, "backend_unreachable")
            assert refused.error["type"] == "api_error"
            assert refused.headers["X-Lifeboat-Reject-Reason"] == "backend_unreachable"
            assert "x-should-retry" not in refused.headers
            assert set(refused.error) >= CAPACITY
            attempts = refused.error["attempts"]
            assert [attempt["outcome"] for attempt in attempts] == ["reset", "reset"]
            await check_counted(Reason.BACKEND_UNREACHABLE, running)


async def test_backend_timeout_is_told_once_and_not_repeated(tmp_path: Path) -> None:
    async with HeldEngine() as a, HeldEngine() as b:
        yaml = backends_yaml(
            backend(a.url, "a", first_byte_timeout="200ms"),
            backend(b.url, "b", first_byte_timeout="200ms"),
        )
        async with running_router(yaml, tmp_path) as running:
            refused = await running.ask()
            assert (refused.status, refused.error["code"]) == (504, "backend_timeout")
            assert refused.error["type"] == "timeout_error"
            assert refused.headers["x-should-retry"] == "false"
            assert refused.headers["X-Lifeboat-Reject-Reason"] == "backend_timeout"
            assert set(refused.error) >= CAPACITY
            assert "LIFEBOAT_UPSTREAM_FIRST_BYTE_TIMEOUT_SEC" in refused.error["message"]
            assert len(a.asked) + len(b.asked) == 1
            await running.settle()
            await check_counted(Reason.BACKEND_TIMEOUT, running)


async def test_a_known_model_without_a_live_backend_is_temporary_and_an_unknown_one_is_not(
    tmp_path: Path,
) -> None:
    yaml = backends_yaml(
        backend("http://127.0.0.1:9", "dead", models=["llama-3-8b"]),
        models={"named-only": {}},
    )
    async with running_router(yaml, tmp_path) as running:
        for model in ("llama-3-8b", "named-only"):
            down = await running.ask(body=chat_body(model=model))
            assert (down.status, down.error["code"]) == (503, "no_backends"), model
            assert "x-should-retry" not in down.headers
        typo = await running.ask(body=chat_body(model="lama-3-8b"))
        assert (typo.status, typo.error["code"]) == (503, "no_backends")
        assert typo.headers["x-should-retry"] == "false"
        assert "llama-3-8b" in typo.error["message"]
        embed = await running.ask("/v1/embeddings", {"model": "llama-3-8b", "input": "x"})
        assert (embed.status, embed.error["code"]) == (501, "no_embedding_backend")


async def test_refusals_on_anthropics_paths_have_anthropics_envelope(tmp_path: Path) -> None:
    yaml = backends_yaml(backend("http://127.0.0.1:9", "dead"))
    async with running_router(yaml, tmp_path) as running:
        refused = await running.ask("/v1/messages", {"model": "zzz", "messages": []})
        assert refused.json["type"] == "error"
        assert refused.error["code"] == "no_backends"


def test_every_reason_has_a_case() -> None:
    covered = {case.reason for case in CASES}
    apart = {Reason.BACKEND_UNREACHABLE, Reason.BACKEND_TIMEOUT}
    assert covered | apart == set(Reason)


async def test_the_docs_the_api_and_the_command_show_one_table(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/reference/rejections.md").read_text()
    documented = {}
    for line in page.splitlines():
        if re.match(r"\| \d{3}", line):
            status, reason, kind, when, retry, advice = (
                cell.strip() for cell in line.strip("|").split(" | ")
            )
            code = None if reason.startswith("none") else reason.strip("`")
            documented[code] = (
                int(status.split()[0]), kind.strip("`"), when, retry != "pointless",
                advice.removesuffix(" |"),
            )  # fmt: skip
    said = json.loads(CliRunner().invoke(rejections, ["--json"]).output)["rejections"]
    printed = {
        row["code"]: (
            row["status"], row["type"], row["when"], not row["retry_is_pointless"], row["advice"]
        )
        for row in said
    }  # fmt: skip
    async with running_router(backends_yaml(backend("http://127.0.0.1:9")), tmp_path) as running:
        table = (await running.admin("GET", "rejections")).json["rejections"]
    served = {
        row["code"]: (
            row["status"], row["type"], row["when"], row["should_retry"], row["advice"]
        )
        for row in table
    }  # fmt: skip
    assert len(served) == len(Reason) == 17
    assert documented == served == printed
