"""Fixtures of the tests that measure CPU time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.intake.slicing import without_collections


@pytest.fixture
def no_collections() -> Iterator[None]:
    with without_collections():
        yield
