"""The commands that look at a real router and change it, and what they say where they cannot."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lifeboat.cli.backends import backends_text
from lifeboat.cli.main import main
from tests.running import Running, backends_yaml, chat_body, running_router

SLOW = {"model": "gpt-oss-20b", "time_scale": 1.0}


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    yaml = backends_yaml(
        {"name": "sim-a", "kind": "simulated", "models": ["m"], "max_concurrency": 2,
         "simulate": SLOW},
        queue={"enabled": True},
    )  # fmt: skip
    async with running_router(yaml, tmp_path, {"LIFEBOAT_ADMIN_TOKEN": "sesame"}) as running:
        yield running


async def call(running: Running, *arguments: str, text: str | None = None) -> Result:
    """Run a command in a thread of its own, with the token in the environment."""
    result = await asyncio.to_thread(
        CliRunner().invoke, main, [*arguments, "--url", running.url],
        input=text, env={"LIFEBOAT_ADMIN_TOKEN": "sesame", "COLUMNS": "200"},
    )  # fmt: skip
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


async def test_backends_shows_each_one_with_what_its_engine_says(running: Running) -> None:
    told = await call(running, "backends")
    assert told.exit_code == 0, told.stderr
    line = next(line for line in told.stdout.splitlines() if line.startswith("sim-a"))
    cells = line.split()
    assert cells[1] == "simulated"
    assert cells[2].startswith("http://127.0.0.1:")
    assert cells[3:8] == ["ready", "up", "0", "2", "configured"]
    assert cells[-1] == "m"
    page = json.loads((await call(running, "backends", "--json")).stdout)
    assert page["backends"]["sim-a"]["max_concurrency"] == 2


def test_backends_says_how_old_a_reading_is() -> None:
    engine = {"running": 4, "waiting": None, "slots": 8, "age_sec": 35.2}
    page = {"backends": {"a": {"engine": engine, "models": ["m"]}, "b": {"models": ["n"]}}}
    _, old, untold = backends_text(page).splitlines()
    assert old.split()[-7:] == ["4", "-", "8", "35", "s", "ago", "m"]
    assert untold.split()[-5:] == ["-", "-", "-", "-", "n"]


async def test_drain_waits_until_the_backend_is_empty_and_ready_puts_it_back(
    running: Running,
) -> None:
    runs = asyncio.create_task(running.ask(body=chat_body(max_tokens=2000)))
    await running.until(lambda state: state["inflight"]["sim-a"] == 1)
    early = await call(running, "drain", "sim-a", "--wait", "--timeout", "0")
    assert early.exit_code == 1
    assert "was not empty after 0 s: 1 in flight" in early.stderr
    drained = await call(running, "drain", "sim-a", "--wait")
    assert (drained.exit_code, drained.stderr) == (0, "sim-a is empty\n")
    assert drained.stdout.startswith("sim-a: drain, health up")
    assert runs.done() or (await running.state())["inflight"]["sim-a"] == 0
    assert (await runs).status == 200
    assert (await running.state())["backends"]["sim-a"]["state"] == "drain"
    again = await call(running, "ready", "sim-a", "--wait", "--json")
    assert (again.exit_code, again.stderr) == (0, "sim-a is live\n")
    assert json.loads(again.stdout)["state"] == "ready"
    assert (await call(running, "maint", "sim-a")).stdout.startswith("sim-a: maint")
    assert (await running.state())["backends"]["sim-a"]["effective_limit"] == 0


async def test_set_limit_sets_a_limit_and_takes_it_back(running: Running) -> None:
    told = await call(running, "set-limit", "sim-a", "7")
    assert told.stdout == "sim-a: max concurrency 7, in force 7 (configured)\n"
    assert (await running.state())["backends"]["sim-a"]["effective_limit"] == 7
    told = await call(running, "set-limit", "sim-a", "configured", "--json")
    assert json.loads(told.stdout)["max_concurrency"] == 2
    wrong = await call(running, "set-limit", "sim-a", "many")
    assert (wrong.exit_code, "must be a whole number from 0" in wrong.stderr) == (2, True)


@pytest.mark.parametrize("limit", ["-1", "abc", "1.5", "1000001", "9" * 5000])
async def test_a_wrong_limit_is_named_with_the_rule(running: Running, limit: str) -> None:
    told = await call(running, "set-limit", "sim-a", limit)
    assert told.exit_code == 2
    assert limit[:70] in told.stderr
    assert "must be a whole number from 0 to 1000000, or configured" in told.stderr


async def test_explain_names_no_reason_where_there_is_none(running: Running) -> None:
    body = json.dumps(chat_body())
    told = await call(running, "explain", "-", "--path", "/nope", text=body)
    assert told.exit_code == 1
    assert told.stdout.startswith("it would be refused: 404: '/nope' is not proxied")
    told = await call(running, "explain", "-", "--priority", "zzz", text=body)
    assert told.exit_code == 2
    for word in ("zzz", "high", "normal", "low"):
        assert word in told.stderr


async def test_mode_shows_changes_and_resets_the_mode(running: Running) -> None:
    assert (await call(running, "mode")).stdout == "mode default (from: default), queue on\n"
    told = await call(running, "mode", "Queue_All")
    assert told.stdout == "mode queue-all (from: api), queue on\n"
    assert (await running.state())["routing_mode"] == "queue-all"
    told = await call(running, "mode", "configured", "--queue", "off", "--json")
    assert json.loads(told.stdout)["mode"] == "default"
    state = await running.state()
    assert (state["routing_mode"], state["queue_enabled"]) == ("default", False)
    wrong = await call(running, "mode", "fast")
    assert wrong.exit_code == 2
    assert "superfast" in wrong.stderr


async def test_explain_says_what_would_happen_and_sends_nothing(
    running: Running, tmp_path: Path
) -> None:
    told = await call(running, "explain", "-", text=json.dumps(chat_body()))
    assert told.exit_code == 0, told.stderr
    assert told.stdout.startswith("it would be sent to sim-a at once\n\nestimate ")
    request = tmp_path / "request.json"
    request.write_text(json.dumps(chat_body(model="nobody")))
    told = await call(running, "explain", str(request))
    assert told.exit_code == 1
    assert told.stdout.startswith("it would be refused: 503 no_backends: ")
    told = await call(running, "explain", str(request), "--json")
    assert json.loads(told.stdout)["reason"] == "no_backends"
    wrong = await call(running, "explain", "-", text="{")
    assert (wrong.exit_code, "is not JSON" in wrong.stderr) == (2, True)
    assert (await running.state())["dispatch_counts"]["sim-a"] == 0


async def test_top_renews_the_page(running: Running) -> None:
    told = await call(running, "top", "--every", "0.1", "--count", "2")
    assert told.stdout.count("mode default, queue on, 0 parked") == 2


CHANGES = (
    ("drain", "sim-a"),
    ("ready", "sim-a"),
    ("maint", "sim-a"),
    ("set-limit", "sim-a", "1"),
    ("mode", "superfast"),
)


@pytest.mark.parametrize("arguments", CHANGES, ids=lambda arguments: arguments[0])
async def test_without_the_token_nothing_is_changed(
    running: Running, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    before = (await running.state())["backends"]["sim-a"]
    told = await call(running, *arguments, "--token", "wrong")
    assert (told.exit_code, told.stdout) == (1, "")
    for words in ("takes no such admin token", "--token-file", "LIFEBOAT_ADMIN_TOKEN"):
        assert words in told.stderr
    assert "Bearer" not in told.stderr
    told = await call(running, *arguments, "--token", "")
    assert "wants its admin token: give it by --token-file" in told.stderr
    state = await running.state()
    assert state["routing_mode"] == "default"
    for key in ("state", "max_concurrency"):
        assert state["backends"]["sim-a"][key] == before[key]
    # The file is as good as the variable.
    secret = tmp_path / "token"
    secret.write_text("sesame\n")
    told = await call(running, *arguments, "--token", "", "--token-file", str(secret))
    assert told.exit_code == 0, told.stderr


async def test_a_backend_that_is_not_there_is_named_with_those_that_are(running: Running) -> None:
    told = await call(running, "drain", "sim-z")
    assert told.exit_code == 1
    assert "no backend is named 'sim-z'; known: sim-a" in told.stderr


ALL = (("backends",), ("top",), *CHANGES, ("mode",), ("explain", "-"))


@pytest.mark.parametrize("arguments", ALL, ids=lambda arguments: " ".join(arguments))
def test_where_no_router_is_there_each_command_says_so_and_exits_2(
    arguments: tuple[str, ...],
) -> None:
    url = "http://127.0.0.1:1"
    result = CliRunner().invoke(main, [*arguments, "--url", url], input="{}")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"no router answers at {url}" in result.stderr
