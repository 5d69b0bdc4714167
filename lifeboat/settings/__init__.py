"""Settings: one table, one loader, typed results.

`load` puts flags, environment, file and defaults together and raises ConfigErrors with every
fault; `backend_from_mapping` reads a backend that registers itself.
"""

from __future__ import annotations

from lifeboat.settings.backends import backend_from_mapping
from lifeboat.settings.load import load
from lifeboat.settings.problems import ConfigErrors, Problem
from lifeboat.settings.shapes import (
    BackendConfig,
    Configuration,
    ModelConfig,
    QueueOverride,
    Settings,
)
from lifeboat.settings.texts import Address

__all__ = [
    "Address",
    "BackendConfig",
    "ConfigErrors",
    "Configuration",
    "ModelConfig",
    "Problem",
    "QueueOverride",
    "Settings",
    "backend_from_mapping",
    "load",
]
