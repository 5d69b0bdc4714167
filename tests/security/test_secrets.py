"""No secret is told: not in the log, not on any page, not in an error, not to the wrong server."""

from __future__ import annotations

import json
import logging
import stat
from pathlib import Path

import pytest

from tests.acceptance.engines import HeldEngine
from tests.running import CHAT, RouterProcess, backend, backends_yaml, chat_body, running_router

SECRETS = {
    "router key": "ROUTERKEY-5d1c",
    "admin token": "ADMINTOKEN-77aa",
    "backend key": "BACKENDKEY-0b2e",
    "registered key": "REGISTEREDKEY-91f0",
    "wrong key": "WRONGKEY-1234",
    "wrong token": "WRONGTOKEN-4321",
    "prompt": "PROMPTTEXT-c0ffee",
    "query": "QUERYTEXT-beef",
}
PAGES = (
    "/", "/metrics", "/openapi.json", "/v1/models", "/ready", "/health", "/api/lb/state",
    "/api/lb/rejections", "/api/lb/history", "/api/lb/parked", "/api/lb/mode", "/api/lb/backends",
)  # fmt: skip


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {SECRETS[name]}"}


def told(text: str) -> list[str]:
    return [name for name, secret in SECRETS.items() if secret in text]


def test_the_check_itself_sees_a_secret() -> None:
    assert told(f"x {SECRETS['prompt']}") == ["prompt"]


async def test_no_secret_is_logged_or_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="lifeboat")
    state_file = tmp_path / "state.json"
    environ = {
        "LIFEBOAT_API_KEYS": SECRETS["router key"],
        "LIFEBOAT_ADMIN_TOKEN": SECRETS["admin token"],
        "LIFEBOAT_STATE_FILE": str(state_file),
    }
    seen: list[str] = []
    async with HeldEngine(hold_s=0.0) as engine, HeldEngine(hold_s=0.0, models=("n",)) as second:
        yaml = backends_yaml(backend(engine.url, api_key=SECRETS["backend key"]))
        async with running_router(yaml, tmp_path, environ) as running:
            body = chat_body(SECRETS["prompt"])
            path = f"{CHAT}?q={SECRETS['query']}"
            assert (await running.ask(path, body, headers=bearer("router key"))).status == 200
            seen.append(str(await running.ask(path, body, headers=bearer("wrong key"))))
            seen.append(str(await running.ask("/v1/" + SECRETS["query"][:0] + "nothing")))
            new = backend(
                second.url, "b", models=["n"], api_key=SECRETS["registered key"], kind="openai"
            )
            calls = [("POST", "backends", new), ("PATCH", "backends/b", {"max_concurrency": 3})]
            for method, name, call in calls:
                for key in ("wrong token", "admin token"):
                    answer = await running.ask(
                        f"/api/lb/{name}", call, method=method, headers=bearer(key)
                    )
                    assert (answer.status < 300) is (key == "admin token")
                    seen.append(str(answer))
            bad = {**new, "name": "c", "max_concurrency": "many"}
            refused = await running.ask("/api/lb/backends", bad, headers=bearer("admin token"))
            assert refused.status == 400
            seen.append(str(refused))
            seen += [str(await running.ask(page, method="GET")) for page in PAGES]
            explained = await running.ask(
                "/api/lb/explain", {"path": CHAT, "body": body}, headers=bearer("admin token")
            )
            assert explained.status == 200
            seen.append(str(explained))
            await running.ask(body=chat_body(model="n"), headers=bearer("router key"))
        assert second.asked[0].values(b"authorization") == [
            f"Bearer {SECRETS['registered key']}".encode()
        ]
    assert told("\n".join(seen)) == []
    logged = "\n".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    assert "backend b registered" in logged
    assert told(logged) == []
    # It must hold the key, or a restart would lose it: for its owner alone.
    assert SECRETS["registered key"] in state_file.read_text()
    assert stat.S_IMODE(state_file.stat().st_mode) == 0o600


@pytest.mark.parametrize("form", ["json", "text"])
async def test_the_process_writes_none_at_the_most_talkative_level(
    tmp_path: Path, form: str
) -> None:
    async with HeldEngine(hold_s=0.0) as engine:
        (tmp_path / "backends.yaml").write_text(
            backends_yaml(backend(engine.url, api_key=SECRETS["backend key"]))
        )
        environ = {
            "LIFEBOAT_API_KEYS": SECRETS["router key"],
            "LIFEBOAT_ADMIN_TOKEN": SECRETS["admin token"],
            "LIFEBOAT_LOG_LEVEL": "debug",
            "LIFEBOAT_LOG_FORMAT": form,
            "LIFEBOAT_LB_TOKENIZER": "quick",
        }
        router = await RouterProcess.start(cwd=tmp_path, environ=environ)
        try:
            await _ask_twice(router.url)
        finally:
            await router.stop()
        said = "\n".join(router.said) + router.log.read_text()
    assert "/v1/chat/completions" in said
    assert told(said) == []


async def _ask_twice(url: str) -> None:
    import aiohttp

    body = json.dumps(chat_body(SECRETS["prompt"]))
    async with aiohttp.ClientSession() as session:
        for name, status in (("router key", 200), ("wrong key", 401)):
            async with session.post(
                f"{url}{CHAT}?q={SECRETS['query']}", data=body, headers=bearer(name)
            ) as answer:
                assert answer.status == status
                await answer.read()
