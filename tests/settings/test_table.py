"""The settings table against the contract, the typed result, and itself."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from lifeboat.settings import Settings
from lifeboat.settings.table import SETTINGS, Setting, environment_names
from tests.settings.configured import configure


def test_each_row_fills_one_attribute_and_each_attribute_has_a_row() -> None:
    names = [row.name for row in SETTINGS]
    attributes = [field.name for field in fields(Settings) if field.name != "sources"]
    assert sorted(names) == sorted(attributes)


def test_no_spelling_is_used_twice() -> None:
    for spellings in (
        [row.env for row in SETTINGS],
        [row.flag for row in SETTINGS if row.flag is not None],
        [row.yaml for row in SETTINGS if row.yaml is not None],
    ):
        assert len(set(spellings)) == len(spellings)


@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: row.name)
def test_a_default_obeys_its_own_rule(row: Setting) -> None:
    if row.default not in (None, ()):
        assert row.kind.parse(row.default) == row.default


def test_secrets_have_no_flag_and_a_file() -> None:
    for row in SETTINGS:
        if row.secret:
            assert row.flag is None
            assert row.from_file


# Attribute -> variable, default: the contract's table, word for word, so that a change of either
# is a decision and not a slip.
CONTRACT: dict[str, tuple[str, object]] = {
    "config": ("CONFIG", None),
    "host": ("HOST", "127.0.0.1"),
    "port": ("PORT", 8400),
    "mode": ("LB_MODE", "default"),
    "queue_enabled": ("LB_QUEUE_ENABLED", False),
    "queue_ttl_s": ("LB_QUEUE_TTL_SEC", 30.0),
    "queue_depth_multiplier": ("LB_QUEUE_MAX_DEPTH_MULTIPLIER", 4),
    "queue_max_depth": ("LB_QUEUE_MAX_DEPTH", None),
    "boost_s": ("LB_QUEUE_DEADLINE_BOOST_SEC", 10.0),
    "early_refusal": ("LB_EARLY_REFUSAL", False),
    "queue_all_ttl_s": ("LB_QUEUE_ALL_TTL_SEC", 600.0),
    "queue_all_depth_multiplier": ("LB_QUEUE_ALL_DEPTH_MULTIPLIER", 1000),
    "superfast_cap": ("LB_SUPERFAST_CAP", 4),
    "share": ("LB_SHARE", 1),
    "gguf_default_max_concurrency": ("LB_GGUF_DEFAULT_MAX_CONCURRENCY", 16),
    "default_max_concurrency": ("LB_DEFAULT_MAX_CONCURRENCY", 32),
    "reject_status": ("LB_REJECT_STATUS", 503),
    "redispatch": ("LB_REDISPATCH", True),
    "hold_when_down": ("LB_HOLD_WHEN_DOWN", False),
    "tokenizer": ("LB_TOKENIZER", "cl100k_base"),
    "image_tokens": ("LB_IMAGE_TOKENS", 2048),
    "audio_bytes_per_token": ("LB_AUDIO_BYTES_PER_TOKEN", 640),
    "max_body_bytes": ("MAX_BODY_BYTES", 67_108_864),
    "max_parked_bytes": ("LB_MAX_PARKED_BYTES", 1_073_741_824),
    "connect_timeout_s": ("UPSTREAM_CONNECT_TIMEOUT_SEC", 5.0),
    "first_byte_timeout_s": ("UPSTREAM_FIRST_BYTE_TIMEOUT_SEC", 1800.0),
    "idle_timeout_s": ("UPSTREAM_IDLE_TIMEOUT_SEC", 600.0),
    "client_head_timeout_s": ("CLIENT_HEAD_TIMEOUT_SEC", 30.0),
    "client_body_timeout_s": ("CLIENT_BODY_TIMEOUT_SEC", 60.0),
    "client_write_timeout_s": ("CLIENT_WRITE_TIMEOUT_SEC", 60.0),
    "client_keepalive_s": ("CLIENT_KEEPALIVE_SEC", 75.0),
    "ready_needs_backend": ("READY_NEEDS_BACKEND", False),
    "admin_addr": ("ADMIN_ADDR", None),
    "state_file": ("STATE_FILE", None),
    "shutdown_grace_s": ("SHUTDOWN_GRACE_SEC", 120.0),
    "shutdown_serve_parked": ("SHUTDOWN_SERVE_PARKED", False),
    "api_keys": ("API_KEYS", ()),
    "admin_token": ("ADMIN_TOKEN", None),
    "cors_origins": ("CORS_ORIGINS", ()),
    "log_format": ("LOG_FORMAT", "auto"),
    "log_level": ("LOG_LEVEL", "info"),
}


def test_variables_and_defaults_are_those_of_the_contract(tmp_path: Path) -> None:
    settings = configure(tmp_path).settings
    rows = {row.name: row for row in SETTINGS}
    found = {
        name: (rows[name].env.removeprefix("LIFEBOAT_"), getattr(settings, name))
        for name in CONTRACT
    }
    assert found == CONTRACT
    assert set(settings.sources.values()) == {"default"}
    assert {"LIFEBOAT_API_KEYS_FILE", "LIFEBOAT_ADMIN_TOKEN_FILE"} <= environment_names()
