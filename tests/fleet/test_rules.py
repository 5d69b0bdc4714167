"""Settings as the gate's rules, and where each value shown comes from."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from lifeboat.core.modes import Mode
from lifeboat.core.rules import GateRules, PoolRules
from lifeboat.fleet.rules import LIVE, LiveMode, frozen_changes, gate_rules, value_sources
from lifeboat.settings import ModelConfig, QueueOverride, Settings
from tests.fleet.scripted import configured


def test_every_rule_of_the_gate_has_its_setting() -> None:
    values = {
        "mode": Mode.SUPERFAST, "queue_enabled": True, "queue_ttl_s": 1.5,
        "queue_depth_multiplier": 2.5, "queue_max_depth": 7, "boost_s": 3.0,
        "queue_all_ttl_s": 8.0, "queue_all_depth_multiplier": 9.0, "superfast_cap": 2,
        "share": 0.5, "default_max_concurrency": 11, "gguf_default_max_concurrency": 12,
        "hold_when_down": True, "max_parked_bytes": 13, "early_refusal": True,
    }  # fmt: skip
    rules = gate_rules(configured(**values))
    for name, value in values.items():
        assert getattr(rules, "max_depth" if name == "queue_max_depth" else name) == value, name
    given = {field.name for field in fields(GateRules) if field.init}
    unmapped = given - set(values) - {"max_depth", "pools"}
    assert unmapped == set()


def test_models_have_their_own_rules_and_aliases_have_none() -> None:
    models = (
        ModelConfig("m", max_requests_per_minute=5, queue=QueueOverride(True, 2.0, 0)),
        ModelConfig("n"),
        ModelConfig("gpt", alias_of="m"),
    )
    assert gate_rules(configured(models=models)).pools == {
        "m": PoolRules(True, 2.0, 0, 5),
        "n": PoolRules(),
    }


@pytest.mark.parametrize(
    ("mode", "ttl_setting", "depth_setting"),
    [
        (Mode.DEFAULT, "queue_ttl_s", "queue_depth_multiplier"),
        (Mode.QUEUE_ALL, "queue_all_ttl_s", "queue_all_depth_multiplier"),
    ],
)
def test_the_source_shown_is_that_of_the_setting_the_mode_uses(
    mode: Mode, ttl_setting: str, depth_setting: str
) -> None:
    configuration = configured(mode=mode)
    settings = replace(
        configuration.settings, sources={ttl_setting: "flag", depth_setting: "environment"}
    )
    sources = value_sources(settings, gate_rules(configuration), LiveMode())
    assert sources["queue_ttl_sec"] == "flag"
    assert sources["queue_depth_multiplier"] == "environment"
    assert sources["routing_mode"] == "default"


def test_what_a_reload_changes_in_vain_is_named_by_its_key_and_without_its_value() -> None:
    running = configured().settings
    assert frozen_changes(running, replace(running, mode=Mode.QUEUE_ALL, idle_timeout_s=1.0)) == []
    assert frozen_changes(running, replace(running, port=9, tokenizer="quick")) == [
        "port",
        "estimate.tokenizer",
    ]


def test_the_live_settings_exist() -> None:
    assert {field.name for field in fields(Settings)} >= LIVE
