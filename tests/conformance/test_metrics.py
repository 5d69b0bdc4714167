"""Metrics: bounded, well-formed whatever a name holds, exact, and never in the way of traffic."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from lifeboat.core.vocabulary import Reason
from lifeboat.observe.metric_table import METRICS, MetricType
from lifeboat.observe.metrics import Metrics
from tests.conformance.holding import Held
from tests.conformance.lanes import (
    COMPLETION,
    LANES,
    Engine,
    Lane,
    Stage,
    answer,
    chat,
    says_hello,
)
from tests.conformance.reloading import rewrite
from tests.peers import Peer, Received, until
from tests.running import CHAT, RouterProcess, Running, backend, backends_yaml

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"


async def page(running: Running, accept: str | None = None) -> tuple[str, str]:
    """Return the page and its Content-Type."""
    headers = {} if accept is None else {"Accept": accept}
    async with running.session.get(f"{running.url}/metrics", headers=headers) as answered:
        assert answered.status == 200
        assert len(answered.headers.getall("Content-Type")) == 1
        return (await answered.read()).decode("utf-8"), answered.headers["Content-Type"]


async def series(running: Running) -> int:
    text, _ = await page(running)
    return sum(1 for line in text.splitlines() if line and not line.startswith("#"))


# ---- labels --------------------------------------------------------------------------------------


async def test_bug_181_names_that_only_clients_use_make_no_series(lane: Lane) -> None:
    async with lane.facing(says_hello) as stage:
        assert (await stage.running.ask()).status == 200
        before = await series(stage.running)
        clients = [await stage.client() for _ in range(8)]

        async def ask(number: int) -> None:
            chance = random.Random(number)
            client = clients[number]
            for _ in range(250):
                name = f"model-{chance.getrandbits(64):x}"
                await client.post(CHAT, chat(model=name))
                assert (await client.reply()).status == 503

        await asyncio.gather(*map(ask, range(len(clients))))
        assert await series(stage.running) == before
        metrics = await stage.running.metrics()
        label = 'lifeboat_lb_rejected_total{pool="unknown",reason="no_backends"}'
        assert metrics[label] == 2000
        assert "unknown" not in (await stage.running.state())["pools"]


async def test_bug_181_bug_183_names_in_priority_paths_and_methods_make_none_either(
    lane: Lane,
) -> None:
    async with lane.facing(says_hello) as stage:
        assert (await stage.running.ask()).status == 200
        before = await series(stage.running)
        for number in range(50):
            headers = {"X-Lifeboat-Priority": f"p{number}", "X-Request-ID": f"r{number}"}
            assert (await stage.running.ask(headers=headers)).status == 200
            await stage.running.ask(f"/v1/no-such-path-{number}", {})
            await stage.running.ask(CHAT, method="BREW")
        assert await series(stage.running) == before


async def test_bug_181_a_thousand_discovered_models_share_a_label_beyond_the_bound(
    lane: Lane,
) -> None:
    names = tuple(f"lora-{number}" for number in range(230))
    async with Engine(says_hello, models=names) as engine:
        async with lane.router({"name": "a", "url": engine.url}) as running:
            first = await series(running)
            for name in names:
                assert (await running.ask(CHAT, chat(model=name))).status == 200
            text, _ = await page(running)
            pools = {
                sample.labels["pool"]
                for family in parse_text(text)
                for sample in family.samples
                if sample.name == "lifeboat_lb_dispatch_total"
            }
            assert "other" in pools
            assert len(pools) <= 202
            metrics = await running.metrics()
            sent = [n for s, n in metrics.items() if s.startswith("lifeboat_lb_dispatch_total")]
            assert sum(sent) == len(names)
            assert first < await series(running) < 250 * 100


@pytest.mark.parametrize(
    ("model", "status"),
    [("x" * 200_000, 503), ({}, 400), ([], 400), (7, 400), (True, 400), (None, 400), ("", 503)],
    ids=lambda value: str(value)[:10],
)
async def test_bug_183_a_model_that_is_no_name_leaves_no_trace(
    lane: Lane, model: object, status: int
) -> None:
    async with lane.facing(says_hello) as stage:
        before = await series(stage.running)
        refused = await stage.running.ask(CHAT, {"model": model, "messages": []})
        assert refused.status == status, refused.body
        assert len(refused.body) < 4096
        text, _ = await page(stage.running)
        assert await series(stage.running) == before
        assert max(map(len, text.splitlines())) < 500


ODD = ('quo"te', "back\\slash", "tab\there", "\U0001f600 emoji", "n\\n", "a{b}=c,d", "#x", "'")


async def test_bug_184_any_name_that_may_be_configured_is_escaped(lane: Lane) -> None:
    async with Engine(says_hello) as engine:
        models: list[str] = []
        # A name is either refused at the start, or shown as it is.
        for name in (*ODD, "new\nline", "nul\0"):
            try:
                async with lane.router(backend(engine.url, models=[name])):
                    models.append(name)
            except Exception as error:
                assert "models" in str(error), name
        assert set(ODD) - {"tab\there"} <= set(models)
        entries = [
            {"name": f"b{number}", "url": engine.url, "models": [name]}
            for number, name in enumerate(models)
        ]
        async with lane.router(*entries) as running:
            for name in models:
                assert (await running.ask(CHAT, chat(model=name))).status == 200
            for accept, parse in ((None, parse_text), (OPENMETRICS, parse_openmetrics)):
                text, _ = await page(running, accept)
                found = {
                    (sample.labels["backend"], sample.labels["pool"]): sample.value
                    for family in parse(text)
                    for sample in family.samples
                    if sample.name == "lifeboat_lb_dispatch_total"
                }
                for number, name in enumerate(models):
                    assert found[f"b{number}", name] == 1


async def test_bug_184_a_listed_name_that_no_page_can_show_is_passed_over(lane: Lane) -> None:
    """Half a surrogate pair is legal JSON, and cannot be written as UTF-8."""
    async with Engine(says_hello, models=("m", "half \ud800", "nel\x85", "two\nlines")) as engine:
        async with lane.router({"name": "a", "url": engine.url}) as running:
            assert (await running.ask()).status == 200
            listed = await running.ask("/v1/models", method="GET")
            assert [entry["id"] for entry in listed.json["data"]] == ["m"]
            refused = await running.ask(CHAT, chat(model="half \ud800"))
            assert (refused.status, refused.error["code"]) == (503, "no_backends")
            assert (await running.state())["pools"].keys() == {"m"}
            list(parse_text((await page(running))[0]))


# ---- formats -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        (OPENMETRICS, True),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", True),
        ("application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5", False),
        ("text/plain;version=0.0.4", False),
        ("*/*", False),
        (None, False),
        ("", False),
        ("application/json", False),
        ("application/openmetrics-text;q=0.1,text/plain;q=0.9", False),
        ("nonsense;;=,,;q=x", False),
    ],
)
async def test_bug_186_bug_187_the_format_is_what_its_header_says(
    lane: Lane, accept: str | None, openmetrics: bool
) -> None:
    async with lane.facing(says_hello) as stage:
        assert (await stage.running.ask()).status == 200
        text, content_type = await page(stage.running, accept)
        expected = "application/openmetrics-text" if openmetrics else "text/plain"
        assert content_type.split(";")[0] == expected
        # A single media type, not the request's list.
        assert "," not in content_type
        assert text.endswith("# EOF\n") == openmetrics
        families = list((parse_openmetrics if openmetrics else parse_text)(text))
        names = {sample.name for family in families for sample in family.samples}
        for row in METRICS:
            if row.type is MetricType.COUNTER:
                assert row.name.endswith("_total")
                assert row.name in names


# ---- exactness -----------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", [("--workers", "2"), ("--processes", "2"), ("--reuse-port",)])
async def test_bug_189_there_is_one_process_and_no_way_to_ask_for_more(
    tmp_path: Path, flag: tuple[str, ...]
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "lifeboat", "serve", *flag, cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    assert process.returncode == 2
    assert b"No such option" in said


async def test_bug_189_a_second_router_cannot_share_the_port(lane: Lane, tmp_path: Path) -> None:
    async with lane.facing(says_hello) as stage:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "lifeboat", "serve", "--port", str(stage.running.port),
            cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        said, _ = await process.communicate()
        assert process.returncode == 1
        where = f"127.0.0.1:{stage.running.port}"
        assert f"cannot listen on {where}: Address already in use. " in said.decode()
        assert b"LIFEBOAT_PORT or --port" in said


async def test_bug_190_a_metric_that_raises_disturbs_no_stream(
    lane: Lane, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def raises(self: Metrics, event: object, /) -> None:
        raise ValueError("Counters can only be incremented by non-negative amounts.")

    held = Held(streamed=True)
    async with lane.facing(held, max_concurrency=2) as stage:
        monkeypatch.setattr(Metrics, "finished", raises)
        clients = [await stage.client() for _ in range(2)]
        for client in clients:
            await client.post(CHAT, chat(stream=True))
        await until(lambda: held.running == 2)
        held.release_all()
        for client in clients:
            reply = await client.reply()
            assert (reply.status, reply.clean) == (200, True)
            assert reply.body.endswith(b"data: [DONE]\n\n")
            # The connection serves on.
            await client.post(CHAT, chat())
            assert (await client.reply()).status == 200
        state = await stage.running.settle()
        assert state["dispatch_counts"]["a"] == 4
        metrics = await stage.running.metrics()
        assert metrics["lifeboat_observer_errors_total"] == 4
    caplog.clear()


async def test_bug_190_a_clock_that_jumps_back_makes_no_negative_figure(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lane.facing(says_hello) as stage:
        clock = stage.running.router.door.clock
        jumps = iter([0.0, 0.0, -5.0, -9.0] * 1000)
        with monkeypatch.context() as patch:
            patch.setattr(stage.running.router.door, "clock", lambda: clock() + next(jumps))
            for _ in range(20):
                assert (await stage.running.ask()).status == 200
        text, _ = await page(stage.running)
        values = [s.value for family in parse_text(text) for s in family.samples]
        assert min(values) >= 0


async def test_bug_192_idle_backends_are_there_with_zeros(lane: Lane) -> None:
    async with lane.facing(says_hello, says_hello) as stage:
        metrics = await stage.running.metrics()
        for name in "ab":
            for row in ("lifeboat_lb_inflight", "lifeboat_lb_engine_running"):
                assert metrics[f'{row}{{backend="{name}"}}'] == 0
            assert metrics[f'lifeboat_lb_dispatch_total{{backend="{name}",pool="m"}}'] == 0
            assert metrics[f'lifeboat_lb_request_seconds_count{{backend="{name}"}}'] == 0
            assert metrics[f'lifeboat_lb_backend_up{{backend="{name}"}}'] == 1
            assert metrics[f'lifeboat_lb_limit{{backend="{name}",kind="effective"}}'] == 32
        for reason in Reason:
            for pool in ("m", "unknown"):
                label = f'lifeboat_lb_rejected_total{{pool="{pool}",reason="{reason.value}"}}'
                assert metrics[label] == 0


async def compared(stage: Stage) -> dict[str, float]:
    """See that state and metrics agree; return the counters."""
    state, metrics = await stage.running.state(), await stage.running.metrics()
    for name, counted in state["dispatch_counts"].items():
        prefix = f'lifeboat_lb_dispatch_total{{backend="{name}",'
        assert sum(v for k, v in metrics.items() if k.startswith(prefix)) == counted
    assert set(state["reject_counts"]) == {reason.value for reason in Reason}
    for reason, counted in state["reject_counts"].items():
        found = [
            value
            for name, value in metrics.items()
            if name.startswith("lifeboat_lb_rejected_total{") and f'reason="{reason}"' in name
        ]
        assert sum(found) == counted, reason
    for name, in_flight in state["inflight"].items():
        assert metrics[f'lifeboat_lb_inflight{{backend="{name}"}}'] == in_flight
    for name, pool in state["pools"].items():
        assert metrics[f'lifeboat_lb_queue_depth{{pool="{name}"}}'] == pool["queue_depth"]
        assert metrics[f'lifeboat_lb_queue_limit{{pool="{name}"}}'] == pool["queue_limit"]
    return {name: value for name, value in metrics.items() if "_total{" in name}


async def test_bug_193_state_and_metrics_agree_after_mixed_load_and_after_a_reload(
    lane: Lane,
) -> None:
    async def fails_now_and_then(peer: Peer, asked: Received) -> None:
        user = json.loads(asked.body).get("user")
        if user == "boom":
            await peer.send(answer({"error": {"message": "x"}}, b"500 Internal Server Error"))
        else:
            await peer.send(answer(COMPLETION))

    held = Held()
    async with lane.facing(
        held, fails_now_and_then, max_concurrency=2, max_input_tokens=500
    ) as stage:
        running = stage.running
        waiting = [asyncio.create_task(running.ask()) for _ in range(6)]
        await until(lambda: held.running == 2)
        assert (await running.ask(CHAT, chat(model="nobody"))).status == 503
        assert (await running.ask(CHAT, chat("long " * 2000))).status == 413
        assert (await running.ask(CHAT, b"{")).status == 400
        assert (await running.ask("/v1/embeddings", {"model": "m", "input": "x"})).status == 501
        await running.ask(CHAT, chat(user="boom"))
        during = await compared(stage)
        entries = [
            backend(engine.url, name, max_concurrency=2) | {"max_input_tokens": 500}
            for engine, name in zip(stage.engines, "ab", strict=True)
        ]
        await rewrite(
            running, backends_yaml(*entries, models={"m": {}, "alias": {"alias_of": "m"}})
        )
        after = await compared(stage)
        for name, value in during.items():
            assert after[name] >= value, name
        assert after['lifeboat_config_reloads_total{result="success"}'] == 1
        held.release_all()
        assert {(await task).status for task in waiting} <= {200, 503}
        await running.settle()
        last = await compared(stage)
        assert all(last[name] >= value for name, value in after.items())


async def test_bug_193_with_the_real_command_counters_survive_a_hangup(
    lane: Lane, tmp_path: Path
) -> None:
    async with Engine(says_hello) as engine:
        (tmp_path / "backends.yaml").write_text(backends_yaml(backend(engine.url)))
        router = await RouterProcess.start(cwd=tmp_path, environ=LANES[lane.name])
        try:
            async with aiohttp.ClientSession() as session:
                for _ in range(3):
                    async with session.post(f"{router.url}{CHAT}", data=chat()) as answered:
                        assert answered.status == 200
                router.process.send_signal(signal.SIGHUP)

                async def counters() -> str:
                    async with session.get(f"{router.url}/metrics") as answered:
                        return await answered.text()

                async with asyncio.timeout(5.0):
                    while 'reloads_total{result="success"} 1.0' not in await counters():  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                text = await counters()
                assert 'lifeboat_lb_dispatch_total{backend="a",pool="m"} 3.0' in text
        finally:
            assert await router.stop() == 0
