"""Every type of value: what it takes, what it makes of it, what it refuses."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifeboat.core.modes import Mode
from lifeboat.settings.quantities import (
    Duration,
    Integer,
    IntegerChoice,
    Number,
    Size,
    TokenCap,
)
from lifeboat.settings.texts import (
    Address,
    FilePath,
    Host,
    HostPort,
    Key,
    Keys,
    Origins,
    Text,
    Words,
)
from lifeboat.settings.values import BadValueError, Boolean, Choice, ModeName, ValueType

SECONDS = Duration(0, 1000, above=True)
COUNT = Integer(1, 100)
FRACTION = Number(0, 1, above=True)

ACCEPTED: list[tuple[ValueType, object, object]] = [
    (Boolean(), "true", True),
    (Boolean(), "YES", True),
    (Boolean(), "on", True),
    (Boolean(), "1", True),
    (Boolean(), 1, True),
    (Boolean(), True, True),
    (Boolean(), "False", False),
    (Boolean(), "no", False),
    (Boolean(), "off", False),
    (Boolean(), 0, False),
    (COUNT, "4", 4),
    (COUNT, " 4 ", 4),
    (COUNT, "4\x1f", 4),
    (COUNT, 100, 100),
    (FRACTION, "0.5", 0.5),
    (FRACTION, 1, 1),
    (FRACTION, "5e-1", 0.5),
    (SECONDS, 30, 30.0),
    (SECONDS, "30", 30.0),
    (SECONDS, "30s", 30.0),
    (SECONDS, "500ms", 0.5),
    (SECONDS, "10m", 600.0),
    (SECONDS, "1.5m", 90.0),
    (Duration(0, 1e6), "2h", 7200.0),
    (Duration(0, 1e6), "1d", 86400.0),
    (Duration(0, 10), 0, 0.0),
    (Size(1, 1 << 40), 67108864, 67108864),
    (Size(1, 1 << 40), "64MiB", 67108864),
    (Size(1, 1 << 40), "1 GB", 10**9),
    (TokenCap(), "auto", "auto"),
    (TokenCap(), 0, 0),
    (TokenCap(), "8192", 8192),
    (IntegerChoice((503, 429, 529)), "529", 529),
    (Choice(("json", "text")), "JSON", "json"),
    (ModeName(), "queue_all", Mode.QUEUE_ALL),
    (ModeName(), "Queue-All", Mode.QUEUE_ALL),
    (ModeName(), "max-concurrency", Mode.DEFAULT),
    (Host(), "router.example", "router.example"),
    (Host(), "::1", "::1"),
    (HostPort(), "127.0.0.1:8401", Address("127.0.0.1", 8401)),
    (HostPort(), "[::1]:8401", Address("::1", 8401)),
    (HostPort(), "localhost:0", Address("localhost", 0)),
    (FilePath(), "a/b", Path("a/b")),
    (Text("a word"), " word ", "word"),
    (Words(Text("a word"), "words"), ["a", "b"], ("a", "b")),
    (Keys(), "one, two,one", ("one", "two")),
    (Keys(), "one\r\ntwo\n", ("one", "two")),
    (Keys(), ["one", "two"], ("one", "two")),
    (Origins(), "*", ("*",)),
    (Origins(), "https://A.example, http://b:8080", ("https://a.example", "http://b:8080")),
    (Origins(), ["app://obsidian.md", "null://x"], ("app://obsidian.md", "null://x")),
    (Key(), "s3cret", "s3cret"),
]

REFUSED: list[tuple[ValueType, object]] = [
    (FilePath(), "~nobody-of-that-name/x"),
    (Boolean(), "maybe"),
    (Boolean(), 2),
    (Boolean(), 1.0),
    (Boolean(), None),
    (COUNT, 0),
    (COUNT, 101),
    (COUNT, True),
    (COUNT, 4.0),
    (COUNT, "4.0"),
    (COUNT, "1_0"),
    (COUNT, "٤"),
    (COUNT, "9" * 5000),
    (COUNT, []),
    (FRACTION, 0),
    (FRACTION, "1.01"),
    (FRACTION, True),
    (FRACTION, "inf"),
    (SECONDS, 0),
    (SECONDS, -1),
    (SECONDS, "-30s"),
    (SECONDS, "30 parsecs"),
    (SECONDS, "1.2.3s"),
    (SECONDS, "."),
    (SECONDS, "1001"),
    (SECONDS, True),
    (Size(1, 100), "1KiB"),
    (Size(1, 100), 0),
    (Size(1, 100), 5.0),
    (TokenCap(), -1),
    (TokenCap(), "automatic"),
    (TokenCap(), True),
    (IntegerChoice((503, 429, 529)), 500),
    (Choice(("json", "text")), "xml"),
    (Choice(("json", "text")), 1),
    (ModeName(), "fastest"),
    (ModeName(), 3),
    (Host(), ""),
    (Host(), "a b"),
    (Host(), "http://x"),
    (HostPort(), "8401"),
    (HostPort(), ":8401"),
    (HostPort(), "::1:8401"),
    (HostPort(), "[router]:8401"),
    (HostPort(), "localhost:70000"),
    (FilePath(), ""),
    (FilePath(), 3),
    (Text("a word"), "a\nb"),
    (Text("a word"), "a\x85b"),
    (Text("a word"), "a\ud800b"),
    (Text("a word"), "  "),
    (Text("a word"), 12),
    (Text("a word", longest=3), "four"),
    (Words(Text("a word"), "words"), "a"),
    (Words(Text("a word"), "words"), []),
    (Words(Text("a word"), "words"), ["a", "a"]),
    (Words(Text("a word"), "words"), ["a", 3]),
    (Keys(), ","),
    (Keys(), "a b"),
    (Keys(), 12345),
    (Origins(), ""),
    (Origins(), "*, https://a"),
    (Origins(), "a.example"),
    (Origins(), "https://a/"),
    (Origins(), "https://a/path"),
    (Origins(), "https://*.example"),
    (Origins(), "https://"),
    (Origins(), 5),
    (Key(), "a,b"),
    (Key(), "käse"),
    (Key(), 12345),
]


@pytest.mark.parametrize(("kind", "raw", "expected"), ACCEPTED)
def test_a_legal_value_becomes_its_type(kind: ValueType, raw: object, expected: object) -> None:
    value = kind.parse(raw)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(("kind", "raw"), REFUSED)
def test_an_illegal_value_is_refused(kind: ValueType, raw: object) -> None:
    with pytest.raises(BadValueError):
        kind.parse(raw)


@pytest.mark.parametrize("kind", [SECONDS, FRACTION, COUNT, Size(1, 100)])
@pytest.mark.parametrize("raw", [math.nan, math.inf, -math.inf, "nan", "NaN", "inf", "1e999"])
def test_what_is_no_finite_number_is_refused(kind: ValueType, raw: object) -> None:
    with pytest.raises(BadValueError):
        kind.parse(raw)


@pytest.mark.parametrize(
    ("kind", "raw", "written"), [(SECONDS, "2m", "120"), (Size(1, 1 << 40), "64MiB", "67108864")]
)
def test_a_variable_with_a_unit_is_told_the_plain_number(
    kind: ValueType, raw: str, written: str
) -> None:
    with pytest.raises(BadValueError, match=f"write {written}"):
        kind.parse(raw, plain=True)


@given(st.floats(min_value=0.001, max_value=1000, allow_nan=False))
def test_a_duration_reads_back_what_python_prints(seconds: float) -> None:
    assert SECONDS.parse(repr(seconds)) == seconds


@given(st.text(max_size=30) | st.integers() | st.floats() | st.none() | st.booleans())
def test_no_value_of_any_kind_raises_anything_else(raw: object) -> None:
    for kind in {type(kind): kind for kind, *_ in ACCEPTED}.values():
        try:
            kind.parse(raw)
        except BadValueError:
            pass
