"""On the event loop of the command, with a clean log, and with the measured figures shown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping

import pytest
import uvloop


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "provokes_errors: the router is right to log an error")


MEASURED = pytest.StashKey[list[str]]()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Takes a figure that the end of the run shows, whether the test passes or not."""
    lines = request.config.stash.setdefault(MEASURED, [])

    def note(text: str) -> None:
        lines.append(f"{request.node.name}: {text}")

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = terminalreporter.config.stash.get(MEASURED, [])
    if lines:
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(autouse=True)
def _no_faults_in_the_log(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> Iterator[None]:
    """A fault of ours is logged as an error, with its traceback: none may be."""
    yield
    if request.node.get_closest_marker("provokes_errors") is not None:
        return
    faults = [
        f"{record.name}: {record.getMessage()}"
        for record in caplog.get_records("call")
        if record.levelno >= logging.ERROR
    ]
    assert not faults
