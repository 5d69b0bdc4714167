"""Captured request bodies go through the router and arrive byte for byte."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.acceptance.engines import HeldEngine
from tests.running import backend, backends_yaml, running_router
from tests.shared_files import shared_path

PATHS = {
    "chat-completions": "/v1/chat/completions",
    "responses": "/v1/responses",
    "anthropic": "/v1/messages",
}
ALIAS = "the router's \u00fcbername"


def captured() -> list[dict]:
    text = shared_path("traces/captured_requests.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert len(rows) > 200
    return rows


def spellings(body: dict) -> list[bytes]:
    """The same body as three encoders write it: spacing, escapes and line ends differ."""
    return [
        json.dumps(body).encode(),
        json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(),
        json.dumps(body, ensure_ascii=False, indent=2).replace("\n", "\r\n").encode(),
    ]


async def test_every_captured_body_arrives_byte_for_byte(tmp_path: Path) -> None:
    rows = captured()
    models = sorted({row["body"]["model"] for row in rows})
    async with HeldEngine(hold_s=0.0) as recorder:
        yaml = backends_yaml(backend(recorder.url, models=models, max_input_tokens=1_000_000))
        environ = {"LIFEBOAT_LB_TOKENIZER": "cl100k_base"}
        async with running_router(yaml, tmp_path, environ) as running:
            sent = 0
            for row in rows:
                bodies = spellings(row["body"])
                answers = await asyncio.gather(
                    *(
                        running.ask(PATHS[row["api"]], body, headers={"X-Request-ID": f"{n}"})
                        for n, body in enumerate(bodies)
                    )
                )
                assert [answer.status for answer in answers] == [200] * len(bodies), row["case"]
                arrived = {
                    int(got.values(b"x-request-id")[0]): got.body for got in recorder.asked[sent:]
                }
                assert arrived == dict(enumerate(bodies)), row["case"]
                sent += len(bodies)
            state = await running.settle()
            assert state["parked_bytes"] == 0


async def test_with_an_alias_only_the_model_differs(tmp_path: Path) -> None:
    rows = captured()
    async with HeldEngine(hold_s=0.0) as recorder:
        yaml = backends_yaml(
            backend(recorder.url, models=["real/model:7b"]),
            models={ALIAS: {"alias_of": "real/model:7b"}},
        )
        async with running_router(yaml, tmp_path) as running:
            for row in rows:
                body = {**row["body"], "model": ALIAS}
                for spelled in spellings(body):
                    answer = await running.ask(PATHS[row["api"]], spelled)
                    assert answer.status == 200, row["case"]
                    spelled_name = next(
                        name
                        for name in (
                            json.dumps(ALIAS).encode(),
                            json.dumps(ALIAS, ensure_ascii=False).encode(),
                        )
                        if name in spelled
                    )
                    assert recorder.asked[-1].body == spelled.replace(
                        spelled_name, b'"real/model:7b"', 1
                    ), row["case"]


async def test_the_answer_of_an_alias_is_the_backends_own(tmp_path: Path) -> None:
    async with HeldEngine(hold_s=0.0) as engine:
        yaml = backends_yaml(backend(engine.url), models={"nick": {"alias_of": "m"}})
        async with running_router(yaml, tmp_path) as running:
            answer = await running.ask(body=b'{ "x":"model" , "model" :\t"nick" ,"y":"nick"}')
            assert answer.json["model"] == "m"
            assert engine.asked[-1].body == b'{ "x":"model" , "model" :\t"m" ,"y":"nick"}'
            listed = await running.ask("/v1/models", method="GET")
            assert [entry["id"] for entry in listed.json["data"]] == ["m", "nick"]
            for entry in listed.json["data"]:
                one = await running.ask(f"/v1/models/{entry['id']}", method="GET")
                assert one.json == entry
