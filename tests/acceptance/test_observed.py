"""State, metrics and log of a running router: they agree with each other and with what was sent."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from lifeboat.core.modes import Mode
from lifeboat.core.vocabulary import Reason
from lifeboat.observe.metric_table import METRICS, MetricType
from tests.acceptance.engines import HeldEngine
from tests.observe.test_real_prometheus import missing_after_a_scrape
from tests.running import (
    RouterProcess,
    Running,
    backend,
    backends_yaml,
    chat_body,
    running_router,
)

SECRET = "sk-lifeboat-secret-key"
PROMPT = "the-secret-prompt-of-a-client"


async def test_every_series_is_there_at_zero_from_the_start(tmp_path: Path) -> None:
    yaml = backends_yaml(
        backend("http://127.0.0.1:9", "a", models=["m", "n"], max_concurrency=3),
        backend("http://127.0.0.1:9", "b", models=["n"], max_concurrency=0),
        models={"named": {}},
    )
    async with running_router(yaml, tmp_path) as running:
        metrics = await running.metrics()
        state = await running.state()
    pools, backends = {"m", "n", "named"}, {"a", "b"}
    assert set(state["pools"]) == pools
    assert set(state["backends"]) == backends
    assert state["reject_counts"] == {reason.value: 0 for reason in Reason}
    for row in METRICS:
        name = f"{row.name}_count" if row.type is MetricType.HISTOGRAM else row.name
        labels = {sample for sample in metrics if sample.partition("{")[0] == name}
        if row.labels == ("pool",):
            assert {f'{name}{{pool="{pool}"}}' for pool in pools} <= labels
        elif row.labels == ("backend",):
            assert {f'{name}{{backend="{one}"}}' for one in backends} <= labels
        assert labels, row.name
    for reason in Reason:
        for pool in (*pools, "unknown"):
            assert metrics[f'lifeboat_lb_rejected_total{{pool="{pool}",reason="{reason}"}}'] == 0
    for one, pool in (("a", "m"), ("a", "n"), ("b", "n")):
        assert metrics[f'lifeboat_lb_dispatch_total{{backend="{one}",pool="{pool}"}}'] == 0
    modes = {mode: metrics[f'lifeboat_lb_mode{{mode="{mode.value}"}}'] for mode in Mode}
    assert modes == {Mode.DEFAULT: 1, Mode.SUPERFAST: 0, Mode.QUEUE_ALL: 0}
    assert metrics['lifeboat_lb_limit{backend="a",kind="configured"}'] == 3
    assert metrics['lifeboat_lb_limit{backend="b",kind="configured"}'] == float("inf")
    assert metrics['lifeboat_lb_backend_up{backend="a"}'] == 0
    counters = [row.name for row in METRICS if row.type is MetricType.COUNTER]
    for sample, value in metrics.items():
        assert value >= 0, sample
        if sample.partition("{")[0] in counters:
            assert value == 0, sample


async def mixed_load(running: Running, seed: int) -> Counter[int]:
    """Send 150 requests of every kind, some of which leave early; count the statuses seen."""
    chance = random.Random(seed)
    seen: Counter[int] = Counter()

    async def one() -> None:
        await asyncio.sleep(chance.random() * 2.0)
        body: object = chat_body(PROMPT, stream=chance.random() < 0.5)
        kind = chance.random()
        if kind < 0.1:
            body = chat_body(model="nobody")
        elif kind < 0.2:
            body = b"{nonsense"
        elif kind < 0.25:
            body = chat_body("word " * 1000)
        elif kind < 0.3:
            seen[(await running.ask("/v1/embeddings", {"model": "m", "input": "x"})).status] += 1
            return
        try:
            # Long enough that whoever leaves has been seen to come, on a slow machine too.
            async with asyncio.timeout(0.5 if kind > 0.8 else 30):
                seen[(await running.ask(body=body)).status] += 1
        except TimeoutError:
            seen[499] += 1

    await asyncio.gather(*(one() for _ in range(150)))
    return seen


async def test_state_and_metrics_agree_after_mixed_load(tmp_path: Path) -> None:
    async with HeldEngine(hold_s=0.15) as a, HeldEngine(hold_s=0.3) as b:
        yaml = backends_yaml(
            backend(a.url, "a", max_concurrency=2, max_input_tokens=500),
            backend(b.url, "b", max_concurrency=2, max_input_tokens=500),
            queue={"enabled": True, "ttl": "400ms"},
        )
        async with running_router(yaml, tmp_path) as running:
            seen = await mixed_load(running, 7)
            state = await running.settle()
            metrics = await running.metrics()
    assert {200, 400, 413, 501, 503, 504, 499} <= set(seen), seen

    def total(name: str, *labels: str) -> float:
        return sum(
            value
            for sample, value in metrics.items()
            if sample.partition("{")[0] == name and all(label in sample for label in labels)
        )

    for one in ("a", "b"):
        assert total("lifeboat_lb_inflight", f'backend="{one}"') == 0
        dispatched = total("lifeboat_lb_dispatch_total", f'backend="{one}"')
        assert dispatched == state["dispatch_counts"][one] == state["backends"][one]["dispatched"]
        assert total("lifeboat_lb_limit", f'backend="{one}"', 'kind="effective"') == 2
    for reason, count in state["reject_counts"].items():
        assert total("lifeboat_lb_rejected_total", f'reason="{reason}"') == count, reason
        pools = sum(pool["rejected"].get(reason, 0) for pool in state["pools"].values())
        assert pools <= count
    assert state["pools"]["m"]["dispatched"] == sum(state["dispatch_counts"].values())
    assert state["pools"]["m"]["queue_depth"] == total("lifeboat_lb_queue_depth") == 0
    assert state["parked_bytes"] == total("lifeboat_lb_parked_bytes") == 0
    assert total("lifeboat_observer_errors_total") == 0
    # Every request ended in exactly one way.
    answered = total("lifeboat_lb_responses_total")
    refused = total("lifeboat_lb_rejected_total")
    gone = total("lifeboat_lb_client_disconnects_total")
    assert seen[200] <= answered
    assert seen.total() - seen[499] - seen[200] <= refused
    assert answered + refused <= 150
    assert answered + refused + gone >= 150
    assert max(a.most_running, b.most_running) <= 2
    assert total("lifeboat_lb_queue_wait_seconds_count") > 0
    assert state["queue_wait_p50_sec"] <= state["queue_wait_p95_sec"] <= 8.0


@pytest.mark.real
async def test_promtool_and_a_real_prometheus_are_content(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    assert promtool, "prometheus is not installed: apt-get install prometheus"
    async with HeldEngine(hold_s=0.0) as engine:
        async with running_router(backends_yaml(backend(engine.url)), tmp_path) as running:
            assert (await running.ask()).status == 200
            await running.ask(body=chat_body(model='evil"\n\\'))
            async with running.session.get(f"{running.url}/metrics") as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                page = await answer.read()
            check = await asyncio.create_subprocess_exec(
                promtool, "check", "metrics",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            said, _ = await check.communicate(page)
            assert (check.returncode, said) == (0, b"")
            missing = await missing_after_a_scrape(running.port, tmp_path)
            async with running.session.get(
                f"{running.url}/metrics",
                headers={"Accept": "application/openmetrics-text; version=1.0.0"},
            ) as answer:
                assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
                assert (await answer.read()).endswith(b"# EOF\n")
    assert not missing


async def test_one_log_line_a_request_and_never_a_prompt_or_a_key(tmp_path: Path) -> None:
    async with HeldEngine(hold_s=0.0) as engine:
        (tmp_path / "backends.yaml").write_text(
            backends_yaml(
                backend(engine.url, max_concurrency=4, api_key=f"{SECRET}-upstream"),
                backend("http://127.0.0.1:9", "down", models=["gone"]),
            )
        )
        router = await RouterProcess.start(
            cwd=tmp_path,
            environ={
                "LIFEBOAT_LOG_FORMAT": "json",
                "LIFEBOAT_API_KEYS": SECRET,
                "LIFEBOAT_ADMIN_TOKEN": f"{SECRET}-admin",
                "LIFEBOAT_LB_TOKENIZER": "quick",
            },
        )
        sent = 0
        try:
            async with aiohttp.ClientSession() as session:
                for number, (path, body, key) in enumerate(
                    [
                        ("/v1/chat/completions?key=" + SECRET, chat_body(PROMPT), SECRET),
                        ("/v1/chat/completions", chat_body(PROMPT, stream=True), SECRET),
                        ("/v1/messages", chat_body(PROMPT), SECRET),
                        ("/v1/chat/completions", chat_body(PROMPT), f"{SECRET}-wrong"),
                        ("/v1/chat/completions", chat_body(PROMPT, model="no\r\nbody"), SECRET),
                        ("/v1/chat/completions", chat_body(PROMPT, model="gone"), SECRET),
                        ("/v1/chat/completions", PROMPT, SECRET),
                        ("/v1/embeddings", {"model": "m", "input": PROMPT}, SECRET),
                    ]
                ):
                    sent += 1
                    async with session.post(
                        router.url + path,
                        data=json.dumps(body),
                        headers={"Authorization": f"Bearer {key}", "X-Request-ID": f"r{number}"},
                    ) as answer:
                        await answer.read()
                async with session.post(
                    f"{router.url}/api/lb/explain",
                    json={"path": "/v1/chat/completions", "body": chat_body(PROMPT)},
                    headers={"Authorization": f"Bearer {SECRET}-admin"},
                ) as answer:
                    assert answer.status == 200
                async with session.put(
                    f"{router.url}/api/lb/mode",
                    json={"mode": "superfast"},
                    headers={"Authorization": f"Bearer {SECRET}-admin"},
                ) as answer:
                    assert answer.status == 200
        finally:
            code = await router.stop()
        assert code == 0
    text = router.log.read_text()
    assert SECRET not in text
    assert PROMPT not in text
    lines = [json.loads(line) for line in text.splitlines()]
    per_request = Counter(line["request_id"] for line in lines if "request_id" in line)
    assert per_request == {f"r{number}": 1 for number in range(sent)}
    wanted = {
        "request_id", "model", "pool", "backend", "status", "reason", "wait_ms", "ttfb_ms",
        "total_ms", "estimated_tokens", "body_bytes", "answer_bytes", "attempts", "stream",
        "client_gone",
    }  # fmt: skip
    by_id = {line["request_id"]: line for line in lines if "request_id" in line}
    for line in by_id.values():
        assert wanted <= set(line)
    statuses = [by_id[f"r{number}"]["status"] for number in range(sent)]
    assert statuses == [200, 200, 200, 401, 503, 503, 400, 501]
    assert by_id["r1"]["stream"] is True
    assert by_id["r0"]["ttfb_ms"] is not None
    assert any("mode" in json.dumps(line) and "superfast" in json.dumps(line) for line in lines)
