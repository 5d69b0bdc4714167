"""The 529 and run-time capacity, over sockets, as the seed has them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from lifeboat.sim.config import EngineConfig
from tests.sim.serving import CHAT, MODEL, Seen, chat, drop, serving

SLOW = 20.0
"""Time scale at which a test's requests do not finish while it looks."""


def _envelope(waiting: int, bound: int) -> dict[str, Any]:
    return {
        "error": {
            "message": f"Server is at capacity: {waiting} requests waiting "
            f"(max_waiting = {bound}). Retry with reduced concurrency.",
            "type": "overloaded_error",
            "code": "queue_saturated",
        }
    }


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/messages", "/v1/responses"])
async def test_twelve_at_once_onto_an_idle_engine_of_four_seats_and_a_line_of_three(
    path: str, streamed: bool
) -> None:
    """Exactly 5 immediate 529, each with the seed's envelope, never an event stream."""
    body = {**chat(10, stream=streamed), "prompt": "a", "input": "a", "max_output_tokens": 10}
    async with serving(max_num_seqs=4, max_waiting=3, time_scale=SLOW) as client:
        seen = await asyncio.gather(*[client.post(path, body) for _ in range(12)])
    refused = [answer for answer in seen if answer.status == 529]
    assert Counter(answer.status for answer in seen) == {200: 7, 529: 5}
    for answer in refused:
        assert answer.json == _envelope(3, 3)
        assert answer.headers["Content-Type"].startswith("application/json")
    assert all(answer.is_stream == streamed for answer in seen if answer.status == 200)


async def test_refusals_are_immediate() -> None:
    async with serving(max_num_seqs=1, max_waiting=1, time_scale=SLOW) as client:
        held = [asyncio.create_task(client.post(CHAT, chat(500))) for _ in range(2)]
        await client.until(running=1, waiting=1)
        seen = await client.post(CHAT, chat())
        after = await client.capacity()
        await drop(*held)
    assert seen.status == 529
    # At once: not a step of the line has passed meanwhile.
    assert (after["running"], after["waiting"]) == (1, 1)


@pytest.mark.parametrize("line", [1, 5])
async def test_one_more_than_the_line_holds_onto_full_seats_is_exactly_one_refusal(
    line: int,
) -> None:
    async with serving(max_num_seqs=4, max_waiting=line, time_scale=SLOW) as client:
        held = [asyncio.create_task(client.post(CHAT, chat(200))) for _ in range(4)]
        await client.until(running=4)
        burst = [asyncio.create_task(client.post(CHAT, chat(200))) for _ in range(line + 1)]
        row = await client.until(running=4, waiting=line)
        await asyncio.wait(burst, return_when=asyncio.FIRST_COMPLETED)
        refused = [task.result() for task in burst if task.done()]
        await drop(*held, *burst)
    assert [answer.json for answer in refused] == [_envelope(line, line)]
    assert (row["running"], row["waiting"]) == (4, line)


async def test_without_a_bound_nothing_is_ever_refused() -> None:
    async with serving(max_num_seqs=2, time_scale=0.05) as client:
        seen = await asyncio.gather(*[client.post(CHAT, chat(3)) for _ in range(200)])
    assert {answer.status for answer in seen} == {200}


async def test_the_rows_of_capacity_have_the_seeds_fields() -> None:
    async with serving(max_num_seqs=256, max_waiting=64) as client:
        seen = await client.get("/control/capacity")
    assert seen.json == [
        {"model": MODEL, "max_waiting": 64, "max_num_seqs": 256, "waiting": 0, "running": 0}
    ]


async def test_a_post_answers_with_the_rows_after_the_change() -> None:
    async with serving() as client:
        first = await client.post("/control/capacity", {"max_num_seqs": 16})
        second = await client.post("/control/capacity", {"max_waiting": 64, "model": MODEL})
        third = await client.post("/control/capacity", {"max_waiting": 0})
        nothing = await client.post("/control/capacity", {})
    assert (first.json[0]["max_num_seqs"], first.json[0]["max_waiting"]) == (16, 0)
    assert (second.json[0]["max_num_seqs"], second.json[0]["max_waiting"]) == (16, 64)
    assert third.json == nothing.json
    assert third.json[0]["max_waiting"] == 0


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"max_num_seqs": 0}, 400),
        ({"max_num_seqs": -1}, 400),
        ({"max_num_seqs": 1.5}, 400),
        ({"max_num_seqs": True}, 400),
        ({"max_num_seqs": "8"}, 400),
        ({"max_waiting": -1}, 400),
        ({"max_num_seqs": 8, "max_waiting": -1}, 400),
        ({"max_num_seqs": 0, "max_waiting": 5}, 400),
        ({"max_num_seqs": 8, "model": 5}, 400),
        ({"max_num_sequences": 8}, 400),
        ({"max_num_seqs": 8, "model": "unknown"}, 404),
        ([], 400),
    ],
)
async def test_a_wrong_change_changes_nothing(body: Any, status: int) -> None:
    async with serving(max_num_seqs=7, max_waiting=9) as client:
        seen = await client.post("/control/capacity", body)
        row = await client.capacity()
    assert seen.status == status
    assert seen.json["error"]["message"]
    assert (row["max_num_seqs"], row["max_waiting"]) == (7, 9)


