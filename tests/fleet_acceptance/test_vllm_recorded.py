"""What a real vLLM said when it had no room (tests/fixtures/vllm), said again by a scripted one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.acceptance.engines import OK, SayingEngine
from tests.peers import Peer, Received
from tests.running import CHAT, Running, backend, backends_yaml, chat_body, running_router

RECORDED = Path(__file__).parents[1] / "fixtures/vllm"

BODIES: dict[str, tuple[str, dict[str, object]]] = {
    "chat": (CHAT, chat_body()),
    "completions": ("/v1/completions", {"model": "m", "prompt": "Hello"}),
    "responses": ("/v1/responses", {"model": "m", "input": "Hello", "store": False}),
    "messages": ("/v1/messages", {**chat_body(), "max_tokens": 5}),
}
REFUSALS = ("chat", "completions", "responses", "messages")
STREAMED_REFUSALS = ("chat-stream", "completions-stream", "messages-stream")


def recorded(name: str) -> bytes:
    return (RECORDED / f"busy-{name}.http").read_bytes()


def say(answer: bytes):
    """Return a move: this answer, then the end of the connection, as its head announces."""

    async def move(peer: Peer, received: Received) -> None:
        await peer.send(answer)
        peer.close()
        raise ConnectionResetError

    return move


def question(name: str) -> tuple[str, dict[str, object]]:
    path, body = BODIES[name.removesuffix("-stream")]
    return path, {**body, "stream": name.endswith("-stream")}


async def healthy_and_saturated(running: Running) -> None:
    state = await running.state()
    shown = state["backends"]["a"]
    assert (shown["health"], shown["limit_reason"], shown["failed"]) == ("up", "saturated", 0)


@pytest.mark.parametrize("name", REFUSALS + STREAMED_REFUSALS)
async def test_a_recorded_refusal_sends_the_request_to_another_and_health_stays_up(
    name: str, tmp_path: Path
) -> None:
    async with SayingEngine(say(recorded(name))) as busy, SayingEngine(OK) as other:
        yaml = backends_yaml(
            backend(busy.url, "a", kind="vllm"), backend(other.url, "b", kind="vllm")
        )
        async with running_router(yaml, tmp_path) as running:
            answers = [await running.ask(*question(name)) for _ in range(2)]
            assert [answer.status for answer in answers] == [200, 200]
            assert {answer.headers["X-Lifeboat-Backend"] for answer in answers} == {"b"}
            assert len(busy.asked) == 1
            await healthy_and_saturated(running)


@pytest.mark.parametrize("name", REFUSALS + STREAMED_REFUSALS)
async def test_a_recorded_refusal_parks_the_request_where_the_queue_is_on(
    name: str, tmp_path: Path
) -> None:
    async with SayingEngine(say(recorded(name)), OK) as engine:
        yaml = backends_yaml(backend(engine.url, "a", kind="vllm"), queue={"enabled": True})
        async with running_router(yaml, tmp_path) as running:
            answer = await running.ask(*question(name))
            assert (answer.status, answer.json["model"]) == (200, "m")
            assert answer.wait_ms > 0
            assert answer.headers["X-Lifeboat-Attempts"] == "2"


@pytest.mark.parametrize("name", REFUSALS + STREAMED_REFUSALS)
async def test_a_recorded_refusal_is_relayed_as_it_came_where_nobody_else_can_serve(
    name: str, tmp_path: Path
) -> None:
    async with SayingEngine(say(recorded(name))) as engine:
        yaml = backends_yaml(backend(engine.url, "a", kind="vllm"))
        async with running_router(yaml, tmp_path) as running:
            answer = await running.ask(*question(name))
            assert answer.status == int(recorded(name).split()[1])
            told = recorded(name).partition(b"\r\n\r\n")[2]
            assert answer.body in told or answer.body.split(b"\n\n")[0] in told
            assert "X-Lifeboat-Reject-Reason" not in answer.headers
            await healthy_and_saturated(running)


async def test_a_stream_that_breaks_off_later_has_begun_and_is_not_sent_again(
    tmp_path: Path,
) -> None:
    """On /v1/responses the first event tells nothing; what is cut must look cut to the client."""
    async with SayingEngine(say(recorded("responses-stream"))) as broken, SayingEngine(OK) as other:
        yaml = backends_yaml(
            backend(broken.url, "a", kind="vllm"),
            backend(other.url, "b", kind="vllm", max_concurrency=1),
        )
        async with running_router(yaml, tmp_path) as running:
            reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
            path, body = question("responses-stream")
            sent = json.dumps(body).encode()
            writer.write(
                f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(sent)}\r\n\r\n".encode()
                + sent
            )
            said = await asyncio.wait_for(reader.read(), 15)
            writer.close()
            assert b"response.in_progress" in said
            assert not said.endswith(b"0\r\n\r\n")
            assert (len(broken.asked), len(other.asked)) == (1, 0)
