"""What is wrong with a configuration: key, value, rule and remedy, all problems at once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, TypeVar, cast


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake. rule: what is allowed. remedy: what to write instead."""

    key: str
    value: object
    rule: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.key}: {self.value!r} is not allowed: {self.rule}. {self.remedy}"


class ConfigError(ValueError):
    """A configuration that cannot be used; `problems` has at least one entry."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?")
_UNIT_S = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0}

_Member = TypeVar("_Member", bound=StrEnum)


class Fields:
    """Reads a mapping key by key and collects the problems instead of stopping at the first."""

    def __init__(self, mapping: Mapping[str, Any], path: str = "") -> None:
        self._mapping = mapping
        self._path = path
        self._read: set[str] = set()
        self.problems: list[Problem] = []

    def complain(self, key: str, rule: str, remedy: str) -> None:
        """Note a problem with the value of `key`."""
        self.problems.append(Problem(self._path + key, self._mapping.get(key), rule, remedy))

    def take(self, key: str) -> Any:
        """Return the raw value, None where it is absent, and mark the key as known."""
        self._read.add(key)
        return self._mapping.get(key)

    def text(self, key: str, default: str) -> str:
        """Return a non-empty string."""
        value = self.take(key)
        if value is None:
            return default
        if not isinstance(value, str) or not value:
            self.complain(key, "it must be a non-empty string", f"Write {key}: some-name.")
            return default
        return value

    def whole(self, key: str, default: int | None, *, least: int) -> int | None:
        """Return an integer of at least `least`."""
        value = self.take(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.complain(
                key, f"it must be a whole number of at least {least}", f"Write {key}: {least}."
            )
            return default
        return value

    def number(self, key: str, default: float, *, above: float) -> float:
        """Return a finite number greater than `above` (YAML reads `9e15` as text: that works)."""
        value = self.take(key)
        if value is None:
            return default
        try:
            figure = float("nan") if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            figure = float("nan")
        if not above < figure < float("inf"):
            self.complain(key, f"it must be a number above {above:g}", f"Write {key}: 1.")
            return default
        return figure

    def seconds(self, key: str, default: float) -> float:
        """Return a duration in seconds: a number, or text such as 30s, 500ms or 10m."""
        value = self.take(key)
        if value is None:
            return default
        match = None if isinstance(value, bool) else _DURATION.fullmatch(str(value).strip())
        if match is None:
            self.complain(key, "it must be a duration", f"Write {key}: 30s, 500ms or 10m.")
            return default
        return float(match[1]) * _UNIT_S[match[2]]

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean."""
        value = self.take(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.complain(key, "it must be true or false", f"Write {key}: true.")
            return default
        return value

    def member(self, key: str, kind: type[_Member], default: _Member) -> _Member:
        """Return a member of an enumeration."""
        value = self.take(key)
        if value is None:
            return default
        try:
            return kind(value)
        except ValueError:
            valid = ", ".join(kind)
            self.complain(key, f"it must be one of {valid}", f"Write {key}: {default}.")
            return default

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a string or a list of strings as a tuple; empty where it is absent."""
        value = self.take(key)
        if value is None:
            return ()
        if isinstance(value, str) and value:
            return (value,)
        if not isinstance(value, (list, tuple)) or not value:
            self.complain(key, "it must be a name or a list of names", f"Write {key}: [name].")
            return ()
        items = cast("list[Any]", value)
        if not all(isinstance(item, str) and item for item in items):
            self.complain(key, "every name must be a non-empty string", f"Write {key}: [name].")
            return ()
        return tuple(items)

    def finish(self) -> None:
        """Complain about keys that nobody asked for; raise ConfigError if anything is wrong."""
        for key in self._mapping:
            if key not in self._read:
                near = get_close_matches(str(key), self._read, n=1)
                remedy = f"Did you mean {near[0]}?" if near else "Remove it."
                known = ", ".join(sorted(self._read))
                self.problems.append(
                    Problem(
                        self._path + str(key), self._mapping[key], f"known keys are {known}", remedy
                    )
                )
        if self.problems:
            raise ConfigError(self.problems)
