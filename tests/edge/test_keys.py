"""Keys, the admin token, and who counts as loopback."""

from __future__ import annotations

from pathlib import Path

import pytest

from lifeboat.edge.keys import KeyRing
from tests.acceptance.engines import HeldEngine
from tests.running import CHAT, backend, backends_yaml, chat_body, running_router

MODE = "/api/lb/mode"


@pytest.mark.parametrize(
    ("keys", "presented", "admitted"),
    [
        ((), (), True),
        ((), (b"anything",), True),
        (("k",), (), False),
        (("k",), (b"",), False),
        (("k",), (b"K",), False),
        (("k",), (b"k ",), False),
        (("k", "l"), (b"x", b"l"), True),
        (("k",), (b"\xff",), False),
    ],
)
def test_a_ring_admits_its_own_keys_and_an_empty_one_everybody(
    keys: tuple[str, ...], presented: tuple[bytes, ...], admitted: bool
) -> None:
    ring = KeyRing(keys)
    assert ring.admits(presented) is admitted
    assert ring.open is not keys


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer one"}, 200),
        ({"authorization": "bearer  two"}, 200),
        ({"x-api-key": "two"}, 200),
        ({"Authorization": "Bearer wrong", "x-api-key": "one"}, 200),
        ({"Authorization": "Basic one"}, 401),
        ({"Authorization": "one"}, 401),
        ({"Authorization": "Bearer one,two"}, 401),
        ({"x-api-key": ""}, 401),
    ],
)
async def test_a_router_key_opens_the_proxied_paths_and_never_goes_upstream(
    tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    async with HeldEngine(hold_s=0.0) as engine:
        yaml = backends_yaml(backend(engine.url, api_key="upstream-key"))
        environ = {"LIFEBOAT_API_KEYS": "one,two"}
        async with running_router(yaml, tmp_path, environ) as running:
            answer = await running.ask(headers=headers)
            assert answer.status == status
            if status == 401:
                assert answer.headers["WWW-Authenticate"] == "Bearer"
                assert not engine.asked
            else:
                assert engine.asked[0].values(b"authorization") == [b"Bearer upstream-key"]
                assert b"one" not in engine.asked[0].head
                assert b"two" not in engine.asked[0].head
            # What is no proxied path needs no router key.
            for path in ("/health", "/v1/models", "/metrics", "/api/lb/state"):
                assert (await running.ask(path, method="GET")).status == 200


async def test_without_router_keys_the_clients_credentials_pass(tmp_path: Path) -> None:
    async with HeldEngine(hold_s=0.0) as engine:
        async with running_router(backends_yaml(backend(engine.url)), tmp_path) as running:
            await running.ask(headers={"Authorization": "Bearer mine", "x-api-key": "too"})
            assert engine.asked[0].values(b"authorization") == [b"Bearer mine"]
            assert engine.asked[0].values(b"x-api-key") == [b"too"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"X-Forwarded-For": "127.0.0.1"}, 403),
        ({"x-forwarded-proto": "https"}, 403),
        ({"Forwarded": "for=127.0.0.1"}, 403),
        ({"X-Real-IP": "127.0.0.1"}, 403),
        ({"Via": "1.1 proxy"}, 403),
    ],
)
async def test_without_a_token_changes_come_from_loopback_and_not_through_a_proxy(
    tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    async with running_router(backends_yaml(backend("http://127.0.0.1:9")), tmp_path) as running:
        changed = await running.ask(MODE, {"mode": "superfast"}, method="PUT", headers=headers)
        assert changed.status == status
        if status != 200:
            assert "LIFEBOAT_ADMIN_TOKEN" in changed.error["message"]
            assert (await running.state())["routing_mode"] == "default"
        # Looking is free.
        assert (await running.ask(MODE, None, method="GET", headers=headers)).status == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", MODE, {"mode": "superfast"}),
        ("POST", "/api/lb/backends", {"url": "http://127.0.0.1:9", "name": "b"}),
        ("PATCH", "/api/lb/backends/a", {"max_concurrency": 3}),
        ("DELETE", "/api/lb/backends/a", None),
        ("POST", "/api/lb/explain", {"path": CHAT, "body": chat_body()}),
    ],
)
async def test_with_a_token_every_changing_call_needs_it(
    tmp_path: Path, method: str, path: str, body: object
) -> None:
    environ = {"LIFEBOAT_ADMIN_TOKEN": "sesame", "LIFEBOAT_API_KEYS": "router-key"}
    yaml = backends_yaml(backend("http://127.0.0.1:9"))
    async with running_router(yaml, tmp_path, environ) as running:
        before = (await running.state())["backends"]
        for headers in ({}, {"Authorization": "Bearer router-key"}, {"x-api-key": "sesame!"}):
            refused = await running.ask(path, body, method=method, headers=headers)
            assert refused.status == 401
            assert refused.headers["WWW-Authenticate"] == "Bearer"
            assert "sesame" not in refused.body.decode()
        assert (await running.state())["backends"].keys() == before.keys()
        allowed = await running.ask(
            path, body, method=method, headers={"Authorization": "Bearer sesame"}
        )
        assert allowed.status in (200, 201, 204)
