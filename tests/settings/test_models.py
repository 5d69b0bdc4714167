"""The models of the file: aliases, defaults, rates, the queue of single pools."""

from __future__ import annotations

from pathlib import Path

import pytest

from lifeboat.settings import ModelConfig, QueueOverride
from tests.settings.configured import configure, faults

BACKENDS = """
backends:
  - {name: a, url: 'http://h:1', models: [m, n]}
  - {name: e, url: 'http://h:2', models: [v], serves: [embed]}
"""


def test_an_alias_and_a_pool_with_its_own_queue_are_read(tmp_path: Path) -> None:
    text = """
models:
  gpt-4o-mini: {alias_of: m}
  m: {max_requests_per_minute: 15000, default: yes, queue: {enabled: on, ttl: 2m, max_depth: 0}}
  v:
"""
    assert configure(tmp_path, BACKENDS + text).models == (
        ModelConfig("gpt-4o-mini", alias_of="m"),
        ModelConfig(
            "m",
            default=True,
            max_requests_per_minute=15000,
            queue=QueueOverride(enabled=True, ttl_s=120.0, max_depth=0),
        ),
        ModelConfig("v"),
    )


@pytest.mark.parametrize(
    ("models", "told"),
    [
        ("{x: {alias_of: x}}", "models.x.alias_of = 'x': names itself"),
        ("{x: {alias_of: y}, y: {alias_of: m}}", "models.x.alias_of = 'y': is an alias itself"),
        ("{n: {alias_of: m}}", "hides the model 'n' of backend 'a'"),
        ("{x: {alias_of: m, default: true}}", "is an alias with settings of its own"),
        ("{m: {default: true}, n: {default: true}}", "'m' is the default for generate already"),
        ("{m: {max_requests_per_minute: 0}}", "a whole number from 1"),
        ("{m: {queue: {ttl: 0}}}", "above 0"),
        ("{m: {alias: x}}", "Did you mean alias_of?"),
        ("[m]", "must be a mapping of model names"),
        ("{' ': {}}", "must be a model name"),
    ],
)
def test_a_faulty_model_has_one_fault(tmp_path: Path, models: str, told: str) -> None:
    found = faults(tmp_path, f"{BACKENDS}models: {models}\n")
    assert len(found) == 1
    assert told in found[0]


def test_a_circle_of_aliases_is_refused_at_both_ends(tmp_path: Path) -> None:
    found = faults(tmp_path, f"{BACKENDS}models: {{x: {{alias_of: y}}, y: {{alias_of: x}}}}\n")
    assert len(found) == 2


def test_defaults_of_different_capabilities_may_stand_together(tmp_path: Path) -> None:
    text = f"{BACKENDS}models: {{m: {{default: true}}, v: {{default: true}}}}\n"
    assert [model.default for model in configure(tmp_path, text).models] == [True, True]


@pytest.mark.parametrize(
    ("extra", "warned"), [("", True), ("  - {name: c, url: 'http://h:3'}\n", False)]
)
def test_an_alias_of_what_nobody_serves_is_a_warning_unless_a_backend_keeps_its_list_to_itself(
    tmp_path: Path, extra: str, warned: bool
) -> None:
    text = f"{BACKENDS}{extra}models: {{x: {{alias_of: mm}}}}\n"
    warnings = configure(tmp_path, text).warnings
    assert len(warnings) == int(warned)
    assert not warned or "serves 'mm'; the nearest is 'm'" in warnings[0]
