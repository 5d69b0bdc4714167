"""The mode table, and how modes are spelled."""

from __future__ import annotations

import pytest

from lifeboat.core.modes import MODES, Mode, ParkedOrder, UnknownModeError, clamp, parse_mode


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("default", Mode.DEFAULT),
        ("max-concurrency", Mode.DEFAULT),
        ("MAX_CONCURRENCY", Mode.DEFAULT),
        ("superfast", Mode.SUPERFAST),
        (" SuperFast ", Mode.SUPERFAST),
        ("queue-all", Mode.QUEUE_ALL),
        ("queue_all", Mode.QUEUE_ALL),
        ("Queue-All", Mode.QUEUE_ALL),
    ],
)
def test_spellings_of_one_mode_are_one_mode(text: str, mode: Mode) -> None:
    assert parse_mode(text) is mode


@pytest.mark.parametrize("text", ["", "fast", "queue", "queueall", "queue all"])
def test_an_unknown_mode_is_an_error_that_lists_the_valid_ones(text: str) -> None:
    with pytest.raises(UnknownModeError) as caught:
        parse_mode(text)
    for name in ("default", "superfast", "queue-all", "max-concurrency", repr(text)):
        assert name in str(caught.value)


def test_the_table_says_what_the_contract_says() -> None:
    rows = {
        mode: (row.clamped, row.always_queues, row.held_when_down, row.long_wait, row.order)
        for mode, row in MODES.items()
    }
    assert rows == {
        Mode.DEFAULT: (False, False, False, False, ParkedOrder.SMALLEST_FIRST),
        Mode.SUPERFAST: (True, False, False, False, ParkedOrder.SMALLEST_FIRST),
        Mode.QUEUE_ALL: (False, True, True, True, ParkedOrder.FIFO),
    }


@pytest.mark.parametrize(
    ("mode", "limit", "clamped"),
    [
        (Mode.DEFAULT, 32, 32),
        (Mode.DEFAULT, None, None),
        (Mode.QUEUE_ALL, 32, 32),
        (Mode.QUEUE_ALL, None, None),
        (Mode.SUPERFAST, 32, 4),
        (Mode.SUPERFAST, 3, 3),
        (Mode.SUPERFAST, None, 4),
    ],
)
def test_only_superfast_clamps(mode: Mode, limit: int | None, clamped: int | None) -> None:
    assert clamp(mode, limit, 4) == clamped
