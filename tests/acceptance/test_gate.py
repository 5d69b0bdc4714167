"""The gate over real sockets: what fits runs, what does not is refused at once and in full."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.acceptance.engines import HeldEngine
from tests.peers import until
from tests.running import Answered, backend, backends_yaml, running_router

AT_ONCE_S = 8.0
"""A refusal must not wait for anything; what a slow machine takes is far below the TTL of 30 s."""


async def test_two_backends_of_two_answer_four_of_twelve_and_refuse_eight_at_once(
    tmp_path: Path,
) -> None:
    async with HeldEngine() as a, HeldEngine() as b:
        yaml = backends_yaml(
            backend(a.url, "a", max_concurrency=2), backend(b.url, "b", max_concurrency=2)
        )
        async with running_router(yaml, tmp_path) as running, asyncio.TaskGroup() as tasks:
            asks = [tasks.create_task(running.ask()) for _ in range(12)]
            await until(lambda: sum(ask.done() for ask in asks) == 8)
            refused = [ask.result() for ask in asks if ask.done()]
            state = await running.state()
            assert state["inflight"] == {"a": 2, "b": 2}
            assert (len(a.running), len(b.running)) == (2, 2)
            a.release_all()
            b.release_all()
        served = [ask.result() for ask in asks if ask.result() not in refused]
        assert [answer.status for answer in served] == [200] * 4
        assert {answer.headers["X-Lifeboat-Backend"] for answer in served} == {"a", "b"}
        for answer in served:
            assert answer.wait_ms == 0
            assert answer.headers["X-Lifeboat-Attempts"] == "1"
            assert answer.headers["X-Request-ID"]
        for answer in refused:
            check_gate_refusal(answer)
        assert (a.most_running, b.most_running) == (2, 2)
        assert len(a.asked) + len(b.asked) == 4


def check_gate_refusal(answer: Answered) -> None:
    error = answer.error
    assert answer.status == 503
    assert answer.took_s < AT_ONCE_S
    assert error["type"] == "overloaded_error"
    assert error["code"] is None
    assert error["param"] is None
    assert error["reason"] is None
    assert error["routing_mode"] == "default"
    assert error["effective_limit"] == {"a": 2, "b": 2}
    assert error["queue_depth"] == 0
    assert error["wait_ms"] == 0
    assert error["request_id"] == answer.headers["X-Request-ID"]
    assert "max_concurrency" in error["message"] and "queue" in error["message"]
    assert error["advice"]
    assert answer.headers["Content-Type"].startswith("application/json")
    assert answer.headers["X-Lifeboat-Wait-ms"] == "0"
    assert "X-Lifeboat-Reject-Reason" not in answer.headers
    assert "x-should-retry" not in answer.headers
    # Nothing has finished yet: when a slot comes free would be a guess.
    assert error["retry_after_ms"] is None
    assert "Retry-After" not in answer.headers
    assert "retry-after-ms" not in answer.headers


async def test_a_gate_refusal_names_when_to_retry_once_the_drain_rate_is_measured(
    tmp_path: Path,
) -> None:
    async with HeldEngine(hold_s=0.01) as engine:
        yaml = backends_yaml(backend(engine.url, max_concurrency=2))
        environ = {"LIFEBOAT_LB_QUEUE_ENABLED": "true"}
        async with running_router(yaml, tmp_path, environ) as running:
            # Under pressure: requests wait, so that what finishes shows how fast the pool drains.
            for _ in range(8):
                answers = await asyncio.gather(*(running.ask() for _ in range(8)))
                assert [answer.status for answer in answers] == [200] * 8
            await running.admin("PUT", "mode", {"queue_enabled": False})
            engine.hold_s = None
            async with asyncio.TaskGroup() as tasks:
                asks = [tasks.create_task(running.ask()) for _ in range(2)]
                await until(lambda: len(engine.running) == 2)
                refused = await running.ask()
                engine.release_all()
            assert [ask.result().status for ask in asks] == [200, 200]
        assert refused.status == 503
        assert 1 <= int(refused.headers["Retry-After"]) <= 119
        assert refused.error["retry_after_ms"] == int(refused.headers["retry-after-ms"]) > 0


@pytest.mark.parametrize(
    ("max_concurrency", "environ", "at_once", "asked"),
    [
        (32, {"LIFEBOAT_LB_MODE": "superfast"}, 4, 12),
        (3, {"LIFEBOAT_LB_MODE": "superfast"}, 3, 12),
        (0, {"LIFEBOAT_LB_MODE": "superfast"}, 4, 12),
        (32, {"LIFEBOAT_LB_MODE": "superfast", "LIFEBOAT_LB_SUPERFAST_CAP": "2"}, 2, 12),
        (0, {}, 80, 80),
        (None, {}, 32, 40),
        (8, {"LIFEBOAT_LB_SHARE": "0.5"}, 4, 12),
    ],
)
async def test_as_many_run_at_once_as_the_mode_allows(
    tmp_path: Path,
    max_concurrency: int | None,
    environ: dict[str, str],
    at_once: int,
    asked: int,
) -> None:
    async with HeldEngine() as engine:
        fields = {} if max_concurrency is None else {"max_concurrency": max_concurrency}
        yaml = backends_yaml(backend(engine.url, **fields))
        async with running_router(yaml, tmp_path, environ) as running:
            async with asyncio.TaskGroup() as tasks:
                asks = [tasks.create_task(running.ask()) for _ in range(asked)]
                await until(lambda: len(engine.running) == at_once)
                await until(lambda: sum(ask.done() for ask in asks) == asked - at_once)
                state = await running.state()
                engine.release_all()
            limit = None if (max_concurrency, environ) == (0, {}) else at_once
            assert state["backends"]["a"]["effective_limit"] == limit
            assert state["inflight"] == {"a": at_once}
        statuses = sorted(ask.result().status for ask in asks)
        assert statuses == [200] * at_once + [503] * (asked - at_once)
        assert engine.most_running == at_once


async def test_paths_without_inference_take_no_slot(tmp_path: Path) -> None:
    async with HeldEngine() as engine:
        yaml = backends_yaml(backend(engine.url, max_concurrency=1))
        async with running_router(yaml, tmp_path) as running, asyncio.TaskGroup() as tasks:
            busy = tasks.create_task(running.ask())
            await until(lambda: len(engine.running) == 1)
            free = [
                tasks.create_task(running.ask(path, {"model": "m", "content": "x", "tokens": [1]}))
                for path in ("/tokenize", "/detokenize", "/apply-template")
            ]
            free.append(
                tasks.create_task(
                    running.ask("/v1/messages/count_tokens", {"model": "m", "messages": []})
                )
            )
            await until(lambda: len(engine.running) == 5)
            assert (await running.state())["inflight"] == {"a": 1}
            engine.release_all()
        assert [task.result().status for task in (busy, *free)] == [200] * 5


async def test_the_rejection_status_can_be_set(tmp_path: Path) -> None:
    for status in (429, 529):
        async with HeldEngine() as engine:
            yaml = backends_yaml(backend(engine.url, max_concurrency=1))
            environ = {"LIFEBOAT_LB_REJECT_STATUS": str(status)}
            async with running_router(yaml, tmp_path, environ) as running:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(running.ask())
                    await until(lambda: len(engine.running) == 1)
                    refused = await running.ask()
                    engine.release_all()
                assert refused.status == status
                assert refused.error["routing_mode"] == "default"
                assert json.dumps(refused.error["effective_limit"]) == '{"a": 1}'
                unknown = await running.ask(body={"model": "nobody", "messages": []})
                assert unknown.status == 503