async def test_a_change_without_a_model_is_for_all_and_with_one_for_that() -> None:
    configs = [EngineConfig(served_names=(name,)) for name in ("a", "b")]
    async with serving(*configs) as client:
        both = (await client.post("/control/capacity", {"max_num_seqs": 4})).json
        one = (await client.post("/control/capacity", {"max_num_seqs": 9, "model": "b"})).json
    assert [row["max_num_seqs"] for row in both] == [4, 4]
    assert [row["max_num_seqs"] for row in one] == [4, 9]


async def test_lowering_the_seats_drains_evicts_nobody_and_keeps_the_order() -> None:
    finished: list[int] = []
    async with serving(max_num_seqs=4, time_scale=SLOW) as client:

        async def ask(number: int) -> Seen:
            seen = await client.post(CHAT, chat(40, stream=True))
            finished.append(number)
            return seen

        tasks: list[asyncio.Task[Seen]] = []
        for number in range(8):
            tasks.append(asyncio.create_task(ask(number)))
            await asyncio.sleep(0.01)
        await client.until(running=4, waiting=4)
        lowered = (await client.post("/control/capacity", {"max_num_seqs": 1})).json[0]
        assert (lowered["running"], lowered["waiting"]) == (4, 4)
        seen = await asyncio.gather(*tasks)
    assert all(len(answer.events) == 43 for answer in seen)
    assert sorted(finished[:4]) == [0, 1, 2, 3]
    assert finished[4:] == [4, 5, 6, 7]


async def test_lowering_the_line_refuses_new_ones_and_keeps_the_queued() -> None:
    async with serving(max_num_seqs=1, max_waiting=9, time_scale=SLOW) as client:
        tasks = [asyncio.create_task(client.post(CHAT, chat(20))) for _ in range(6)]
        await client.until(running=1, waiting=5)
        await client.post("/control/capacity", {"max_waiting": 2})
        late = await client.post(CHAT, chat(1))
        seen = await asyncio.gather(*tasks)
    assert late.status == 529
    assert late.json["error"]["message"].startswith(
        "Server is at capacity: 5 requests waiting (max"
    )
    assert [answer.status for answer in seen] == [200] * 6


async def test_raising_the_seats_starts_the_queued_at_the_next_step() -> None:
    async with serving(max_num_seqs=1, time_scale=SLOW) as client:
        tasks = [asyncio.create_task(client.post(CHAT, chat(500))) for _ in range(5)]
        await client.until(running=1)
        await client.post("/control/capacity", {"max_num_seqs": 5})
        await client.until(running=5)
        await drop(*tasks)


async def test_replicas_sum_and_fill_evenly() -> None:
    async with serving(replicas=3, max_num_seqs=2, max_waiting=1, time_scale=SLOW) as client:
        before = await client.capacity()
        tasks = [asyncio.create_task(client.post(CHAT, chat(200))) for _ in range(12)]
        row = await client.until(running=6, waiting=3)
        await asyncio.sleep(0.1)
        refused = [task.result() for task in tasks if task.done()]
        per_engine = [len(d.engine.running) for d in client.server.models[0].drivers]
        await drop(*tasks)
    assert (before["max_num_seqs"], before["max_waiting"]) == (6, 3)
    assert [answer.json for answer in refused] == [_envelope(3, 3)] * 3
    assert (row["running"], row["waiting"]) == (6, 3)
    assert per_engine == [2, 2, 2]


async def test_the_check_comes_before_any_byte_for_a_body_of_several_sequences() -> None:
    body = {"model": MODEL, "prompt": ["a", "b", "c"], "max_tokens": 100, "stream": True}
    async with serving(max_num_seqs=1, max_waiting=2, time_scale=SLOW) as client:
        held = [asyncio.create_task(client.post("/v1/completions", body))]
        await client.until(running=1)
        seen = await client.post("/v1/completions", body)
        await drop(*held)
    assert (seen.status, json.loads(seen.raw)) == (529, _envelope(2, 2))
