"""Settings and models as the gate's rules, and where each value in force comes from.

Held by tests/fleet/test_rules.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from lifeboat.core.modes import MODES, Mode
from lifeboat.core.rules import GateRules, PoolRules
from lifeboat.fleet.changes import UNSET, Unset
from lifeboat.settings.shapes import Configuration, ModelConfig, Settings
from lifeboat.settings.table import SETTINGS

API = "api"
"""The source of a value that was set over HTTP; the others are the settings'."""


@dataclass(frozen=True, slots=True)
class LiveMode:
    """What was set by API: it wins over the settings until it is reset. UNSET = nothing was."""

    mode: Mode | Unset = UNSET
    queue_enabled: bool | Unset = UNSET


def gate_rules(configuration: Configuration, live: LiveMode | None = None) -> GateRules:
    """Return everything configurable that bears on a decision of the gate."""
    settings = configuration.settings
    rules = GateRules(
        mode=settings.mode,
        queue_enabled=settings.queue_enabled,
        queue_ttl_s=settings.queue_ttl_s,
        queue_depth_multiplier=settings.queue_depth_multiplier,
        max_depth=settings.queue_max_depth,
        boost_s=settings.boost_s,
        queue_all_ttl_s=settings.queue_all_ttl_s,
        queue_all_depth_multiplier=settings.queue_all_depth_multiplier,
        superfast_cap=settings.superfast_cap,
        share=settings.share,
        default_max_concurrency=settings.default_max_concurrency,
        gguf_default_max_concurrency=settings.gguf_default_max_concurrency,
        hold_when_down=settings.hold_when_down,
        early_refusal=settings.early_refusal,
        max_parked_bytes=settings.max_parked_bytes,
        pools={
            model.name: _pool_rules(model)
            for model in configuration.models
            if model.alias_of is None
        },
    )
    if live is None:
        return rules
    if not isinstance(live.mode, Unset):
        rules = replace(rules, mode=live.mode)
    if not isinstance(live.queue_enabled, Unset):
        rules = replace(rules, queue_enabled=live.queue_enabled)
    return rules


def _pool_rules(model: ModelConfig) -> PoolRules:
    return PoolRules(
        queue_enabled=model.queue.enabled,
        queue_ttl_s=model.queue.ttl_s,
        max_depth=model.queue.max_depth,
        max_requests_per_minute=model.max_requests_per_minute or 0,
        # A pool that sleeps is woken by what it holds.
        hold_when_down=model.scaling is not None and model.scaling.policy.least == 0,
        adaptive=model.adaptive,
    )


_SHOWN: Mapping[str, str] = {
    "queue_depth_multiplier": "queue_depth_multiplier",
    "queue_deadline_boost_sec": "boost_s",
    "superfast_cap": "superfast_cap",
    "share": "share",
    "hold_when_down": "hold_when_down",
}
"""Key of the state -> the setting behind it, where the mode plays no part."""


def value_sources(settings: Settings, rules: GateRules, live: LiveMode) -> dict[str, str]:
    """Return `api`, `flag`, `environment`, `file` or `default` for each value the state shows."""
    long_wait = MODES[rules.mode].long_wait
    sources = {key: settings.sources.get(name, "default") for key, name in _SHOWN.items()}
    pairs = (
        ("queue_ttl_sec", "queue_all_ttl_s" if long_wait else "queue_ttl_s"),
        ("routing_mode", "mode"),
        ("queue_enabled", "queue_enabled"),
    )
    sources |= {key: settings.sources.get(name, "default") for key, name in pairs}
    if long_wait:
        name = "queue_all_depth_multiplier"
        sources["queue_depth_multiplier"] = settings.sources.get(name, "default")
    if not isinstance(live.mode, Unset):
        sources["routing_mode"] = API
    if not isinstance(live.queue_enabled, Unset):
        sources["queue_enabled"] = API
    return sources


LIVE = frozenset(
    {
        "mode", "queue_enabled", "queue_ttl_s", "queue_depth_multiplier", "queue_max_depth",
        "boost_s", "queue_all_ttl_s", "queue_all_depth_multiplier", "superfast_cap", "share",
        "gguf_default_max_concurrency", "default_max_concurrency", "hold_when_down",
        "early_refusal",
        "connect_timeout_s", "first_byte_timeout_s", "idle_timeout_s", "probe_interval_s",
        "probe_timeout_s", "models_interval_s", "reject_status", "redispatch", "image_tokens",
        "audio_bytes_per_token", "max_body_bytes", "max_parked_bytes", "client_head_timeout_s",
        "client_body_timeout_s", "client_write_timeout_s", "client_keepalive_s",
        "ready_needs_backend", "shutdown_grace_s", "shutdown_serve_parked", "api_keys",
        "admin_token", "cors_origins", "log_level",
    }
)  # fmt: skip
"""Settings that a reload puts in force; the others are read at the start alone."""

_NOT_COMPARED = LIVE | {"config", "sources"}


def frozen_changes(running: Settings, wanted: Settings) -> list[str]:
    """Return the settings that a reload changes in vain, by the variables' or files' names."""
    rows = {row.name: row for row in SETTINGS}
    return [
        ".".join(row.yaml) if (row := rows[field.name]).yaml else row.env
        for field in fields(Settings)
        if field.name not in _NOT_COMPARED
        and getattr(running, field.name) != getattr(wanted, field.name)
    ]
