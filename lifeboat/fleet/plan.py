"""A configuration that is ready to be put in force, and whom it keeps.

Held by tests/fleet/test_reload.py and test_fleet_machine.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lifeboat.fleet.members import Origin
from lifeboat.settings.shapes import Configuration


@dataclass(frozen=True, slots=True)
class Plan:
    """A configuration that can be put in force. urls: of every backend, embedded ones started."""

    configuration: Configuration
    urls: Mapping[str, str] = field(default_factory=dict[str, str])

    def keeps(self, origin: Origin) -> bool:
        """Return whether a backend stays though the configuration does not name it."""
        if origin is Origin.REGISTERED:
            return True
        return origin is Origin.SCALED and scales(self.configuration)


def scales(configuration: Configuration) -> bool:
    """Return whether autoscaling adds replicas and takes them away."""
    return any(model.scaling is not None for model in configuration.models)
