"""Streams cut at every byte: the same bytes and events however they come, and a cut stays a cut.

What is looked at in a stream is its framing, and of a vLLM stream the first event (a refusal may
come in a 200's clothes). Reading in one piece is held by tests/wire; here every cut is made, over
sockets and on both lanes.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from lifeboat.core.answers import first_event_end, is_overload_event
from tests.conformance.lanes import LANES
from tests.fuzz.engine import Engine, Says
from tests.fuzz.reading import Message, Verdict, read_answers
from tests.fuzz.stage import Client, Home, all_given_back, at_home, cut, router_on
from tests.running import CHAT, Running, backend

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS = (
    b": hi\r\n\r\n",
    b'data: {"choices": [{"delta": {"content": "\xc3\xa9"}}]}\n\n',
    b'data: {"choices": [], "usage": {"completion_tokens": 2}}\n\n',
    b"data: [DONE]\n\n",
)
OVERLOAD = (b'data: {"error": {"message": "busy", "code": 503}}\n\n', b"data: [DONE]\n\n")


def stream(*events: bytes) -> bytes:
    chunks = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
    return HEAD + b"".join(chunks) + b"0\r\n\r\n"


STREAM, REFUSAL = stream(*EVENTS), stream(*OVERLOAD)


@dataclass
class Scene:
    """On each lane, a router before a vLLM server.

    refused: routers with a vLLM server for each place of a cut, for one that refuses is left alone
    for a while, and a server that takes all models but is tried last, since it has no cap.
    """

    engine: Engine
    other: Engine
    alone: dict[str, Running]
    refused: dict[str, Running]


PLACES = range(1, len(REFUSAL))


@contextlib.asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    async with contextlib.AsyncExitStack() as stack:
        engine = await stack.enter_async_context(Engine().serving())
        other = await stack.enter_async_context(Engine().serving())
        alone, refused = {}, {}
        servers = [
            backend(
                f"{engine.url}/{place}", f"a{place}", kind="vllm", models=[f"m{place}"],
                max_input_tokens=1000,
            )
            for place in PLACES
        ]  # fmt: skip
        servers.append(backend(other.url, "b", models=[f"m{place}" for place in PLACES]))
        for lane in LANES:
            vllm = backend(engine.url, kind="vllm")
            alone[lane] = await stack.enter_async_context(router_on(lane, vllm))
            refused[lane] = await stack.enter_async_context(router_on(lane, *servers))
        yield Scene(engine, other, alone, refused)


@pytest.fixture(scope="module")
def home() -> Iterator[Home[Scene]]:
    with at_home(scene) as opened:
        yield opened


async def ask(
    running: Running, says: Says, engine: Engine, model: str = "m"
) -> tuple[Message, str]:
    """Stream once; return the answer and how the connection ended."""
    engine.answer = lambda asked: says
    client = await Client.connect(running.port)
    body = json.dumps({"model": model, "stream": True, "messages": []}).encode()
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    await client.send(head % (CHAT.encode(), len(body)) + body)
    await client.answers(["POST"], 1)
    seen = read_answers(bytes(client.came), ["POST"], client.end)
    end = client.end
    client.leave()
    await all_given_back(running)
    assert not engine.faults, engine.faults
    return seen[0], end


@pytest.mark.parametrize("lane", LANES)
def test_a_stream_cut_in_two_anywhere_is_the_same_stream(home: Home[Scene], lane: str) -> None:
    scene = home.scene
    for place in range(1, len(STREAM)):
        says = Says(cut(STREAM, [place]))
        seen, end = home.run(ask(scene.alone[lane], says, scene.engine))
        assert (seen.verdict, seen.status, end) == (Verdict.PLAIN, 200, ""), place
        assert seen.body == b"".join(EVENTS), place
        assert seen.backend == b"a"


@pytest.mark.parametrize("end", ["closed", "reset"])
@pytest.mark.parametrize("lane", LANES)
def test_a_stream_that_dies_anywhere_is_cut_for_the_client(
    home: Home[Scene], lane: str, end: str
) -> None:
    scene = home.scene
    for place in range(len(HEAD), len(STREAM)):
        says = Says([STREAM[:place]], end)
        seen, seen_end = home.run(ask(scene.alone[lane], says, scene.engine))
        assert (seen.verdict, seen.status) == (Verdict.CUT, 200), place
        assert seen_end, place
        assert b"".join(EVENTS).startswith(seen.body), place


@pytest.mark.parametrize("lane", LANES)
def test_a_refusal_in_a_stream_is_seen_however_it_is_cut(home: Home[Scene], lane: str) -> None:
    """Once its first event is whole; the request is served by another server, as for a real 529."""
    scene = home.scene
    for place in PLACES:
        scene.engine.forget()
        scene.other.forget()
        says = Says(cut(REFUSAL, [place]))
        seen, _ = home.run(ask(scene.refused[lane], says, scene.engine, f"m{place}"))
        assert (len(scene.engine.asked), len(scene.other.asked)) == (1, 1), place
        assert (seen.verdict, seen.status, seen.backend) == (Verdict.PLAIN, 200, b"b"), place
        assert b'"tag"' in seen.body, place


@pytest.mark.parametrize("ends", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("lead", [b"", b"\xef\xbb\xbf", b": hi\n\n", b"event: x\nid: 1\n"])
@pytest.mark.parametrize("events", [EVENTS, OVERLOAD], ids=["ordinary", "refusal"])
def test_the_first_event_is_the_same_once_it_is_whole(
    events: tuple[bytes, ...], lead: bytes, ends: bytes
) -> None:
    whole = (lead + b"".join(events)).replace(b"\r\n", b"\n").replace(b"\n", ends)
    end = first_event_end(whole)
    assert end is not None
    for place in range(len(whole) + 1):
        start = whole[:place]
        assert first_event_end(start) == (end if place >= end else None), place
        assert is_overload_event(start) is (place >= end and events is OVERLOAD), place
