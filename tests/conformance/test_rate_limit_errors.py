"""What a backend says of limits and failures: its status, its headers, its body."""

from __future__ import annotations

import pytest

from tests.conformance.lanes import Lane, answer, chat, says_hello
from tests.peers import Peer, Received
from tests.running import CHAT

BODY = b'{"error": {"message": "odd  spacing", "code": "E42", "type": "server_error"}}'


STATUSES = [400, 401, 403, 404, 408, 409, 422, 429, 451, 500, 502, 504]


@pytest.mark.parametrize("streamed", [True, False])
async def test_bug_210_bug_213_an_error_keeps_status_body_and_type(
    lane: Lane, streamed: bool
) -> None:
    statuses = iter(STATUSES)

    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(answer(BODY, b"%d Said So" % next(statuses), b"X-Why: 1"))

    async with lane.facing(script, script) as stage:
        client = await stage.client()
        for count, status in enumerate(STATUSES, 1):
            await client.post(CHAT, chat(stream=streamed))
            reply = await client.reply()
            assert reply.first_line == b"HTTP/1.1 %d Said So" % status
            assert reply.body == BODY
            assert reply.values(b"content-type") == [b"application/json"]
            assert reply.values(b"x-why") == [b"1"]
            assert reply.values(b"x-lifeboat-reject-reason") == []
            assert len(stage.asked) == count
        metrics = await stage.running.metrics()
    told = [name for name in metrics if name.startswith("lifeboat_lb_responses_total{")]
    for status in STATUSES:
        assert sum(metrics[name] for name in told if f'code="{status}"' in name) == 1


@pytest.mark.parametrize("content_type", [b"text/html", b"text/plain; charset=latin-1", None])
async def test_bug_210_a_body_of_another_kind_is_not_made_json(
    lane: Lane, content_type: bytes | None
) -> None:
    page = b"<html>\xe9 502</html>"
    lines = [b"HTTP/1.1 502 Bad Gateway", b"Content-Length: %d" % len(page)]
    if content_type:
        lines.append(b"Content-Type: " + content_type)

    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(b"\r\n".join(lines) + b"\r\n\r\n" + page)

    async with lane.facing(script) as stage:
        client = await stage.client()
        await client.post(CHAT, chat())
        reply = await client.reply()
    assert (reply.status, reply.body) == (502, page)
    assert reply.values(b"content-type") == ([content_type] if content_type else [])


LIMITS = [
    b"Retry-After: 7", b"x-ratelimit-limit-requests: 60", b"x-ratelimit-remaining-tokens: 0",
    b"anthropic-ratelimit-requests-reset: 2026-11-30T00:00:00Z", b"retry-after-ms: 7000",
    b"x-should-retry: true", b"openai-processing-ms: 5", b"llm_provider-x: 1",
]  # fmt: skip


@pytest.mark.parametrize("status", [b"200 OK", b"429 Too Many Requests", b"500 Oops"])
async def test_bug_211_rate_limit_headers_keep_their_names_and_values(
    lane: Lane, status: bytes
) -> None:
    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(answer(BODY, status, *LIMITS))

    async with lane.facing(script) as stage:
        client = await stage.client()
        await client.post(CHAT, chat())
        reply = await client.reply()
    lines = [name + b": " + value for name, value in reply.headers]
    assert [line for line in lines if line in LIMITS] == LIMITS


async def test_bug_213_a_refusal_of_the_routers_own_is_never_a_200(lane: Lane) -> None:
    async def script(peer: Peer, asked: Received) -> None:
        peer.reset()

    async with lane.facing(script, max_input_tokens=10) as stage:
        for body, status in (
            (chat(), 502), (chat(model="none"), 503), (chat("word " * 500), 413), (b"{", 400),
        ):  # fmt: skip
            for streamed in (b"", b" "):
                reply = await stage.running.ask(body=body + streamed)
                assert reply.status == status
                assert reply.json["error"]["message"]


SATURATED_BODY = (
    b'{"error": {"message": "full", "type": "overloaded_error", "code": "queue_saturated"}}'
)
QUEUE_SATURATED = answer(SATURATED_BODY, b"529 Site is overloaded", b"Retry-After: 3")


@pytest.mark.parametrize("kind", ["openai", "vllm", "gguf"])
async def test_bug_214_a_529_is_relayed_frees_its_slot_and_is_no_failure(
    lane: Lane, kind: str
) -> None:
    async def full(peer: Peer, asked: Received) -> None:
        await peer.send(QUEUE_SATURATED)

    async with lane.facing(full, kind=kind) as stage:
        for _ in range(5):
            client = await stage.client()
            await client.post(CHAT, chat())
            reply = await client.reply()
            assert reply.status in (503, 529)
            if reply.status == 529:
                assert reply.body == SATURATED_BODY
                assert reply.values(b"retry-after") == [b"3"]
                assert reply.values(b"x-lifeboat-reject-reason") == []
        state = await stage.running.settle()
        assert state["backends"]["a"]["health"] == "up"
        assert state["backends"]["a"]["failed"] == 0
        assert state["backends"]["a"]["limit_reason"] == "saturated"
        assert state["inflight"] == {"a": 0}


async def test_bug_214_the_first_answer_of_a_full_engine_is_the_529_itself(lane: Lane) -> None:
    async def full(peer: Peer, asked: Received) -> None:
        await peer.send(QUEUE_SATURATED)

    async with lane.facing(full) as stage:
        reply = await stage.running.ask()
    assert reply.status == 529
    assert reply.body == SATURATED_BODY


async def test_bug_214_another_backend_with_room_is_asked_first(lane: Lane) -> None:
    async def full(peer: Peer, asked: Received) -> None:
        await peer.send(QUEUE_SATURATED)

    async with lane.facing(full, says_hello) as stage:
        assert {(await stage.running.ask()).status for _ in range(4)} == {200}
