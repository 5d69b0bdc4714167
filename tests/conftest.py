"""What every test gets: an environment without the operator's LIFEBOAT_* variables."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _no_lifeboat_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own settings must not decide whether a test passes."""
    for name in list(os.environ):
        if name.startswith("LIFEBOAT_") and name != "LIFEBOAT_SHARED":
            monkeypatch.delenv(name)
