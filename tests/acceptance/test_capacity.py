"""Capacity over sockets: the rate window, the report, early refusals, autoscaling."""

from __future__ import annotations

import asyncio
import math
import time
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.engines import HeldEngine
from tests.running import Answered, Running, backend, backends_yaml, chat_body, running_router


async def many(running: Running, count: int, **headers: str) -> list[Answered]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return list(await asyncio.gather(*(running.ask(headers=named) for _ in range(count))))


async def capacity(running: Running) -> dict[str, Any]:
    return (await running.admin("GET", "capacity")).json["pools"]["m"]


# ---- requests per minute ------------------------------------------------------------------------


async def test_over_the_rate_is_429_with_the_exact_time_and_costs_nothing(tmp_path: Path) -> None:
    async with HeldEngine(hold_s=0.0) as engine:
        yaml = backends_yaml(
            backend(engine.url, max_input_tokens=100), models={"m": {"max_requests_per_minute": 5}}
        )
        async with running_router(yaml, tmp_path) as running:
            for _ in range(3):
                # Refused for its size: it must not use up the rate.
                assert (await running.ask(body=chat_body("word " * 500))).status == 413
            began_at = time.monotonic()
            assert [one.status for one in await many(running, 5)] == [200] * 5
            ended_at = time.monotonic()
            await asyncio.sleep(1.5)
            for _ in range(30):
                asked_at = time.monotonic()
                limited = await running.ask()
                assert limited.status == 429
                assert limited.headers["X-Lifeboat-Reject-Reason"] == "rate_limited"
                now = time.monotonic()
                told_s = int(limited.headers["retry-after-ms"]) / 1000
                # Exact: neither spread nor rounded away, and the same however often it is asked.
                assert began_at + 60.0 - now - 0.1 <= told_s <= ended_at + 60.0 - asked_at + 0.1
                assert int(limited.headers["Retry-After"]) == math.ceil(told_s)
            shown = await capacity(running)
            assert (shown["max_requests_per_minute"], shown["requests_last_minute"]) == (5, 5)
            assert shown["shed"]["rate_limited"] == 30
            assert shown["verdict"] == "not_a_capacity_problem"
            assert shown["advice"].startswith("More backends would not help.")
            assert len(engine.asked) == 5


# ---- the report ---------------------------------------------------------------------------------


async def test_a_pool_without_a_queue_sees_what_it_sheds(tmp_path: Path) -> None:
    async with HeldEngine(hold_s=0.3) as engine:
        async with running_router(
            backends_yaml(backend(engine.url, max_concurrency=2)), tmp_path
        ) as running:
            answers = list(chain.from_iterable([await many(running, 12) for _ in range(4)]))
            shown = await capacity(running)
            assert (shown["served"], shown["shed"]["gate"]) == (8, 40)
            assert shown["verdict"] == "under_capacity" and "dd " in shown["advice"]
            # What the engine took, and no longer than the clients saw.
            longest_s = max(one.took_s for one in answers if one.status == 200)
            assert 0.3 <= shown["mean_service_sec"] <= longest_s + 0.01
            assert shown["refused_per_sec"] > 1.0
            expected = shown["refused_per_sec"] * shown["mean_service_sec"]
            assert shown["demand"] == pytest.approx(expected, rel=0.05)
            metrics = await running.metrics()
            later = await capacity(running)
            # It falls as the refusals grow old.
            gauge = metrics['lifeboat_lb_demand{pool="m"}']
            assert 0.99 * later["demand"] <= gauge <= 1.01 * shown["demand"]
            found = metrics['lifeboat_lb_desired_backends{pool="m"}']
            assert found == shown["desired_backends"] >= 1


# ---- refused at once ----------------------------------------------------------------------------


