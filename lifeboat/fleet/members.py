"""The backends as the rest of the router sees them: where each one is and how to reach it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from lifeboat.core.urls import server_root
from lifeboat.core.vocabulary import Capability, Kind
from lifeboat.fleet.changes import InputCap
from lifeboat.settings.shapes import BackendConfig, Settings


class Origin(StrEnum):
    """Who brought a backend in."""

    FILE = "file"
    """The configuration: the file, or `--backend` flags."""
    REGISTERED = "registered"
    """`POST /api/lb/backends`."""
    SCALED = "scaled"
    """Autoscaling, as one more replica of a configured one."""
    DEFAULT = "default"
    """Nobody: nothing was configured."""


@dataclass(frozen=True, slots=True)
class Member:
    """One backend: its address, its credentials and the timeouts in force for it.

    url: the server's root (core.urls). max_concurrency: None where nothing is configured.
    max_input_tokens: as configured; "auto" = the engine's own.
    models: as configured; None where the backend is asked.
    ttl_s: how long it stays without a heartbeat; None = until it is removed.
    embedded: the router runs it itself.
    api_key: "" = no credentials go there; None = the client's do.
    """

    name: str
    kind: Kind
    url: str
    serves: frozenset[Capability]
    api_key: str | None = field(repr=False)
    connect_timeout_s: float
    first_byte_timeout_s: float
    idle_timeout_s: float
    tls_ca_file: Path | None
    tls_verify: bool
    origin: Origin
    max_concurrency: int | None
    max_input_tokens: InputCap
    models: tuple[str, ...] | None
    ttl_s: float | None = None
    embedded: bool = False


def member_of(
    config: BackendConfig,
    url: str,
    settings: Settings,
    origin: Origin,
    ttl_s: float | None = None,
) -> Member:
    """Return the member that a configured backend at `url` is, its timeouts filled in."""

    def effective(own: float | None, general: float) -> float:
        return general if own is None else own

    return Member(
        name=config.name,
        kind=config.kind,
        url=server_root(url),
        serves=config.serves,
        api_key=config.api_key,
        connect_timeout_s=effective(config.connect_timeout_s, settings.connect_timeout_s),
        first_byte_timeout_s=effective(config.first_byte_timeout_s, settings.first_byte_timeout_s),
        idle_timeout_s=effective(config.idle_timeout_s, settings.idle_timeout_s),
        tls_ca_file=config.tls_ca_file,
        tls_verify=config.tls_verify,
        origin=origin,
        max_concurrency=config.max_concurrency,
        max_input_tokens=config.max_input_tokens,
        models=config.models,
        ttl_s=ttl_s,
        embedded=config.embedded,
    )
