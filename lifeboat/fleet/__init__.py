"""Knowing the backends: who they are, how they are, what they serve, and how that changes.

`Fleet` is the whole of it for the rest of the router.
"""

from __future__ import annotations

from lifeboat.fleet.changes import UNSET, FleetError, Patch, Registration, Unset
from lifeboat.fleet.fleet import Fleet
from lifeboat.fleet.members import Member, Origin
from lifeboat.fleet.names import Ambiguous, ModelEntry, Resolved
from lifeboat.fleet.pace import Pace

__all__ = [
    "UNSET",
    "Ambiguous",
    "Fleet",
    "FleetError",
    "Member",
    "ModelEntry",
    "Origin",
    "Pace",
    "Patch",
    "Registration",
    "Resolved",
    "Unset",
]
