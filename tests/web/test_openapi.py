"""`/openapi.json`: valid, complete, and what a live router really answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from jsonschema import Draft202012Validator
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.schemas import APIOperation

from lifeboat import __version__
from lifeboat.core.rejections import REJECTIONS
from lifeboat.runtime import Router
from lifeboat.settings.load import load
from lifeboat.web.openapi import OPERATIONS, openapi_json
from lifeboat.web.schemas import EXPLAINED_PATHS
from tests.running import running_router
from tests.web.conftest import HOSTILE, SLOTS, Scene

PAGE = json.loads(json.dumps(openapi_json(__version__)))


def schema(name: str) -> dict:
    """Return a schema of the page with everything it refers to."""
    return {"$ref": f"#/components/schemas/{name}", "components": PAGE["components"]}


def faults(name: str, value: object) -> list[str]:
    found = Draft202012Validator(schema(name)).iter_errors(value)
    return [f"{'/'.join(map(str, fault.path))}: {fault.message}" for fault in found]


async def test_every_own_path_and_method_is_described_and_no_other(tmp_path: Path) -> None:
    switchboard = Router(load({"port": "0"}, {}, tmp_path)).switchboard
    served = {
        (f"{path}{{name}}" if path.endswith("/") and path != "/" else path, method.lower())
        for table in (switchboard._fixed, switchboard._below)
        for path, methods in table.items()
        for method in methods
        if method != "HEAD"
    }
    assert served == {(row.path, row.method) for row in OPERATIONS}


def test_every_schema_is_one_and_every_reference_leads_somewhere() -> None:
    text = json.dumps(PAGE)
    for name in PAGE["components"]["schemas"]:
        Draft202012Validator.check_schema(schema(name))
        assert f'"#/components/schemas/{name}"' in text, f"{name} is used nowhere"
    referred = {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert referred <= set(PAGE["components"]["schemas"])


def test_operation_ids_are_unique() -> None:
    ids = [row["operationId"] for methods in PAGE["paths"].values() for row in methods.values()]
    assert len(set(ids)) == len(ids)


async def test_a_loaded_router_answers_as_described(scene: Scene) -> None:
    """Every key there and no other: parked, refused and running requests among them."""
    scene.ask(SLOTS + 2)
    scene.ask(1, "nobody")
    await scene.running.until(
        lambda state: state["queue_total_waiters"] == 2 and state["reject_counts"]["no_backends"]
    )
    session = scene.running.session
    for row in OPERATIONS:
        if row.method != "get" or not row.schema:
            continue
        name = {"/v1/models/{name}": "m"}.get(row.path, "")
        async with session.get(scene.url + row.path.replace("{name}", name)) as answer:
            assert answer.status == 200, row.path
            assert faults(row.schema, await answer.json()) == [], row.path
    async with session.get(f"{scene.url}/api/lb/state/stream") as answer:
        line = await answer.content.readline()
        assert faults("State", json.loads(line.removeprefix(b"data: "))) == []
    async with session.get(f"{scene.url}/api/lb/rejections") as answer:
        assert len((await answer.json())["rejections"]) == len(REJECTIONS)


CALLS = [
    ("put", "/api/lb/mode", {"mode": "superfast"}, 200, "Mode"),
    ("put", "/api/lb/mode", {"mode": None, "queue_enabled": False}, 200, "Mode"),
    ("put", "/api/lb/mode", {"mode": "fast"}, 400, "Error"),
    ("patch", "/api/lb/backends/a", {"max_concurrency": 3}, 200, "NamedBackend"),
    ("patch", "/api/lb/backends/nobody", {"max_concurrency": 3}, 404, "Error"),
    ("post", "/api/lb/backends", {"name": "n", "url": "http://127.0.0.1:9"}, 201, "NamedBackend"),
    ("delete", "/api/lb/backends/b", None, 204, None),
    ("post", "/api/lb/explain", {"path": "/nowhere", "body": {}}, 200, "Explanation"),
    ("post", "/api/lb/explain", {"path": "/v1/embeddings", "body": {"model": "m"}}, 200,
     "Explanation"),
    ("post", "/api/lb/explain", {"path": "/v1/messages", "body": {"model": HOSTILE}}, 200,
     "Explanation"),
    ("post", "/api/lb/explain", {"path": "/v1/completions", "body": []}, 200, "Explanation"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "body", "status", "name"), CALLS)
async def test_a_change_answers_as_described(
    scene: Scene, method: str, path: str, body: object, status: int, name: str | None
) -> None:
    async with scene.running.session.request(method, scene.url + path, json=body) as answer:
        assert answer.status == status, await answer.text()
        if name is not None:
            assert faults(name, await answer.json()) == []


async def test_explain_reads_every_path_it_offers(scene: Scene) -> None:
    for path in EXPLAINED_PATHS:
        call = {"path": path, "body": {"model": "m", "input": "Hello"}}
        async with scene.running.session.post(f"{scene.url}/api/lb/explain", json=call) as answer:
            told = await answer.json()
            assert answer.status == 200 and told.get("status") != 404, path
            assert faults("Explanation", told) == [], path


async def test_without_the_token_a_change_is_refused_as_described(tmp_path: Path) -> None:
    yaml = """
backends: [{name: gone, kind: openai, url: "http://127.0.0.1:9", models: [m]}]
"""
    environ = {"LIFEBOAT_ADMIN_TOKEN": "swordfish"}
    async with running_router(yaml, tmp_path, environ) as running:
        for row in OPERATIONS:
            if not row.secured:
                continue
            url = running.url + row.path.replace("{name}", "gone")
            async with running.session.request(row.method, url, json={}) as answer:
                assert answer.status == 401, row.path
                assert faults("Error", await answer.json()) == []


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_made_up_calls_find_nothing_that_is_not_described(tmp_path: Path) -> None:
    """Schemathesis over every operation: valid and invalid calls, a bounded number of each."""
    yaml = """
backends: [{name: gone, kind: openai, url: "http://127.0.0.1:9", models: [m]}]
"""
    async with running_router(yaml, tmp_path) as running:
        await asyncio.to_thread(call_everything, running.url)
        async with running.session.get(f"{running.url}/ready") as answer:
            assert answer.status == 200


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
EXAMPLES = 12
"""Calls of each operation and kind; more take longer and have found nothing."""


def call_everything(url: str) -> None:
    described = schemathesis.openapi.from_url(f"{url}/openapi.json")
    # A stream has no end to wait for.
    for result in described.exclude(path="/api/lb/state/stream").get_all_operations():
        operation = result.ok()
        call_it(operation, GenerationMode.POSITIVE)
        if operation.body:
            call_it(operation, GenerationMode.NEGATIVE)


def call_it(operation: APIOperation, kind: GenerationMode) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(kind))
    def call(case: schemathesis.Case) -> None:
        if isinstance(case.body, dict) and isinstance(case.body.get("url"), str):
            # What is registered is probed: on this machine, and nowhere else.
            case.body["url"] = "http://127.0.0.1:9"
        case.call_and_validate(checks=CHECKS)

    call()
