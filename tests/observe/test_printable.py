"""Whatever a client calls itself, it stays on one line and encodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifeboat.observe.printable import encodable, iso_time, printable

ANY_TEXT = st.text(st.characters(), max_size=300)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("gpt-oss-20b", "gpt-oss-20b"),
        ("Llama 3 日本語 🛟", "Llama 3 日本語 🛟"),
        ("a\r\nforged line", "a\\u000d\\u000aforged line"),
        ("\x1b[31mred\x07", "\\u001b[31mred\\u0007"),
        ("\ud800", "\\ud800"),
        ("a\u2028b\u0085c", "a\\u2028b\\u0085c"),
        ("evil\u202egnp.exe", "evil\\u202egnp.exe"),
        ("\U000e0041", "\\U000e0041"),
        ("", ""),
        ("0123456789abc", "012345678…"),
    ],
)
def test_what_is_not_printable_is_written_as_its_escape(text: str, shown: str) -> None:
    assert printable(text, 10 if text.startswith("0") else 100) == shown


@given(ANY_TEXT, st.integers(1, 50))
def test_the_result_is_one_bounded_line_that_encodes(text: str, limit: int) -> None:
    shown = printable(text, limit)
    assert len(shown.splitlines()) <= 1
    assert shown.isprintable()
    assert len(shown) <= 10 * limit
    shown.encode()


@given(ANY_TEXT)
def test_encodable_text_encodes_and_good_text_is_unchanged(text: str) -> None:
    shown = encodable(text)
    shown.encode()
    assert len(shown) == len(text)
    assert all(a == b or "\ud800" <= a <= "\udfff" for a, b in zip(text, shown, strict=True))


@pytest.mark.parametrize(
    ("at_wall", "shown"),
    [
        (0.0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000.25, "2023-11-14T22:13:20.250Z"),
        (1_700_000_000.9999, "2023-11-14T22:13:20.999Z"),
    ],
)
def test_times_are_utc_to_the_millisecond(at_wall: float, shown: str) -> None:
    assert iso_time(at_wall) == shown
