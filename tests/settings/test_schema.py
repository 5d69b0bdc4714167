"""The JSON schema: current, valid, and of one mind with the loader."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

import lifeboat
from lifeboat.settings.schema import json_schema, schema_text
from tests.settings.configured import configure, faults

ROOT = Path(__file__).resolve().parents[2]
VALIDATOR = Draft202012Validator(json_schema())


def test_the_shipped_schema_is_current() -> None:
    shipped = Path(lifeboat.__file__).parent / "backends.schema.json"
    assert shipped.read_text(encoding="utf-8") == schema_text()


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(json.loads(schema_text()))


def test_the_repositorys_own_file_obeys_it_and_points_to_it() -> None:
    text = (ROOT / "backends.yaml").read_text(encoding="utf-8")
    VALIDATOR.validate(yaml.safe_load(text))
    first = text.splitlines()[0]
    assert first.startswith("# yaml-language-server: $schema=")
    assert (ROOT / first.partition("$schema=")[2]).is_file()


GOOD = [
    "mode: queue-all",
    "queue: {enabled: yes, ttl: 30s, boost: 500ms, max_depth: 0}",
    "queue:",
    "api_keys: [a, b]",
    "max_body_bytes: 64MiB",
    "share: ${SHARE:-0.5}",
    "backends: [{kind: simulated, simulate: {model: m}, replicas: 2}]",
    "backends: [{url: 'http://h:1', max_input_tokens: auto, tls: {verify: false}}]",
    "models: {a: {alias_of: b}, c: {queue: {ttl: 3}}}",
]
BAD = [
    "mode: fastest",
    "queue: {tll: 30s}",
    "queue: {ttl: 0}",
    "queue: {ttl: soon}",
    "port: 70000",
    "reject_status: 500",
    "backends: [{url: 'http://h:1', serves: [dance]}]",
    "backends: [{url: 'http://h:1', max_concurrency: -1}]",
    "models: {a: {alias: b}}",
]


@pytest.mark.parametrize("text", GOOD)
def test_schema_and_loader_accept_the_same(tmp_path: Path, text: str) -> None:
    assert VALIDATOR.is_valid(yaml.safe_load(text))
    configure(tmp_path, f"{text}\n")


@pytest.mark.parametrize("text", BAD)
def test_schema_and_loader_refuse_the_same(tmp_path: Path, text: str) -> None:
    assert not VALIDATOR.is_valid(yaml.safe_load(text))
    faults(tmp_path, f"{text}\n")
