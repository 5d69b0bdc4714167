"""Every fault mode, as a plain client sees it."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from lifeboat.sim.faults import FAULTS, FaultMode
from tests.sim.serving import CHAT, MODEL, Seen, chat, drop, serving

STREAM = chat(6, stream=True, stream_options={"include_usage": True})
WHOLE_EVENTS = 10
"""Role, six tokens, finish, usage, [DONE]."""


async def _ask(fault: str, body: object = STREAM, path: str = CHAT) -> Seen:
    async with serving(enable_faults=True) as client:
        return await asyncio.wait_for(client.post(path, body, fault=fault), 10)


async def test_without_enable_faults_the_header_means_nothing() -> None:
    async with serving() as client:
        seen = await client.post(CHAT, STREAM, fault="http_500")
    assert seen.status == 200
    assert len(seen.events) == WHOLE_EVENTS


async def test_without_the_header_nothing_is_wrong() -> None:
    async with serving(enable_faults=True) as client:
        seen = await client.post(CHAT, STREAM)
    assert len(seen.events) == WHOLE_EVENTS
    assert seen.broken is None


@pytest.mark.parametrize(
    "header", ["nonsense", "", "stall;after=3", "stall;delay_ms=-1", "stall;x"]
)
async def test_a_header_that_means_nothing_is_a_400(header: str) -> None:
    seen = await _ask(header)
    assert seen.status == 400
    assert "x-sim-fault" in seen.json["error"]["message"]


@pytest.mark.parametrize("chunks", [1, 4])
async def test_cut_between_frames_leaves_whole_events_and_no_end(chunks: int) -> None:
    seen = await _ask(f"cut_between_frames;after_chunks={chunks}")
    assert (seen.status, seen.broken) == (200, "ClientPayloadError")
    assert len(seen.events) == chunks
    assert seen.raw.endswith(b"\n\n")


async def test_cut_mid_frame_leaves_half_an_event() -> None:
    seen = await _ask("cut_mid_frame;after_chunks=3")
    assert (seen.status, seen.broken) == (200, "ClientPayloadError")
    assert len(seen.events) == 3
    assert seen.raw.rsplit(b"\n\n", 1)[1].startswith(b"data: {")


@pytest.mark.parametrize("mode", ["cut_between_frames", "cut_mid_frame"])
async def test_a_cut_plain_answer_is_shorter_than_its_length(mode: str) -> None:
    seen = await _ask(mode, chat(6))
    assert (seen.status, seen.broken) == (200, "ClientPayloadError")
    assert 0 < len(seen.raw) < int(seen.headers["Content-Length"])


@pytest.mark.parametrize("body", [STREAM, chat(6)])
async def test_a_reset_comes_before_any_byte(body: object) -> None:
    seen = await _ask("reset", body)
    assert seen.status == 0
    assert seen.broken in ("ServerDisconnectedError", "ClientOSError")


async def test_a_reset_is_an_rst_and_not_an_orderly_end() -> None:
    async with serving(enable_faults=True) as client:
        host, port = client.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, port)
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nx-sim-fault: reset\r\nContent-Length: %d\r\n\r\n"
        )
        body = b'{"messages": [{"content": "a"}], "stream": true}'
        writer.write((head % len(body)).encode() + body)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


async def test_a_reset_can_come_in_the_middle() -> None:
    seen = await _ask("reset;after_chunks=2;delay_ms=100")
    assert seen.status == 200
    assert seen.broken is not None
    assert len(seen.events) == 2


async def test_a_stall_goes_silent_with_the_connection_open() -> None:
    async with serving(enable_faults=True) as client:
        headers = {"x-sim-fault": "stall;after_chunks=2"}
        async with client.session.post(client.url + CHAT, json=STREAM, headers=headers) as answer:
            raw = b""
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    async for chunk in answer.content.iter_any():
                        raw += chunk
        assert raw.count(b"\n\n") == 2
        await client.until(running=0)


async def test_a_stall_with_a_delay_goes_on_afterwards() -> None:
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    seen = await _ask("stall;after_chunks=2;delay_ms=300")
    assert loop.time() - begun_s > 0.3
    assert (len(seen.events), seen.broken) == (WHOLE_EVENTS, None)


async def test_a_stalled_plain_answer_stops_half_way() -> None:
    async with serving(enable_faults=True) as client:
        task = asyncio.create_task(client.post(CHAT, chat(6), fault="stall"))
        await asyncio.sleep(0.3)
        assert not task.done()
        await drop(task)
    later = await _ask("stall;delay_ms=50", chat(6))
    assert later.json["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize("body", [STREAM, chat(6)])
async def test_an_error_envelope_with_200(body: object) -> None:
    seen = await _ask("error_envelope_200", body)
    assert (seen.status, seen.is_stream) == (200, False)
    assert seen.json["error"]["code"] == "injected_fault"


async def test_an_error_in_the_stream_is_an_event_and_then_done() -> None:
    seen = await _ask("error_in_sse;after_chunks=3")
    assert (seen.status, seen.broken) == (200, None)
    assert seen.events[3]["error"]["code"] == "injected_fault"
    assert seen.events[4:] == ["[DONE]"]


async def test_an_error_in_a_plain_answer_is_the_envelope() -> None:
    seen = await _ask("error_in_sse", chat(6))
    assert (seen.status, seen.json["error"]["code"]) == (200, "injected_fault")


@pytest.mark.parametrize(
    ("path", "body", "missing"),
    [
        (CHAT, STREAM, b"[DONE]"),
        ("/v1/messages", STREAM, b"message_stop"),
        ("/v1/responses", {**STREAM, "input": "a"}, b"response.completed"),
    ],
)
async def test_no_done_ends_the_stream_cleanly_without_its_last_event(
    path: str, body: object, missing: bytes
) -> None:
    seen = await _ask("no_done", body, path)
    assert (seen.status, seen.broken) == (200, None)
    assert missing not in seen.raw
    assert len(seen.events) > 6


async def test_no_usage_leaves_the_figures_out() -> None:
    streamed = await _ask("no_usage")
    plain = await _ask("no_usage", chat(6))
    embedding = await _ask("no_usage", {"model": MODEL, "input": "a"}, "/v1/embeddings")
    assert len(streamed.events) == WHOLE_EVENTS - 1
    assert "usage" not in plain.json
    assert "usage" not in embedding.json


@pytest.mark.parametrize("body", [STREAM, chat(6)])
async def test_slow_headers_come_late_and_the_answer_is_whole(body: object) -> None:
    loop = asyncio.get_running_loop()
    async with serving(enable_faults=True) as client:
        headers = {"x-sim-fault": "slow_headers;delay_ms=300"}
        begun_s = loop.time()
        async with client.session.post(client.url + CHAT, json=body, headers=headers) as answer:
            head_s = loop.time() - begun_s
            raw = await answer.read()
    assert answer.status == 200
    assert head_s > 0.3
    assert raw


@pytest.mark.parametrize(
    ("mode", "status"), [("http_500", 500), ("http_503", 503), ("http_529", 529)]
)
@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
async def test_a_status_fault_touches_no_engine(mode: str, status: int, path: str) -> None:
    async with serving(enable_faults=True) as client:
        seen = await client.post(path, {**STREAM, "input": "a"}, fault=mode)
        steps = client.server.models[0].drivers[0].engine.steps
    assert seen.status == status
    assert seen.json["error"]["message"]
    assert steps == 0


async def test_a_529_fault_has_the_code_of_a_real_one() -> None:
    seen = await _ask("http_529")
    assert seen.json["error"]["code"] == "queue_saturated"


@pytest.mark.parametrize("mode", FaultMode)
async def test_after_every_fault_the_seat_is_free_and_the_next_request_is_served(
    mode: FaultMode,
) -> None:
    assert mode in FAULTS
    async with serving(enable_faults=True, max_num_seqs=1) as client:
        for body in (STREAM, chat(6)):
            faulty = asyncio.create_task(client.post(CHAT, body, fault=f"{mode};delay_ms=20"))
            await asyncio.wait([faulty], timeout=2)
            seen = await asyncio.wait_for(client.post(CHAT, body), 5)
            assert seen.status == 200
            await drop(faulty)
        await client.until(running=0, waiting=0)


async def test_a_broken_answer_closes_its_connection_and_no_other() -> None:
    async with serving(enable_faults=True) as client:
        other = asyncio.create_task(client.post(CHAT, chat(100, stream=True)))
        await client.post(CHAT, STREAM, fault="reset;after_chunks=1")
        seen = await other
        assert isinstance(client.session, aiohttp.ClientSession)
    assert len(seen.events) == 103
