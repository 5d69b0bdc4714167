"""The proxies before two engines, each told the same: the cap of an engine, and to queue."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.overload.engines import SEATS
from bench.peers.contestants import (
    HAPROXY_FRAME,
    haproxy,
    own_python,
    peers_bin,
    start_haproxy,
    start_lifeboat,
)
from bench.peers.processes import Server, free_port

LONG_TTL_S = 30.0
DEPTH_FACTOR = 4
"""Most parked per slot under the long TTL: Lifeboat's default, and what LiteLLM is told as well;
HAProxy has no such bound for a queue that its servers share."""
UNBOUNDED_FACTOR = 1000
OBJECTIVE_SHARE = 0.8
"""The part of the objective that a request may be parked for, the rest being for its answer."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How long requests are parked, and how many for each slot."""

    ttl_s: float
    depth_factor: int


@dataclass(frozen=True, slots=True)
class Contestant:
    """name: as in the table. start: (engine ports, directory for files) -> a started server.

    program: returns the path of what it runs; raises MissingPeerError.
    """

    name: str
    start: Callable[[list[int], Path], Server]
    program: Callable[[], str]


def _lifeboat(policy: Policy, ports: list[int], directory: Path) -> Server:
    backends = [
        {
            "name": f"engine-{number}",
            "kind": "vllm",
            "url": f"http://127.0.0.1:{port}",
            "max_concurrency": SEATS,
        }
        for number, port in enumerate(ports)
    ]
    queue = {
        "enabled": True,
        "ttl": f"{policy.ttl_s}s",
        "depth_multiplier": policy.depth_factor,
    }
    path = directory / "overload.yaml"
    # JSON is YAML.
    path.write_text(json.dumps({"queue": queue, "backends": backends}))
    return start_lifeboat(["--config", str(path)], directory)


def _haproxy(policy: Policy, ports: list[int], directory: Path) -> Server:
    port = free_port()
    servers = "".join(
        f"  server e{number} 127.0.0.1:{engine} maxconn {SEATS}\n"
        for number, engine in enumerate(ports)
    )
    queue = f"timeout queue {policy.ttl_s * 1000:.0f}ms"
    text = (
        HAPROXY_FRAME.replace("timeout queue 30s", queue)
        + f"listen lb\n  bind 127.0.0.1:{port}\n  balance leastconn\n{servers}"
    )
    return start_haproxy(text, port, directory)


def _litellm(policy: Policy, ports: list[int], directory: Path) -> Server:
    slots = SEATS * len(ports)
    deployments = [
        {
            "model_name": "m",
            "litellm_params": {
                "model": "openai/m",
                "api_base": f"http://127.0.0.1:{port}/v1",
                "api_key": "none",
                "max_parallel_requests": SEATS,
            },
        }
        for port in ports
    ]
    configuration = {
        "model_list": deployments,
        "router_settings": {
            "routing_strategy": "least-busy",
            "disable_cooldowns": True,
            "num_retries": 2,
            "timeout": 600,
        },
        "general_settings": {
            "max_in_flight_requests_per_worker": slots,
            "max_queued_requests_per_worker": slots * policy.depth_factor,
            "admission_queue_timeout_seconds": policy.ttl_s,
            "dangerously_permit_weak_or_unset_master_key": True,
        },
    }
    path = directory / "litellm.yaml"
    path.write_text(json.dumps(configuration))
    port = free_port()
    command = [
        peers_bin("litellm"), "--config", str(path), "--host", "127.0.0.1", "--port", str(port),
        "--telemetry", "False",
    ]  # fmt: skip
    return Server(command, port, directory / "litellm.log", {"LITELLM_LOG": "ERROR"})


def contestants(objective_s: float) -> tuple[Contestant, ...]:
    """Return the rows of the table: each proxy under each policy."""
    policies = (
        Policy(LONG_TTL_S, DEPTH_FACTOR),
        Policy(OBJECTIVE_SHARE * objective_s, UNBOUNDED_FACTOR),
    )
    proxies = (
        ("Lifeboat", _lifeboat, own_python),
        ("HAProxy", _haproxy, haproxy),
        ("LiteLLM", _litellm, partial(peers_bin, "litellm")),
    )
    return tuple(
        Contestant(f"{name}, {policy.ttl_s:g} s", partial(start, policy), program)
        for policy in policies
        for name, start, program in proxies
    )
