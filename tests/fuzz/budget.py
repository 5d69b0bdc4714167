"""How much the fuzzers do.

    make test                     # some 30 s for all of them
    make fuzz                     # twenty times as many examples
    make fuzz FUZZ_SCALE=100      # a hundred times as many

Where CI is set the examples are the same each time (tests/conftest.py); elsewhere each run looks at
new ones, and what it finds is kept in .hypothesis and tried first the next time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from hypothesis import HealthCheck, settings

SCALE = float(os.environ.get("FUZZ_SCALE", "1"))
"""The budget, as a multiple of what `make test` spends."""

T = TypeVar("T", bound=Callable[..., None])


def examples(count: int) -> Callable[[T], T]:
    """Run a test on so many examples, times the scale."""
    return settings(
        max_examples=max(1, round(count * SCALE)),
        # A router of a module is shared by its examples on purpose, and sockets are slow.
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
