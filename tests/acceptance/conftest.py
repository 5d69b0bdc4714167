"""Whatever a test provokes, the router must not stumble over it: no error in the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_faults_in_the_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A fault of ours is logged as an error, with its traceback: none may be."""
    yield
    faults = [
        f"{record.name}: {record.getMessage()}"
        for record in caplog.get_records("call")
        if record.levelno >= logging.ERROR
    ]
    assert not faults