async def test_who_cannot_make_it_is_refused_at_once_and_told_the_wait(tmp_path: Path) -> None:
    async with HeldEngine(hold_s=0.25) as engine:
        yaml = backends_yaml(
            backend(engine.url, max_concurrency=1),
            queue={"enabled": True, "max_depth": 50, "early_refusal": True},
        )
        async with running_router(yaml, tmp_path) as running:
            assert {one.status for one in await many(running, 8)} == {200}
            engine.hold_s = None
            waiting = asyncio.gather(*(running.ask() for _ in range(8)))
            await running.until(lambda state: state["queue_total_waiters"] == 7)
            told = await many(running, 5, X_Lifeboat_Deadline_ms="500")
            refused = [one for one in told if one.status == 503]
            # One in a hundred parks all the same.
            assert len(refused) >= 4
            for one in refused:
                # At once: it was not parked first.
                assert one.wait_ms == 0
                assert one.error["code"] == "queue_full" and one.error["predicted"] is True
                assert 1000 < one.error["estimated_wait_ms"] < 30_000
                assert 1 <= int(one.headers["Retry-After"]) <= 30
            spread = {one.headers["retry-after-ms"] for one in refused}
            assert len(spread) > 1, "those refused together must not come back together"
            engine.hold_s = 0.0
            engine.release_all()
            patient = await running.ask(headers={"X-Lifeboat-Deadline-ms": "60000"})
            assert patient.status == 200
            assert {one.status for one in await waiting} == {200}


# ---- autoscaling --------------------------------------------------------------------------------

SIM = {
    "name": "sim", "kind": "simulated", "models": ["m"], "max_concurrency": 4, "replicas": 1,
    "simulate": {"model": "gpt-oss-20b", "hardware": "b200", "max_num_seqs": 4, "max_waiting": 0,
                 "time_scale": 2.0},
}  # fmt: skip


def scaled(least: int) -> dict[str, object]:
    scaling = {
        "backend": "sim", "min": least, "max": 8, "target": 0.5, "sustain": "2s",
        "startup": "1s", "scale_down_delay": "2s", "panic": 0,
    }  # fmt: skip
    return {"m": {"scaling": scaling}}


def live(state: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in state["backends"].values() if one["effective_limit"]]


async def test_refusals_before_replicas_come_and_none_after(tmp_path: Path) -> None:
    async with running_router(backends_yaml(SIM, models=scaled(1)), tmp_path) as running:
        stop = asyncio.Event()
        seen: list[tuple[float, int]] = []

        async def client() -> None:
            while not stop.is_set():
                asked_at = time.monotonic()
                answer = await running.ask(body=chat_body(max_tokens=200))
                seen.append((asked_at, answer.status))
                # As its Retry-After would have it, but on the scale of this test.
                await asyncio.sleep(0.0 if answer.status == 200 else 0.1)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(12):
                tasks.create_task(client())
            await running.until(lambda state: len(live(state)) >= 3, 40.0)
            scaled_at = time.monotonic()
            await asyncio.sleep(1.5)
            stop.set()
        before = [status for at, status in seen if at < scaled_at]
        after = [status for at, status in seen if at > scaled_at]
        assert 503 in before and set(before) == {200, 503}
        assert after and set(after) == {200}
        shown = await capacity(running)
        assert shown["scaling"]["failure"] is None and shown["scaling"]["present"] >= 3
        assert shown["full_concurrency_limit"] == 32
        assert shown["current_concurrency_limit"] == 4 * shown["scaling"]["present"]
        # Quiet again: they leave. What was refused of late counts for half a minute more.
        most = shown["scaling"]["present"]
        await running.until(lambda state: len(state["backends"]) < most, 40.0)


async def test_a_pool_sleeps_and_its_first_request_is_held_and_wakes_it(tmp_path: Path) -> None:
    async with running_router(backends_yaml(SIM, models=scaled(0)), tmp_path) as running:
        await running.until(lambda state: not state["backends"], 40.0)
        assert (await capacity(running))["current_concurrency_limit"] == 0
        answer = await running.ask(body=chat_body(max_tokens=5))
        assert answer.status == 200
        assert answer.wait_ms >= 900, "it was parked while its replica started"
        assert (await capacity(running))["scaling"]["reason"] == "wake"
