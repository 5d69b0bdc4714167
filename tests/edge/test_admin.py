"""The changing calls, and explain: it says what would happen, and dispatches nothing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.acceptance.engines import HeldEngine
from tests.peers import until
from tests.running import CHAT, Running, backend, backends_yaml, chat_body, running_router

NOBODY = "http://127.0.0.1:9"
NESTED = b"[" * 900 + b"]" * 900


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("PUT", "mode", b"", 400, "JSON"),
        ("PUT", "mode", b"[]", 400, "object"),
        ("PUT", "mode", b'{"mode": "fast"}', 400, "queue-all"),
        ("PUT", "mode", b'{"mode": 3}', 400, "mode"),
        ("PUT", "mode", b'{"mode": "default", "queue_enabled": "yes"}', 400, "queue_enabled"),
        ("PUT", "mode", b'{"modus": "default"}', 400, "modus"),
        ("PUT", "mode", b"{}", 400, "nothing to change"),
        ("PUT", "mode", b'{"mode": "\\ud800"}', 400, ""),
        ("PUT", "mode", b'{"mode": ' + NESTED + b"}", 400, ""),
        ("PATCH", "backends/a", b'{"max_concurrency": -1}', 400, "max_concurrency"),
        ("PATCH", "backends/a", b'{"max_concurrency": 1.5}', 400, "max_concurrency"),
        ("PATCH", "backends/a", b'{"max_concurrency": true}', 400, "max_concurrency"),
        ("PATCH", "backends/a", b'{"max_concurrency": 1e400}', 400, ""),
        ("PATCH", "backends/a", b'{"max_input_tokens": "many"}', 400, "max_input_tokens"),
        ("PATCH", "backends/a", b'{"state": "asleep"}', 400, "drain"),
        ("PATCH", "backends/a", b'{"state": ' + NESTED + b"}", 400, "state"),
        ("PATCH", "backends/a", b'{"url": "http://x"}', 400, "url"),
        ("PATCH", "backends/a", b'{"max_concurrency": 3, "bad": 1}', 400, "bad"),
        ("PATCH", "backends/b", b'{"max_concurrency": 3}', 404, "b"),
        ("PATCH", "backends/%ff", b'{"max_concurrency": 3}', 404, ""),
        ("DELETE", "backends/b", b"", 404, "b"),
        ("POST", "backends", b'{"name": "b"}', 400, "url"),
        ("POST", "backends", b'{"url": "ftp://x"}', 400, "url"),
        ("POST", "backends", b'{"url": "http://x", "name": "a b"}', 400, "name"),
        ("POST", "backends", b'{"url": "http://x", "name": ["b"]}', 400, "name"),
        ("POST", "backends", b'{"url": "http://x", "ttl": "-1s"}', 400, "ttl"),
        ("POST", "backends", b'{"url": "http://x", "models": {"m": 1}}', 400, "models"),
        ("POST", "backends", b'{"url": "http://x", "serves": ["dance"]}', 400, "serves"),
        ("POST", "backends", b'{"url": "http://x", "simulate": {}}', 400, "simulate"),
        ("POST", "backends", b'{"url": "http://other:9", "name": "a"}', 409, "a"),
        ("POST", "explain", b"{}", 400, "path"),
        ("POST", "explain", b'{"path": 7}', 400, "path"),
        ("POST", "explain", b'{"path": "/x", "more": 1}', 400, "more"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_bad_call_is_told_why_and_changes_nothing(
    tmp_path: Path, method: str, path: str, body: bytes, status: int, says: str
) -> None:
    async with running_router(backends_yaml(backend(NOBODY)), tmp_path) as running:
        before = await frozen_state(running)
        answer = await running.admin(method, path, body)
        assert answer.status == status, answer.body
        assert says in answer.error["message"]
        assert answer.headers["Content-Type"].startswith("application/json")
        assert await frozen_state(running) == before


async def frozen_state(running: Running) -> object:
    state = await running.state()
    kept = ("max_concurrency", "max_input_tokens", "state", "url", "sources")
    return (
        state["routing_mode"],
        state["queue_enabled"],
        state["sources"],
        {name: [one[key] for key in kept] for name, one in state["backends"].items()},
    )


async def test_a_backends_values_can_be_changed_and_reset(tmp_path: Path) -> None:
    yaml = backends_yaml(backend(NOBODY, max_concurrency=5, max_input_tokens=100))
    async with running_router(yaml, tmp_path) as running:
        changed = await running.admin(
            "PATCH", "backends/a", {"max_concurrency": 0, "max_input_tokens": 7, "state": "maint"}
        )
        assert changed.json["name"] == "a"
        assert (changed.json["max_concurrency"], changed.json["max_input_tokens"]) == (0, 7)
        assert (changed.json["state"], changed.json["effective_limit"]) == ("maint", 0)
        assert changed.json["sources"]["max_concurrency"] == "api"
        reset = await running.admin(
            "PATCH",
            "backends/a",
            {"max_concurrency": None, "max_input_tokens": None, "state": None},
        )
        assert (reset.json["max_concurrency"], reset.json["max_input_tokens"]) == (5, 100)
        assert (reset.json["state"], reset.json["sources"]["max_concurrency"]) == ("ready", "file")
        listed = await running.admin("GET", "backends")
        assert listed.json["backends"]["a"]["max_concurrency"] == 5


async def test_a_removed_backend_finishes_what_it_runs(tmp_path: Path) -> None:
    async with HeldEngine() as a, HeldEngine(hold_s=0.0) as b:
        yaml = backends_yaml(backend(a.url, "a"))
        async with running_router(yaml, tmp_path) as running, asyncio.TaskGroup() as tasks:
            run = tasks.create_task(running.ask())
            await until(lambda: len(a.running) == 1)
            await running.admin("POST", "backends", backend(b.url, "b"))
            removed = await running.admin("DELETE", "backends/a")
            assert removed.status == 202
            assert removed.json["name"] == "a"
            assert [(await running.ask()).headers["X-Lifeboat-Backend"] for _ in range(3)] == [
                "b", "b", "b",
            ]  # fmt: skip
            a.release_all()
            assert (await run).status == 200
            await running.until(lambda state: set(state["backends"]) == {"b"})
            assert (await running.admin("DELETE", "backends/b")).status == 204
            gone = await running.ask()
            assert (gone.status, gone.error["code"]) == (503, "no_backends")


async def test_a_backend_without_a_heartbeat_is_gone_after_its_ttl(tmp_path: Path) -> None:
    async with HeldEngine(hold_s=0.0) as engine:
        async with running_router(
            backends_yaml(backend(NOBODY, models=["x"])), tmp_path
        ) as running:
            added = await running.admin("POST", "backends", {**backend(engine.url, "b"), "ttl": 1})
            assert added.status == 201
            assert (await running.ask()).status == 200
            await running.until(lambda state: "b" not in state["backends"], 4.0)


async def explained(running: Running, body: object, path: str = CHAT, **more: object) -> dict:
    answer = await running.admin("POST", "explain", {"path": path, "body": body, **more})
    assert answer.status == 200, answer.body
    return answer.json


async def test_explain_says_what_would_happen_and_dispatches_nothing(tmp_path: Path) -> None:
    async with HeldEngine() as engine:
        yaml = backends_yaml(
            backend(engine.url, "big", max_concurrency=1),
            backend(engine.url, "small", max_concurrency=1, max_input_tokens=20),
            backend(NOBODY, "embedder", models=["e"], serves=["embed"]),
            models={"nick": {"alias_of": "m"}},
        )
        environ = {"LIFEBOAT_LB_TOKENIZER": "cl100k_base"}
        async with running_router(yaml, tmp_path, environ) as running:
            short = await explained(running, chat_body(model="nick"))
            assert short["decision"] == "dispatch"
            assert (short["pool"], short["backend"]) == ("m", "small")
            assert {one["name"]: one["candidate"] for one in short["backends"]} == {
                "big": True, "small": True, "embedder": False,
            }  # fmt: skip
            long = await explained(running, chat_body("word " * 100))
            why = {one["name"]: one["why"] for one in long["backends"]}
            assert "max_input_tokens 20" in why["small"]
            assert long["backend"] == "big"
            assert long["estimate"]["tokens"] > 90
            assert not engine.asked
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(running.ask())
                tasks.create_task(running.ask())
                await until(lambda: len(engine.running) == 2)
                full = await explained(running, chat_body())
                assert (full["decision"], full["status"], full["reason"]) == ("refuse", 503, None)
                await running.admin("PUT", "mode", {"queue_enabled": True})
                parked = await explained(running, chat_body())
                assert (parked["decision"], parked["ahead"]) == ("park", 0)
                engine.release_all()
            for body, path, reason in (
                (chat_body(model="nobody"), CHAT, "no_backends"),
                (chat_body(model="e"), CHAT, "embedding_only_pool"),
                ({"model": "m", "input": "x"}, "/v1/rerank", "no_rerank_backend"),
                ([], CHAT, "invalid_request"),
                (None, CHAT, "invalid_request"),
                ({"model": 7}, CHAT, "invalid_request"),
                ({}, CHAT, "invalid_request"),
            ):
                refused = await explained(running, body, path)
                assert (refused["decision"], refused["reason"]) == ("refuse", reason)
                assert refused["message"]
            assert sum((await running.state())["reject_counts"].values()) == 0


@pytest.mark.parametrize(
    "call",
    [
        b'{"path": "/v1/chat/completions", "body": {"model": "m", "x": ' + NESTED + b"}}",
        b'{"path": "/v1/chat/completions", "body": ' + NESTED + b"}",
        b'{"path": "/v1/chat/completions", "body": {"model": "m", "x": 1e308}, "priority": []}',
        b'{"path": "/v1/chat/completions", "body": {"model": "m"}, "priority": {"a": 1}}',
        b'{"path": "/v1/chat/completions"}',
        b'{"path": "/v1/chat/completions", "body": {"model": "' + b"m" * 100_000 + b'"}}',
        b'{"path": "", "body": {}}',
        b'{"path": "/v1/responses/x", "body": {}}',
        b'{"path": "http://x/v1/chat/completions", "body": {}}',
        b'{"path": "/v1/audio/transcriptions", "body": {"model": "m"}}',
        b'{"path": "/v1/videos", "body": {}}',
    ],
    ids=lambda call: call[:60].decode(),
)
async def test_explain_has_an_answer_to_everything(tmp_path: Path, call: bytes) -> None:
    async with running_router(backends_yaml(backend(NOBODY)), tmp_path) as running:
        answer = await running.admin("POST", "explain", call)
        assert answer.status in (200, 400), answer.body
        assert json.loads(answer.body)
