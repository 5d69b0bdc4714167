"""What the signals of the serving process mean."""

from __future__ import annotations

import asyncio

from lifeboat.cli.process import ECHO_S, Ending


class Told:
    """An ending with a clock that is set by hand."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.ended = 0
        self.now = 100.0
        self.ending = Ending(self.stop, self._end, lambda: self.now)

    def _end(self) -> None:
        self.ended += 1


def test_a_signal_that_uvloop_tells_twice_drains_and_does_not_end_at_once() -> None:
    told = Told()
    told.ending.signalled()
    told.now += ECHO_S / 2
    told.ending.signalled()
    assert told.stop.is_set()
    assert not told.ended


def test_a_second_signal_ends_at_once() -> None:
    told = Told()
    told.ending.signalled()
    told.now += 2 * ECHO_S
    told.ending.signalled()
    assert told.ended == 1
