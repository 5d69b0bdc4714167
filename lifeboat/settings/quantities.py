"""Numbers with a range: plain ones, seconds, bytes, token caps.

Not-a-number, infinity, a boolean where a number belongs, and underscores in digits are refused.
Held by tests/settings/test_values.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from lifeboat.settings.values import (
    PLACEHOLDER_SCHEMA,
    BadValueError,
    JsonSchema,
    or_placeholder,
)

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?([0-9]{1,18}(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][+-]?[0-9]{1,3})?")
_DURATION = re.compile(r"([0-9.]{1,40})\s*(ms|s|m|h|d)?")
_SIZE = re.compile(r"([0-9]{1,18})\s*(B|KiB|MiB|GiB|TiB|kB|MB|GB|TB)?", re.IGNORECASE)

SECONDS_PER_UNIT: Mapping[str, float] = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTES_PER_UNIT: Mapping[str, int] = {
    "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip


def _integer(raw: object) -> int:
    """Return a whole number; a boolean or a float is none."""
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and _INTEGER.fullmatch(raw.strip()):
        return int(raw.strip())
    raise BadValueError


def _number(raw: object) -> int | float:
    """Return a finite number; whole ones stay integers."""
    if isinstance(raw, str):
        text = raw.strip()
        if not _NUMBER.fullmatch(text):
            raise BadValueError
        return int(text) if _INTEGER.fullmatch(text) else _finite(float(text))
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise BadValueError
    return _finite(raw)


def _finite(number: int | float) -> int | float:
    if not math.isfinite(number):
        raise BadValueError
    return number


@dataclass(frozen=True, slots=True)
class IntegerChoice:
    """One of a few whole numbers."""

    numbers: tuple[int, ...]

    @property
    def rule(self) -> str:
        """Return the rule with all numbers."""
        return f"one of {', '.join(map(str, self.numbers))}"

    def parse(self, raw: object, *, plain: bool = False) -> int:
        """Return the number."""
        number = _integer(raw)
        if number not in self.numbers:
            raise BadValueError
        return number

    def schema(self) -> JsonSchema:
        """Return the schema."""
        return or_placeholder({"enum": list(self.numbers)})


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number from `least` to `most`."""

    least: int
    most: int

    @property
    def rule(self) -> str:
        """Return the rule with the range."""
        return f"a whole number from {self.least} to {self.most}"

    def parse(self, raw: object, *, plain: bool = False) -> int:
        """Return the number."""
        number = _integer(raw)
        if not self.least <= number <= self.most:
            raise BadValueError
        return number

    def schema(self) -> JsonSchema:
        """Return the schema."""
        return or_placeholder({"type": "integer", "minimum": self.least, "maximum": self.most})


@dataclass(frozen=True, slots=True)
class Number:
    """A number from `least` (`above`: not `least` itself) to `most`."""

    least: float
    most: float
    above: bool = False

    @property
    def rule(self) -> str:
        """Return the rule with the range."""
        return f"a number {_range(self.least, self.most, self.above)}"

    def parse(self, raw: object, *, plain: bool = False) -> int | float:
        """Return the number."""
        return _within(_number(raw), self.least, self.most, self.above)

    def schema(self) -> JsonSchema:
        """Return the schema."""
        least = "exclusiveMinimum" if self.above else "minimum"
        return or_placeholder({"type": "number", least: self.least, "maximum": self.most})


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds, as a plain number or with a unit: 500ms, 30s, 10m, 2h, 1d."""

    least_s: float
    most_s: float
    above: bool = False

    @property
    def rule(self) -> str:
        """Return the rule with the range."""
        return f"a number of seconds {_range(self.least_s, self.most_s, self.above)}"

    def parse(self, raw: object, *, plain: bool = False) -> float:
        """Return seconds."""
        seconds: int | float
        match = _DURATION.fullmatch(raw.strip()) if isinstance(raw, str) else None
        if match is not None and match[2] is not None:
            seconds = _number(match[1]) * SECONDS_PER_UNIT[match[2]]
            if plain:
                raise BadValueError(f"The variable is a plain number of seconds: write {seconds:g}")
        else:
            seconds = _number(raw)
        return float(_within(seconds, self.least_s, self.most_s, self.above))

    def schema(self) -> JsonSchema:
        """Return the schema."""
        least = "exclusiveMinimum" if self.above else "minimum"
        number: JsonSchema = {"type": "number", least: self.least_s, "maximum": self.most_s}
        text: JsonSchema = {"type": "string", "pattern": r"^[0-9.]+\s*(ms|s|m|h|d)$"}
        return {"anyOf": [number, text, PLACEHOLDER_SCHEMA]}


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes, as a plain number or with a unit: 512KiB, 64MiB, 1GiB."""

    least: int
    most: int

    @property
    def rule(self) -> str:
        """Return the rule with the range."""
        return f"a number of bytes from {self.least} to {self.most}"

    def parse(self, raw: object, *, plain: bool = False) -> int:
        """Return bytes."""
        match = _SIZE.fullmatch(raw.strip()) if isinstance(raw, str) else None
        if match is not None and match[2] is not None:
            size = int(match[1]) * _BYTES_PER_UNIT[match[2].lower()]
            if plain:
                raise BadValueError(f"The variable is a plain number of bytes: write {size}")
        else:
            size = _integer(raw)
        if not self.least <= size <= self.most:
            raise BadValueError
        return size

    def schema(self) -> JsonSchema:
        """Return the schema."""
        number: JsonSchema = {"type": "integer", "minimum": self.least, "maximum": self.most}
        text: JsonSchema = {"type": "string", "pattern": r"^[0-9]+\s*([KMGT]i?)?B$"}
        return {"anyOf": [number, text, PLACEHOLDER_SCHEMA]}


def _range(least: float, most: float, above: bool) -> str:
    if above:
        return f"above {least:.15g} and at most {most:.15g}"
    return f"from {least:.15g} to {most:.15g}"


def _within(number: int | float, least: float, most: float, above: bool) -> int | float:
    if number < least or number > most or (above and number == least):
        raise BadValueError
    return number


@dataclass(frozen=True, slots=True)
class TokenCap:
    """An input cap in tokens, 0 for none, or `auto` for the engine's own."""

    rule: str = "a whole number from 0 (no cap) to 1000000000, or auto (the engine's own cap)"

    def parse(self, raw: object, *, plain: bool = False) -> int | str:
        """Return the number, or "auto"."""
        if isinstance(raw, str) and raw.strip().lower() == "auto":
            return "auto"
        return Integer(0, 1_000_000_000).parse(raw)

    def schema(self) -> JsonSchema:
        """Return the schema."""
        number: JsonSchema = {"type": "integer", "minimum": 0, "maximum": 1_000_000_000}
        return {"anyOf": [number, {"const": "auto"}, PLACEHOLDER_SCHEMA]}
