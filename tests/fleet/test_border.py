"""Near an input cap a backend's own tokenizer decides, if that is wanted, and within its time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web

from lifeboat.core.estimate import BORDER, near_border
from lifeboat.core.vocabulary import Estimate, EstimateMethod
from lifeboat.fleet.border import BUDGET_S, MOST_AT_ONCE
from tests.peers import serving
from tests.running import CHAT, Running, backend, backends_yaml, chat_body, running_router

TEXT = "The quick brown fox jumps over the lazy dog. " * 60


class Engine:
    """A server that sizes what it is asked about as `tokens`; `asked` by path, in order."""

    def __init__(self, tokens: int = 1, *, delay_s: float = 0.0, status: int = 200) -> None:
        self.tokens = tokens
        self.delay_s = delay_s
        self.status = status
        self.asked: list[tuple[str, dict]] = []
        self.sent = 0

    async def serve(self, request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.json_response({"data": [{"id": "m"}]})
        body = await request.json()
        if "X-Request-ID" in request.headers:
            self.sent += 1
            return web.json_response({"choices": []})
        self.asked.append((request.path, body))
        await asyncio.sleep(self.delay_s)
        if self.status != 200:
            return web.json_response({"error": {"message": "no"}}, status=self.status)
        if request.path == "/apply-template":
            return web.json_response({"prompt": "templated"})
        if request.path == "/v1/messages/count_tokens":
            return web.json_response({"input_tokens": self.tokens})
        ids = [7] * self.tokens
        return web.json_response({"tokens": ids} if "content" in body else {"count": len(ids)})


BODIES: dict[str, tuple[str, dict]] = {
    "chat": (CHAT, chat_body(TEXT)),
    "completions": ("/v1/completions", {"model": "m", "prompt": TEXT}),
    "messages": ("/v1/messages", {**chat_body(TEXT), "max_tokens": 5}),
}


async def set_cap(running: Running, name: str, ratio: float) -> int:
    """Put the cap at this part of the router's own estimate, and return it."""
    path, body = BODIES[name]
    told = await running.admin("POST", "explain", {"path": path, "body": body})
    cap = round(told.json["estimate"]["quick"]["tokens"] * ratio)
    assert (await running.admin("PATCH", "backends/a", {"max_input_tokens": cap})).status == 200
    return cap


def yaml(port: int, kind: str = "vllm", *, exact: bool = True) -> str:
    return backends_yaml(backend(f"http://127.0.0.1:{port}", kind=kind, exact_border=exact))


ASKED = {
    ("vllm", "chat"): ["/tokenize"],
    ("vllm", "completions"): ["/tokenize"],
    ("vllm", "messages"): ["/v1/messages/count_tokens"],
    ("gguf", "chat"): ["/apply-template", "/tokenize"],
    ("gguf", "completions"): ["/tokenize"],
    ("gguf", "messages"): ["/v1/messages/count_tokens"],
}


@pytest.mark.parametrize(("kind", "name"), ASKED)
async def test_near_the_cap_the_engine_decides_either_way(
    kind: str, name: str, tmp_path: Path
) -> None:
    engine = Engine()
    path, body = BODIES[name]
    async with serving(engine.serve) as port, running_router(yaml(port, kind), tmp_path) as running:
        # Below the cap by our estimate, and above it by theirs; then the other way round.
        for ratio, over, status in ((1.1, 1, 413), (0.9, 0, 200)):
            engine.tokens = await set_cap(running, name, ratio) + over
            engine.asked.clear()
            answer = await running.ask(path, body)
            assert answer.status == status, answer.body
            assert [asked for asked, _ in engine.asked] == ASKED[kind, name]
            if status == 413:
                assert f"{engine.tokens} input tokens (engine)" in answer.error["message"]
        told = await running.admin("POST", "explain", {"path": path, "body": body})
        estimate = told.json["estimate"]
        assert (estimate["tokens"], estimate["method"]) == (engine.tokens, "engine")


async def test_what_the_engine_is_asked_is_the_clients_own_under_the_name_it_knows(
    tmp_path: Path,
) -> None:
    engine = Engine(1)
    async with serving(engine.serve) as port:
        models = {"nick": {"alias_of": "m"}}
        text = json.dumps({**json.loads(yaml(port)), "models": models})
        async with running_router(text, tmp_path) as running:
            await set_cap(running, "chat", 1.0)
            assert (await running.ask(CHAT, chat_body(TEXT, model="nick", top_p=1))).status == 200
            message = {"role": "user", "content": TEXT}
            assert engine.asked[-1] == ("/tokenize", {"model": "m", "messages": [message]})


@pytest.mark.parametrize("ratio", [0.7, 1.3])
async def test_far_from_the_cap_nobody_is_asked(ratio: float, tmp_path: Path) -> None:
    engine = Engine(1)
    async with serving(engine.serve) as port, running_router(yaml(port), tmp_path) as running:
        await set_cap(running, "chat", ratio)
        answer = await running.ask(CHAT, chat_body(TEXT))
        assert answer.status == (413 if ratio < 1 else 200)
        assert engine.asked == []


async def test_it_is_off_unless_it_is_wanted(tmp_path: Path) -> None:
    engine = Engine(10**6)
    async with (
        serving(engine.serve) as port,
        running_router(yaml(port, exact=False), tmp_path) as running,
    ):
        await set_cap(running, "chat", 1.05)
        assert (await running.ask(CHAT, chat_body(TEXT))).status == 200
        assert engine.asked == []


FAULTS = {
    "slow": Engine(10**6, delay_s=3.0),
    "refuses": Engine(10**6, status=501),
    "nonsense": Engine(0, status=404),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_where_the_engine_does_not_tell_in_time_the_estimate_stands(
    fault: str, tmp_path: Path
) -> None:
    engine = FAULTS[fault]
    async with serving(engine.serve) as port, running_router(yaml(port), tmp_path) as running:
        await set_cap(running, "chat", 1.05)
        engine.asked.clear()
        answer = await running.ask(CHAT, chat_body(TEXT))
        assert answer.status == 200
        assert len(engine.asked) == 1
        assert answer.took_s < BUDGET_S + 2.0
        state = await running.state()
        assert (state["backends"]["a"]["health"], state["backends"]["a"]["failed"]) == ("up", 0)


async def test_a_crowd_at_the_border_does_not_crowd_the_tokenizer(tmp_path: Path) -> None:
    engine = Engine(1, delay_s=0.2)
    async with serving(engine.serve) as port, running_router(yaml(port), tmp_path) as running:
        await set_cap(running, "chat", 1.05)
        engine.asked.clear()
        asking = (running.ask(CHAT, chat_body(TEXT)) for _ in range(3 * MOST_AT_ONCE))
        answers = await asyncio.gather(*asking)
        assert {answer.status for answer in answers} == {200}
        assert len(engine.asked) == MOST_AT_ONCE


@pytest.mark.parametrize("method", EstimateMethod)
def test_the_border_is_15_percent_wide_and_for_guesses_alone(method: EstimateMethod) -> None:
    assert BORDER == 0.15
    guessed = method in (EstimateMethod.QUICK, EstimateMethod.TOKENIZER)
    for tokens, near in ((849, False), (850, True), (1000, True), (1150, True), (1151, False)):
        assert near_border(Estimate(tokens, tokens, method), 1000) is (guessed and near)
    assert not near_border(Estimate(0, 0, method), 0)
