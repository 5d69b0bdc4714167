"""The rules and the dashboard against a real Prometheus that scraped a router under load."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import yaml

from lifeboat.observe.metric_table import METRICS
from lifeboat.sim.config import EngineConfig
from lifeboat.sim.server import SimulatedServer
from tests.deploy.live_prometheus import LivePrometheus, live_prometheus
from tests.running import CHAT, Running, chat_body, running_router

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "lifeboat.json").read_text())
RULE_FILES = [DEPLOY / "prometheus" / f"{name}.yml" for name in ("recording", "alerts")]
ROWS = ["Saturation", "Queue", "Waits", "Rejections", "Engines", "Latency"]
SCRAPES = 5


def panels() -> list[dict]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> list[tuple[str, str]]:
    """Return every query of the dashboard with the title of its panel."""
    return [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]


def as_grafana_would(expression: str) -> str:
    """Fill in the variables, everything selected."""
    filled = expression.replace("$__rate_interval", "10s")
    return re.sub(r"\$(instance|pool|backend)\b", ".*", filled)


@contextlib.asynccontextmanager
async def loaded_router(directory: Path) -> AsyncIterator[Running]:
    """A router whose queue overflows, and a server behind it in the slot trap."""
    slow = {"model": "gpt-oss-20b", "hardware": "b200", "max_num_seqs": 4, "time_scale": 4}
    trap = SimulatedServer(
        [
            EngineConfig.from_mapping(
                {"model": "llama-3.1-8b", "personality": "gguf", "max_num_seqs": 1}
            )
        ]
    )
    url = await trap.start(host="127.0.0.1", port=0)
    config = {
        "queue": {"enabled": True, "max_depth": 6},
        "backends": [
            {
                "name": "sim", "replicas": 2, "kind": "simulated", "models": ["gpt-oss-20b"],
                "max_concurrency": 3, "simulate": slow,
            },
            {
                "name": "trap", "kind": "gguf", "url": url, "models": ["llama-3.1-8b"],
                "max_concurrency": 4,
            },
        ],
    }  # fmt: skip
    try:
        async with running_router(json.dumps(config), directory) as running:
            load = asyncio.get_running_loop().create_task(keep_busy(running))
            try:
                yield running
            finally:
                load.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await load
    finally:
        await trap.close()


async def keep_busy(running: Running) -> None:
    """Ask for ever: more than fits of one model, four at a time of the other."""

    async def user(model: str, tokens: int) -> None:
        body = chat_body(model=model, max_tokens=tokens)
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with running.session.post(running.url + CHAT, json=body) as answer:
                    await answer.read()
            await asyncio.sleep(0.05)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(16):
            tasks.create_task(user("gpt-oss-20b", 60))
        for _ in range(4):
            tasks.create_task(user("llama-3.1-8b", 200))
        tasks.create_task(user("nobody-has-this", 1))


async def watched(prometheus: LivePrometheus) -> None:
    """What only an overloaded router has is there, and rates have had time."""
    await prometheus.scraped(SCRAPES)
    for wanted in (
        'sum(rate(lifeboat_lb_rejected_total{reason="queue_full"}[10s])) > 0',
        "sum(rate(lifeboat_lb_queue_wait_seconds_count[10s])) > 0",
        'lifeboat_lb_engine_waiting{backend="trap"} > 0',
        "lifeboat_lb_queue_depth > 0",
    ):
        async with asyncio.timeout(20):
            while not await prometheus.query(wanted):  # noqa: ASYNC110
                await asyncio.sleep(0.2)


@pytest.mark.real
@pytest.mark.slow
async def test_every_query_of_the_dashboard_and_every_rule_finds_data_of_a_router_under_load(
    tmp_path: Path,
) -> None:
    async with loaded_router(tmp_path) as running:
        target = running.url.removeprefix("http://")
        async with live_prometheus(target, tmp_path, *RULE_FILES) as prometheus:
            await watched(prometheus)
            empty: list[str] = []
            for title, expression in queries():
                found = await prometheus.query(as_grafana_would(expression))
                if not any(not math.isnan(value) for _, value in found):
                    empty.append(f"{title}: {expression}")
            for group in yaml.safe_load(RULE_FILES[0].read_text())["groups"]:
                for rule in group["rules"]:
                    found = await prometheus.query(f"{rule['record']} >= 0")
                    if not found:
                        empty.append(rule["record"])
            assert not empty, empty
            assert await prometheus.values_of("pool", "lifeboat_lb_queue_limit") == [
                "gpt-oss-20b", "llama-3.1-8b", "unknown",
            ]  # fmt: skip
            healthy = await prometheus.query('ALERTS{alertname=~"LifeboatDown|.*NoLive.*"}')
            assert healthy == []
            pending = await prometheus.query('ALERTS{alertname="LifeboatEngineQueueing"}')
            assert [labels["backend"] for labels, _ in pending] == ["trap"]


def test_the_dashboard_has_a_row_for_each_question() -> None:
    assert [one["title"] for one in DASHBOARD["panels"] if one["type"] == "row"] == ROWS


def test_the_dashboard_holds_together() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        box = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(box["x"], box["x"] + box["w"])
            for y in range(box["y"], box["y"] + box["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    for panel in panels():
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(one["datasource"] == panel["datasource"] for one in panel["targets"])
    variables = {one["name"] for one in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(panels()))) - {"__rate_interval"}
    assert used == variables


def _without_suffix(name: str) -> str:
    return re.sub(r"_(bucket|count|sum)$", "", name)


def test_every_metric_is_on_the_dashboard_and_nothing_else_is() -> None:
    text = " ".join(expression for _, expression in queries())
    used = {_without_suffix(name) for name in re.findall(r"\blifeboat_\w+", text)}
    assert used == {row.name for row in METRICS}


def test_the_rules_use_metrics_and_labels_that_exist() -> None:
    recorded: set[str] = set()
    for path in RULE_FILES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                names = {_without_suffix(n) for n in re.findall(r"\blifeboat_\w+", rule["expr"])}
                assert names <= {row.name for row in METRICS}
                assert set(re.findall(r"lifeboat:[\w:]+", rule["expr"])) <= recorded
                recorded |= {rule["record"]} if "record" in rule else set()


def test_every_alert_says_what_to_do_and_has_a_case_and_a_paragraph() -> None:
    cases = (DEPLOY / "prometheus" / "tests" / "alerts_test.yml").read_text()
    page = (DEPLOY.parent / "docs" / "how-to" / "alerts.md").read_text()
    for group in yaml.safe_load(RULE_FILES[1].read_text())["groups"]:
        for rule in group["rules"]:
            assert set(rule["annotations"]) == {"summary", "remedy"}
            assert f"alertname: {rule['alert']}\n        exp_alerts:\n" in cases, rule["alert"]
            assert f"`{rule['alert']}`" in page
