"""What a configuration is once it has been read: frozen, typed, without doubt.

Seconds are floats, sizes are bytes. The rows behind each attribute, with their ranges and docs,
stand in `table`, `backend_fields` and `model_fields`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from lifeboat.core.modes import Mode
from lifeboat.core.scaling import ScalingPolicy
from lifeboat.core.vocabulary import Capability, Kind
from lifeboat.settings.texts import Address


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting, typed; `sources` says of each where its value came from.

    queue_max_depth: None where the multiplier decides; 0 parks nothing.
    api_keys: empty = the proxied paths are open. admin_token: None = changes from loopback only.
    cors_origins: empty = off; `*` alone = every origin.
    admin_addr: None = one listener for everything. state_file: None = registrations are forgotten.
    sources: `flag`, `environment`, `file` or `default`, by attribute name.
    """

    config: Path | None
    host: str
    port: int
    mode: Mode
    queue_enabled: bool
    queue_ttl_s: float
    queue_depth_multiplier: float
    queue_max_depth: int | None
    boost_s: float
    early_refusal: bool
    queue_all_ttl_s: float
    queue_all_depth_multiplier: float
    superfast_cap: int
    share: float
    gguf_default_max_concurrency: int
    default_max_concurrency: int
    reject_status: int
    redispatch: bool
    hold_when_down: bool
    tokenizer: str
    image_tokens: int
    audio_bytes_per_token: int
    max_body_bytes: int
    max_parked_bytes: int
    connect_timeout_s: float
    first_byte_timeout_s: float
    idle_timeout_s: float
    client_head_timeout_s: float
    client_body_timeout_s: float
    client_write_timeout_s: float
    client_keepalive_s: float
    probe_interval_s: float
    probe_timeout_s: float
    probe_failures: int
    models_interval_s: float
    fast_lane: bool
    ready_needs_backend: bool
    admin_addr: Address | None
    state_file: Path | None
    shutdown_grace_s: float
    shutdown_serve_parked: bool
    api_keys: tuple[str, ...] = field(repr=False)
    admin_token: str | None = field(repr=False)
    cors_origins: tuple[str, ...]
    log_format: Literal["auto", "json", "text"]
    log_level: Literal["debug", "info", "warning", "error"]
    sources: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """One backend as configured.

    url: None only for a simulated backend that runs embedded.
    models: None where the backend is asked for its own list.
    max_concurrency: None where nothing is configured; 0 disables the gate.
    adaptive: whether its limit is learned; None = as its pools say.
    max_input_tokens: 0 = no cap; "auto" = the engine's own.
    exact_border: near that cap the engine's own tokenizer decides.
    *_timeout_s: None where the global setting applies.
    simulate: for the embedded engine, which knows its keys.
    replicas: None for one backend under its own name.
    api_key: "" = given but empty: no credentials go there; None = the client's do.
    """

    name: str
    kind: Kind
    url: str | None = None
    models: tuple[str, ...] | None = None
    max_concurrency: int | None = None
    max_input_tokens: int | Literal["auto"] = 0
    exact_border: bool = False
    serves: frozenset[Capability] = frozenset({Capability.GENERATE})
    api_key: str | None = field(default=None, repr=False)
    connect_timeout_s: float | None = None
    first_byte_timeout_s: float | None = None
    idle_timeout_s: float | None = None
    tls_ca_file: Path | None = None
    tls_verify: bool = True
    simulate: Mapping[str, object] = field(default_factory=dict[str, object])
    replicas: int | None = None
    adaptive: bool | None = None

    @property
    def embedded(self) -> bool:
        """Tell whether the router runs this backend itself."""
        return self.url is None

    def expanded(self) -> tuple[BackendConfig, ...]:
        """Return the replicas as backends of their own: name-1 to name-N, or just this one."""
        if self.replicas is None:
            return (self,)
        return tuple(
            replace(self, name=f"{self.name}-{number}", replicas=None)
            for number in range(1, self.replicas + 1)
        )


@dataclass(frozen=True, slots=True)
class QueueOverride:
    """What one pool's queue does differently; None where the global setting applies."""

    enabled: bool | None = None
    ttl_s: float | None = None
    max_depth: int | None = None


@dataclass(frozen=True, slots=True)
class ScalingConfig:
    """How a pool is scaled, and by what.

    backend: the embedded backend whose replicas come and go; None where a command does it.
    command: an operator's program and its arguments, with placeholders. timeout_s: of one call.
    """

    policy: ScalingPolicy
    backend: str | None = None
    command: tuple[str, ...] = ()
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One entry of `models:`.

    alias_of: the model that this name stands for; an alias has no settings of its own.
    default: taken where a request may leave its model out.
    scaling: None = its backends are as configured. max_requests_per_minute: None = no limit.
    adaptive: its backends learn their limits.
    """

    name: str
    alias_of: str | None = None
    default: bool = False
    max_requests_per_minute: int | None = None
    queue: QueueOverride = QueueOverride()
    scaling: ScalingConfig | None = None
    adaptive: bool = False


@dataclass(frozen=True, slots=True)
class Configuration:
    """All of it, checked as a whole.

    backends: replicas already expanded. path: the file that was read, None without one.
    simulated_by_default: nothing was configured, so two embedded simulated backends stand in.
    """

    settings: Settings
    backends: tuple[BackendConfig, ...]
    models: tuple[ModelConfig, ...]
    warnings: tuple[str, ...]
    path: Path | None
    simulated_by_default: bool = False
