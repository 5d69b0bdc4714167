"""The manifests hold together: graces agree, caps hold, selectors find their pods."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from lifeboat.settings.table import SETTINGS
from tests.settings.configured import configure

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("base", "two-routers", "all")
GRACE_ENDS_WITH_S = 5
"""From the end of the grace to the end of the process: what is left is aborted, listeners close."""


@cache
def built(folder: str) -> tuple[dict[str, Any], ...]:
    done = subprocess.run(
        [ROOT / ".venv" / "bin" / "kubectl", "kustomize", ROOT / "deploy" / "kubernetes" / folder],
        capture_output=True, check=True,
    )  # fmt: skip
    return tuple(yaml.safe_load_all(done.stdout))


def one(folder: str, kind: str, name: str) -> dict[str, Any]:
    [found] = [
        item for item in built(folder) if (item["kind"], item["metadata"]["name"]) == (kind, name)
    ]
    return found


def pod_of(deployment: dict[str, Any]) -> dict[str, Any]:
    return deployment["spec"]["template"]["spec"]


def variables(container: dict[str, Any]) -> dict[str, str]:
    return {row["name"]: row.get("value", "") for row in container["env"]}


@pytest.mark.parametrize("folder", FOLDERS)
def test_all_routers_together_never_exceed_a_backends_limit_not_even_in_a_rollout(
    folder: str,
) -> None:
    deployment = one(folder, "Deployment", "lifeboat")
    [container] = pod_of(deployment)["containers"]
    share = float(variables(container).get("LIFEBOAT_LB_SHARE", "1"))
    surge = deployment["spec"]["strategy"]["rollingUpdate"]["maxSurge"]
    assert (deployment["spec"]["replicas"] + surge) * share <= 1


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_pod_is_given_the_time_that_its_drain_may_take(folder: str) -> None:
    pod = pod_of(one(folder, "Deployment", "lifeboat"))
    [container] = pod["containers"]
    [_, sleep_s] = container["lifecycle"]["preStop"]["exec"]["command"]
    grace_s = float(variables(container)["LIFEBOAT_SHUTDOWN_GRACE_SEC"])
    needed = float(sleep_s) + grace_s + GRACE_ENDS_WITH_S
    assert needed <= pod["terminationGracePeriodSeconds"]
    # The endpoint is gone before SIGTERM: not ready within one probe, well within the sleep.
    assert container["readinessProbe"]["periodSeconds"] < float(sleep_s)


def test_an_engine_outlives_the_agent_that_drains_it() -> None:
    pod = pod_of(one("all", "Deployment", "engines"))
    [engine], [agent] = pod["initContainers"], pod["containers"]
    assert engine["restartPolicy"] == "Always"
    [grace] = [arg for arg in agent["args"] if arg.startswith("--grace=")]
    assert float(grace.partition("=")[2]) < pod["terminationGracePeriodSeconds"]
    service = one("all", "Service", "lifeboat-admin")
    assert f"--router=http://lifeboat-admin:{service['spec']['ports'][0]['port']}" in agent["args"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_selector_finds_its_pods_and_every_port_is_there(folder: str) -> None:
    pods = [item["spec"]["template"] for item in built(folder) if item["kind"] == "Deployment"]

    def matching(labels: dict[str, str]) -> list[dict[str, Any]]:
        return [pod for pod in pods if labels.items() <= pod["metadata"]["labels"].items()]

    for item in built(folder):
        if item["kind"] == "Service":
            [pod] = matching(item["spec"]["selector"])
            open_ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
            assert {port["targetPort"] for port in item["spec"]["ports"]} <= open_ports
        elif item["kind"] in ("Deployment", "PodDisruptionBudget"):
            assert len(matching(item["spec"]["selector"]["matchLabels"])) == 1


@pytest.mark.parametrize("folder", FOLDERS)
def test_containers_have_no_rights_and_no_secret_in_plain_text(folder: str) -> None:
    for item in built(folder):
        if item["kind"] != "Deployment":
            continue
        pod = pod_of(item)
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"] + pod.get("initContainers", []):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            for row in container.get("env", ()):
                if row["name"] in {setting.env for setting in SETTINGS if setting.secret}:
                    assert "value" not in row


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_configuration_and_the_variables_would_start(tmp_path: Path, folder: str) -> None:
    [config] = [item for item in built(folder) if item["kind"] == "ConfigMap"]
    [container] = pod_of(one(folder, "Deployment", "lifeboat"))["containers"]
    environ = {name: value for name, value in variables(container).items() if value}
    loaded = configure(tmp_path, config["data"]["backends.yaml"], environ)
    assert [text for text in loaded.warnings if "no backends" not in text] == []
    pool = "gpt-oss-20b"
    assert pool in config["data"]["backends.yaml"]
    assert f'pool="{pool}"' in yaml.safe_dump(one("all", "ScaledObject", "engines"))


def _object(required: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object", "properties": required, "required": list(required),
        "additionalProperties": True,
    }  # fmt: skip


TEXT, COUNT = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 0}
# From the operators' published definitions: what they refuse to be without, and spellings that
# would be dropped without a word.
SCALED_OBJECT = _object(
    {
        "apiVersion": {"const": "keda.sh/v1alpha1"},
        "spec": {
            **_object(
                {
                    "scaleTargetRef": _object({"name": TEXT}),
                    "triggers": {
                        "type": "array",
                        "minItems": 1,
                        "items": _object(
                            {
                                "type": {"const": "prometheus"},
                                "metadata": {
                                    **_object(
                                        {"serverAddress": TEXT, "query": TEXT, "threshold": TEXT}
                                    ),
                                    # All of them are strings, numbers too.
                                    "additionalProperties": TEXT,
                                },
                            }
                        ),
                    },
                }
            ),
            "propertyNames": {
                "enum": [
                    "scaleTargetRef", "triggers", "minReplicaCount", "maxReplicaCount",
                    "pollingInterval", "cooldownPeriod", "advanced", "fallback",
                ]
            },
        },
    }
)  # fmt: skip
SERVICE_MONITOR = _object(
    {
        "apiVersion": {"const": "monitoring.coreos.com/v1"},
        "spec": {
            **_object(
                {
                    "selector": _object({"matchLabels": {"type": "object"}}),
                    "endpoints": {
                        "type": "array",
                        "minItems": 1,
                        "items": _object({"port": TEXT, "path": TEXT, "interval": TEXT}),
                    },
                }
            ),
            "propertyNames": {"enum": ["selector", "endpoints", "jobLabel", "namespaceSelector"]},
        },
    }
)


def test_the_operators_kinds_are_whole_and_point_at_what_is_there() -> None:
    scaled = one("all", "ScaledObject", "engines")
    jsonschema.validate(scaled, SCALED_OBJECT)
    assert one("all", "Deployment", scaled["spec"]["scaleTargetRef"]["name"])
    # Two that set the number of replicas would undo each other.
    assert "replicas" not in one("all", "Deployment", "engines")["spec"]
    monitor = one("all", "ServiceMonitor", "lifeboat")
    jsonschema.validate(monitor, SERVICE_MONITOR)
    [service] = [
        item
        for item in built("all")
        if item["kind"] == "Service"
        and monitor["spec"]["selector"]["matchLabels"].items() <= item["metadata"]["labels"].items()
    ]
    assert monitor["spec"]["endpoints"][0]["port"] in {
        port["name"] for port in service["spec"]["ports"]
    }
    assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "lifeboat"
