"""HTTP in: intake, the endpoints, the journey of a request, refusals and the admin surface."""

from __future__ import annotations
