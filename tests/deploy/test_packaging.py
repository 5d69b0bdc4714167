"""Container, compose and systemd: graces agree, commands exist, health checks see health."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from lifeboat.settings.table import SETTINGS
from tests.deploy.test_kubernetes import GRACE_ENDS_WITH_S
from tests.running import RouterProcess

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
GRACE_S = next(row.default for row in SETTINGS if row.name == "shutdown_grace_s")


def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]


def image_health_check() -> list[str]:
    text = (DEPLOY / "Dockerfile").read_text()
    found = re.search(r"HEALTHCHECK.*\n\s+CMD (\[.*\])", text)
    assert found is not None
    return json.loads(found.group(1))


async def run(command: list[str], **environ: str) -> int:
    import sys

    process = await asyncio.create_subprocess_exec(
        sys.executable, *command[1:], env=environ, stderr=asyncio.subprocess.DEVNULL
    )
    return await process.wait()


async def test_the_images_health_check_sees_a_ready_router_and_one_that_is_gone(
    tmp_path: Path,
) -> None:
    (tmp_path / "backends.yaml").write_text("backends: [{name: a, url: 'http://127.0.0.1:9'}]")
    router = await RouterProcess.start(cwd=tmp_path, environ={"LIFEBOAT_LB_TOKENIZER": "quick"})
    port = str(router.port)
    try:
        assert await run(image_health_check(), LIFEBOAT_PORT=port) == 0
    finally:
        await router.stop()
    assert await run(image_health_check(), LIFEBOAT_PORT=port) != 0


async def test_the_engines_of_the_compose_file_start_and_their_health_check_sees_it() -> None:
    import sys

    service = compose()["sim-a"]
    command = [str(word) for word in service["command"]]
    command[command.index("0.0.0.0")] = "127.0.0.1"
    command[command.index("8500")] = "0"
    engine = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "lifeboat", *command, stdout=asyncio.subprocess.PIPE
    )
    assert engine.stdout is not None
    try:
        async with asyncio.timeout(20):
            while not (found := re.search(rb"http://\S+:(\d+)", await engine.stdout.readline())):
                pass
        kind, *check = service["healthcheck"]["test"]
        assert kind == "CMD"
        check = [word.replace("8500", found.group(1).decode()) for word in check]
        assert await run(check) == 0
    finally:
        engine.terminate()
        await engine.wait()
    assert await run(check) != 0


def test_whoever_stops_the_router_waits_longer_than_its_grace() -> None:
    needed = float(GRACE_S) + GRACE_ENDS_WITH_S
    assert float(compose()["lifeboat"]["stop_grace_period"].removesuffix("s")) >= needed
    unit = (DEPLOY / "lifeboat.service").read_text()
    found = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert found is not None
    assert float(found.group(1)) >= needed


def test_the_compose_file_opens_nothing_to_other_machines_and_mounts_what_is_there() -> None:
    for name, service in compose().items():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), name
        for volume in service.get("volumes", ()):
            source, _, mode = volume.partition(":")
            assert mode.endswith(":ro")
            assert (DEPLOY / source).exists(), source


def test_grafana_finds_its_source_and_its_dashboard() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    source = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    provider = yaml.safe_load((provisioning / "dashboards" / "lifeboat.yaml").read_text())
    folder = provider["providers"][0]["options"]["path"]
    mounts = [volume.split(":")[1] for volume in compose()["grafana"]["volumes"]]
    assert f"{folder}/lifeboat.json" in mounts
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert (
        scrape["global"]["scrape_interval"] == source["datasources"][0]["jsonData"]["timeInterval"]
    )


@pytest.mark.parametrize("name", ["lifeboat", "sim-a", "sim-b"])
def test_our_own_containers_have_no_rights(name: str) -> None:
    service = compose()[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
