"""`lifeboat sim`, as a person runs it."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from click.testing import CliRunner

from lifeboat.cli.sim import command, sim
from lifeboat.sim.config import OPTIONS
from tests.sim.serving import CHAT


def test_the_help_has_every_flag() -> None:
    result = CliRunner().invoke(command, ["--help"])
    assert result.exit_code == 0
    for row in OPTIONS:
        if row.flag is not None:
            assert f"{row.flag} " in result.output
    assert command is sim


def test_the_list_names_models_and_cards_with_their_sources() -> None:
    result = CliRunner().invoke(command, ["--list"])
    assert result.exit_code == 0
    for name in ("gpt-oss-20b", "llama-3.1-8b", "b200", "h100"):
        assert re.search(rf"^  {re.escape(name)} +\S", result.output, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-num-seqs", "0"], "max_num_seqs: 0 is not allowed"),
        (["--max-num-seqs", "lots"], "max_num_seqs: 'lots' is not allowed"),
        (["--hardware", "b20"], "Did you mean b200?"),
        (["--config", "nowhere.yaml"], "the file cannot be read"),
        (["--serves", "speech"], "a simulated engine can do"),
    ],
)
def test_a_wrong_option_ends_with_code_2_and_says_why(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert words in result.stderr


@asynccontextmanager
async def _started(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str, str]]:
    """Run the command on a free port; yields the process, its url and its first line."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-u", "-m", "lifeboat", "sim", "--port", "0", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), 20)).decode()
        yield process, line.rsplit(" on ", 1)[1].strip(), line
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
async def test_it_serves_until_a_signal_and_ends_cleanly(ending: signal.Signals) -> None:
    async with _started("--served-name", "sea", "--max-waiting", "5", "--time-scale", "0.1") as (
        process,
        url,
        line,
    ):
        assert "sea (gpt-oss-20b on b200, 256 seats, a line of 5)" in line
        async with aiohttp.ClientSession() as session:
            body = {
                "model": "sea",
                "messages": [{"role": "user", "content": "Hi"}],
                "max_tokens": 3,
            }
            async with session.post(url + CHAT, json=body) as answer:
                assert answer.status == 200
        process.send_signal(ending)
        assert await asyncio.wait_for(process.wait(), 10) == 0
        assert process.stderr is not None
        assert await process.stderr.read() == b""


async def test_it_serves_a_directory_with_overrides(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("served_name: a\n")
    (tmp_path / "b.yaml").write_text("{served_name: b, model: llama-3.1-8b, hardware: h100}\n")
    async with _started("--config", str(tmp_path), "--max-num-seqs", "7") as (_, url, _line):
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{url}/control/capacity") as answer,
        ):
            rows = await answer.json()
    assert [(row["model"], row["max_num_seqs"]) for row in rows] == [("a", 7), ("b", 7)]


async def test_a_taken_port_is_said_with_code_1() -> None:
    async with _started() as (_, url, _line):
        port = url.rsplit(":", 1)[1]
        second = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "lifeboat", "sim", "--port", port,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, complaint = await asyncio.wait_for(second.communicate(), 20)
    assert second.returncode == 1
    assert complaint.decode() == (
        f"error: cannot listen on 127.0.0.1:{port}: Address already in use. "
        "Choose another port (--port), or end what listens there\n"
    )


async def test_faults_work_the_same_on_the_commands_event_loop() -> None:
    """The command runs on uvloop, whose sockets are another kind."""
    async with _started("--enable-faults") as (_, url, _line):
        async with aiohttp.ClientSession() as session:
            body = {
                "messages": [{"role": "user", "content": "Hi"}],
                "max_tokens": 3,
                "stream": True,
            }
            with pytest.raises(aiohttp.ClientError):
                await session.post(url + CHAT, json=body, headers={"x-sim-fault": "reset"})
            headers = {"x-sim-fault": "cut_mid_frame"}
            async with session.post(url + CHAT, json=body, headers=headers) as answer:
                with pytest.raises(aiohttp.ClientPayloadError):
                    await answer.read()
            async with session.post(url + CHAT, json=body) as answer:
                assert (await answer.read()).endswith(b"data: [DONE]\n\n")
