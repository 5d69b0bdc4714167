"""Observers watch; they never disturb."""

from __future__ import annotations

import logging

import pytest

from lifeboat.core.vocabulary import Reason
from lifeboat.observe.events import Finished, LastRefusals, Observers
from tests.observe.scenes import finished


class Recorder:
    def __init__(self) -> None:
        self.seen: list[Finished] = []

    def finished(self, event: Finished, /) -> None:
        self.seen.append(event)


class Broken:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def finished(self, event: Finished, /) -> None:
        raise self.error


@pytest.mark.parametrize("error", [ValueError("negative"), RecursionError(), MemoryError()])
def test_an_observer_that_raises_disturbs_neither_the_caller_nor_the_others(
    error: Exception,
) -> None:
    """Case BUG-190: a metric that raises killed the stream it counted."""
    before, after = Recorder(), Recorder()
    observers = Observers((before, Broken(error), after), clock=lambda: 0.0)
    event = finished()
    observers.finished(event)
    assert before.seen == after.seen == [event]
    assert observers.errors == 1


def test_errors_are_logged_once_a_minute_with_their_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    observers = Observers((Broken(ValueError("negative")),), clock=lambda: now)
    with caplog.at_level(logging.ERROR, logger="lifeboat.observe"):
        for _ in range(50):
            observers.finished(finished())
        assert len(caplog.records) == 1
        now = 61.0
        observers.finished(finished())
    assert [record.args for record in caplog.records] == [("Broken", 1), ("Broken", 50)]
    assert observers.errors == 51


def test_a_log_that_fails_is_no_reason_to_fail_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(logging.getLogger("lifeboat.observe"), "exception", refuse)
    Observers((Broken(ValueError()),), clock=lambda: 0.0).finished(finished())


def test_the_last_refusals_are_remembered_by_reason() -> None:
    last = LastRefusals()
    last.finished(finished())
    last.finished(finished(reason=Reason.GATE, at_wall=5.0))
    last.finished(finished(reason=Reason.GATE, at_wall=7.0))
    last.finished(finished(reason=Reason.QUEUE_FULL, at_wall=6.0))
    assert last.seen_at == {Reason.GATE: 7.0, Reason.QUEUE_FULL: 6.0}
