"""The rules of the edge's parts as the settings mean them: made anew at every reload."""

from __future__ import annotations

from lifeboat.core.weights import DEFAULT_WEIGHTS, WEIGHTS
from lifeboat.edge.cors import Cors
from lifeboat.edge.dispatch import DispatchRules
from lifeboat.edge.entrance import EntranceRules
from lifeboat.edge.intake import IntakeRules
from lifeboat.edge.proxy import ProxyRules
from lifeboat.settings.shapes import Settings


def own_names(settings: Settings) -> tuple[str, ...]:
    """Return the host names that the router listens on."""
    admin = settings.admin_addr
    return (settings.host,) if admin is None else (settings.host, admin.host)


def cors(settings: Settings) -> Cors:
    """Return which web pages may ask."""
    return Cors(frozenset(settings.cors_origins))


def dispatch_rules(settings: Settings) -> DispatchRules:
    """Return the rules of an attempt."""
    return DispatchRules(
        settings.redispatch,
        settings.client_write_timeout_s,
        bool(settings.api_keys),
        cors(settings),
    )


def entrance_rules(settings: Settings) -> EntranceRules:
    """Return the timeouts of client connections."""
    return EntranceRules(
        settings.client_head_timeout_s,
        settings.client_keepalive_s,
        settings.client_write_timeout_s,
    )


def proxy_rules(settings: Settings) -> ProxyRules:
    """Return the rules of intake and refusals."""
    intake = IntakeRules(
        settings.max_body_bytes,
        settings.client_body_timeout_s,
        settings.image_tokens,
        settings.audio_bytes_per_token,
        WEIGHTS.get(settings.tokenizer, DEFAULT_WEIGHTS),
    )
    return ProxyRules(intake, settings.reject_status)
