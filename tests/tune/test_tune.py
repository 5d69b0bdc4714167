"""`lifeboat tune` against servers: it names the knee that a search of every concurrency finds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from lifeboat.cli.tune import tune
from lifeboat.sim.config import EngineConfig
from lifeboat.sim.server import SimulatedServer
from tests.sim.virtual import closed_loop, engine

SEATS = 6


def best_of_all(seats: int, most: int) -> int:
    """Return the smallest concurrency with 95 % of the best throughput, every one measured."""
    rates = {
        users: closed_loop(
            engine(max_num_seqs=seats), users=users, prompt_tokens=50, output_tokens=40
        ).tokens_per_s
        for users in range(1, most + 1)
    }
    return min(users for users, rate in rates.items() if rate >= 0.95 * max(rates.values()))


async def command(*args: str) -> Result:
    """Run the command in a thread: it has an event loop of its own."""
    return await asyncio.to_thread(CliRunner().invoke, tune, list(args))


async def against(config: EngineConfig, *args: str) -> Result:
    server = SimulatedServer([config])
    url = await server.start("127.0.0.1", 0)
    try:
        return await command(url, *args)
    finally:
        await server.close()


@pytest.mark.slow
async def test_the_knee_of_a_simulated_b200_is_within_one_step_of_the_best(tmp_path: Path) -> None:
    html = tmp_path / "tune.html"
    result = await against(
        EngineConfig(max_num_seqs=SEATS, time_scale=10.0),
        "--up-to", "16", "--step", "0.8", "--input-tokens", "50", "--output-tokens", "40",
        "--html", str(html), "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert abs(found["max_concurrency"] - best_of_all(SEATS, 16)) <= 1
    by_step = {step["concurrency"]: step for step in found["steps"]}
    assert by_step[16]["first_token_p50_sec"] > 3 * by_step[4]["first_token_p50_sec"]
    assert by_step[4]["inter_token_p50_sec"] > 0.0
    assert "<svg" in html.read_text()


async def test_a_server_that_refuses_bounds_the_advice() -> None:
    result = await against(
        EngineConfig(max_num_seqs=2, max_waiting=1, time_scale=10.0),
        "--steps", "1,2,8", "--step", "0.6", "--input-tokens", "20", "--output-tokens", "20",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "Set max_concurrency: 2" in result.stdout
    assert "at 8 the server refused" in result.stdout


async def test_the_budget_ends_the_climb() -> None:
    result = await against(
        EngineConfig(max_num_seqs=64, time_scale=10.0),
        "--step", "0.4", "--budget", "1", "--output-tokens", "10", "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert 1 <= len(json.loads(result.stdout)["steps"]) <= 4


async def test_no_server_and_no_model_server_are_said(
    unused_tcp_port_factory: Callable[[], int],
) -> None:
    result = await command(f"http://127.0.0.1:{unused_tcp_port_factory()}")
    assert result.exit_code == 2
    assert "/v1/models" in result.stderr
    app = web.Application()
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        result = await command(runner.addresses[0][0] + f":{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()
    assert result.exit_code == 2
    assert "answered 404" in result.stderr


@pytest.mark.parametrize(
    "args", [["ftp://x"], ["http://h", "--steps", "0"], ["http://h", "--steps", "a"]]
)
def test_a_wrong_call_is_refused(args: list[str]) -> None:
    assert CliRunner().invoke(tune, args).exit_code == 2
