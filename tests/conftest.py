"""What every test gets: none of the operator's variables, and examples without a clock."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# A deadline per example measures the machine, not the code. In CI the same examples come every
# time, so that a red run is the submission's doing; elsewhere each run looks at new ones.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(autouse=True)
def _no_lifeboat_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own settings must not decide whether a test passes."""
    for name in list(os.environ):
        if name.startswith("LIFEBOAT_") and name != "LIFEBOAT_SHARED":
            monkeypatch.delenv(name)
